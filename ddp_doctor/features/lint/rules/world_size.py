"""Rules on arithmetic with the number of ranks.

batch_size = total // world_size                   the batch of a rank, divided once
loss.backward()                                    DDP takes the mean over the ranks by itself
dist.all_reduce(correct); correct / len(dataset)   a metric of all, from the sums of all
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.expressions import Assignment
from ddp_doctor.features.lint.ranks import is_world_size
from ddp_doctor.features.lint.rule import Spot, hand_written, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, Call, Value, is_result, written
from ddp_doctor.model.choices import Confidence, Consequence

_OWN_REDUCTION = ("no_sync", "require_backward_grad_sync", "register_comm_hook")
_SUMMED = re.compile(r"reduction=['\"]sum['\"]|\.sum\(|size_average=False")
_SHARED = re.compile(r"reduce|gather|torchmetrics|evaluator|synchronize_between", re.IGNORECASE)
_DEEPEST = 12


def _shards_data(script: Script) -> bool:
    return hand_written(script) or (not script.libraries and script.calls_any(names.LOADER))


@lint_rule("DDL145", "batch-size-divided-twice", Consequence.RISK, concerns=_shards_data)
def batch_size_divided_twice(script: Script) -> Iterator[Spot]:
    """The batch size is divided by the number of ranks more than once.

    Finds: The `batch_size` of a DataLoader that is divided by the world size, or the number of GPUs, more than once on
        every path through the script.
    Why: Each rank's batch is N times smaller than intended: the GPUs idle, BatchNorm sees few samples, and the learning
        rate is set for a larger batch.
    Remedy: Divide once, at the place where the option is read.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    for call in script.named(names.LOADER):
        divisions, at = _divisions(call.argument(training.BATCH_SIZE, "batch_size"))
        if divisions > 1:
            yield Spot(
                at,
                "The batch size is divided by the number of ranks a second time",
                remedy="Divide the batch size by the number of ranks once",
            )


@lint_rule("DDL146", "loss-divided-by-world-size", Consequence.RISK)
def loss_divided_by_world_size(script: Script) -> Iterator[Spot]:
    """The loss is divided by the number of ranks before the backward pass.

    Finds: `backward()` of a loss of the wrapped model that was divided by the world size, if nothing shows that the
        loss is a sum.
    Why: DDP already averages the gradients over the ranks. The second division makes gradients N times too small. This
        acts like a learning rate that is N times too small and that changes with the number of ranks.
    Remedy: Remove the division from the loss that `backward()` uses.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for call in script.methods("backward"):
        loss = call.receiver
        if isinstance(loss, Call) and loss.method == "scale" and loss.args:
            loss = loss.args[0]  # of a GradScaler
        division = _division_by_world_size(loss, _DEEPEST)
        forwards = training.forwards_in(script, division)
        if not forwards or _is_summed(division):
            continue
        if all(training.surely_ddp(forward.callee) for forward in forwards):
            yield Spot(
                division,
                "The loss is divided by the number of ranks, but DDP already averages over ranks",
                remedy="Remove the division; DDP divides the gradients by the number of ranks",
            )


@lint_rule("DDL147", "gradients-reduced-twice", Consequence.COST)
def gradients_reduced_twice(script: Script) -> Iterator[Spot]:
    """The script all-reduces the gradients of a wrapped model, although DDP already does.

    Finds: `all_reduce` of the `grad` of each parameter of a model that DistributedDataParallel wrapped, in a script
        that does not disable DDP's own reduction.
    Why: DDP has already reduced the gradients, in large buckets and during the backward pass. A second all-reduce per
        parameter takes longer, does not overlap with computation, and makes the gradients N times too large if it sums
        them.
    Remedy: Remove the all-reduce.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    if script.uses(*_OWN_REDUCTION) or not any(training.backwards(script)):
        return
    for call in script.named("torch.distributed.all_reduce"):
        gradient = call.argument(0, "tensor")
        while gradient.kind == "attribute" and gradient.attribute == "data":
            gradient = gradient.owner
        is_gradient = gradient.kind == "attribute" and gradient.attribute == "grad"
        calls = gradient.owner.calls() if is_gradient and gradient.owner.kind in ("loop", "element") else ()
        parameters = next((each for each in calls if each.method in ("parameters", "named_parameters")), None)
        if parameters and training.surely_ddp(parameters.receiver.wrapper):
            yield Spot(
                call, "These gradients are all-reduced twice: DDP already does it", remedy="Remove this all_reduce"
            )


@lint_rule("DDL148", "local-sum-divided-by-global-count", Consequence.RISK)
def local_sum_divided_by_global_count(script: Script) -> Iterator[Spot]:
    """A sum from one rank is divided by the size of the entire data set.

    Finds: A division by `len(loader.dataset)`, or by the length of the data set itself, of a sum over a loader with a
        DistributedSampler, in a script without a reduction. The length may have a name: `size = len(loader.dataset)`,
        then `correct /= size` after the loop.
    Why: A rank sees 1/N of the data set, so the printed accuracy or loss is N times too small. A threshold or "best so
        far" then compares partial results.
    Remedy: All-reduce the sum and the count, then divide.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
    """
    if any(map(_shares, script.calls)):
        return
    divisions = {
        id(node.right if isinstance(node, ast.BinOp) else node.value): node
        for node in script.nodes
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
    }
    for call in script.named("len"):
        sums = _sums(script, call, _loader_with_sampler_of(script, call.args[0])) if call.args else []
        division = divisions.get(id(call.node)) or _divided_by_name(script, call, sums, divisions.values())
        if sums and division is not None:
            yield Spot(
                division,
                "A sum over this rank's part of the data is divided by the size of the entire data set",
                remedy="All-reduce the sum and the count before dividing",
                write=("dist.all_reduce(correct)",),
                cost="one small all-reduce per evaluation",
            )


@lint_rule("DDL149", "learning-rate-scaled-for-a-fixed-batch", Consequence.KNOWN, concerns=_shards_data)
def learning_rate_scaled_for_a_fixed_batch(script: Script) -> Iterator[Spot]:
    """The learning rate grows with the number of ranks, but the global batch does not.

    Finds: An optimizer whose learning rate is multiplied by the world size, in a script with DataLoaders whose batch
        size is divided by it.
    Why: The linear rule (N times the batch, N times the rate) applies to a global batch that grows with the ranks. Here
        the global batch stays the same, so the rate is N times the rate of the same training on one GPU, which may
        diverge.
    Remedy: Scale the rate or divide the batch size, but not both, unless the given rate is meant for one rank's batch.
    See: https://arxiv.org/abs/1706.02677
    """
    sizes = [call.argument(training.BATCH_SIZE, "batch_size") for call in training.loaders(script)]
    if not any(_divisions(size)[0] for size in sizes):
        return
    for call in script.calls:
        rate = call.argument(1, "lr") if call.name.startswith("torch.optim.") else NOTHING
        if at := _multiplication_by_world_size(rate, _DEEPEST):
            yield Spot(
                at,
                "The learning rate is multiplied by the number of ranks, but the batch size is divided by it",
                remedy="Scale the learning rate or divide the batch size, not both",
                confidence=Confidence.POSSIBLE,
            )


def _divisions(value: Value, depth: int = _DEEPEST) -> tuple[int, Value]:
    """Return the minimum number of divisions by the world size, and the last division."""
    options = [_divisions_of(option, depth) for option in value.alternatives()] if depth else []
    return min(options, key=lambda pair: pair[0], default=(0, NOTHING))


def _divisions_of(value: Value, depth: int) -> tuple[int, Value]:
    if isinstance(value, Call) and value.name in ("int", "max", "round", "math.ceil", "math.floor") and value.args:
        return max((_divisions(argument, depth - 1) for argument in value.args), key=lambda pair: pair[0])
    operator, left, right = training.operation(value)
    inner, at = _divisions(left, depth - 1)
    if isinstance(operator, ast.Div | ast.FloorDiv):
        return (inner + 1, value) if is_world_size(right) else (inner, at)
    return (0, NOTHING) if is_world_size(right) or is_world_size(left) else (inner, at)


def _operation_of_all(value: Value, depth: int) -> tuple[Value, ast.operator | None, Value, Value]:
    """Return the only alternative of a value, and its operation."""
    found = list(value.alternatives())
    only = found[0] if len(found) == 1 and depth else NOTHING
    return only, *training.operation(only)


def _division_by_world_size(value: Value, depth: int) -> Value:
    division, operator, left, right = _operation_of_all(value, depth)
    if isinstance(operator, ast.Div) and is_world_size(right):
        return division
    return _division_by_world_size(left, depth - 1) if isinstance(operator, ast.Div | ast.Mult) else NOTHING


def _multiplication_by_world_size(value: Value, depth: int) -> Value:
    product, operator, left, right = _operation_of_all(value, depth)
    if isinstance(operator, ast.Mult):
        for rate, factor in ((left, right), (right, left)):
            if is_world_size(factor) and not _divisions(rate)[0]:
                return product
        return _multiplication_by_world_size(left, depth - 1) or _multiplication_by_world_size(right, depth - 1)
    if isinstance(operator, ast.Div) and not is_world_size(right):
        return _multiplication_by_world_size(left, depth - 1)
    return NOTHING


def _is_summed(division: Value) -> bool:
    for part in division.sources():
        operator, left, right = training.operation(part)
        if isinstance(operator, ast.Mult) and (is_world_size(left) or is_world_size(right)):
            return True
        if isinstance(part, Call) and _SUMMED.search(part.text):
            return True
    return False


def _shares(call: Call) -> bool:
    """Return True if a call may combine all ranks' numbers: a collective, or a function with a similar name."""
    if call.name.startswith("torch.") and not call.name.startswith("torch.distributed."):
        return False  # ReduceLROnPlateau, torch.gather
    is_of_tensor = call.method == "gather" and len(call.args) > 1
    return not is_of_tensor and bool(_SHARED.search(call.name or call.method))


def _loader_with_sampler_of(script: Script, value: Value) -> Call | None:
    for call in script.named(names.LOADER):
        sampler = call.argument(training.SAMPLER, "sampler")
        if not is_result(sampler, lambda made: made.name == names.SAMPLER):
            continue
        dataset = call.argument(0, "dataset")
        is_its = value.kind == "attribute" and value.attribute == "dataset"
        if (is_its and [*value.owner.objects()] == [call]) or (
            dataset and [*value.alternatives()] == [*dataset.alternatives()]
        ):
            return call
    return None


def _sums(script: Script, call: Call, loader: Call | None) -> list[Assignment]:
    """Return the sums over a loader in the function of a call."""
    return [
        assignment
        for assignment in script.assignments
        if loader is not None
        and isinstance(assignment.node, ast.AugAssign)
        and assignment.place.function is call.place.function
        and any(loader in loop.over.sources() for loop in assignment.place.loops)
    ]


_Division = ast.BinOp | ast.AugAssign


def _divided_by_name(
    script: Script, call: Call, sums: Sequence[Assignment], divisions: Iterable[_Division]
) -> _Division | None:
    """Return ``correct / size`` after the loop that sums up ``correct``, with ``size = len(data)``."""
    function = call.place.function
    sizes = {each.name for each in script.assignments if each.value is call and isinstance(each.target, ast.Name)}
    bound = [each for each in script.assignments if each.name in sizes and each.place.function is function]
    last = max((getattr(each.place.loops[-1].node, "end_lineno", 0) for each in sums), default=0)
    until = (function and function.end_lineno) or math.inf
    if len({each.node for each in bound}) != 1:
        return None
    for division in divisions:
        left, right = (
            (division.left, division.right) if isinstance(division, ast.BinOp) else (division.target, division.value)
        )
        is_named = isinstance(right, ast.Name) and right.id in sizes and last < division.lineno <= until
        parts = {written(node) for node in ast.walk(left) if isinstance(node, ast.Name | ast.Attribute)}
        if is_named and any(written(each.target) in parts for each in sums):
            return division
    return None
