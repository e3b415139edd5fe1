"""Off gradients: those that have one cause, and the ranks that it is to be blamed on."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.ddp.gradients import GradientSync
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.ranks import rank_culprits, ranks_at


@dataclass(frozen=True)
class Off:
    """An off gradient and the rank that has it."""

    rank: int
    world_size: int
    gradient: gradient_code.OffGradient


def off_in(seen: Sequence[FactAt[GradientSync]], *phases: str) -> list[Off]:
    """What is off in these phases of all ranks."""
    looks = ((one, getattr(one.fact, phase)) for one in seen for phase in phases)
    return [Off(one.rank or 0, one.fact.world_size, off) for one, look in looks for off in look.off]


def lost_a_step(held: gradient_code.Reading) -> bool:
    """Whether the accumulated gradient looks as if one of the two steps was not synchronised."""
    parts = {round(1 / 3, 4), round(2 / 3, 4)}  # the steps' gradients are once and twice the code
    return held.holds == "own" or bool(parts & {held.scale, *held.shares.values()})


def by_cause(off: Iterable[Off]) -> list[list[Off]]:
    """Group by what the gradients hold: one cause, one finding."""
    groups: dict[str, list[Off]] = defaultdict(list)
    for one in off:
        groups[one.gradient.held.model_dump_json()].append(one)
    return list(groups.values())


def _ranks(off: Iterable[Off]) -> list[int]:
    return sorted({one.rank for one in off})


def minority(off: Sequence[Off], wrong: Sequence[Off]) -> list[int]:
    """The ranks to blame: none where no rank is right, for that is no rank's fault."""
    return [] if len(_ranks(wrong)) == wrong[0].world_size else _ranks(off)


def who(recording: Recording, off: Sequence[Off]) -> str:
    """The ranks with these gradients, for a sentence."""
    return ranks_at(recording, _ranks(off))


def draft(recording: Recording, what: str, off: Sequence[Off], blamed: Iterable[int]) -> Draft:
    """A finding about gradients with one cause; ``what`` begins the title."""
    names = sorted({one.gradient.parameter for one in off})
    worst = max(off, key=lambda one: one.gradient.max_abs_error or 0.0)
    return finding(
        rank_culprits(recording, GradientSync, blamed),
        f"{what}: {gradient_code.words(worst.gradient.held, worst.world_size)}",
        _evidence(worst),
        *remedies(recording.world.backend if recording.world else "", "gradient_sync"),
        confidence=Confidence.POSSIBLE if worst.gradient.held.holds == "other" else Confidence.LIKELY,
        detail=f"Off are {', '.join(names)} of the probe's model, on {who(recording, off)}. Each rank's share"
        " is known in closed form, and none of your code took part.",
    )


def _evidence(off: Off) -> Evidence:
    return Evidence(
        text=f"worst element of the gradient of {off.gradient.parameter} on rank {off.rank}",
        value=off.gradient.got,
        expected=off.gradient.expected,
        expected_from="closed form of the ranks' known gradients, in float64",
    )
