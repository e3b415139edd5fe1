"""DD440: an all-reduce far below what NCCL's own constants give for its slowest link."""

from collections.abc import Iterator

from ddp_doctor.checks.node.topology import transport_wording
from ddp_doctor.facts.collectives import AllReduceFact, SizeResult
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.gpu.nvml import OS_MANAGED_MEMORY
from ddp_doctor.knowledge.topology.link_rates import BOUNDING, FAR_BELOW, LEAST_BYTES
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.settings import NO_TRIAL, unset
from ddp_doctor.views.gpus_of_ranks import gpu_of
from ddp_doctor.views.transports import Expected, Place, places, used_within
from ddp_doctor.wording.findings import possible
from ddp_doctor.wording.nodes import host, node_culprit


@rule("DD440", "all-reduce-far-below-its-path", Severity.WARNING, TopologyFact, AllReduceFact)
def far_below(recording: Recording) -> Iterator[Draft]:
    """An all-reduce on one node reaches less than a third of what its slowest link should carry.

    What it finds
        The bus bandwidth of all-reduces of 64 MiB and more, beside the rate that NCCL's own constants give for
        the slowest pair of GPUs that its log joins. One node whose GPUs all copy directly (P2P): what goes
        through host memory depends on more than a link. Silent where messages were smaller, where GPUs are
        busy, shared, in MIG mode or not known, or where the rate of a pair is not known.

    Why it matters
        A ring is as fast as its slowest link, and every training step waits for it.

    Remedy
        Settings that bound channels, buffers, threads, algorithms or protocols are unset first. Else compare PCIe width
        and generation under load, NVLink errors, clocks, and ACS on the bridges.

    References
        NCCL src/graph/topo.h: the constants; nccl-tests, doc/PERFORMANCE.md: bus bandwidth
    """
    world, measured = recording.world, best_of_large(recording)
    if world is None or world.nnodes > 1 or world.backend != "nccl" or measured is None:
        return
    for place in places(recording) if _alone(recording) else ():
        slowest = _slowest_link(recording, place)
        if slowest is None or measured.busbw_gb_per_s * FAR_BELOW >= (slowest.rate_gb_per_s or 0.0):
            continue
        pair = "-".join(slowest.gpus)
        yield possible(
            (node_culprit(recording, place.seen.node),),
            f"All-reduce on {host(recording, place.seen.node)} reaches {measured.busbw_gb_per_s:.3g} GB/s, less"
            f" than a third of what its slowest link should carry ({slowest.rate_gb_per_s:.3g} GB/s, {pair})",
            Evidence(
                check="allreduce",
                text=f"bus bandwidth at {measured.size_bytes >> 20} MiB, slowest rank",
                value=round(measured.busbw_gb_per_s, 3),
                unit="GB/s",
                expected=slowest.rate_gb_per_s,
                expected_from=f"NCCL's own constants for {pair}, {slowest.code}",
            ),
            *_unlimited(place),
            transport_wording.COMPARE_LINKS,
            detail=f"NCCL goes by {transport_wording.NAMES[slowest.choice.kind]} there, and the GPUs were free.",
            reproduced_by=Reproducer(kind="all_reduce", size_bytes=LEAST_BYTES),
        )


def _unlimited(place: Place) -> Iterator[Remedy]:
    """Take away what somebody set that bounds how much NCCL moves at once."""
    held = {name: place.node.settings[name] for name in BOUNDING if name in place.node.settings}
    if held:
        yield unset(held, "NCCL then chooses by itself", proof=NO_TRIAL)


def _alone(recording: Recording) -> bool:
    """Whether each rank has a GPU of its own, known, whole and used by nobody else."""
    world = recording.world
    assert world is not None
    gpus = {(seen.node, gpu.index): gpu for seen in recording.facts(GpusFact) for gpu in seen.fact.gpus}
    used = [(world.node_of(rank), gpu_of(recording, rank)) for rank in range(world.world_size)]
    found = [gpus.get((node, index)) for node, index in used if index is not None]
    whole = all(
        gpu is not None
        and not gpu.mig_enabled
        and not gpu.computing()
        and not any(model in (gpu.name or "") for model in OS_MANAGED_MEMORY)
        for gpu in found
    )
    return whole and len(set(used)) == len(found) == world.world_size > 1


def _slowest_link(recording: Recording, place: Place) -> Expected | None:
    """The slowest pair that the log joins; None where one is not joined by P2P, or its rate is not known."""
    expected = {one.gpus: one for one in place.expected()}
    ways = []
    for used in used_within(recording, place):
        one, kinds = expected.get(used.gpus), used.kinds()
        if one is None or one.rate_gb_per_s is None or not kinds == {one.choice.kind} == {"P2P"}:
            return None
        ways.append(one)
    return min(ways, key=lambda one: one.rate_gb_per_s or 0.0, default=None)


def best_of_large(recording: Recording) -> SizeResult | None:
    """The best of the large sizes, of each the slowest rank."""
    by_size: dict[int, list[SizeResult]] = {}
    for seen in recording.facts(AllReduceFact):
        for result in seen.fact.sizes:
            if result.size_bytes >= LEAST_BYTES:
                by_size.setdefault(result.size_bytes, []).append(result)
    slowest = [min(results, key=lambda one: one.busbw_gb_per_s) for results in by_size.values()]
    return max(slowest, key=lambda one: one.busbw_gb_per_s, default=None)
