"""Rules on checkpoints that are written and read by the ranks of a job.

if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), path)                     one rank, without the wrapper's prefix
dist.barrier()
state = torch.load(path, map_location=f"cuda:{local_rank}")         each rank to its own GPU
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.ranks import chosen_ranks, rank_condition, rank_kind, ranks_under
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, written
from ddp_doctor.model.choices import Consequence, Severity

_STRIPPED = ("consume_prefix", "unwrap", "removeprefix", "get_model_state_dict")
#: Words in conditions and decorators that suggest that only one process saves.
_ONE_OF_ALL = re.compile(
    r"main|master|rank|primary|chief|leader|root|proc|gpu|local|device|is_save|should_save|writer|log", re.IGNORECASE
)
_PLACED = re.compile(r"gpu|cuda|cpu|device|distributed|ddp|rank", re.IGNORECASE)
_PER_RANK = re.compile(r"rank|proc|worker|shard|BytesIO|buffer|stream", re.IGNORECASE)
#: Conditions on the kind of path.
_ASKED = re.compile(r"is_?file|is_?dir|endswith|suffix")
#: Functions that make ranks wait for each other.
_WAITS = re.compile(
    r"barrier|wait|sleep|synchroni[sz]e|^backward$|^torch\.distributed\.\w*(reduce|gather|broadcast|scatter|all_to_all)"
)
#: Words in paths and conditions that differ between nodes.
_NODE = re.compile(r"node|host|machine|GROUP_RANK|TMPDIR|scratch|SLURM", re.IGNORECASE)
#: Maximum number of saves that each save is compared with.
_MOST_SAVES = 50
_DCP = "torch.distributed.checkpoint"
_LOAD = "torch.load"
_SAVE = "torch.save"
_SCRIPTED = ("torch.jit.script", "torch.jit.trace")


@lint_rule("DDL129", "wrapper-saved", Consequence.KNOWN)
def wrapper_saved(script: Script) -> Iterator[Spot]:
    """A checkpoint contains the DDP wrapper instead of the model inside.

    Finds: `torch.save` of a model that is certainly wrapped, or of its `state_dict()`, in a script that neither loads
        into the wrapper nor strips the prefix from the keys.
    Why: All keys start with `module.`, so the plain model cannot load them, for example for inference or on one GPU.
    Remedy: Save `model.module.state_dict()`.
    See: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    if not script.calls_any(_SAVE) or script.uses(*_STRIPPED):
        return
    if any(text.endswith("module.") for text in script.texts):  # the prefix of the keys
        return
    if any(script.is_ddp(call.receiver) for call in script.methods("load_state_dict")):
        return
    for save in script.named(_SAVE):
        if training.surely_ddp(save.argument(0, "obj")):
            yield Spot(
                save,
                "The checkpoint contains the DDP wrapper: loading it needs a process group and the same classes",
                remedy=_save_the_inner_model(*save.node.args[:1]),
            )
        for part in save.argument(0, "obj").calls():
            if part.method == "state_dict" and training.surely_ddp(part.receiver):
                yield Spot(
                    part,
                    "The checkpoint contains the DDP wrapper's state: all keys start with 'module.'",
                    remedy=_save_the_inner_model(part.node.func),
                )


def _save_the_inner_model(wrapper: ast.expr | None = None) -> str:
    """Return the fix with the name of the wrapper in the script, taken from ``ddp`` or ``ddp.state_dict``."""
    is_dotted = isinstance(wrapper, ast.Name | ast.Attribute)
    name = written(wrapper).removesuffix(".state_dict") if wrapper and is_dotted else "model"
    return f"Save the model inside the wrapper: {name}.module.state_dict()"


@lint_rule("DDL130", "checkpoint-saved-on-every-rank", Consequence.RISK)
def checkpoint_saved_on_every_rank(script: Script) -> Iterator[Spot]:
    """All ranks write the same checkpoint to the same path.

    Finds: `torch.save` of a state dict or of the wrapped model, `save_pretrained` of the model inside the wrapper, or
        `save` of a scripted model, if every rank of a training script reaches it and the path is the same on all ranks.
        This includes a condition on the rank whose two branches save to the same path.
    Why: The ranks of a node write one file at the same time. A process that reads it during the write, or after a rank
        died in the middle, gets a broken checkpoint. On a shared file system, N ranks write N copies instead of one.
    Remedy: Save on rank 0 only. If other ranks read the file next, add a barrier after the save, outside the condition.
    See: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    trains = {call.root for call in (*training.passes(script), *script.wraps)}
    saves = [(call, path, saved) for call, path, saved in _saves(script) if path and call.root in trains]
    for call, path, saved in saves:
        split = (_in_both_branches((call, path), other[:2]) for other in saves[:_MOST_SAVES])
        where = next(filter(None, split), "")
        if not where and _runs_on_some_ranks(script, call):
            continue
        if _differs_by_rank(path):
            continue  # each rank has its own path or does not write a file
        is_model = call.method or training.surely_ddp(saved.wrapper)
        if is_model or any(part.method == "state_dict" for part in saved.calls()):
            yield Spot(
                call,
                f"Every rank writes this checkpoint to the same path{where}",
                remedy="Delete this save, so that only rank 0 saves" if where else "Save only on rank 0",
                write=() if where else ("if dist.get_rank() == 0:",),
            )


def _in_both_branches(save: tuple[Call, Value], other: tuple[Call, Value]) -> str:
    """Return which ranks save here and which in the branch of rank 0, if all other conditions are the same."""
    mine, its = ({(each.test, each.holds) for each in call.conditions} for call, _ in (save, other))
    split = [each for each in save[0].conditions if (each.test, each.holds) not in its]
    here = rank_condition(split[0]) if len(split) == 1 else None
    if here is None or not here.ranks or 0 in here.ranks:
        return ""
    if any(_ONE_OF_ALL.search(test.text) for test, _ in mine & its):
        return ""
    if its - mine != {(split[0].test, not split[0].holds)} or not _is_same_path(save[1], other[1]):
        return ""
    return f": {here.who} in this line, {here.negated().who} in line {other[0].node.lineno}"


def _differs_by_rank(path: Value) -> bool:
    """Return True if a path contains a rank. A step number does not count, even if a sharded loader yields it."""
    waiting, seen = [path], set[Value]()
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        if rank_kind(part) is not None or _PER_RANK.search(part.text):
            return True
        seen.add(part)
        waiting += () if part.kind == "loop" or part.name == "len" else part.parts
    return False


def _saves(script: Script) -> Iterator[tuple[Call, Value, Value]]:
    """Yield calls that write a checkpoint, with the path and the saved values."""
    yield from ((call, call.argument(1, "f"), call.argument(0, "obj")) for call in script.named(_SAVE))
    for call in script.methods("save", "save_pretrained"):
        is_model = training.surely_ddp(call.receiver.wrapper) and call.method == "save_pretrained"
        if is_model or any(made.name in _SCRIPTED for made in call.receiver.makers()):
            yield call, call.argument(0, "f", "save_directory"), call.receiver


@lint_rule("DDL177", "checkpoint-saved-on-every-node", Consequence.KNOWN)
def checkpoint_saved_on_every_node(script: Script) -> Iterator[Spot]:
    """Local rank 0 of every node saves to the same path.

    Finds: `torch.save` under `local_rank == 0`, to a path that contains no rank, node or host.
    Why: On several nodes, one process per node saves. On a shared file system they all write one file at the same time,
        and a process that reads it then gets a broken checkpoint. On local disks this is correct.
    Remedy: Save on rank 0 of the job: `if dist.get_rank() == 0`.
    See: https://github.com/pytorch/examples/pull/1357
    """
    for call in script.named(_SAVE) if script.is_distributed else ():
        path, who = call.argument(1, "f"), ranks_under(call.conditions)
        if not path or who is None or who.kind != "local_rank" or who.ranks != frozenset({0}):
            continue
        by_rank = [each for each in call.conditions if rank_condition(each)]
        if any((rank_condition(each) or who).kind != "local_rank" for each in by_rank):
            continue
        told_apart = [each.test.text for each in call.conditions]
        told_apart += [f"{part.text} {part.name}" for part in path.sources()]
        if not any(map(_NODE.search, told_apart)) and not any(map(rank_kind, path.sources())):
            yield Spot(
                by_rank[-1].test,
                f"Local rank 0 of every node saves to one path in line {call.node.lineno}: on a shared file system,"
                " they overwrite each other",
                remedy="Save on rank 0 of the job",
                write=("if dist.get_rank() == 0:",),
            )


@lint_rule("DDL131", "checkpoint-loaded-without-map-location", Consequence.RISK)
def checkpoint_loaded_without_map_location(script: Script) -> Iterator[Spot]:
    """Every rank loads a checkpoint to the GPU that saved it.

    Finds: `torch.load` without `map_location`, if the result is loaded into a model or optimizer in a DDP script on
        GPUs.
    Why: Tensors return to the device that saved them, which is rank 0's GPU. All ranks of a node put a copy on GPU 0
        and create a context on it. GPU 0 runs out of memory first, and its rank is the slowest.
    Remedy: Load to the CPU, or to the rank's own GPU: `torch.load(path, map_location="cpu")`.
    See: https://pytorch.org/docs/stable/generated/torch.load.html
        https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    if not script.wraps or not training.uses_gpu(script):
        return
    states = [call.args[0] for call in script.methods("load_state_dict") if call.args]
    loaded = {id(part) for state in states for part in state.sources()}
    for call in script.named(_LOAD):
        placed = any(_PLACED.search(condition.test.text) for condition in call.conditions)
        if call.lacks(1, "map_location") and id(call) in loaded and not placed:
            yield Spot(
                call,
                "Every rank loads this checkpoint to the GPU from which it was saved",
                remedy="Set map_location in torch.load to the CPU or the rank's own GPU",
                write=('torch.load(path, map_location="cpu")',),
            )


@lint_rule("DDL132", "sharded-checkpoint-read-as-a-file", Consequence.FAILS, concerns=always)
def sharded_checkpoint_read_as_a_file(script: Script) -> Iterator[Spot]:
    """torch.load reads a checkpoint that torch.distributed.checkpoint wrote.

    Finds: `torch.load` of a path that the same script passes to `torch.distributed.checkpoint`, or of a `.distcp` file.
        If each rank loads its own file into a model under FSDP, this is a warning.
    Why: Such a checkpoint is a directory with one file per rank, in a separate format. `torch.load` cannot read the
        directory, and a single file contains the pieces of one rank without their positions. If each rank wrote its own
        file, only the same number of ranks can read the files.
    Remedy: Read it with `torch.distributed.checkpoint.load`, with any number of ranks, or convert it to one file with
        `torch.distributed.checkpoint.format_utils.dcp_to_torch_save`.
    See: https://pytorch.org/docs/stable/distributed.checkpoint.html
    """
    of_dcp = [call for call in script.calls if call.name.startswith(_DCP)]
    folders = {folder for call in of_dcp for folder in _checkpoint_folders(call)}
    sharded = _loaded_into_shards(script)
    if not (folders or sharded or script.uses(".distcp")):
        return
    for call in script.named(_LOAD):
        if id(call) in sharded:
            yield Spot(
                call,
                "Each rank loads its own file into FSDP: this requires the same number of ranks as when saving",
                remedy="Save and load with torch.distributed.checkpoint, which reshards",
                write=("torch.distributed.checkpoint.load(state, checkpoint_id=folder)",),
                severity=Severity.WARNING,
            )
        path = call.argument(0, "f")
        if any(_ASKED.search(condition.test.text) for condition in call.conditions):
            continue
        if any(training.exclude_each_other(call, other) for other in of_dcp):
            continue  # a condition of the script tests the path
        if folders.intersection(_path_ids(path)) or any(".distcp" in source.text for source in path.sources()):
            yield Spot(
                call,
                "torch.load cannot read what torch.distributed.checkpoint wrote",
                remedy="Read it with torch.distributed.checkpoint.load",
                write=("torch.distributed.checkpoint.load(state, checkpoint_id=folder)",),
            )


def _loaded_into_shards(script: Script) -> set[int]:
    """Return the loads of one file for each rank whose result goes into a model under FSDP."""
    units = [script.named(names.FSDP[0]), (call.args[0] for call in script.named(names.FSDP[1]) if call.args)]
    sharded = {id(option) for values in units for value in values for option in value.objects()}
    return {
        id(part)
        for call in (script.methods("load_state_dict") if sharded else ())
        if any(id(option) in sharded for option in call.receiver.objects())
        for state in call.args
        for part in state.calls()
        if part.name == _LOAD and part.args and any(map(rank_kind, part.args[0].sources()))
    }


@lint_rule("DDL168", "loaded-before-it-is-saved", Consequence.RISK, concerns=always)
def loaded_before_it_is_saved(script: Script) -> Iterator[Spot]:
    """All ranks load the checkpoint that rank 0 may still be writing.

    Finds: `torch.load` on ranks other than 0 of a path that only rank 0 has just saved, without a collective in
        between. The constructor of DDP and Accelerate's `prepare` count as collectives.
    Why: The other ranks arrive first: the file does not exist yet, is incomplete, or is from the last epoch. The result
        depends on the disk, so small jobs work and large ones fail.
    Remedy: Call `dist.barrier()` between the save and the load, outside the condition.
    See: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    saves = [save for save in script.named(_SAVE) if _is_of_rank_0(save)]
    waits = [call for call in script.calls if saves and _makes_all_ranks_wait(call)]
    for load in script.named(_LOAD) if saves else ():
        if _is_of_rank_0(load):
            continue
        path = load.argument(0, "f")
        early = (
            save
            for save in saves
            if save.precedes(load) and _is_same_path(save.argument(1, "f"), path)
            if not any(save.order < wait.order < load.order for wait in waits)
        )
        for save in islice(early, 1):
            yield Spot(
                load,
                f"Ranks load the file that rank 0 saves in line {save.node.lineno} without waiting for it",
                remedy="Add a barrier between saving and loading, outside of the condition",
                write=("dist.barrier()",),
                cost="one barrier per checkpoint",
            )


def _is_of_rank_0(call: Call) -> bool:
    test = chosen_ranks(call.conditions)
    return test is not None and test.ranks == frozenset({0})


def _makes_all_ranks_wait(call: Call) -> bool:
    name = call.name or call.method
    waits = not name.startswith("torch.cuda.") and bool(_WAITS.search(name))
    if call.method == "prepare":  # it wraps models in DDP
        waits = any(made.name.endswith(".Accelerator") for made in call.receiver.makers())
    return (waits or call.name == names.DDP) and chosen_ranks(call.conditions) is None


def _is_same_path(left: Value, right: Value, depth: int = 6) -> bool:
    if left is right or not (left and right):
        return bool(left) and left is right
    if left.kind == right.kind == "constant":
        return left.constant == right.constant
    return (
        bool(depth and left.parts)
        and left.text == right.text
        and len(left.parts) == len(right.parts)
        and all(map(_is_same_path, left.parts, right.parts, [depth - 1] * len(left.parts)))
    )


def _checkpoint_folders(call: Call) -> Iterator[str | int]:
    given = call.argument(None, "checkpoint_id")
    if not given and call.name.endswith(("FileSystemWriter", "FileSystemReader")):
        given = call.argument(0, "path")
    return _path_ids(given)


def _path_ids(value: Value) -> Iterator[str | int]:
    """Yield the identity of a path: a literal's text, or the value itself, because equal names are not enough."""
    for option in value.alternatives():
        yield option.constant if isinstance(option.constant, str) else id(option)


def _runs_on_some_ranks(script: Script, call: Call) -> bool:
    function = call.place.function
    words = [condition.test.text for condition in call.conditions]
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        words += [written(decorator) for decorator in function.decorator_list]
    if chosen_ranks(call.conditions) is not None or any(_ONE_OF_ALL.search(word) for word in words):
        return True
    by_rank = {
        id(leave.place.function)
        for leave in script.leaves
        if isinstance(leave.node, ast.Return) and chosen_ranks(leave.place.conditions) is not None
    }
    return any(  # ``if gathered is None: continue``, with a function that returns None on other ranks
        isinstance(source, Call) and id(source.local) in by_rank
        for condition in call.conditions
        for source in condition.test.sources()
    )
