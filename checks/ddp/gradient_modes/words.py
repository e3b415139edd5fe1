"""How findings speak of modes: what is written to turn one on, what to do without it, what a gradient lacks."""

from dataclasses import dataclass

from ddp_doctor.checks.ddp.gradient_modes.modes import ACCUMULATED, USED
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.finding import Remedy
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code
from ddp_doctor.wording.nodes import name_list


@dataclass(frozen=True)
class Words:
    """``switch`` is what turns the mode on, ``without`` what to do instead, at ``cost``."""

    switch: str
    without: str
    cost: str


_STATIC = Words("static_graph=True", "Leave static_graph=True out", "Reentrant checkpoints no longer work")
_CHECKPOINT = Words(
    "checkpoint(use_reentrant=False)",
    "Train without activation checkpoints until torch is mended",
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
        "gradient accumulation with no_sync()",
        "Accumulate without no_sync()",
        "Every micro-step pays for an all-reduce",
    ),
    "unused": Words(
        "find_unused_parameters=True",
        "Let every rank use every parameter, with a factor of 0 where it means none",
        "The unused branch is computed",
    ),
    "twice": Words("a parameter used twice", "Train with static_graph=True and look again", "None"),
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


#: What the parts of a gradient are called, and how often each enters: powers of 2 tell what is missing.
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
    """What a gradient holds in place of what is owed, as half a sentence."""
    ratios = {held.scale} if held.holds == "scaled" else set(held.shares.values())
    part = _part(mode, min(ratios)) if len(ratios) == 1 else ""
    if part:
        whose = "" if held.holds == "scaled" else f" of {name_list([f'rank {one}' for one in held.shares])}"
        return f"it lacks {part}{whose}"
    if mode == "unused" and over_users(held, ranks):
        return "it is the mean over the ranks that use the parameter, not over all"
    if held.holds == "absent":
        return "there is none, though ranks use the parameter"
    return gradient_code.words(held, ranks).replace("times the mean", "times what is owed")


def over_users(held: gradient_code.Reading, ranks: int) -> bool:
    """Whether the sum was divided by the number of ranks that use the parameter."""
    users = len(held.shares)
    return held.holds == "shares" and all(abs(one * users - ranks) < 0.01 for one in held.shares.values())


def _part(mode: str, ratio: float) -> str:
    """The micro-steps or uses that a ratio of what is owed leaves out; "" where none explains it."""
    multiples, what = _PARTS.get(mode, ((), ""))
    entered = ratio * sum(multiples)
    if abs(entered - round(entered)) > 0.01 or not 0 < round(entered) < sum(multiples):
        return ""
    lost = [number for number, one in enumerate(multiples, 1) if not round(entered) & one]
    return f"{what}{'s' if len(lost) > 1 else ''} {name_list([str(one) for one in lost])} of {len(multiples)}"
