"""Rules on what only some ranks do, by their number or by a decision that each takes by its own data.

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
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from ddp_doctor.lint import names, training
from ddp_doctor.lint.chance import of_one_rank
from ddp_doctor.lint.collectives import collectives, forwards, is_doubtful
from ddp_doctor.lint.expressions import is_launch
from ddp_doctor.lint.ranks import RankTest, rank_condition, rank_test, ranks_under
from ddp_doctor.lint.rule import Spot, always, lint_rule
from ddp_doctor.lint.scopes import Function
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Condition, Leave, Place, Value, written
from ddp_doctor.model.choices import Consequence, Severity


@lint_rule("DDL133", "collective-on-some-ranks", Consequence.HANGS, concerns=always)
def collective_on_some_ranks(script: Script) -> Iterator[Spot]:
    """A collective runs only on some ranks.

    Finds: A collective of the default group under a condition that some ranks do not fulfill: `rank == 0`, `rank != 1`,
        `rank in (0, 1)`, `rank % 2 == 0`, `is_main_process`, or a decorator such as `rank_zero_only`. This includes the
        forward of a DDP model with buffers such as BatchNorm's (it broadcasts them, even in `no_grad`), the forward and
        `generate` of an FSDP model, also in a function of a file next to the script, the backward pass of a wrapped
        model, the constructor of DDP, and what gathers the parameters of a model under FSDP. Models that Accelerate and
        Fabric wrap count as well. Severity is warning if the script does not show whether the model has buffers.
        It also includes methods of Lightning, Fabric, Accelerate, Transformers' Trainer, DeepSpeed and Ray Train that
        all ranks must call: `fabric.save`, `self.log(..., sync_dist=True)`, `trainer.evaluate`,
        `engine.save_checkpoint`, `ray.train.report`. Severity is warning if the call waits only in some configurations.
        Not reported: the same collective on both sides of the condition in any order, another group, send and recv.
        Conditions around the call of a function that is also passed to an unknown function do not count.
    Why: A collective ends when all ranks have called it. The ranks that called it hang until the timeout of the process
        group, 10 minutes with NCCL and 30 with gloo. If the other ranks call another collective, they exchange garbage.
    Remedy: Move the collective out of the condition. Leave only the work of one rank inside: printing, saving.
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
    conditions = set[Value]()
    for call, condition, who in found:
        if call not in forwards(script) or condition.test not in conditions:  # of many forwards the first is enough
            conditions.add(condition.test)
            at = f"(condition in line {getattr(condition.test.node, 'lineno', 0)})"
            calls, hangs = ("calls", "it hangs") if len(who.ranks or ()) == 1 else ("call", "they hang")
            is_unknown = call in forwards(script) and is_doubtful(script, call)
            until = "if the model has buffers" if is_unknown else "until the timeout"
            yield Spot(
                call,
                f"Only {who.who} {calls} this {collectives(script)[call]} {at}: {hangs} {until}",
                remedy="Move the collective out of the condition, so that all ranks call it",
                severity=Severity.WARNING if is_doubtful(script, call) else None,
            )


@lint_rule("DDL134", "collective-skipped-on-some-ranks", Consequence.HANGS, concerns=always)
def collective_skipped_on_some_ranks(script: Script) -> Iterator[Spot]:
    """Some ranks leave a function or loop early and skip a collective that other ranks call.

    Finds: `return`, `continue`, `break` or a successful exit under a condition that only some ranks fulfill, if a
        collective follows below or in the next iteration of the loop. DDL133 lists the conditions and collectives.
    Why: The ranks that left never call the collective. The other ranks hang in it until the timeout of the process
        group.
    Remedy: Let all ranks leave: broadcast the decision first. Or put the condition around the work of one rank.
    See: https://pytorch.org/docs/stable/distributed.html#collective-functions
    """
    if _splits_roles(script):
        return
    for leave in script.leaves:
        for condition, who in _decisive(script, leave.place):
            candidates = (call for call in collectives(script) if _misses(leave, condition, call))
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


@lru_cache(maxsize=1)  # where anything is to be said
def _handed_on(script: Script) -> set[int]:
    """Functions that something unknown may call on the other ranks: ``optimizer.step(closure)``."""
    takers = (call for call in script.calls if call.local is None and call.name not in _KEEP and not is_launch(call))
    given = [option for call in takers for value in call.arguments for option in value.alternatives()]
    given += [option for each in given if each.name in _KEEP for value in each.parts for option in value.alternatives()]
    return {id(option.node) for option in given if isinstance(option, Function)}


#: Functions that return the function that they are given.
_KEEP = ("functools.partial", "functools.wraps", "functools.update_wrapper")
Site = tuple[object, str]


def _sites(script: Script, call: Call) -> list[Site]:
    """The places of both halves of a pattern: a function, both ends of a context manager, or sides of a condition."""
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


def _misses(leave: Leave, condition: Condition, call: Call) -> bool:
    """Whether a call is skipped by those who leave under ``condition``."""
    place = call.place
    if call.root != leave.root or any(_rules_out(condition, other) for other in place.conditions if not other.early):
        return False
    mine = [other for other in place.conditions if other.test is condition.test]
    if any(other.early and other.holds != condition.holds for other in mine):
        return True
    loop = leave.place.loops[-1] if leave.place.loops else None
    if mine or loop is None or loop not in place.loops:
        return False
    inside = set(ast.walk(loop.node)) if isinstance(leave.node, ast.Return) else set[ast.AST]()
    is_return = leave.node in inside and leave.place.function not in inside  # not of a function that the loop calls
    return isinstance(leave.node, ast.Break) or is_return


def _rules_out(condition: Condition, other: Condition) -> bool:
    """Whether ``not together and rank != 0`` rules out that ``together`` holds."""
    if not condition.holds or not isinstance(condition.test.node, ast.BoolOp):
        return False
    for part in condition.test.parts if isinstance(condition.test.node.op, ast.And) else ():
        is_negated = isinstance(part.node, ast.UnaryOp) and isinstance(part.node.op, ast.Not)
        asked = part.parts[0] if is_negated and part.parts else part
        if asked is other.test and other.holds == is_negated:
            return True
    return False


def _splits_roles(script: Script) -> bool:
    """Parameter servers and pipelines: ranks have different jobs, and communicate in other ways."""
    return any(module.startswith(("torch.distributed.rpc", "torch.distributed.pipelin")) for module in script.modules)


#: Functions after which all ranks have the same number.
_AGREES = re.compile(r"reduce|gather|sync|broadcast|average|avg|mean|world|dist|agree|any_rank|all_rank", re.IGNORECASE)


#: Each is compared with all collectives; no script that people write has more.
_MOST_LEAVES = 200
#: What all ranks know of a batch, and functions whose result is the number that they are given.
_SHAPES = frozenset(("shape", "ndim", "dtype", "device", "is_cuda", "batch_size", "num_graphs"))
_SAME_NUMBER = frozenset(("int", "float", "bool", "abs", "min", "max"))
#: Methods whose result depends on a tensor's values.
_READS = frozenset(("any", "all", "sum", "max", "min", "mean", "item", "count_nonzero"))


@lint_rule("DDL135", "collective-by-data-of-one-rank", Consequence.RISK)
def collective_by_data_of_one_rank(script: Script) -> Iterator[Spot]:
    """Whether a rank takes part in a collective depends on its own loss.

    Finds: A collective, or the backward pass of a wrapped model, under a condition on the output of that rank's own
        forward, on the values in that rank's own batch (`if not mask.any()`, `if batch["size"] < n`), on a batch that
        could not be read (`if batch is None`), on chance that no common seed governs, or on the clock; or a `continue`,
        `break` or `return` under such a condition that skips one, or a loop that ends by the clock. Values that a
        collective made equal on all ranks before are not meant, nor are shapes.
    Why: Each rank has other data, draws other numbers, and reads the clock at another moment. As soon as the loss of
        one rank is not finite, or above the threshold, and the others' is not, that rank skips a collective in which
        the others wait: a hang after hours, by chance.
    Remedy: Let the ranks agree first: all-reduce the flag with MAX, and let all of them decide by the result.
    See: https://pytorch.org/docs/stable/distributed.html#collective-functions
    """
    reduced = [call for call in collectives(script) if call not in forwards(script)]
    for call in reduced:
        for condition in call.conditions:
            why = None if condition.early else _why_local(script, condition.test, call.order)
            if why is not None and not _is_in_both_branches(script, call, condition):
                title = f"A rank runs this {collectives(script)[call]} depending on {why}: other ranks may wait for it"
                yield _spot(call, title)
        for loop in call.loops:
            why = _why_local(script, loop.test, call.order) if loop.test else None
            if why is not None:
                title = f"A rank leaves this loop by {why}, and skips the {collectives(script)[call]} in line"
                yield _spot(loop.test, f"{title} {call.node.lineno}")
    for leave in script.leaves[:_MOST_LEAVES]:
        for condition in leave.place.conditions:
            why = None if condition.early else _why_local(script, condition.test, leave.order)
            if why is None or (why == "its own batch" and isinstance(leave.node, ast.Break)):
                continue
            before = {name for call, name in collectives(script).items() if condition in call.conditions}
            candidates = (call for call in reduced if _misses(leave, condition, call))
            missed = next((call for call in candidates if collectives(script)[call] not in before), None)
            if missed is not None:
                title = f"A rank may leave here because of {why}, and skip the {collectives(script)[missed]} in line"
                yield _spot(leave.node, f"{title} {missed.node.lineno}")


def _is_in_both_branches(script: Script, call: Call, condition: Condition) -> bool:
    return any(
        collectives(script)[other] == collectives(script)[call]
        and any(each.test is condition.test and each.holds != condition.holds for each in other.conditions)
        for other in collectives(script)
    )


def _spot(at: Value | ast.AST, title: str) -> Spot:
    return Spot(
        at,
        title,
        remedy="All-reduce the flag first, and decide by the result",
        write=("flag = torch.isnan(loss).float()", "dist.all_reduce(flag, op=dist.ReduceOp.MAX)"),
        cost="one small all-reduce per step",
    )


@lru_cache(maxsize=1)  # for each condition
def _of_torch(script: Script) -> tuple[Call, ...]:
    return tuple(call for call in script.calls if call.name.startswith("torch.distributed."))


def _agreed(script: Script, test: Value, order: int) -> set[Value]:
    """The values that an earlier collective made equal on all ranks, not only under this same condition."""
    arguments = [
        argument
        for call in _of_torch(script)
        if call.order < order and all(earlier.test is not test for earlier in call.conditions)
        for argument in call.arguments
    ]
    given = {value for argument in arguments for value in (*argument.alternatives(), *argument.objects())}
    lists = (option for argument in arguments for option in argument.alternatives() if option.kind == "tuple")
    given |= {part for option in lists for part in option.parts}
    return given | {assignment.value for assignment in script.assignments if assignment.owner in given}


def _why_local(script: Script, test: Value, order: int) -> str | None:
    """What of this rank alone a condition depends on; None where the ranks are known, or may have agreed."""
    why = _why(script, test)
    return None if why is None or _agreed(script, test, order).intersection(test.sources()) else why


@lru_cache(maxsize=500)  # several calls and leaves stand under one condition
def _why(script: Script, test: Value) -> str | None:
    """What of this rank alone a condition depends on."""
    if rank_test(test) is not None:
        return None
    made = list(test.sources())
    equal = [call for call in test.calls() if _makes_equal(call)]
    if found := of_one_rank(script, test):
        return None if any(found[1] in call.sources() for call in equal) else found[0]
    is_of_data = _is_numeric(test) and (
        any(training.is_forward(script, source) or _is_read_off_a_batch(source) for source in made)
        or _asks_a_batch(test)
    )
    # a DistributedSampler of the batch makes no losses equal, but what is made of the output of a forward pass does
    is_equal = any(training.is_forward(script, source) for call in equal for source in call.sources())
    return "its own data" if is_of_data and not is_equal else None


def _is_read_off_a_batch(value: Value) -> bool:
    """``(target > 0).any()`` of a DataLoader's batch; not its shape, which is the same on all ranks."""
    if not isinstance(value, Call) or value.args or value.method not in _READS:
        return False
    return any(map(training.is_from_a_loader, value.receiver.sources()))


def _asks_a_batch(value: Value, depth: int = 6) -> bool:
    """``batch["size"] < n``: a comparison with what a batch holds, however it is put together; no shape, no length."""
    if isinstance(value, Call):
        given = value.args if value.name in _SAME_NUMBER else ()
        return any(_asks_a_batch(part, depth - 1) for part in given)
    if value.kind in ("other", "choice"):
        return bool(depth) and any(_asks_a_batch(part, depth - 1) for part in value.parts)
    if value.kind == "attribute" and value.attribute not in _SHAPES:
        return training.is_from_a_loader(value.owner)
    return value.kind == "element" and training.is_from_a_loader(value)


def _makes_equal(call: Call) -> bool:
    name = written(call.node.func).rpartition(".")[2]
    is_local = call.method == "mean" or call.name.startswith(("torch.nn", "torch.utils.data"))
    return bool(_AGREES.search(name)) and not is_local


def _is_numeric(value: Value) -> bool:
    """``loss > 3``, ``torch.isnan(loss)``; not ``loss is None`` and not ``"aux" in outputs``."""
    identities = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    for node in ast.walk(value.node):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], identities):
            return False
        if isinstance(node, ast.Call) and written(node.func) in ("isinstance", "hasattr", "len", "callable"):
            return False
    return isinstance(value, Call) or isinstance(value.node, ast.Compare | ast.UnaryOp | ast.BoolOp | ast.Subscript)
