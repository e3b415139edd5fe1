"""DD441: NICs that a wider NCCL_NET_GDR_LEVEL would let read and write GPU memory themselves."""

from collections.abc import Iterator
from dataclasses import replace

from ddp_doctor.checks.node.topology.candidates import tree_hidden
from ddp_doctor.checks.node.topology.transport_wording import MOST_PAIRS, widen_gpudirect
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.gpu.nvml import OS_MANAGED_MEMORY
from ddp_doctor.knowledge.topology.nccl_paths import GDR_C2C_SINCE, GDR_LEVEL
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.links_between_nodes import rdma_of
from ddp_doctor.views.nic_choice import ToNetwork, to_network
from ddp_doctor.views.reproducers import everybody
from ddp_doctor.views.transports import Place, log_of, places
from ddp_doctor.wording.findings import NOBODY, possible
from ddp_doctor.wording.nodes import host, in_words
from ddp_doctor.wording.pcie import what_bends_the_path


@rule("DD441", "gpudirect-rdma-ends-before-the-nic", Severity.INFO, TopologyFact)
def ends_before_nic(recording: Recording) -> Iterator[Draft]:
    """GPUDirect RDMA is possible, and NCCL's own limit is nearer than the nearest NIC.

    What it finds
        For NCCL on several nodes: GPUs whose nearest NIC that NCCL takes is behind the CPU's host bridge (PHB
        or NODE), where module or dma-buf for GPUDirect RDMA are there and NCCL_NET_GDR_LEVEL is not set. Silent
        where NCCL goes through the NIC of another GPU (PXN), where access control or the IOMMU bend the path,
        in virtual machines that hide the PCIe tree, across sockets, and where NCCL's log shows GPUDirect RDMA
        all the same. Of Grace with a Hopper or Blackwell GPU, with NCCL before 2.27 only.

    Why it matters
        By default NCCL goes up to PXB, so all data between the nodes cross host memory. That is often right:
        many CPUs forward between PCIe devices slowly. Some sites set PHB for all their jobs.

    Remedy
        NCCL_NET_GDR_LEVEL=PHB is worth a measurement, no more: keep what is faster.

    References
        NCCL src/graph/paths.cc, ncclTopoCheckGdr; NVIDIA/nccl issues 465 and 1151 (CPUs are bad switches)
        and 1579 (SYS on GH200: 20 % faster); NERSC/podman-hpc issue 136 (PHB for all jobs, AMD EPYC)
    """
    world = recording.world
    if world is None or world.backend != "nccl" or world.nnodes < 2:
        return
    groups: dict[tuple[str, tuple[ToNetwork, ...]], list[int]] = {}
    for place in places(recording):
        level = _candidate(recording, place)
        ways = tuple(_gained(recording, place, level)) if level else ()
        if level and ways:
            groups.setdefault((level, ways), []).append(place.seen.node)
    for (level, ways), nodes in groups.items():
        gpus = in_words([way.gpu for way in ways])
        yield possible(
            NOBODY,
            f"NCCL's own limit keeps GPUDirect RDMA from {gpus} of"
            f" {in_words([host(recording, node) for node in nodes])}; {GDR_LEVEL}={level} is a candidate",
            (
                Evidence(text=f"{way.gpu} to {', '.join(way.nics)} is {way.code}; {way.why}")
                for way in ways[:MOST_PAIRS]
            ),
            widen_gpudirect(GDR_LEVEL, level),
            detail="It is possible there, and NCCL goes through host memory because the nearest NIC is behind the"
            " CPU. NCCL's choice is often right; not tried.",
            reproduced_by=everybody(recording),
        )


def _candidate(recording: Recording, place: Place) -> str | None:
    """The level that may be worth a trial on this node; None where NCCL's own is right, or it cannot be told."""
    node, rdma = place.seen.node, rdma_of(recording).get(place.seen.node)
    if GDR_LEVEL in place.node.settings or rdma is None or not rdma.chosen():
        return None
    networks = (one.network for one in log_of(recording, node).transports)
    if any(network is not None and network[2] for network in networks):  # in use already
        return None
    if any(name in (gpu.name or "") for gpu in place.gpus.values() for name in OS_MANAGED_MEMORY):
        return "SYS" if place.node.version and place.node.version < GDR_C2C_SINCE else None
    known = place.fact.cpu_vendor in {"GenuineIntel", "AuthenticAMD"} and not tree_hidden(place.fact)
    return "PHB" if known and rdma.unused_by is None and not what_bends_the_path(recording, node) else None


def _gained(recording: Recording, place: Place, level: str) -> Iterator[ToNetwork]:
    """The GPUs of the job that GPUDirect RDMA reaches with this level alone."""
    wider = replace(place.node, settings={**place.node.settings, GDR_LEVEL: level})
    after = {way.gpu: way for way in to_network(recording, replace(place, node=wider))}
    job = place.fact.job_gpus if place.fact.job_gpus is not None else place.fact.gpus
    for way in to_network(recording, place):
        then = after[way.gpu]
        if way.gpu in job and way.gpudirect is False and then.gpudirect and then.code == way.code:
            yield replace(way, why=then.why)
