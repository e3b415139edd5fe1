"""DD408, DD409, DD437, DD441: GPUs far from NICs or CPUs, and NICs that cannot access the memory of a nearby GPU."""

from collections.abc import Iterator
from dataclasses import replace

from ddp_doctor.checks.node.topology import wording
from ddp_doctor.checks.node.topology.formats.cpus import share_a_cpu
from ddp_doctor.checks.node.topology.p2p import tree_hidden
from ddp_doctor.checks.node.topology.wording import MOST_PAIRS, culprit, hosts_of
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.gpu.nvml import OS_MANAGED_MEMORY
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.nccl_paths import GDR_C2C_SINCE, GDR_LEVEL
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.hardware import LOAD_PEERMEM
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views.network import Staged, rdma_of, staged, to_network
from ddp_doctor.views.reproducers import between, everybody
from ddp_doctor.views.transports import Place, ToNetwork, log_of, places
from ddp_doctor.wording.findings import NOBODY, finding, possible, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause, hosts, name_list, node_culprit
from ddp_doctor.wording.pcie import what_bends_the_path


@rule("DD437", "gpudirect-rdma-not-used", Consequence.COST, TopologyFact)
def gpudirect_rdma_not_used(recording: Recording) -> Iterator[Draft]:
    """A NIC is near a GPU, but NCCL receives through host memory.

    Finds: Reports connections between nodes that NCCL's log shows as NET/IB without GDRDMA at the receiving end, over a
        NIC within PXB of the GPU, which is NCCL's own limit. Not reported for GeForce and TITAN, which have no
        GPUDirect RDMA, or if the kernel does not support it (DD339).
    Why: The data crosses host memory twice. Between nodes, this often halves the bandwidth, and it loads the CPU's
        memory.
    Remedy: Unset a setting that forbids it. Otherwise, make NCCL log the reason: it tests each GPU and each NIC.
    See: NCCL src/graph/paths.cc, ncclTopoCheckGdr; src/transport/net_ib/gdr.cc
        NCCL user guide, environment variable NCCL_NET_GDR_LEVEL
    """
    groups = grouped((_reason(recording, found), found) for found in staged(recording))
    for (reason, advice), group in groups.items():
        nodes = list(dict.fromkeys(found.crossing.node for found in group))
        pairs = name_list(list(dict.fromkeys(f"{found.nic} to {found.gpu}" for found in group)))
        yield finding(
            (
                node_culprit(recording, found.crossing.node, kind="nic", name=found.nic).model_copy(
                    update={"rank": found.crossing.ranks[0], "gpu": found.crossing.gpu}
                )
                for found in group
            ),
            f"NCCL does not use GPUDirect RDMA between NICs and nearby GPUs on {hosts(recording, nodes)}: {pairs}",
            map(_evidence, group[: wording.MOST_PAIRS]),
            advice,
            confidence=Confidence.POSSIBLE if advice is wording.SHOW_NETWORK else Confidence.LIKELY,
            detail=f"NCCL copies through host memory instead. {reason}.",
            reproduced_by=between(recording, group[0].crossing.ranks) if advice is not wording.SHOW_NETWORK else None,
        )


def _evidence(found: Staged) -> Evidence:
    receiver, sender = found.crossing.ranks
    return Evidence(
        text=f"{found.gpu} and {found.nic} are {found.code}; NCCL's log: rank {receiver} receives from rank {sender}"
        f" via {found.crossing.transport.via}"
    )


def _reason(recording: Recording, found: Staged) -> tuple[str, Remedy]:
    level = found.forbidding_level
    if level is not None:
        unset = wording.unset_setting(GDR_LEVEL, level, "NCCL then uses GPUDirect RDMA")
        return f"{GDR_LEVEL}={level} disables it", unset
    if found.nic in log_of(recording, found.crossing.node).no_gpu_direct:
        return "NCCL's log shows that it found no module for GPUDirect RDMA", LOAD_PEERMEM
    return "The recording does not show the reason", wording.SHOW_NETWORK


@rule("DD441", "gpudirect-rdma-ends-before-the-nic", Consequence.KNOWN, TopologyFact)
def gpudirect_rdma_ends_before_the_nic(recording: Recording) -> Iterator[Draft]:
    """GPUDirect RDMA is possible, but NCCL's own distance limit excludes the nearest NIC.

    Finds: For NCCL on several nodes, reports GPUs whose nearest NIC that NCCL uses is behind the CPU's host bridge (PHB
        or NODE), if the module or dma-buf for GPUDirect RDMA exists and NCCL_NET_GDR_LEVEL is not set. Not reported if
        NCCL uses the NIC of another GPU (PXN), if access control or the IOMMU redirects the path, in virtual machines
        that hide the PCIe tree, if the NIC is on another socket, or if NCCL's log shows GPUDirect RDMA anyway. For
        Grace with a Hopper or Blackwell GPU, it is reported only with NCCL before 2.27.
    Why: By default, NCCL uses GPUDirect RDMA up to PXB, so all data between the nodes crosses host memory. This is
        often the right choice, because many CPUs forward slowly between PCIe devices. Some sites set PHB for all their
        jobs.
    Remedy: Measure with NCCL_NET_GDR_LEVEL=PHB, and keep whichever is faster.
    See: NCCL src/graph/paths.cc, ncclTopoCheckGdr; NVIDIA/nccl issues 465 and 1151 (CPUs are bad switches)
        and 1579 (SYS on GH200: 20 % faster); NERSC/podman-hpc issue 136 (PHB for all jobs, AMD EPYC)
    """
    if not (recording.on_nccl and recording.several_nodes):
        return
    levels = [(place, _level_to_try(recording, place)) for place in places(recording)]
    wider = [(place, level, tuple(_gpus_gained(recording, place, level))) for place, level in levels if level]
    for (level, ways), nodes in grouped(
        ((level, ways), place.seen.node) for place, level, ways in wider if ways
    ).items():
        gpus = name_list([way.gpu for way in ways])
        yield possible(
            NOBODY,
            f"NCCL does not use GPUDirect RDMA for {gpus} of {hosts(recording, nodes)}: the"
            " nearest NIC is behind the CPU",
            (
                Evidence(text=f"{way.gpu} to {', '.join(way.nics)} is {way.code}; {way.why}")
                for way in ways[:MOST_PAIRS]
            ),
            nccl.by_setting(
                f"Measure the job with and without {GDR_LEVEL}={level} on the same nodes, and keep the faster one",
                Setting(name=GDR_LEVEL, value=level, why="NICs behind the CPU then access GPU memory"),
                cost="a slower network on every node whose CPU forwards slowly between PCIe devices",
            ),
            detail="By default, NCCL copies through host memory if the nearest NIC is behind"
            " the CPU. That is often right; nothing was tested.",
            reproduced_by=everybody(recording),
        )


def _level_to_try(recording: Recording, place: Place) -> str | None:
    """Return the level that may be worth testing on this node; None if NCCL's default is right or unknown."""
    node, rdma = place.seen.node, rdma_of(recording).get(place.seen.node)
    if GDR_LEVEL in place.node.settings or rdma is None or not rdma.chosen():
        return None
    networks = (transport.network for transport in log_of(recording, node).transports)
    if any(network is not None and network[2] for network in networks):  # already in use
        return None
    if any(name in (gpu.name or "") for gpu in place.gpus.values() for name in OS_MANAGED_MEMORY):
        return "SYS" if place.node.version and place.node.version < GDR_C2C_SINCE else None
    known = place.fact.cpu_vendor in {"GenuineIntel", "AuthenticAMD"} and not tree_hidden(place.fact)
    return "PHB" if known and rdma.unused_by is None and not what_bends_the_path(recording, node) else None


def _gpus_gained(recording: Recording, place: Place, level: str) -> Iterator[ToNetwork]:
    """Yield the GPUs of the job that GPUDirect RDMA reaches only with this level."""
    wider = replace(place.node, settings={**place.node.settings, GDR_LEVEL: level})
    after = {way.gpu: way for way in to_network(recording, replace(place, node=wider))}
    job = place.fact.job_gpus if place.fact.job_gpus is not None else place.fact.gpus
    for way in to_network(recording, place):
        then = after[way.gpu]
        if way.gpu in job and way.gpudirect is False and then.gpudirect and then.code == way.code:
            yield replace(way, why=then.why)


@rule("DD408", "gpus-far-from-every-nic", Consequence.KNOWN, TopologyFact)
def gpus_far_from_every_nic(recording: Recording) -> Iterator[Draft]:
    """GPUs are not near any RDMA NIC of their host.

    Finds: Reports GPUs that reach every RDMA NIC only across the sockets (SYS), while other GPUs of the host have a
        nearer one. Not reported for a run on one node, which sends nothing over a NIC.
    Why: Between nodes, their data crosses the link between the sockets, without GPUDirect RDMA, which NCCL uses only up
        to PXB. With NVLink, NCCL may use the NIC of another GPU instead (PXN).
    Remedy: No setting helps. If a job uses only some GPUs of the host, choose GPUs near a NIC.
    See: NCCL src/graph/paths.cc, ncclTopoCheckGdr; NCCL_NET_GDR_LEVEL and NCCL_PXN_DISABLE in the user guide
    """
    if recording.world is not None and recording.world.nnodes == 1:
        return
    for gpus, group in by_cause(recording.facts(TopologyFact), _gpus_far_from_nics).items():
        fact = group[0].fact
        near = [gpu for gpu in fact.gpus if gpu not in gpus]
        detail = "Their traffic to other nodes crosses the link between the sockets, without GPUDirect RDMA."
        if all(any(link_codes.nvlinks(fact.links[gpu].get(device, "")) for device in near) for gpu in gpus):
            detail = "NVLink connects them to GPUs that are nearer to a NIC, so NCCL may send through those (PXN)."
        yield proved(
            (culprit(recording, node.node, [gpu]) for node in group for gpu in gpus),
            f"{name_list(gpus)} of {hosts_of(recording, group)}: every RDMA NIC is on another CPU socket",
            (Evidence(text=text) for text in fact.nearest_in_words()),
            detail=detail,
        )


def _gpus_far_from_nics(fact: TopologyFact) -> tuple[str, ...] | None:
    nearest = {gpu: fact.nearest_hcas(gpu)[0] for gpu in fact.gpus}
    far = tuple(gpu for gpu, code in nearest.items() if code and link_codes.crosses_sockets(code))
    return far if far and len(far) < len(fact.gpus) else None


@rule("DD409", "job-pinned-away-from-its-gpus", Consequence.COST, TopologyFact)
def job_pinned_away_from_its_gpus(recording: Recording) -> Iterator[Draft]:
    """The job cannot run on any CPU near its GPUs.

    Finds: Reports if all CPUs that the scheduler, a container or taskset gave to ddp-doctor, and so to the job, belong
        to other NUMA nodes than a GPU of the job. Severity is warning if this applies to all its GPUs, and info for
        some. Not checked in a prolog, which has the CPUs of the daemon.
    Why: Every kernel launch, every copy between host and GPU, and all of NCCL's own threads then use the link between
        the sockets, and the host buffers are in the memory of the other socket.
    Remedy: Let the scheduler choose CPUs that match the GPUs, as SLURM does with --gres-flags=enforce-binding. If the
        job pins itself (numactl, taskset), pin it to the GPU's own CPUs.
    See: sysfs, local_cpulist of the GPU's PCI device; Cpus_allowed_list in proc(5)
        NCCL src/graph/topo.cc, ncclTopoGetCpuAffinity
    """
    if recording.command.is_of_root:
        return
    for (gpus, some), group in by_cause(recording.facts(TopologyFact), _gpus_far_from_cpus).items():
        near_cpus = group[0].fact.near_cpus[gpus[0]]
        # If some GPUs are near, this would move the job away from them.
        pin = (
            [] if some else [f"taskset -c {near_cpus} COMMAND   # CPUs near {gpus[0]}; set this in the job's launcher"]
        )
        yield proved(
            (culprit(recording, node.node, [gpu]) for node in group for gpu in gpus),
            f"The job on {hosts_of(recording, group)} cannot use the CPUs near {name_list(gpus)}",
            (
                Evidence(text=f"CPUs that the job may use: {group[0].fact.allowed_cpus}"),
                *(Evidence(text=f"CPUs near {gpu}: {group[0].fact.near_cpus[gpu]}") for gpu in gpus),
            ),
            remedy(
                "Bind the job to CPUs of its GPUs' NUMA node",
                "sbatch --gres-flags=enforce-binding SCRIPT   # SLURM chooses CPUs that fit the GPUs",
                *pin,
                scope="job",
                cost="possibly a longer wait for such CPUs",
                undo="remove the option",
                untried="requires another allocation or a restart of the job",
                references=("https://slurm.schedmd.com/sbatch.html#OPT_gres-flags",),
            ),
            detail="Traffic between host and GPU crosses the link between CPU sockets or NUMA nodes.",
            severity=asked_for(recording, Severity.INFO if some else Severity.WARNING),
        )


def _gpus_far_from_cpus(fact: TopologyFact) -> tuple[tuple[str, ...], bool] | None:
    """Return the GPUs that are not near any allowed CPU, and whether the job has others."""
    job = fact.job_gpus if fact.job_gpus is not None else fact.gpus
    allowed = fact.allowed_cpus or ""
    far = tuple(gpu for gpu in job if share_a_cpu(fact.near_cpus.get(gpu, ""), allowed) is False)
    return (far, len(far) < len(job)) if far else None
