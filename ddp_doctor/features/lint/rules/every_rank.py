"""Rules on work that every rank repeats although one would do, and on calls that bypass DistributedDataParallel.

loss = model.module(images).sum(); loss.backward()        no gradient is synchronized
datasets.CIFAR10("data", download=True)                   all ranks write the same files
wandb.init(project="mine")                                one run for each rank
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.ranks import chosen_ranks, rank_kind
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, written
from ddp_doctor.model.choices import Consequence

_WRITERS = ("torch.utils.tensorboard.SummaryWriter", "tensorboardX.SummaryWriter", "wandb.init")
_DATASETS = ("torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets.")
#: Words in conditions that select one process.
_SOME_RANK = re.compile(r"main|master|rank|primary|chief|leader|local|proc|gpu", re.IGNORECASE)
_LETS_ONE_FIRST = ("lock", "first", "zero", "once", "main")
#: Functions that receive a model and do not call it.
_CALLS_NOTHING = frozenset(("print", "len", "id", "type", "isinstance", "hasattr", "torch.save", "copy.deepcopy"))


@lint_rule("DDL163", "every-rank-downloads", Consequence.RISK)
def every_rank_downloads(script: Script) -> Iterator[Spot]:
    """All ranks download a data set to the same place at the same time.

    Finds: A data set of torchvision, torchaudio or torchtext with `download=True`, reached by every rank, without a
        lock around it and without code that lets one rank go first.
    Why: The ranks of a node, or of all nodes on a shared file system, write the same archive and unpack the same
        directory while others already read them. Files are truncated and checksums do not match, but only at the first
        start on a new machine.
    Remedy: Download before the job or on one rank. The other ranks wait at a barrier and then open the data with
        `download=False`.
    See: https://pytorch.org/vision/stable/datasets.html
    """
    for call in script.calls:
        if not call.name.startswith(_DATASETS) or call.argument(None, "download").constant is not True:
            continue
        if any(map(call.precedes, script.launches)) or _one_rank_goes_first(script, call):
            continue
        if any(map(rank_kind, call.sources())):  # one path per rank
            continue
        yield Spot(
            call,
            f"Every rank downloads {call.name.rpartition('.')[2]} to the same path",
            remedy="Download the data before the job starts, then set download=False",
        )


@lint_rule("DDL164", "every-rank-logs", Consequence.KNOWN)
def every_rank_logs(script: Script) -> Iterator[Spot]:
    """Every rank opens a separate log for the same run.

    Finds: `SummaryWriter(...)` or `wandb.init(...)` that all ranks reach, without a rank in its arguments and without a
        group.
    Why: One run appears once per rank. The curves differ because each shows its own shard, and one directory contains
        event files of several writers.
    Remedy: Open it on rank 0 only, or give each rank its own directory, or wandb a `group`.
    See: https://docs.wandb.ai/guides/track/log/distributed-training/
        https://pytorch.org/docs/stable/tensorboard.html
    """
    for call in script.named(*_WRITERS):
        if call.root or call.has_stars or {"group", "mode"} & set(call.keywords):
            continue
        if chosen_ranks(call.conditions) is not None or any(map(rank_kind, call.sources())):
            continue
        yield Spot(
            call,
            f"Every rank opens its own log with {'wandb.init' if call.name == 'wandb.init' else 'SummaryWriter'}",
            remedy="Open it only on rank 0",
        )


_MAKES_DIRECTORIES = ("os.makedirs", "os.mkdir")


@lint_rule("DDL184", "directory-made-by-every-rank", Consequence.RISK)
def directory_made_by_every_rank(script: Script) -> Iterator[Spot]:
    """All ranks create the same directory, and all but the first may fail.

    Finds: `os.makedirs`, `os.mkdir` or a path's `mkdir` without `exist_ok=True`, reached by every rank, outside `try`,
        for a path without a rank. This includes calls under `if not os.path.exists(path)`.
    Why: Another rank may create the directory between the check and the call. `FileExistsError` then ends that rank and
        the job.
    Remedy: Set `exist_ok=True`.
    See: https://docs.python.org/3/library/os.html#os.makedirs
    """
    groups = list(script.named(names.INIT))
    paths = (
        call for call in script.methods("mkdir") if any(made.name.endswith("Path") for made in call.receiver.makers())
    )
    for call in (*script.named(*_MAKES_DIRECTORIES), *paths):
        if call.has_stars or call.argument(2, "exist_ok") or call.place.guards or call.place.in_handler:
            continue
        if any(map(call.precedes, script.launches)) or _one_rank_goes_first(script, call):
            continue
        if not any(call.root == group.root for group in groups) or any(map(rank_kind, call.sources())):
            continue
        if not any(_SOME_RANK.search(each.test.text) for each in call.conditions):
            yield Spot(
                call,
                "Every rank creates this directory: all but the first may fail with FileExistsError",
                remedy="Set exist_ok=True",
            )


@lint_rule("DDL165", "memory-given-back-every-step", Consequence.KNOWN)
def memory_given_back_every_step(script: Script) -> Iterator[Spot]:
    """torch.cuda.empty_cache() is called in every training step.

    Finds: `torch.cuda.empty_cache()` without a condition in the loop that runs `backward()`.
    Why: The call waits for the GPU and returns all cached blocks to the driver, and the next step requests them again.
        Steps get slower, and ranks drift apart and wait for each other in the all-reduce. The call does not free memory
        that tensors still use.
    Remedy: Call it only between phases (before evaluation), or remove it. To reduce fragmentation, set
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    See: https://pytorch.org/docs/stable/notes/cuda.html#memory-management
    """
    steps = [backward for backward in script.methods("backward") if backward.loops]
    for call in script.named("torch.cuda.empty_cache"):
        beside = (step for step in steps if step.loops[-1] in call.loops[-1:])
        if any(set(map(id, call.conditions)) <= set(map(id, step.conditions)) for step in beside):
            yield Spot(
                call,
                "torch.cuda.empty_cache() in every step: the CPU waits, and the next step asks for the memory again",
                remedy="Call it between training and evaluation, or not at all",
            )


@lint_rule("DDL166", "forward-around-the-wrapper", Consequence.WRONG)
def forward_around_the_wrapper(script: Script) -> Iterator[Spot]:
    """The loss is computed with model.module, so DDP does not synchronize its gradients.

    Finds: `loss = model.module(...)` with `loss.backward()` in a loop that never calls the wrapper with gradients
        enabled and does not reduce gradients by hand. Also another method of the module inside, or the model under its
        name from before the wrapping.
    Why: DDP prepares its reducer in its own forward. Without that forward, backward leaves each rank with the gradients
        of its own shard and prints no error. The ranks train models that drift apart, and rank 0's is saved (seen:
        after `model.module(x)` two ranks hold 1.0 and 2.0, after `model(x)` both hold 1.5).
    Remedy: Call the wrapper: `model(...)`. Move the work of the other method into forward.
    See: https://pytorch.org/docs/stable/notes/ddp.html#internal-design
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for backward in script.methods("backward"):
        around = [call for call in backward.receiver.calls() if backward.loops and training.goes_around(script, call)]
        inside = (call for call in script.calls if around and backward.loops[-1] in call.loops)
        if around and not any(_may_call_wrapper(script, call) or training.reduces_gradients(call) for call in inside):
            yield Spot(
                around[0],
                f"The loss comes from {written(around[0].node.func)}(), not from the DDP"
                " wrapper: gradients are not synchronized",
                remedy=f"Call the wrapper itself, {_wrapper(script, around[0])}(...), not the module inside it",
            )


def _wrapper(script: Script, around: Call) -> str:
    """Return the wrapper that a call bypasses, as the script writes it, or ``model`` if uncertain."""
    name, inside, _ = written(around.node.func).partition(".module")
    if inside:
        return name
    names_of_wrappers = {training.written_to(script, wrap) for wrap in script.wraps}
    return names_of_wrappers.pop() or "model" if len(names_of_wrappers) == 1 else "model"


def _one_rank_goes_first(script: Script, call: Call) -> bool:
    if chosen_ranks(call.conditions) is not None:
        return True
    if any(word in context.text.lower() for context in call.place.withs for word in _LETS_ONE_FIRST):
        return True
    waits = script.named("torch.distributed.barrier")
    return any(barrier.precedes(call) and chosen_ranks(barrier.conditions) is not None for barrier in waits)


def _may_call_wrapper(script: Script, call: Call) -> bool:
    if training.no_gradients(call) or call.name in _CALLS_NOTHING:
        return False
    if any(map(script.is_ddp, call.callee.objects())):
        return True
    if call.local is not None:
        return False  # the function was followed, so its calls are known
    return any(script.is_ddp(option) for given in call.arguments for option in given.objects())
