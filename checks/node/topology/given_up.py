"""DD434: settings that forbid a way the hardware has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.checks.node.topology import transport_wording as words
from ddp_doctor.checks.node.topology.culprits import hosts_of
from ddp_doctor.facts.topology import TopologyFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.nodes import node_culprits
from ddp_doctor.phrases.settings import shown
from ddp_doctor.views.reproducers import between_gpus
from ddp_doctor.views.transports import Expected, GpuPair, Place, places

_FORBIDDING = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL")


@dataclass(frozen=True)
class _Loss:
    """What one setting takes from one pair of GPUs."""

    having: Expected
    without: Expected


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
    if recording.options.command == "prolog":
        return  # the job's settings are not there yet
    groups: dict[tuple[str, str, tuple[GpuPair, ...]], list[tuple[Place, list[_Loss]]]] = {}
    for place in places(recording):
        for name in _FORBIDDING:
            losses = _losses(place, name)
            if losses:
                cause = (name, place.node.settings[name], tuple(loss.having.gpus for loss in losses))
                groups.setdefault(cause, []).append((place, losses))
    for (name, value, _), group in groups.items():
        yield _draft(recording, name, value, [place.seen for place, _ in group], group[0][1])


def _losses(place: Place, name: str) -> list[_Loss]:
    """The pairs that go another way for this setting alone, where it is certain what they would use."""
    if name not in place.node.settings:
        return []
    others = {other: value for other, value in place.node.settings.items() if other != name}
    after = {one.gpus: one for one in place.expected(replace(place.node, settings=others))}
    pairs = [_Loss(one, after[one.gpus]) for one in place.expected()]
    order = ("P2P", "SHM", "NET")
    return [
        one
        for one in pairs
        if one.without.choice.sure
        and order.index(one.having.choice.kind) > order.index(one.without.choice.kind)
    ]


def _draft(
    recording: Recording, name: str, value: str, seen: Sequence[Seen[TopologyFact]], losses: Sequence[_Loss]
) -> Draft:
    worst = max(losses, key=_factor)
    price = words.price(worst.without.rate_gb_per_s, worst.having.rate_gb_per_s)
    leaves = worst.having.choice.kind == "NET"
    pairs = words.pair_names([one.having.gpus for one in losses])
    kept = words.NAMES[worst.without.choice.kind]
    return Draft(
        title=f"{shown(name, value)} keeps NCCL from {kept} between GPUs of {hosts_of(recording, seen)}: {pairs}",
        detail=f"They talk over {words.NAMES[worst.having.choice.kind]} instead.{price}",
        severity=None if price or leaves else Severity.INFO,
        culprits=(Culprit(kind="setting", name=name), *_nodes(recording, seen)),
        evidence=tuple(
            Evidence(
                text=f"{'-'.join(one.having.gpus)} is {one.having.code}{words.rate(one.without.rate_gb_per_s)},"
                f" {one.without.choice.why}; now {one.having.choice.kind}{words.rate(one.having.rate_gb_per_s)}"
            )
            for one in losses[: words.MOST_PAIRS]
        ),
        remedies=(words.unset_setting(name, value, f"NCCL then uses {kept}"),),
        reproduced_by=between_gpus(recording, seen[0].node, worst.having.gpus),
    )


def _nodes(recording: Recording, seen: Sequence[Seen[TopologyFact]]) -> tuple[Culprit, ...]:
    """The nodes that have it, where others have not."""
    return node_culprits(recording, seen) if len(seen) < len(recording.facts(TopologyFact)) else ()


def _factor(loss: _Loss) -> float:
    """How many times faster the way without the setting is; 1 where it is not known."""
    fast, slow = loss.without.rate_gb_per_s, loss.having.rate_gb_per_s
    return fast / slow if fast and slow else 1.0


RULES = (forbidden,)
