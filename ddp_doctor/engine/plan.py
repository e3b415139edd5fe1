"""What runs, and why the rest does not."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_doctor.knowledge.retired import RETIRED_CHECKS
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.recording import NOT_SELECTED, SKIPPED_BY_NAME, NotRun

#: Names that are offered in the place of one that is not known.
_MOST_MEANT = 3
#: How the reason begins of what a budget left out.
TOO_DEAR = "does not fit the budget"


class UnknownCheck(ValueError):
    """``--only`` or ``--skip`` names a check that does not exist, or both name the same one."""


@dataclass(frozen=True)
class Plan:
    """The selected checks in order, and what was left out with the reason."""

    checks: tuple[Check, ...]
    not_run: tuple[NotRun, ...] = ()

    def at(self, *where: Where) -> tuple[Check, ...]:
        """The selected checks that run there."""
        return tuple(check for check in self.checks if check.where in where)


def make_plan(
    checks: Sequence[Check],
    level: Level,
    only: Sequence[str],
    skip: Sequence[str],
    budget_s: float,
    nnodes: int = 1,
    model: str = "",
    *,
    asks_for_gpus: bool = False,
) -> Plan:
    """Select by name, level, number of nodes, the user's model and time. Raises UnknownCheck.

    What decides whether ranks use GPUs is looked at wherever ranks start, and where an option ``asks_for_gpus``.
    """
    _require_known(checks, only, skip)
    chosen, not_run = [], []
    for check in checks:
        reason = _reason_against(check, (level, check.from_level(model)), only, skip)
        if check.where is Where.NODES and nnodes == 1:
            reason = reason or "needs two nodes: --nnodes"
        if check.needs_baseline:
            reason = reason or "needs healthy runs to compare with: --baseline"
        if check.needs_model and not model:
            reason = reason or "needs a model of yours: --model"
        if reason is None:
            chosen.append(check)
        else:
            not_run.append(NotRun(check=check.id, reason=reason))
    _require_run(checks, chosen, only, skip, model)
    if not any(check.where in (Where.LAUNCHER, Where.RANK) for check in chosen):
        idle = [check for check in chosen if check.where is Where.AFTERWARDS]
        not_run += [NotRun(check=check.id, reason="no ranks run, after which it looks") for check in idle]
        chosen = [check for check in chosen if check not in idle]
    kept = _within(chosen, budget_s)
    if asks_for_gpus or any(check.where in (Where.LAUNCHER, Where.RANK) for check in kept):
        kept = [check for check in checks if check in kept or check.decides_world]
    too_dear = f"{TOO_DEAR} of {budget_s:g} s; --budget {math.ceil(_needs_s(chosen))} has room for all"
    not_run += [NotRun(check=check.id, reason=too_dear) for check in chosen if check not in kept]
    return Plan(tuple(kept), tuple(not_run))


def _require_known(checks: Sequence[Check], only: Sequence[str], skip: Sequence[str]) -> None:
    """Raises UnknownCheck for names that select nothing."""
    known = {check.id for check in checks}
    for name in (*only, *skip):
        if name not in known:
            raise UnknownCheck(no_such_check(name, checks))
    if both := [name for name in only if name in skip]:
        raise UnknownCheck(f"--only and --skip both name {both[0]}: leave it out of one of them")
    if alone := [check.id for check in checks if check.needs_baseline and check.id in only]:
        raise UnknownCheck(f"{alone[0]} measures nothing itself: give --baseline FILE, and no --only for it")


def no_such_check(name: str, checks: Sequence[Check]) -> str:
    """A sentence with the checks that may be meant: they begin so, are spelled alike, or have it in the title."""
    from difflib import get_close_matches  # a prolog is seldom misspelt

    wanted = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    ids = [check.id for check in checks]
    begun = [check for check in ids if wanted and check.startswith(wanted)]
    alike = get_close_matches(wanted, ids, _MOST_MEANT, 0.6)
    titled = [
        check.id
        for check in checks
        if wanted and any(word.startswith(wanted) for word in re.findall(r"\w+", check.title.lower()))
    ]
    now = [RETIRED_CHECKS[wanted]] if wanted in RETIRED_CHECKS else []
    meant = list(dict.fromkeys([*now, *begun, *alike, *titled]))[:_MOST_MEANT]
    return f"there is no check {name!r}" + (
        f"; did you mean {' or '.join(meant)}?" if meant else "; `ddp-doctor checks` lists them"
    )


def _require_run(
    checks: Sequence[Check], chosen: Sequence[Check], only: Sequence[str], skip: Sequence[str], model: str
) -> None:
    """Raises UnknownCheck where --model names a model, and --only or --skip leaves out all that would run it."""
    own = next((check.id for check in checks if check.needs_model), None)
    if own is None or not model or any(check.runs_model(model) for check in chosen):
        return
    if own in skip or (only and own not in only):
        way = f"name {own} in --only, too" if only else f"take {own} out of --skip"
        raise UnknownCheck(f"--model {model} would not be run: {way}, or leave --model out")


def _reason_against(check: Check, levels: tuple[Level, Level], only: Sequence[str], skip: Sequence[str]) -> str | None:
    level, needed = levels
    if check.id in skip:
        return SKIPPED_BY_NAME
    if only:
        return None if check.id in only else NOT_SELECTED
    if not level.includes(needed):
        return f"needs --level {needed.value}"
    return None


def _within(chosen: Iterable[Check], budget_s: float) -> list[Check]:
    """As many as there is time for: first those that a verdict rests on, the cheapest of them and of the rest first."""
    wanted, kept = list(chosen), list[Check]()
    for check in sorted(wanted, key=lambda check: (not check.is_essential, check.cost_s)):
        if _needs_s([*kept, check]) <= budget_s:
            kept.append(check)
    return [check for check in wanted if check in kept]


def _needs_s(checks: Sequence[Check]) -> float:
    """How long they take: those of a node run all at once."""
    at_once = [check.cost_s for check in checks if check.where is Where.NODE]
    one_by_one = [check.cost_s for check in checks if check.where is not Where.NODE]
    return max(at_once, default=0.0) + sum(one_by_one)
