"""Rules on what only some ranks do.

if dist.get_rank() == 0:
    dist.barrier()             the others never come
if dist.get_rank() != 0:
    return                     nor do these, to what stands below
dist.barrier()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from ddp_doctor.lint.collectives import collectives, described
from ddp_doctor.lint.expressions import is_launch
from ddp_doctor.lint.ranks import Chosen, rank_condition
from ddp_doctor.lint.rule import Spot, always, lint_rule
from ddp_doctor.lint.scopes import Function
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Condition, Leave, Place
from ddp_doctor.model.choices import Severity

#: Who comes and who waits, in the titles of both rules, by who fulfils the condition.
_CALLED = {
    "zero": "Only rank 0 calls this {} (condition in line {}): it waits for the other ranks until the time-out",
    "others": "Only ranks other than 0 call this {} (condition in line {}): they wait for rank 0 until the time-out",
}
_LEFT = {
    "zero": "Rank 0 leaves here and misses the {} in line {}: the other ranks wait for it",
    "others": "Ranks other than 0 leave here and miss the {} in line {}: rank 0 waits for them",
}


@lint_rule("DDL133", "collective-on-some-ranks", Severity.ERROR, concerns=always)
def on_some_ranks(script: Script) -> Iterator[Spot]:
    """A collective stands under a condition that only some ranks fulfil.

    What it finds
        A collective of the default group, a barrier, `wait_for_everyone` of Accelerate, or the backward pass of
        a wrapped model, that rank 0 alone or all but rank 0 reach, also through functions. Not reported: the
        same collective on both sides of the condition, in whatever order (one side downloads first), a function
        that is also handed to something else (`optimizer.step(closure)`), a group of its own, and send and recv.

    Why it matters
        A collective ends when all ranks have called it. Those that did, hang until the time-out of the process group,
        10 minutes with NCCL and 30 with gloo; or they meet the next collective of the others, and exchange nonsense.

    Remedy
        Move the collective out of the condition, and leave inside only what one rank does: printing, saving.

    References
        https://pytorch.org/docs/stable/distributed.html#collective-functions
        https://pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """
    if _splits_roles(script):
        return
    sides = _sides(script)
    for call in collectives(script):
        for condition, who in _chosen(call.conditions):
            if (
                condition.early
                or len(sides[_site(call)]) > 1
                or id(call.place.function) in _handed_on(script)
            ):
                continue
            line = getattr(condition.test.node, "lineno", 0)
            yield Spot(
                call,
                _CALLED[who].format(described(call), line),
                remedy="Move the collective out of the condition, so that all ranks call it",
            )


@lint_rule("DDL134", "collective-skipped-on-some-ranks", Severity.ERROR, concerns=always)
def skipped_on_some_ranks(script: Script) -> Iterator[Spot]:
    """Some ranks leave a function or loop early, and the others go on to a collective.

    What it finds
        `return`, `continue`, `break` or a successful exit, under a condition that rank 0 alone or all but rank
        0 fulfil, where a collective or the backward pass of a wrapped model follows below or in the next turn
        of the loop.

    Why it matters
        Those that left never call the collective, and the others hang in it until the time-out of the process group.

    Remedy
        Let all ranks leave: broadcast the decision first. Or put the condition around what one rank does alone.

    References
        https://pytorch.org/docs/stable/distributed.html#collective-functions
    """
    if _splits_roles(script):
        return
    sides = _sides(script)
    for leave in script.leaves:
        for condition, who in _chosen(leave.place.conditions):
            missed = None if condition.early else _missed(script, leave, condition, sides)
            if missed is not None:
                yield Spot(
                    leave.node,
                    _LEFT[who].format(described(missed), missed.call.lineno),
                    remedy="Let all ranks decide alike: broadcast the decision from rank 0, then leave together",
                )


@lru_cache(maxsize=1)  # where anything is to be said
def _handed_on(script: Script) -> set[int]:
    """Functions that something unknown may call on the other ranks: ``optimizer.step(closure)``."""
    given = (
        value
        for call in script.calls
        if call.local is None and not is_launch(call)
        for value in call.arguments
    )
    return {
        id(option.node) for value in given for option in value.alternatives() if isinstance(option, Function)
    }


Site = tuple[object, str]


def _site(call: Call) -> Site:
    """Where both halves of a pattern are: in one function, or in both ends of one context manager."""
    function = call.place.function
    is_manager = getattr(function, "name", "") in ("__enter__", "__exit__")
    place = call.place.cls if is_manager else function
    return (id(place), described(call))


@lru_cache(maxsize=1)  # both rules ask
def _sides(script: Script) -> dict[Site, set[Chosen]]:
    """For each function and collective: on which ranks it is called there under conditions."""
    found: dict[Site, set[Chosen]] = {}
    for call in collectives(script):
        tests = (rank_condition(condition) for condition in call.conditions)
        found.setdefault(_site(call), set()).update(test.holds_on for test in tests if test is not None)
    return found


def _chosen(conditions: tuple[Condition, ...]) -> Iterator[tuple[Condition, Chosen]]:
    """The conditions that rank 0 alone fulfils, or all others."""
    for condition in conditions:
        test = rank_condition(condition)
        if test is not None and test.holds_on != "some":
            yield condition, test.holds_on


def _missed(
    script: Script, leave: Leave, condition: Condition, sides: dict[Site, set[Chosen]]
) -> Call | None:
    """The first collective that those who leave do not reach."""
    for call in collectives(script):
        if len(sides[_site(call)]) > 1 or call.root != leave.root:
            continue
        if misses(leave, condition, call.place):
            return call
    return None


def misses(leave: Leave, condition: Condition, place: Place) -> bool:
    """Whether what runs at ``place`` is skipped by those who leave under ``condition``."""
    mine = [other for other in place.conditions if other.test is condition.test]
    if any(other.early and other.holds != condition.holds for other in mine):
        return True
    ends_loop = isinstance(leave.node, ast.Break) and bool(leave.place.loops)
    return ends_loop and not mine and leave.place.loops[-1] in place.loops


def _splits_roles(script: Script) -> bool:
    """Parameter servers and pipelines: ranks have different jobs, and communicate in other ways."""
    return any(
        module.startswith(("torch.distributed.rpc", "torch.distributed.pipelin")) for module in script.modules
    )
