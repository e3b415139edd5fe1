"""Rules on calls that only some ranks make, by rank number or by a decision from each rank's own data.

if dist.get_rank() == 0:
    dist.barrier()             the others never come
if dist.get_rank() != 0:
    return                     nor do these, to what stands below
dist.barrier()
if torch.isnan(loss):
    continue                   one rank skips the backward pass, the others wait for it in theirs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from ddp_doctor.features.lint import frameworks, names
from ddp_doctor.features.lint.collectives import collectives, forwards, is_doubtful
from ddp_doctor.features.lint.expressions import is_launch
from ddp_doctor.features.lint.ranks import RankTest, rank_condition, ranks_under
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.scopes import Function
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Condition, Leave, Place, Value, written
from ddp_doctor.model.choices import Consequence, Severity

_REMEDY_ELSEWHERE = "Run the forward on all ranks, or give the function the model inside the wrapper"


@lint_rule("DDL133", "collective-on-some-ranks", Consequence.HANGS, concerns=always)
def collective_on_some_ranks(script: Script) -> Iterator[Spot]:
    """A collective runs only on some ranks.

    Finds: A collective of the default group under a condition that some ranks do not fulfill: `rank == 0`, `rank != 1`,
        `rank in (0, 1)`, `rank % 2 == 0`, `is_main_process`, or a decorator such as `rank_zero_only`. This includes the
        forward of a DDP model with buffers such as BatchNorm's (it broadcasts them, even in `no_grad`), the forward and
        `generate` of an FSDP model, even in a function of a file next to the script, the backward pass of a wrapped
        model, the constructor of DDP, and calls that gather the parameters of a model under FSDP. Models that
        Accelerate and Fabric wrap count as well. Severity is warning if the script does not show whether the model has
        buffers. It also includes methods of Lightning, Fabric, Accelerate, Transformers' Trainer, DeepSpeed and Ray
        Train that all ranks must call: `fabric.save`, `self.log(..., sync_dist=True)`, `trainer.evaluate`,
        `engine.save_checkpoint`, `ray.train.report`. Severity is warning if the call waits only in some configurations.
        Not reported: the same collective on both sides of the condition in any order, another group, send and recv.
        Conditions around the call of a function that is also passed to an unknown function do not count.
    Why: A collective ends when all ranks have called it. The ranks that called it hang until the timeout of the process
        group, 10 minutes with NCCL and 30 with gloo. If the other ranks call another collective, they exchange garbage.
    Remedy: Move the collective out of the condition. Leave only the work of one rank inside: printing, saving. To run
        the forward of a DDP model on one rank, call `model.module(...)`.
    See: https://pytorch.org/docs/stable/distributed.html#collective-functions
        https://pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """
    if _splits_roles(script):
        return
    found = [
        (call, condition, who)
        for call in sorted(collectives(script), key=lambda call: is_doubtful(script, call))
        for condition, who in _decisive(script, call.place)
        if _is_one_sided(script, call)
    ]
    yield from _run_elsewhere(script)
    conditions = set[Value]()
    for call, condition, who in found:
        if call not in forwards(script) or condition.test not in conditions:  # the first of many forwards is enough
            conditions.add(condition.test)
            at = f"(condition in line {getattr(condition.test.node, 'lineno', 0)})"
            calls, hangs = ("calls", "it hangs") if len(who.ranks or ()) == 1 else ("call", "they hang")
            is_unknown = call in forwards(script) and is_doubtful(script, call)
            until = "if the model has buffers" if is_unknown else "until the timeout"
            is_named = call.name in frameworks.FUNCTIONS or frameworks.together(script, call)
            what = f"{written(call.node.func)}()" if is_named else f"this {collectives(script)[call]}"
            yield Spot(
                call,
                f"Only {who.who} {calls} {what} {at}: {hangs} {until}",
                remedy=_remedy(script, call),
                severity=Severity.WARNING if is_doubtful(script, call) else None,
            )


def _remedy(script: Script, call: Call) -> str:
    """Return the fix for a collective under a condition."""
    if call not in forwards(script):
        return "Move the collective out of the condition, so that all ranks call it"
    wrapper, _, elsewhere, _ = forwards(script)[call]
    if elsewhere:
        return _REMEDY_ELSEWHERE
    if wrapper != "DDP" or call.method:
        return "Run the forward on all ranks"
    return f"Call {written(call.node.func)}.module(...) here, or run the forward on all ranks"


def _run_elsewhere(script: Script) -> Iterator[Spot]:
    """Yield the calls of functions in other files that run the forward on some ranks only."""
    of_some = {model.elsewhere: (call, model.who) for call, model in forwards(script).items() if model.who is not None}
    for call, who in of_some.values():
        runs, hangs = ("runs", "it hangs") if len(who.ranks or ()) == 1 else ("run", "they hang")
        is_unknown = is_doubtful(script, call)
        yield Spot(
            call,
            f"Only {who.who} {runs} the {collectives(script)[call]}: {hangs}"
            f" {'if the model has buffers' if is_unknown else 'until the timeout'}",
            remedy=_REMEDY_ELSEWHERE,
            severity=Severity.WARNING if is_unknown else None,
        )


@lint_rule("DDL134", "collective-skipped-on-some-ranks", Consequence.HANGS, concerns=always)
def collective_skipped_on_some_ranks(script: Script) -> Iterator[Spot]:
    """Some ranks leave a function or loop early and skip a collective that other ranks call.

    Finds: `return`, `continue`, `break` or a successful exit under a condition that only some ranks fulfill, if a
        collective follows below or in the next iteration of the loop. An exit also leaves the loops of callers. DDL133
        lists the conditions and collectives.
    Why: The ranks that left never call the collective. The other ranks hang in it until the timeout of the process
        group.
    Remedy: Let all ranks leave: broadcast the decision first. Or put the condition around the work of one rank.
    See: https://pytorch.org/docs/stable/distributed.html#collective-functions
    """
    if _splits_roles(script):
        return
    for leave in script.leaves:
        for condition, who in _decisive(script, leave.place):
            until = _exit_of_others(script, leave, condition)
            reached = (call for call in collectives(script) if not until or leave.order < call.order < until)
            candidates = (call for call in reached if misses(leave, condition, call))
            one_sided = [call for call in candidates if _is_one_sided(script, call)]
            missed = min(one_sided, key=lambda call: is_doubtful(script, call), default=None)
            if missed is None:
                continue
            leaves, skips, them = ("leaves", "skips", "it") if len(who.ranks or ()) == 1 else ("leave", "skip", "them")
            yield Spot(
                leave.node,
                f"{who.who[0].upper()}{who.who[1:]} {leaves} here and {skips} the {collectives(script)[missed]}"
                f" in line {missed.node.lineno}: the other ranks wait for {them}",
                remedy="Broadcast the decision from rank 0, then leave on all ranks",
                severity=Severity.WARNING if is_doubtful(script, missed) else None,
            )


def _exit_of_others(script: Script, leave: Leave, condition: Condition) -> int:
    """Return the order of the exit that the other ranks reach right after an exit, or 0."""
    others = (
        other.order
        for other in script.leaves
        if isinstance(leave.node, ast.Expr) and isinstance(other.node, ast.Expr) and other.order > leave.order
        for last in other.place.conditions[-1:]
        if last.test is condition.test and last.holds != condition.holds
    )
    return next(others, 0)


@lru_cache(maxsize=1)  # used only if there is something to report
def _handed_on(script: Script) -> set[int]:
    """Return functions that an unknown function may call on the other ranks: ``optimizer.step(closure)``."""
    takers = (call for call in script.calls if call.local is None and call.name not in _KEEP and not is_launch(call))
    given = [option for call in takers for value in call.arguments for option in value.alternatives()]
    given += [option for each in given if each.name in _KEEP for value in each.parts for option in value.alternatives()]
    return {id(option.node) for option in given if isinstance(option, Function)}


#: Functions that return the function that they get.
_KEEP = ("functools.partial", "functools.wraps", "functools.update_wrapper")
Site = tuple[object, str]


def _sites(script: Script, call: Call) -> list[Site]:
    """Return the places of a pattern with two halves: a function, a context manager, or sides of a condition."""
    function = call.place.function
    is_manager = getattr(function, "name", "") in ("__enter__", "__exit__")
    tests = (condition.test for condition in call.conditions if rank_condition(condition))
    places = [call.place.cls if is_manager else function, *tests]
    return [(id(place), collectives(script)[call]) for place in places]


@lru_cache(maxsize=1)  # both rules ask
def _sides(script: Script) -> dict[Site, set[frozenset[int] | None]]:
    """Return the ranks that call each collective at each place under conditions."""
    found: dict[Site, set[frozenset[int] | None]] = {}
    for call in collectives(script):
        who = ranks_under(call.conditions)
        for site in _sites(script, call):
            found.setdefault(site, set()).update([who.ranks] if who and who.differs else [])
    return found


def _is_one_sided(script: Script, call: Call) -> bool:
    return all(len(_sides(script)[site]) < 2 for site in _sites(script, call))


def _decisive(script: Script, place: Place) -> Iterator[tuple[Condition, RankTest]]:
    """Yield the condition that certainly excludes some ranks from a place, and the ranks that reach it.

    Conditions around the call of a function do not count if something unknown may call it on other ranks.
    """
    conditions, function = place.conditions, place.function
    if not any(map(rank_condition, conditions)):
        return
    lines = range(function.lineno, (function.end_lineno or 0) + 1) if function else range(0)
    inside = tuple(each for each in conditions if getattr(each.test.node, "lineno", 0) in lines)
    if len(inside) < len(conditions) and id(function) in _handed_on(script):
        conditions = inside
    who = ranks_under(conditions)
    if who and who.differs and who.ranks and not who.ranks.issuperset(_ranks_of_world(script)):
        decisive = (each for each in reversed(conditions) if not each.early and rank_condition(each))
        yield from ((condition, who) for condition in islice(decisive, 1))


@lru_cache(maxsize=1)
def _ranks_of_world(script: Script) -> range:
    """Return the ranks of the job if the script sets their number, otherwise the ranks of a large job."""
    sizes = [call.argument(2, "nprocs").constant for call in script.named(names.SPAWN)]
    sizes += [call.argument(None, "world_size").constant for call in script.named(names.INIT)]
    return next((range(size) for size in sizes if isinstance(size, int)), range(512))


def misses(leave: Leave, condition: Condition, call: Call) -> bool:
    """Return True if ranks that leave under ``condition`` skip the call."""
    place = call.place
    if call.root != leave.root or any(_rules_out(condition, other) for other in place.conditions if not other.early):
        return False
    mine = [other for other in place.conditions if other.test is condition.test]
    if any(other.early and other.holds != condition.holds for other in mine):
        return True
    if isinstance(leave.node, ast.Expr):  # an exit leaves the loops of all callers
        return not (mine or set(place.loops).isdisjoint(leave.place.loops))
    loop = leave.place.loops[-1] if leave.place.loops else None
    if mine or loop is None or loop not in place.loops:
        return False
    inside = set(ast.walk(loop.node)) if isinstance(leave.node, ast.Return) else set[ast.AST]()
    is_return = leave.node in inside and leave.place.function not in inside  # not in a function that the loop calls
    return isinstance(leave.node, ast.Break) or is_return


def _rules_out(condition: Condition, other: Condition) -> bool:
    """Return True if ``not together and rank != 0`` implies that ``together`` does not hold."""
    if not condition.holds or not isinstance(condition.test.node, ast.BoolOp):
        return False
    for part in condition.test.parts if isinstance(condition.test.node.op, ast.And) else ():
        is_negated = isinstance(part.node, ast.UnaryOp) and isinstance(part.node.op, ast.Not)
        asked = part.parts[0] if is_negated and part.parts else part
        if asked is other.test and other.holds == is_negated:
            return True
    return False


def _splits_roles(script: Script) -> bool:
    """Return True for parameter servers and pipelines: ranks have different jobs, and communicate in other ways."""
    return any(module.startswith(("torch.distributed.rpc", "torch.distributed.pipelin")) for module in script.modules)
