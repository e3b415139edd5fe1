"""Finds why a condition may hold on some ranks only: its own data, chance, its clock, or one rank.

if loss > 3:                       by the rank's own data: the output of its forward pass
    bad += 1
if bad > 5:                        the same, because ``bad`` was counted under such a condition
if stopper.early_stop:             the same, if ``stopper(loss)`` was called before
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ddp_doctor.features.lint import frameworks, names, training
from ddp_doctor.features.lint.chance import of_one_rank, operands
from ddp_doctor.features.lint.ranks import rank_condition, rank_kind, rank_test
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Condition, Loop, Place, Value, is_result, written

#: Functions whose result is the same on all ranks.
_AGREES = re.compile(r"reduce|gather|sync|broadcast|average|avg|mean|world|dist|agree|any_rank|all_rank", re.IGNORECASE)
#: Modules whose functions compute on one rank, whatever their names.
_LOCAL = ("torch.nn", "torch.utils.data", "torch.mean", "numpy.", "statistics.", "math.")
#: Maximum number of assignments of a name to check, and of conditions around each.
_MOST_PLACES = 20
_MOST_CONDITIONS = 5
#: Attributes of a batch that all ranks know, and functions that return their numeric argument.
_SHAPES = frozenset(("shape", "ndim", "dtype", "device", "is_cuda", "batch_size", "num_graphs"))
_SAME_NUMBER = frozenset(("int", "float", "bool", "abs", "min", "max"))
#: Methods whose result depends on a tensor's values.
_READS = frozenset(("any", "all", "sum", "max", "min", "mean", "item", "count_nonzero"))


#: Collectives that do not change their arguments.
_CHANGE_NOTHING = ("barrier", "monitored_barrier", "new_group")


@lru_cache(maxsize=1)  # for each condition
def _making_equal(script: Script) -> tuple[Call, ...]:
    made = {f"torch.distributed.{name}" for name in names.COLLECTIVES if name not in _CHANGE_NOTHING}
    return tuple(call for call in script.calls if call.name in made)


def _agreed(script: Script, test: Value, order: int) -> set[Value]:
    """Return values that an earlier collective made equal on all ranks, unless it runs under this very condition."""
    arguments = [
        argument
        for call in _making_equal(script)
        if call.order < order and all(earlier.test is not test for earlier in call.conditions)
        for argument in call.arguments
    ]
    given = {value for argument in arguments for value in (*argument.alternatives(), *argument.objects())}
    lists = (option for argument in arguments for option in argument.alternatives() if option.kind == "tuple")
    given |= {part for option in lists for part in option.parts}
    return given | {assignment.value for assignment in script.assignments if assignment.owner in given}


class Reason(NamedTuple):
    """The reason why ranks may decide differently, and the test that depends on it directly."""

    why: str
    root: Value


def why_local(script: Script, test: Value, place: Place, order: int) -> Reason | None:
    """Return why a condition may differ between ranks; None if all ranks may have agreed on it."""
    why = _why(script, test)
    found = Reason(why, test) if why else None
    if found is None and (setters := _set_under(script, test)):
        around, loops = {condition.test for condition in place.conditions}, set(place.loops)
        near = (each for each in setters if each.is_same or loops.intersection(each.loops))
        found = next((each.reason for each in near if each.test not in around), None)
    return None if found is None or _agreed(script, test, order).intersection(test.sources()) else found


class _Setter(NamedTuple):
    """A condition that decides whether a value in a test is set."""

    test: Value
    reason: Reason
    is_same: bool  # the value that the test reads, not an earlier or later value of the same name
    loops: tuple[Loop, ...]


class _Set(NamedTuple):
    """A value that was assigned or returned at a place."""

    value: Value
    place: Place
    order: int


_Key = tuple[int, str]  # an object or function, and a name in it
_Returned = Mapping[Value, list[_Set]]


@lru_cache(maxsize=1)
def _bindings(
    script: Script,
) -> tuple[Mapping[Value, list[_Key]], Mapping[_Key, list[_Set]], Mapping[Value, list[_Set]]]:
    """Index the assignments of a script: names by value, bindings by name, and values that functions return."""
    keys, bound = defaultdict[Value, list[_Key]](list), defaultdict[_Key, list[_Set]](list)
    for each in script.assignments:
        owner = next(iter(each.owner.objects()), None)
        key = (id(owner or each.place.function), each.name)
        keys[each.value].append(key)
        bound[key].append(_Set(each.value, each.place, each.order))
    returned = defaultdict[Value, list[_Set]](list)
    for leave in script.leaves:
        for value in leave.value.alternatives():
            returned[value].append(_Set(value, leave.place, leave.order))
    return keys, bound, returned


@lru_cache(maxsize=500)
def _set_under(script: Script, test: Value, depth: int = 2) -> tuple[_Setter, ...]:
    keys, bound, returned = _bindings(script)
    if rank_test(test) is not None:
        return ()
    found: list[_Setter] = []
    for value in operands(test):
        same = [each for key in _read_from(keys.get(value, ()), test) for each in bound[key]]
        if any(isinstance(each.value, Call) and _makes_equal(each.value) for each in same):
            continue
        places = [*returned.get(value, ()), *(each for each in same if each.value.kind not in ("loop", "element"))]
        for each in places[-_MOST_PLACES:] if depth else ():
            for condition in each.place.conditions[-_MOST_CONDITIONS:]:
                why = _why_set(script, condition, each, depth)
                found += [_Setter(condition.test, why, each.value is value, each.place.loops)] if why else []
    return tuple(found)


def _read_from(keys: Sequence[_Key], test: Value) -> Sequence[_Key]:
    """Return the names that a test reads a value from: its own names and the first one, but no names of copies."""
    if len(keys) < 2:
        return keys
    nodes = ast.walk(test.node)
    read = {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes}
    return [key for key in dict.fromkeys(keys) if key == keys[0] or key[1] in read]


def _why_set(script: Script, condition: Condition, at: _Set, depth: int) -> Reason | None:
    if condition.early and not _skips(script, condition, at):
        return None
    if who := rank_condition(condition):
        is_one = len(who.ranks or ()) == 1 and not condition.early
        return Reason(f"only {who.who}", condition.test) if is_one else None
    why = _why(script, condition.test)
    deeper = () if why else _set_under(script, condition.test, depth - 1)
    reason = Reason(why, condition.test) if why else next((each.reason for each in deeper), None)
    if reason is None or not _agreed(script, condition.test, at.order).isdisjoint(condition.test.sources()):
        return None
    return reason


def _skips(script: Script, condition: Condition, at: _Set) -> bool:
    """Return True if a rank that left the block can come to the place again, after ``continue`` or ``return``."""
    for leave in script.leaves:
        if not any(each.test is condition.test and each.holds != condition.holds for each in leave.place.conditions):
            continue
        if isinstance(leave.node, ast.Continue):
            return True
        if isinstance(leave.node, ast.Return) and leave.place.function is at.place.function:
            inside = set(ast.walk(at.place.function)) if at.place.function else set[ast.AST]()
            return not any(loop.node in inside for loop in at.place.loops)
    return False


_STOPS = re.compile(r"stop|patience|plateau", re.IGNORECASE)
_METERS = re.compile(r"meter|average|avg", re.IGNORECASE)
_KEEPS = ("append", "extend", "update", "add")


@lru_cache(maxsize=1)
def _told(script: Script) -> frozenset[Value]:
    """Return the lists, meters and early-stopping objects that receive results of one rank."""
    found = set[Value]()
    for call in script.calls:
        named = call.callee if not (call.name or call.method) else call.receiver
        if not named or not (call.args or call.keywords):
            continue
        made = [option for option in named.objects() if _is_kept_in(option, call)]
        if made and any(
            source in found or _sees_own_data(script, source) for given in call.arguments for source in given.sources()
        ):
            found.update(made)
    of_found = (
        call for call in script.calls if found and call.method and not found.isdisjoint(call.receiver.objects())
    )
    shared = {option for call in of_found if _makes_equal(call) for option in call.receiver.objects()}
    return frozenset(found - shared)


def _is_kept_in(value: Value, call: Call) -> bool:
    name = f"{value.name} {value.attribute}"
    if call.method in _KEEPS and (value.kind == "tuple" or _METERS.search(name)):
        return True
    return bool(_STOPS.search(name))


@lru_cache(maxsize=500)  # several calls and leaves share a condition
def _why(script: Script, test: Value) -> str | None:
    """Return why a condition may differ between ranks, judging only by its own test."""
    if rank_test(test) is not None:
        return None
    if found := of_one_rank(script, test):
        equal = (call for call in test.calls() if _makes_equal(call))
        return None if any(found[1] in call.sources() for call in equal) else found[0]
    is_of_data = _is_numeric(test) and (_is_made_of_own_data(script, test) or _asks_a_batch(test))
    is_of_data |= test.kind == "attribute" and not _told(script).isdisjoint(test.owner.objects())
    return "its own data" if is_of_data and not _is_made_equal(script, test) else None


def is_own_data(script: Script, value: Value, order: int) -> bool:
    """Return True if a number comes from a rank's own forward or batch, and no collective made it equal before."""
    is_own = _is_made_of_own_data(script, value) and not _is_made_equal(script, value)
    return is_own and _agreed(script, value, order).isdisjoint(value.sources())


def _is_made_of_own_data(script: Script, value: Value) -> bool:
    told = _told(script)
    return any(
        source in told or _sees_own_data(script, source) or _is_read_off_a_batch(source) for source in value.sources()
    )


def _is_made_equal(script: Script, value: Value) -> bool:
    """Return True if a function equalizes a value from a forward pass; a DistributedSampler of its batch does not."""
    equal = (call for call in value.calls() if _makes_equal(call))
    return any(_is_forward(script, source) for call in equal for source in call.sources())


def _is_forward(script: Script, value: Value) -> bool:
    if not isinstance(value, Call) or value.name:
        return False
    if training.is_forward(script, value) or training.goes_around(script, value):
        return True
    return not value.method and any(any(frameworks.prepared(script, model)) for model in value.callee.objects())


@lru_cache(maxsize=500)
def _sees_own_data(script: Script, value: Value) -> bool:
    """Return True for the output of a forward, unless its loader gives every rank the same data."""
    if not isinstance(value, Call) or not _is_forward(script, value):
        return False
    return not any(_is_same_on_all_ranks(loop) for loop in value.loops)


def _is_same_on_all_ranks(loop: Loop) -> bool:
    over = training.passed_on(loop.over)

    def is_plain(loader: Call) -> bool:
        options = (loader.given(training.SAMPLER, "sampler"), loader.given(training.BATCH_SAMPLER, "batch_sampler"))
        is_shuffled = loader.argument(training.SHUFFLE, "shuffle")
        sources = loader.argument(0, "dataset").sources()
        return not (
            loader.name != names.LOADER
            or loader.has_stars
            or any(options)
            or (is_shuffled and is_shuffled.constant is not False)
            or any(rank_kind(part) or "shard" in f"{part.name}{part.attribute}".lower() for part in sources)
        )

    return is_result(over, is_plain)


def _is_read_off_a_batch(value: Value) -> bool:
    """Return True for ``(target > 0).any()`` of a DataLoader's batch; its shape is the same on all ranks."""
    if not isinstance(value, Call) or value.args or value.method not in _READS:
        return False
    is_of_batch = any(map(training.is_from_a_loader, value.receiver.sources()))
    return is_of_batch and not any(map(_is_same_on_all_ranks, value.loops))


def _asks_a_batch(value: Value, depth: int = 6) -> bool:
    """Return True for ``batch["size"] < n``, a comparison with the contents of a batch, but not its shape or length."""
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
    is_local = call.method == "mean" or call.name.startswith(_LOCAL)
    return bool(_AGREES.search(name)) and not is_local


def _is_numeric(value: Value) -> bool:
    """Return True for ``loss > 3`` and ``torch.isnan(loss)``, but not ``loss is None`` or ``"aux" in outputs``."""
    identities = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    for node in ast.walk(value.node):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], identities):
            return False
        if isinstance(node, ast.Call) and written(node.func) in ("isinstance", "hasattr", "len", "callable"):
            return False
    return isinstance(value, Call) or isinstance(value.node, ast.Compare | ast.UnaryOp | ast.BoolOp | ast.Subscript)
