"""Gradients that are off in a mode, the ranks that have them, and the names of modes in findings."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.ddp.gradient_modes.modes import ACCUMULATED, USED
from ddp_doctor.facts.ddp.gradients import GradientModes, GradientSync, Mode, OffInMode
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_culprits, ranks_at


@dataclass(frozen=True)
class Words:
    """``switch`` is what turns the mode on, ``without`` what to do instead, at ``cost``."""

    switch: str
    without: str
    cost: str


_STATIC = Words("static_graph=True", "Leave static_graph=True out", "Reentrant checkpoints no longer work")
_CHECKPOINT = Words(
    "checkpoint(use_reentrant=False)",
    "Train without activation checkpoints until torch is fixed",
    "Activations take memory again",
)
_COMPRESSED = "Gradients take twice the traffic again"

MODES = {
    "buckets": Words("several buckets", "Pass a bucket_cap_mb larger than the model", "Nothing overlaps"),
    "bucket-view": Words(
        "gradient_as_bucket_view=True",
        "Leave gradient_as_bucket_view=True out",
        "Memory for a second copy of all gradients",
    ),
    "accumulation": Words(
        "gradient accumulation under no_sync()",
        "Accumulate without no_sync()",
        "Every micro-step pays for an all-reduce",
    ),
    "unused": Words(
        "find_unused_parameters=True",
        "Let every rank use every parameter, multiplied by 0 where it must not count",
        "The unused branch is computed",
    ),
    "twice": Words("a parameter used twice", "Train with static_graph=True and look again", ""),
    "static-graph": _STATIC,
    "checkpoint": _CHECKPOINT,
    "checkpoint-static": Words(
        "static_graph=True and checkpoint(use_reentrant=True)",
        "Write checkpoint(use_reentrant=False), without static_graph=True",
        "None known",
    ),
    "fp16-compress": Words("fp16_compress_hook", "Leave the communication hook out", _COMPRESSED),
    "bf16-compress": Words("bf16_compress_hook", "Leave the communication hook out", _COMPRESSED),
    "powersgd": Words("powerSGD_hook", "Leave the communication hook out", _COMPRESSED),
}


#: What a gradient is the sum of, and how often each part enters: powers of 2 show which one is missing.
_PARTS: dict[str, tuple[tuple[int, ...], str]] = {
    "accumulation": (ACCUMULATED, "micro-step"),
    "twice": (USED, "use"),
    "static-graph": (USED, "use"),
    "checkpoint-static": (USED, "use"),
}


def without(mode: str) -> Remedy:
    """Do without the mode."""
    words = MODES[mode]
    return in_code(words.without, cost=words.cost, untried=CHANGES_TRAINING)


def lacks(mode: str, held: gradient_code.Reading, ranks: int) -> str:
    """What a gradient holds instead of the right value, as half a sentence."""
    ratios = {held.scale} if held.holds == "scaled" else set(held.shares.values())
    part = _part(mode, min(ratios)) if len(ratios) == 1 else ""
    if part:
        whose = "" if held.holds == "scaled" else f"of {name_list([f'rank {rank}' for rank in held.shares])} "
        return f"{whose}only {part}"
    if mode == "unused" and over_users(held, ranks):
        return "it is the mean over the ranks that use the parameter, not over all"
    if held.holds == "absent":
        return "there is none, though ranks use the parameter"
    return gradient_code.words(held, ranks).replace("times the mean", "times what it should be")


def over_users(held: gradient_code.Reading, ranks: int) -> bool:
    """Whether the sum was divided by the number of ranks that use the parameter."""
    users = len(held.shares)
    return held.holds == "shares" and all(abs(share * users - ranks) < 0.01 for share in held.shares.values())


def _part(mode: str, ratio: float) -> str:
    """``the first of the parameter's 2 uses counts``, by a ratio of the right value; "" where none explains it."""
    multiples, what = _PARTS.get(mode, ((), ""))
    entered = ratio * sum(multiples)
    if abs(entered - round(entered)) > 0.01 or not 0 < round(entered) < sum(multiples):
        return ""
    counted = [number for number, multiple in enumerate(multiples, 1) if round(entered) & multiple]
    if what == "use":
        return f"the {'first' if counted == [1] else 'second'} of the parameter's 2 uses counts"
    numbers = name_list([str(number) for number in counted])
    return (
        f"{what} {numbers} of {len(multiples)} counts"
        if len(counted) == 1
        else f"{what}s {numbers} of {len(multiples)} count"
    )


@dataclass(frozen=True)
class Off:
    """A gradient that is off, the mode, and the rank that has it."""

    rank: int
    ranks: int
    mode: str
    off: OffInMode


def modes(recording: Recording, name: str) -> Iterator[tuple[int, Mode]]:
    """Each rank's results of a mode."""
    for rank in recording.facts(GradientModes):
        yield from ((rank.rank or 0, mode) for mode in rank.fact.modes if mode.name == name)


def tested_modes(recording: Recording) -> list[str]:
    """The modes that some rank could test, in order."""
    all_modes = [mode for rank in recording.facts(GradientModes) for mode in rank.fact.modes]
    return list(dict.fromkeys(mode.name for mode in all_modes if mode.not_looked is None))


def off_in(recording: Recording, name: str, *, wrong: bool) -> list[Off]:
    """Wrong gradients, or (``wrong`` is false) only not the same everywhere."""
    ranks = recording.facts(GradientModes)[0].fact.world_size
    off_by_rank = [(rank, off) for rank, mode in modes(recording, name) for off in mode.off]
    return [Off(rank, ranks, name, off) for rank, off in off_by_rank if off.gradient.equal is not wrong]


def known_before(recording: Recording, *phases: str) -> bool:
    """Whether gradient_sync found these phases wrong already, as DD701 to DD704 report."""
    facts = [rank.fact for rank in recording.facts(GradientSync)]
    return any(getattr(fact, phase).off for fact in facts for phase in phases)


def draft(recording: Recording, off: Sequence[Off], names: Collection[str] = ()) -> Draft:
    """A finding about gradients that are off in one mode, or in those of ``names`` for one cause."""
    worst = max(off, key=lambda found: found.off.gradient.max_abs_error or 0.0)
    gradient, ranks = worst.off.gradient, sorted({found.rank for found in off})
    switches = name_list([MODES[name].switch for name in names or (worst.mode,)])
    held = lacks(worst.mode, gradient.held, worst.ranks)
    who = ranks_at(recording, ranks)
    return finding(
        rank_culprits(recording, GradientModes, _blamed(off, worst)),
        capital(f"with {switches} the gradient on {who} is wrong: {held}"),
        _evidence(worst),
        without(worst.mode),
        *remedies(recording, "gradient_modes"),
        confidence=Confidence.POSSIBLE if gradient.held.holds == "other" else Confidence.LIKELY,
        detail=f"{_places(off)}, on {who}. The model is the doctor's own: none of your code took part.",
    )


def _blamed(off: Sequence[Off], worst: Off) -> list[int]:
    """The minority with a wrong gradient, else the ranks whose share all gradients lack; none where it is unsure."""
    ranks = sorted({found.rank for found in off})
    if len(ranks) < worst.ranks:
        return ranks
    held = [found.off.gradient.held for found in off]
    same = all(reading == held[0] for reading in held)
    if not same or held[0].holds != "shares" or over_users(held[0], worst.ranks):
        return []
    return sorted(held[0].shares)


def _places(off: Iterable[Off]) -> str:
    """``Wrong after step 2: bucket 0: weight3, weight4; bucket 1: weight1``."""
    first = min(found.off.step for found in off)
    places: dict[str, set[str]] = defaultdict(set)
    for found in off:
        if found.off.step == first:
            where = "" if found.off.bucket is None else f"bucket {found.off.bucket}: "
            places[where].add(found.off.gradient.parameter)
    return f"Wrong after step {first}: " + "; ".join(
        where + ", ".join(sorted(names)) for where, names in sorted(places.items())
    )


def _evidence(off: Off) -> Evidence:
    gradient = off.off.gradient
    bucket = "" if off.off.bucket is None else f", bucket {off.off.bucket},"
    return gradient.evidence(
        f"gradient of {gradient.parameter}{bucket} on rank {off.rank} after step {off.off.step} in the mode {off.mode}"
    )
