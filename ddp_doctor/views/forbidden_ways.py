"""Settings that keep NCCL from a faster path between GPUs or between nodes.

DD434, DD436 and DD437 report them; the rules on settings skip them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.views.transports import Expected, Place, places

_BETWEEN_GPUS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL")


@dataclass(frozen=True)
class Loss:
    """The cost of one setting for one pair of GPUs."""

    having: Expected
    without: Expected

    @property
    def factor(self) -> float:
        """The speedup of the path without the setting; 1 if unknown."""
        fast, slow = self.without.rate_gb_per_s, self.having.rate_gb_per_s
        return fast / slow if fast and slow else 1.0


@dataclass(frozen=True)
class Forbidden:
    """A setting that has the same cost for the GPUs of some nodes."""

    name: str
    value: str
    seen: tuple[FactAt[TopologyFact], ...]
    losses: tuple[Loss, ...]

    @property
    def worst(self) -> Loss:
        """The pair with the largest loss."""
        return max(self.losses, key=lambda loss: loss.factor)

    @property
    def is_slower(self) -> bool:
        """True if a pair is known to be slower: by NCCL's constants, or because it uses the network."""
        return self.worst.factor > 1 or self.worst.having.choice.kind == "NET"


@once_a_recording
def between_gpus(recording: Recording) -> list[Forbidden]:
    """Return the settings that keep pairs of GPUs from a faster path, each with the nodes with the same cost."""
    if recording.command.is_of_root:
        return []  # the job's settings are not there yet
    groups = grouped(
        ((name, place.node.settings[name], tuple(loss.having.gpus for loss in losses)), (place, losses))
        for place in places(recording)
        for name in _BETWEEN_GPUS
        if (losses := _losses(place, name))
    )
    return [
        Forbidden(name, value, tuple(place.seen for place, _ in group), tuple(group[0][1]))
        for (name, value, _), group in groups.items()
    ]


def _losses(place: Place, name: str) -> list[Loss]:
    """Return the pairs that use another path only because of this setting, if the path without it is certain."""
    if name not in place.node.settings:
        return []
    others = {setting: value for setting, value in place.node.settings.items() if setting != name}
    after = {pair.gpus: pair for pair in place.expected(replace(place.node, settings=others))}
    losses = [Loss(pair, after[pair.gpus]) for pair in place.expected()]
    order = ("P2P", "SHM", "NET")
    return [
        loss
        for loss in losses
        if loss.without.choice.sure and order.index(loss.having.choice.kind) > order.index(loss.without.choice.kind)
    ]


def may_use_rdma(recording: Recording) -> bool:
    """Return True if the recording is of a job on NCCL over several nodes."""
    return recording.several_nodes and recording.on_nccl and not recording.command.is_of_root


def rdma_in_use(facts: Sequence[FactAt[RdmaFact]]) -> bool:
    """Return True if some node uses its RDMA ports."""
    return any(node.fact.unused_by is None and node.fact.chosen() for node in facts)


def forbidding_rdma(fact: RdmaFact) -> tuple[str, bool] | None:
    """Return the setting ``NAME=value`` that keeps a node from its RDMA ports, and True if all of them are RoCE."""
    ports = fact.candidates()
    if fact.unused_by is None or not ports:
        return None
    return fact.unused_by, all(port.is_roce for _, port in ports)


@once_a_recording
def settings_told(recording: Recording) -> frozenset[str]:
    """Return the settings whose cost DD434 and DD436 report above info."""
    names = {forbidden.name for forbidden in between_gpus(recording) if forbidden.is_slower}
    if may_use_rdma(recording):
        facts = recording.facts(RdmaFact)
        mixed = rdma_in_use(facts)
        causes = {cause for node in facts if (cause := forbidding_rdma(node.fact)) is not None}
        names |= {setting.partition("=")[0] for setting, roce in causes if mixed or not roce}
    return frozenset(names)
