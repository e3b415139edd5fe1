"""Rules on how the data set is divided among the ranks, by a sampler or manually.

sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)      and no shuffle=True beside it
for epoch in range(epochs):
    sampler.set_epoch(epoch)
data[rank::world_size]                               of 10 samples two ranks of three have 3, and one has 4
data[: len(data) // world_size * world_size][rank::world_size]      all have 3
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from ddp_doctor.features.lint import frameworks, names, training
from ddp_doctor.features.lint.collectives import collectives, is_doubtful
from ddp_doctor.features.lint.ranks import is_world_size, rank_kind
from ddp_doctor.features.lint.rule import Spot, always, hand_written, lint_rule
from ddp_doctor.features.lint.scopes import Class
from ddp_doctor.features.lint.script import Script, words
from ddp_doctor.features.lint.values import NOTHING, Call, Loop, Value, is_result, written
from ddp_doctor.model.choices import Consequence

_SHARDED = re.compile(
    r"Distributed\w*Sampler|split_dataset_by_node|nodesplitter|split_by_node|\.shard$|DataLoaderDispatcher|"
    r"prepare_data_loader|StatefulDataLoader|StreamingDataset"
)
_STREAM = re.compile(
    r"(?i:iterable|webdataset|webloader|stream|datapipe|shard|distributed|synthetic|fake|dummy|random_data|from_dict$)"
)
_PREPARES = re.compile(r"prepare|set_?up|private|shard|distribut", re.IGNORECASE)
#: Conditions that may test whether the job is distributed.
_ON_THE_JOB = re.compile(r"distrib|ddp|rank|world|gpu|local|initialized|sampler|shard|multi", re.IGNORECASE)
_OF_ONE_PROCESS = ("torch.utils.data.RandomSampler", "torch.utils.data.SequentialSampler")
_EPOCHS = re.compile(r"epoch|^ep$", re.IGNORECASE)
_BY_RANK = re.compile(r"rank|world_size|num_replicas|shard")
#: Words in streams whose samples differ between ranks.
_BY_RANK_OR_CHANCE = re.compile(rf"{_BY_RANK.pattern}|rand|sampl|split|slice|process|node", re.IGNORECASE)


@lint_rule(
    *("DDL120", "loader-without-distributed-sampler", Consequence.RISK),
    concerns=lambda script: hand_written(script) or frameworks.are_imported(script),
)
def loader_without_distributed_sampler(script: Script) -> Iterator[Spot]:
    """Every rank trains on the entire data set.

    Finds: A DataLoader for training without a sampler (a RandomSampler does not count) or batch sampler, in a script
        that wraps its model in DistributedDataParallel. Also one that Accelerate or Fabric did not prepare, and any one
        with DeepSpeed, if a loop over it calls their `backward`. Not reported if the script visibly splits the data set
        by rank in another way, such as slices and subsets by rank or `split_dataset_by_node`, if the data set is a
        stream that draws samples or knows its rank, if a library takes and returns the loader, or if nothing uses it.
    Why: Each of N ranks reads all samples: an epoch takes N times the steps, and every sample counts N times. Without
        `shuffle`, or with the same seed on all ranks, the ranks even compute the same gradients, and N GPUs do the work
        of one.
    Remedy: Pass a DistributedSampler to the loader, and call its `set_epoch` at the beginning of each epoch.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    yield from _undivided(script)
    if not script.wraps or script.libraries:
        return
    sharding = (call for call in script.calls if _SHARDED.search(written(call.node.func)))
    elsewhere = any(not training.is_for_evaluation(script, call) for call in sharding)
    for call in training.loaders(script):
        if not _has_no_shard(call) or any(_ON_THE_JOB.search(condition.test.text) for condition in call.conditions):
            continue
        if any(call in given.alternatives() for preparing in _preparing(script) for given in preparing.arguments):
            continue  # a library returns another loader: ``net, loader = engine.prepare(net, loader)``
        is_shuffled = call.argument(training.SHUFFLE, "shuffle").constant is True and not elsewhere
        name = training.written_to(script, call)
        is_used = not name.isidentifier() or any(
            isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in script.nodes
        )
        if is_used and (is_shuffled or "train" in name.lower() or _is_trained_on(script, call)):
            yield _whole(call)


def _whole(call: Call, kind: str = "") -> Spot:
    fault = "This DataLoader gives every rank the entire data set"
    if kind in ("Accelerator", "Fabric"):  # which divide the data of a loader that they get
        remedy = "Pass it to Accelerate's prepare() or Fabric's setup_dataloaders(), and use the result"
        return Spot(call, f"{fault}: it is not prepared, only the model is", remedy=remedy)
    makers = call.argument(0, "dataset").makers()
    if any(_is_stream(made.local) for made in makers):  # a loader of a stream cannot have a sampler
        remedy = "Let __iter__ skip the samples of the other ranks, and of the other workers of its loader"
        write = "yield from itertools.islice(samples, dist.get_rank(), None, dist.get_world_size())"
        return Spot(call, fault, remedy=remedy, write=(write,))
    remedy = "Pass a DistributedSampler instead of shuffle, and call set_epoch in every epoch"
    lines = ("sampler = DistributedSampler(dataset)", "loader = DataLoader(dataset, sampler=sampler)")
    return Spot(call, fault, remedy=remedy, write=lines)


def _undivided(script: Script) -> Iterator[Spot]:
    """Yield the loaders that Accelerate, Fabric or DeepSpeed train on, if nothing divides them."""
    for call in script.methods("backward"):
        kind = frameworks.together(script, call)
        for over in (training.passed_on(loop.over) for loop in call.loops if kind):
            if is_result(over, lambda made: made.name == names.LOADER and _has_no_shard(made)):
                yield from (_whole(made, kind) for made in over.makers())


@lint_rule("DDL121", "shuffle-together-with-sampler", Consequence.FAILS, concerns=always)
def shuffle_together_with_sampler(script: Script) -> Iterator[Spot]:
    """A DataLoader has both a sampler and shuffle=True.

    Finds: `DataLoader(..., shuffle=True, sampler=...)` if the script creates the sampler.
    Why: On all ranks, the DataLoader raises `ValueError: sampler option is mutually exclusive with shuffle`.
    Remedy: Remove `shuffle`: a DistributedSampler shuffles by default.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """
    for call in script.named(names.LOADER):
        sampler = call.argument(training.SAMPLER, "sampler")
        is_shuffled = call.argument(training.SHUFFLE, "shuffle").constant is True
        if is_shuffled and is_result(sampler, lambda made: made.name.endswith("Sampler")):
            yield Spot(
                call,
                "shuffle=True is set together with a sampler: this DataLoader raises ValueError",
                remedy="Remove shuffle; DistributedSampler shuffles by default",
            )


def _deals_data(script: Script) -> bool:
    return not script.libraries and (script.is_distributed or script.calls_any(names.SAMPLER))


@lint_rule("DDL122", "set-epoch-missing", Consequence.RISK, concerns=_deals_data)
def set_epoch_missing(script: Script) -> Iterator[Spot]:
    """A DistributedSampler shuffles without the number of the epoch.

    Finds: A DistributedSampler that shuffles, in a script that trains in a loop over several epochs and does not call
        the sampler's `set_epoch` in it: not at all, for another sampler, always with the same number, or once before
        the loop. Any loop that iterates the sampler's loader again counts as epochs (`for e in range(10)`,
        `while True`, an infinite generator). Not reported: a loop over loaders, over folds with separate samplers, or
        over models.
    Why: The order depends on the seed plus the number of the epoch. Without `set_epoch` that number stays 0. Every
        epoch has the same order, and each rank always sees the same samples in the same batches, which reduces
        accuracy.
    Remedy: Call `sampler.set_epoch(epoch)` at the beginning of every epoch, before the loader is iterated.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    has_epoch = _samplers_with_epoch(script) if script.calls_any(names.SAMPLER) else None
    if has_epoch is None:
        return
    has_epochs = any(_is_epoch_loop(loop) for call in training.passes(script) for loop in call.loops[:-1])
    for call in script.named(names.SAMPLER):
        if id(call.node) in has_epoch:
            continue
        if not (has_epochs or _is_gone_through_again(script, call) or _is_in_loop_of_epochs(script, call)):
            continue
        shuffled = call.argument(3, "shuffle")
        if call.has_stars or (shuffled.kind == "constant" and shuffled.constant is not True):
            continue
        if not training.is_for_evaluation(script, call):
            sampler, epoch, at = _names_in_epoch_loop(script, call)
            yield Spot(
                call,
                "This DistributedSampler repeats the same order in every epoch, because it does not know the epoch",
                remedy=f"Call set_epoch at the start of every epoch{at}",
                write=(f"{sampler}.set_epoch({epoch})",),
            )


def _names_in_epoch_loop(script: Script, sampler: Call) -> tuple[str, str, str]:
    """Return the names of the sampler and the epoch that the loop over epochs can use, and the place of that loop."""
    loaders = {each for each in script.named(names.LOADER) if sampler in each.sources()}
    around = (loops for over, loops in training.iterations(script) if loops and not loaders.isdisjoint(over.sources()))
    loops = next(around, ())
    loop = next((each.node for each in loops if _is_epoch_loop(each)), loops[0].node if loops else None)
    if not isinstance(loop, ast.For | ast.While):
        return "sampler", "epoch", ""
    used = {written(node) for node in ast.walk(loop) if isinstance(node, ast.Name | ast.Attribute)}
    made = [(training.written_to(script, each), each) for each in (sampler, *loaders)]
    same = made[1:] if made[0][0] in [name for name, _ in made[1:]] else made  # of a loader that is made with it
    known = [
        name if each is sampler else f"{name}.sampler"
        for name, each in same
        if name in used or (name.isidentifier() and _is_in(each.place.function, loop))
    ]
    inner = (each.loops[-1] for each in training.passes(script) if each.loops)
    iterated = (getattr(each.node, "iter", None) for each in inner if not loaders.isdisjoint(each.over.sources()))
    parts = (node for each in iterated if each for node in ast.walk(each) if isinstance(node, ast.Attribute))
    known += [f"{written(node)}.sampler" for node in parts if written(node).startswith("self.")]
    target = getattr(loop, "target", None)
    epoch = target.id if isinstance(target, ast.Name) and target.id != "_" else "epoch"
    return next(iter(known), "sampler"), epoch, f", in the loop in line {loop.lineno}"


def _is_in(function: ast.AST | None, loop: ast.For | ast.While) -> bool:
    return function is None or any(node is loop for node in ast.walk(function))


def _samplers_with_epoch(script: Script) -> set[int] | None:
    """Return the samplers with a ``set_epoch`` call in every epoch, by node; None if a call may be for any sampler."""
    calls = list(script.methods("set_epoch"))
    if not calls:
        return None if script.uses("set_epoch") else set()
    found = set[int]()
    for call in calls:
        samplers = [sampler for sampler in _samplers(call.parts[0]) if sampler.kind != "constant"]
        if not samplers or any(sampler.name != names.SAMPLER or sampler.kind != "call" for sampler in samplers):
            return None
        is_once = not call.loops and any(each.root == call.root for each in training.passes(script))
        epoch = call.argument(0, "epoch")
        counted = (each.value for each in script.assignments if set(each.place.loops) & set(call.loops))
        if not is_once and (epoch.kind != "constant" or any(epoch in value.parts for value in counted)):
            found |= {id(sampler.node) for sampler in samplers}
    return found


def _samplers(receiver: Value) -> Iterator[Value]:
    """Yield the possible values of ``sampler`` or ``loader.sampler``."""
    for option in receiver.objects():
        is_of_loader = option.kind == "attribute" and option.attribute == "sampler"
        loaders = (loader for owner in option.parts for loader in owner.objects())
        for made in loaders if is_of_loader else (option,):
            sampler = NOTHING
            if is_of_loader and isinstance(made, Call) and made.name == names.LOADER:
                sampler = made.argument(training.SAMPLER, "sampler")
            yield from sampler.objects() if sampler else (made,)


def _is_trained_on(script: Script, loader: Call) -> bool:
    """Return True if the wrapped model's backward runs only in loops over this loader.

    Values that ``next`` takes from the loader in a loop count too.
    """
    gone_through = (loop.over for call in training.passes(script) for loop in call.loops[-1:])
    taken = (
        part
        for call in training.passes(script)
        for part in call.receiver.calls()
        if part.loops and (part.name == "next" or part.method == "__next__")
    )
    return any(
        {call for call in value.calls() if call.name == names.LOADER} == {loader} for value in (*gone_through, *taken)
    )


def _has_no_shard(call: Call) -> bool:
    sampler = call.given(training.SAMPLER, "sampler")
    if call.has_stars or (sampler and not is_result(sampler, lambda made: made.name in _OF_ONE_PROCESS)):
        return False
    if call.given(training.BATCH_SAMPLER, "batch_sampler") or call.argument(training.BATCH_SIZE, "batch_size").is_none:
        return False  # without a batch size, the data set makes batches itself, as streams do
    dataset = call.argument(0, "dataset")
    return bool(dataset) and not any(map(_is_split, dataset.sources()))


@lru_cache(maxsize=1)  # of all loaders
def _preparing(script: Script) -> tuple[Call, ...]:
    return tuple(
        call
        for call in script.calls
        if call.local is None and _PREPARES.search(call.method or call.name.rpartition(".")[2])
    )


def _is_split(value: Value) -> bool:
    if rank_kind(value) is not None or is_world_size(value):
        return True
    if isinstance(value, Call):
        local = value.local
        if isinstance(local, ast.ClassDef):
            found = words(ast.walk(local))
            return bool((_BY_RANK_OR_CHANCE if _is_stream(local) else _BY_RANK).search(found))
        return bool(_STREAM.search(value.name) or _STREAM.search(value.method))
    return isinstance(value, Class) or bool(value.kind == "name" and _STREAM.search(value.name))


def _is_stream(dataset: ast.AST | None) -> bool:
    return isinstance(dataset, ast.ClassDef) and any("IterableDataset" in written(base) for base in dataset.bases)


def _is_gone_through_again(script: Script, sampler: Call) -> bool:
    """Return True if one model trains on a sampler's loader several times, with the same order each time."""
    for loader in script.named(names.LOADER):
        given = (loader.argument(training.SAMPLER, "sampler"), loader.argument(None, "batch_sampler"))
        if not any(sampler in each.sources() for each in given):
            continue
        passes = (
            backward
            for backward in training.passes(script)
            if loader in backward.receiver.sources() or any(loader in loop.over.sources() for loop in backward.loops)
        )
        forwards = (forward for backward in passes for forward in training.forwards_in(script, backward.receiver))
        made = [wrap for forward in forwards for wrap in forward.callee.makers() if wrap.name == names.DDP]
        for over, loops in training.iterations(script):
            sources = list(over.sources()) if loops and made else []
            taken = [source.node for source in [*sources, *sampler.sources()] if source.kind == "loop"]
            if loader in sources and any(
                _repeats(loop)
                and getattr(loop.node, "target", None) not in taken
                and not any(loop in wrap.loops for wrap in made)
                for loop in loops
            ):
                return True
    return False


def _is_in_loop_of_epochs(script: Script, sampler: Call) -> bool:
    """Return True if a loop over epochs iterates over a training loader of the sampler, whatever calls it makes."""
    loaders = {
        loader
        for loader in training.loaders(script)
        if sampler in loader.argument(training.SAMPLER, "sampler").objects()
    }
    return any(
        not loaders.isdisjoint(over.sources()) and any(map(_is_epoch_loop, loops))
        for over, loops in training.iterations(script)
    )


def _repeats(loop: Loop) -> bool:
    if not isinstance(loop.over, Call):
        return loop.over.kind != "tuple" or len(loop.over.parts) > 1
    return [argument.constant for argument in loop.over.args[-1:]] != [1]


def _is_epoch_loop(loop: Loop) -> bool:
    node = loop.node
    if isinstance(node, ast.While):
        return "epoch" in written(node.test).lower()
    if not isinstance(node, ast.For):
        return False
    is_named_so = _EPOCHS.search(written(node.target)) or "epoch" in written(node.iter).lower()
    return bool(is_named_so) and _repeats(loop)


#: Functions that keep the number of elements, or return as many as the given indices.
_KEEPS = frozenset(
    (
        *(
            "torch.utils.data.SubsetRandomSampler",
            "torch.utils.data.Subset",
            "torch.utils.data.TensorDataset",
            "list",
            "tuple",
            "sorted",
            "zip",
            "enumerate",
        ),
        *("numpy.array", "numpy.asarray", "torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.stack"),
    )
)
_COUNTS_FROM = {"range": 0, "numpy.arange": 0, "torch.arange": 0, "itertools.islice": 1}
_DEALS = ("numpy.array_split", "torch.tensor_split", "torch.chunk")
_GROWS = ("append", "extend", "insert", "pop")
_NUMBER_OF_RANKS = re.compile(r"world|replicas|ranks|procs", re.IGNORECASE)
_DEEPEST = 8


@lint_rule("DDL155", "shares-of-unequal-length", Consequence.RISK)
def shares_of_unequal_length(script: Script) -> Iterator[Spot]:
    """The data is split by rank into shares that may have unequal lengths.

    Finds: `data[rank::world_size]`, `range(rank, n, world_size)`, `islice`, `if i % world_size == rank`,
        `array_split(...)[rank]` or a data set's `shard(num_shards, index)`, if a loop over its elements trains the
        wrapped model or calls a collective, as an evaluation may do. Not reported if anything in the script divides by
        the number of ranks, if the share is truncated or padded, if ranks exchange its length, in DDP's `join()`, or if
        the loop has a `break`.
    Why: If the number of ranks does not divide the number of samples, some ranks get one sample more than others. In
        the last step of an epoch, those ranks wait in an all-reduce that the other ranks never call, or that matches
        one of their next epoch.
    Remedy: Use a DistributedSampler, which pads the shares, or first truncate the data to a multiple of the number of
        ranks.
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
                "Ranks have shares of different length: in the last step, some ranks wait for finished ranks",
                remedy="Use a DistributedSampler, or first cut the data to a multiple of the number of ranks",
                write=("data = data[: len(data) // world_size * world_size]",),
            )


def _training_loops_over_shares(script: Script) -> Iterator[tuple[Loop, Value]]:
    for loop in dict.fromkeys(loop for call in _meetings(script) for loop in call.loops):
        share = _share(_data_of_loop(loop), _DEEPEST)
        if share:
            yield loop, share


def _meetings(script: Script) -> Iterator[Call]:
    """Yield the backward passes of the wrapped model and the collectives in loops."""
    yield from training.passes(script)
    yield from (call for call in collectives(script) if call.loops and not is_doubtful(script, call))


def _dealt_steps(script: Script) -> Iterator[tuple[Loop, Value]]:
    """Yield loops with ``if i % world_size != rank: continue`` before a backward pass, and that test."""
    for backward in _meetings(script):
        for condition in backward.conditions:
            is_own = isinstance(getattr(condition.test.node, "ops", [None])[0], ast.Eq) == condition.holds
            if backward.loops and is_own and _is_every_nth(condition.test):
                yield backward.loops[-1], condition.test


def _data_of_loop(loop: Loop) -> Value:
    """Return the data that a loop iterates over: the data set of a loader without a sampler, or the data itself."""
    over = training.passed_on(loop.over)
    for made in over.makers():
        if made.name == names.LOADER:
            sampler = made.given(training.SAMPLER, "sampler")
            if sampler or made.given(training.BATCH_SAMPLER, "batch_sampler"):
                return sampler if is_result(sampler, lambda each: each.name in _KEEPS) else NOTHING
            return made.argument(0, "dataset")
    return over


def _share(value: Value, depth: int) -> Value:
    """Return the share of a rank that a value is, or that has as many elements as the value."""
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
        first = _COUNTS_FROM.get(value.name)
        return first is not None and len(value.args) == first + 3 and _is_by_rank(value.args[first], value.args[-1])
    is_chosen = isinstance(node, ast.ListComp) and value.kind == "other"
    return is_chosen and any(map(_is_every_nth, value.parts))


def _is_by_rank(begin: Value, step: Value) -> bool:
    return bool(rank_kind(begin)) and is_world_size(step)


def _is_every_nth(test: Value) -> bool:
    """Return True for ``i % world_size == rank``."""
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
        if loop not in call.loops
    ) or any(
        isinstance(each.node, ast.AugAssign) and share in each.value.parts[0].alternatives()
        for each in script.assignments
    )
