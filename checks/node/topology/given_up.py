"""DD434: settings that forbid a way the hardware has."""

from collections.abc import Iterator

from ddp_doctor.checks.node.topology import transport_wording as words
from ddp_doctor.checks.node.topology.culprits import hosts_of
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.settings.wording import shown
from ddp_doctor.views import forbidden_ways
from ddp_doctor.views.forbidden_ways import Forbidden
from ddp_doctor.views.reproducers import between_gpus
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import node_culprits


@rule("DD434", "setting-forbids-a-faster-way", Severity.WARNING, TopologyFact)
def forbidden(recording: Recording) -> Iterator[Draft]:
    """A setting that keeps NCCL from the way that the hardware has.

    What it finds
        NCCL_P2P_DISABLE=1, or an NCCL_P2P_LEVEL below NCCL's own limit, where GPUs are joined by NVLink, or
        are in reach of P2P and NVML reports it as OK; NCCL_SHM_DISABLE=1 where shared memory is what is left.
        Information only where NCCL's own constants do not show the way to be slower.

    Why it matters
        Such settings are set once against a hang, and stay in scripts for years, on machines without fault.
        All GPUs of the node then talk through host memory, or even through the network.

    Remedy
        Unset it and measure again. Where the job then hangs, ACS and the IOMMU are what to repair.

    References
        NCCL user guide, environment variables NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE
        NCCL src/graph/topo.h: the rates of links
    """
    for found in forbidden_ways.between_gpus(recording):
        yield _draft(recording, found)


def _draft(recording: Recording, found: Forbidden) -> Draft:
    worst = found.worst
    price = words.price(worst.without.rate_gb_per_s, worst.having.rate_gb_per_s)
    pairs = words.pair_names([loss.having.gpus for loss in found.losses])
    kept = words.NAMES[worst.without.choice.kind]
    hosts = hosts_of(recording, found.seen)
    return likely(
        (Culprit(kind="setting", name=found.name), *_nodes(recording, found)),
        f"{shown(found.name, found.value)} keeps NCCL from {kept} between GPUs of {hosts}: {pairs}",
        (
            Evidence(
                text=f"{'-'.join(loss.having.gpus)} is {loss.having.code}{words.rate(loss.without.rate_gb_per_s)},"
                f" {loss.without.choice.why}; now {loss.having.choice.kind}{words.rate(loss.having.rate_gb_per_s)}",
            )
            for loss in found.losses[: words.MOST_PAIRS]
        ),
        words.unset_setting(found.name, found.value, f"NCCL then uses {kept}"),
        detail=f"They talk over {words.NAMES[worst.having.choice.kind]} instead.{price}",
        severity=None if found.is_slower else Severity.INFO,
        reproduced_by=between_gpus(recording, found.seen[0].node, worst.having.gpus),
    )


def _nodes(recording: Recording, found: Forbidden) -> tuple[Culprit, ...]:
    """The nodes that have it, where others have not."""
    everywhere = len(found.seen) == len(recording.facts(TopologyFact))
    return () if everywhere else node_culprits(recording, found.seen)
