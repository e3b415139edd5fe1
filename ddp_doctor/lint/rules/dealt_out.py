"""A rule on data that are dealt out to the ranks by hand.

data[rank::world_size]                               of 10 samples two ranks of three have 3, and one has 4
data[: len(data) // world_size * world_size][rank::world_size]      all have 3
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_doctor.lint import names, training
from ddp_doctor.lint.ranks import rank_kind
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import NOTHING, Call, Loop, Value, written
from ddp_doctor.model.choices import Severity

#: What keeps the number of its elements, or has as many as the indices that it is given.
_KEEPS = frozenset(
    (
        *("torch.utils.data.Subset", "torch.utils.data.TensorDataset", "list", "tuple", "sorted", "zip", "enumerate"),
        *("numpy.array", "numpy.asarray", "torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.stack"),
    )
)
_DEALS = ("numpy.array_split", "torch.tensor_split", "torch.chunk")
_GROWS = ("append", "extend", "insert", "pop")
_NUMBER_OF_RANKS = re.compile(r"world|replicas|ranks|procs", re.IGNORECASE)
_DEEPEST = 8


@lint_rule("DDL155", "shares-of-unequal-length", Severity.WARNING)
def shares_of_unequal_length(script: Script) -> Iterator[Spot]:
    """The data are dealt out by rank, and nothing makes the shares equally long.

    Finds: `data[rank::world_size]`, `range(rank, n, world_size)`, `islice`, `if i % world_size == rank`,
        `array_split(...)[rank]` or a data set's `shard(num_shards, index)`, through whose elements a loop goes that
        trains the wrapped model. Silent where anything in the script divides by the number of ranks, where the share is
        cut or filled up, where ranks tell each other its length, in DDP's `join()`, and where the loop has a `break`.
    Why: Of n samples some ranks get one more than others, unless the number of ranks divides n. In the last step of an
        epoch those wait in an all-reduce to which the others do not come, or which meets their next epoch.
    Remedy: Use a DistributedSampler, which fills the shares up, or cut the data to a multiple of the number of ranks
        first.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
        https://pytorch.org/tutorials/advanced/generic_join.html
    """
    if script.uses("Join") or any(script.is_ddp(call.receiver) for call in script.methods("join")):
        return
    shares = [*_training_loops_over_shares(script), *_dealt_steps(script)]
    dealt = {node for _, share in shares for node in ast.walk(share.node)}
    divisors = [
        written(node.right if isinstance(node, ast.BinOp) else node.value)
        for node in (script.nodes if shares else ())
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mod | ast.FloorDiv)
        if node not in dealt
    ]
    for loop, share in shares:
        if not _may_be_even(script, share, loop, divisors):
            yield Spot(
                share,
                "The shares of the ranks differ in length: in the last step some wait for others that have ended",
                remedy="Use a DistributedSampler, or cut the data to a multiple of the number of ranks first",
                write=("data = data[: len(data) // world_size * world_size]",),
            )


def _training_loops_over_shares(script: Script) -> Iterator[tuple[Loop, Value]]:
    for loop in dict.fromkeys(loop for backward in training.passes(script) for loop in backward.loops):
        share = _share(_data_of_loop(loop), _DEEPEST)
        if share:
            yield loop, share


def _dealt_steps(script: Script) -> Iterator[tuple[Loop, Value]]:
    """``if i % world_size != rank: continue`` in front of a backward pass."""
    for backward in training.passes(script):
        for condition in backward.conditions:
            is_own = isinstance(getattr(condition.test.node, "ops", [None])[0], ast.Eq) == condition.holds
            if backward.loops and is_own and _is_every_nth(condition.test):
                yield backward.loops[-1], condition.test


def _data_of_loop(loop: Loop) -> Value:
    """What a loop goes through: the data set of a loader without a sampler, or the data themselves."""
    over = training.passed_on(loop.over)
    for made in over.makers():
        if made.name == names.LOADER:
            is_plain = made.lacks(training.SAMPLER, "sampler") and made.lacks(training.BATCH_SAMPLER, "batch_sampler")
            return made.argument(0, "dataset") if is_plain else NOTHING
    return over


def _share(value: Value, depth: int) -> Value:
    """The share of a rank that a value is, or has as many elements as."""
    for option in value.alternatives() if depth else ():
        if _is_dealt(option):
            return option
        parts: tuple[Value, ...] = ()
        if isinstance(option, Call):
            is_data_set = isinstance(option.local, ast.ClassDef) and _has_a_length(option.local)
            parts = option.arguments if option.name in _KEEPS or is_data_set else ()
            if option.method in ("tolist", "copy", "numpy"):
                parts = (option.receiver,)
        elif isinstance(option.node, ast.ListComp) and option.kind == "other":
            parts = option.parts[:1] if len(option.parts) == 2 else ()
        for part in parts:
            if found := _share(part, depth - 1):
                return found
    return NOTHING


def _has_a_length(definition: ast.ClassDef) -> bool:
    methods = {node.name for node in definition.body if isinstance(node, ast.FunctionDef)}
    return "__len__" in methods and "__iter__" not in methods


def _is_dealt(value: Value) -> bool:
    node = value.node
    if value.kind == "element" and isinstance(node, ast.Subscript):
        whole, index = value.parts
        if isinstance(node.slice, ast.Slice):
            lower, step = node.slice.lower, node.slice.step
            return bool(lower and step) and _is_by_rank(index.parts[0], index.parts[-1])
        if isinstance(index, Call) and index.name == "slice" and len(index.args) == 3:
            return _is_by_rank(index.args[0], index.args[2])
        return any(_is_by_rank(index, made.argument(1, "chunks")) for made in whole.makers() if made.name in _DEALS)
    if isinstance(value, Call):
        if value.method == "shard":
            return _is_by_rank(value.argument(1, "index"), value.argument(0, "num_shards"))
        first = {"range": 0, "itertools.islice": 1}.get(value.name)
        return first is not None and len(value.args) == first + 3 and _is_by_rank(value.args[first], value.args[-1])
    is_chosen = isinstance(node, ast.ListComp) and value.kind == "other"
    return is_chosen and any(map(_is_every_nth, value.parts))


def _is_by_rank(begin: Value, step: Value) -> bool:
    return bool(rank_kind(begin)) and training.is_world_size(step)


def _is_every_nth(test: Value) -> bool:
    """``i % world_size == rank``."""
    if not isinstance(test.node, ast.Compare) or len(test.parts) != 2:
        return False
    for left, right in (test.parts, test.parts[::-1]):
        operator, _, divisor = training.operation(left)
        if isinstance(operator, ast.Mod) and _is_by_rank(right, divisor):
            return True
    return False


def _may_be_even(script: Script, share: Value, loop: Loop, divisors: list[str]) -> bool:
    own = {written(node) for node in ast.walk(share.node) if isinstance(node, ast.expr)}
    if any(text in own or _NUMBER_OF_RANKS.search(text) for text in divisors):
        return True
    if any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(loop.node)):
        return True
    if any(share in call.receiver.objects() for call in script.methods(*_GROWS)):
        return True
    return any(
        call.name.startswith("torch.distributed.") and any(share in given.sources() for given in call.arguments)
        for call in script.calls
    ) or any(isinstance(each.node, ast.AugAssign) and share in each.value.sources() for each in script.assignments)
