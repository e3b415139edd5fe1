"""What runs, and why the rest does not."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.recording import NOT_SELECTED, NotRun

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
) -> Plan:
    """Select by name, level, number of nodes, the user's model and time. Raises UnknownCheck."""
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
    if not any(check.where in (Where.LAUNCHER, Where.RANK) for check in chosen):
        idle = [check for check in chosen if check.where is Where.AFTERWARDS]
        not_run += [NotRun(check=check.id, reason="no ranks run, after which it looks") for check in idle]
        chosen = [check for check in chosen if check not in idle]
    kept = _within(chosen, budget_s)
    too_dear = f"{TOO_DEAR} of {budget_s:g} s; --budget {math.ceil(_needs_s(chosen))} has room for all"
    not_run += [NotRun(check=check.id, reason=too_dear) for check in chosen if check not in kept]
    return Plan(tuple(kept), tuple(not_run))


def _require_known(checks: Sequence[Check], only: Sequence[str], skip: Sequence[str]) -> None:
    """Raises UnknownCheck for names that select nothing."""
    known = {check.id for check in checks}
    for name in (*only, *skip):
        if name not in known:
            raise UnknownCheck(f"there is no check {name!r}; `ddp-doctor checks` lists them")
    if both := [name for name in only if name in skip]:
        raise UnknownCheck(f"--only and --skip both name {both[0]}: leave it out of one of them")
    if alone := [check.id for check in checks if check.needs_baseline and check.id in only]:
        raise UnknownCheck(f"{alone[0]} measures nothing itself: give --baseline FILE, and no --only for it")


def _reason_against(
    check: Check, levels: tuple[Level, Level], only: Sequence[str], skip: Sequence[str]
) -> str | None:
    level, needed = levels
    if check.id in skip:
        return "left out by --skip"
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
