"""DD408, DD409: GPUs far from every NIC, and far from the CPUs of the job."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.topology.culprits import culprit, hosts_of
from ddp_doctor.checks.node.topology.formats.cpu_list import share_a_cpu
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause, name_list

_ENFORCE_BINDING = "https://slurm.schedmd.com/sbatch.html#OPT_gres-flags"


@rule("DD408", "gpus-far-from-every-nic", Severity.INFO, TopologyFact)
def far_from_every_nic(recording: Recording) -> Iterator[Draft]:
    """GPUs that no RDMA NIC of their host is near to.

    What it finds
        GPUs that reach every RDMA NIC across the sockets alone (SYS), while other GPUs of the host have one
        nearer. Silent in a run on one node, which sends nothing over a NIC.

    Why it matters
        Between nodes their data crosses the link between the sockets, and GPUDirect RDMA, which NCCL uses up
        to PXB, is not for them. Behind NVLink NCCL may go through the NIC of another GPU instead (PXN).

    Remedy
        None by a setting. Where a job takes fewer GPUs than the host has, take those near a NIC.

    References
        NCCL src/graph/paths.cc, ncclTopoCheckGdr; NCCL_NET_GDR_LEVEL and NCCL_PXN_DISABLE in the user guide
    """
    if recording.world is not None and recording.world.nnodes == 1:
        return
    for gpus, group in by_cause(recording.facts(TopologyFact), _far_from_nics).items():
        fact = group[0].fact
        yield proved(
            (culprit(recording, seen.node, [gpu]) for seen in group for gpu in gpus),
            f"{name_list(gpus)} of {hosts_of(recording, group)} reach every RDMA NIC across the sockets",
            (Evidence(text=text) for text in fact.nearest_in_words()),
            detail=_nic_detail(fact, gpus),
        )


def _far_from_nics(fact: TopologyFact) -> tuple[str, ...] | None:
    nearest = {gpu: fact.nearest_hcas(gpu)[0] for gpu in fact.gpus}
    far = tuple(gpu for gpu, code in nearest.items() if code and link_codes.crosses_sockets(code))
    return far if far and len(far) < len(fact.gpus) else None


def _nic_detail(fact: TopologyFact, gpus: Sequence[str]) -> str:
    near = [gpu for gpu in fact.gpus if gpu not in gpus]
    if all(any(link_codes.nvlinks(fact.links[gpu][other]) for other in near) for gpu in gpus):
        return "They have NVLink to GPUs that are nearer to one, so NCCL may send through those (PXN)."
    return "What they send to other nodes crosses the link between the sockets, without GPUDirect RDMA."


@rule("DD409", "job-pinned-away-from-its-gpus", Severity.WARNING, TopologyFact)
def pinned_away(recording: Recording) -> Iterator[Draft]:
    """The job may run on no CPU near its GPUs.

    What it finds
        The CPUs that the scheduler, a container or taskset left to the doctor, and so to the job, all stand at
        other NUMA nodes than a GPU of the job. A warning where that is so for all its GPUs, an info for some.
        Not looked for in a prolog, whose CPUs are the daemon's.

    Why it matters
        Every kernel launch, every copy between host and GPU and all of NCCL's own threads then work across
        the link between the sockets, and the host buffers lie in the memory of the other socket.

    Remedy
        Let the scheduler choose CPUs that fit the GPUs, as SLURM does with --gres-flags=enforce-binding; a
        job that pins itself (numactl, taskset) is to be pinned to the GPU's own CPUs.

    References
        sysfs, local_cpulist of the GPU's PCI device; Cpus_allowed_list in proc(5)
        NCCL src/graph/topo.cc, ncclTopoGetCpuAffinity
    """
    if recording.options.command == "prolog":
        return
    for (gpus, some), group in by_cause(recording.facts(TopologyFact), _far_from_cpus).items():
        yield proved(
            (culprit(recording, seen.node, [gpu]) for seen in group for gpu in gpus),
            f"The job on {hosts_of(recording, group)} may run on no CPU near {name_list(gpus)}",
            _cpu_evidence(group[0], gpus),
            _near_cpus(group[0].fact, gpus),
            detail="Whatever goes between host and GPU crosses the link between CPU sockets or NUMA nodes.",
            severity=asked_for(recording, Severity.INFO if some else Severity.WARNING),
        )


def _far_from_cpus(fact: TopologyFact) -> tuple[tuple[str, ...], bool] | None:
    """The GPUs without a CPU of ours, and whether the job has others."""
    job = fact.job_gpus if fact.job_gpus is not None else fact.gpus
    allowed = fact.allowed_cpus or ""
    far = tuple(gpu for gpu in job if share_a_cpu(fact.near_cpus.get(gpu, ""), allowed) is False)
    return (far, len(far) < len(job)) if far else None


def _cpu_evidence(seen: FactAt[TopologyFact], gpus: Sequence[str]) -> Iterator[Evidence]:
    yield Evidence(text=f"CPUs that the job may use: {seen.fact.allowed_cpus}")
    for gpu in gpus:
        yield Evidence(text=f"CPUs near {gpu}: {seen.fact.near_cpus[gpu]}")


def _near_cpus(fact: TopologyFact, gpus: Sequence[str]) -> Remedy:
    return remedy(
        "Give the job CPUs of the NUMA node that its GPUs stand at",
        "sbatch --gres-flags=enforce-binding …   # SLURM chooses CPUs that fit the GPUs",
        f"taskset -c {fact.near_cpus[gpus[0]]} …   # where the job pins itself: those near {gpus[0]}",
        scope="job",
        cost="none, but the job may wait longer for such CPUs",
        undo="leave the option out",
        untried="it takes another allocation, or another start of the job",
        references=(_ENFORCE_BINDING,),
    )
