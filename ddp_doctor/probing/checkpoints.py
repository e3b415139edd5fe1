"""Shared parts of the checks that save and load with torch: a common directory, preconditions, error texts."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip

#: The file of a rank takes about 3 KiB, so all files together stay below 1 MiB.
MOST_RANKS = 256


def folder_of_all(ctx: RankContext) -> Path:
    """Return the first rank's new directory, which the other ranks should see under the same path. Raises Skip."""
    mine: dict[str, str] = {}
    if ctx.group_rank == 0:
        try:
            mine = {"folder": ctx.new_folder()}
        except OSError as error:
            mine = {"error": str(error)}
    with ctx.step("exchange", "folder"):
        first_rank = json.loads(ctx.exchange("folder", json.dumps(mine))[0])
    if "error" in first_rank:
        raise Skip(f"the first rank cannot write in its working directory: {first_rank['error']}")
    return Path(first_rank["folder"])


def reason_against(ctx: RankContext) -> str:
    """Return the reason why this rank cannot take part, or ""."""
    import torch

    if ctx.world_size == 1:
        return "sharded checkpoints require at least two ranks"
    if ctx.world_size > MOST_RANKS:
        return f"the test writes at most the shards of {MOST_RANKS} ranks"
    try:
        torch.zeros(1).numpy()  # torch converts objects like this to send them (distributed_c10d.py, _tensor_to_object)
    except RuntimeError:
        return "torch.distributed.checkpoint needs numpy, which these ranks lack"
    try:
        from torch.distributed import checkpoint
        from torch.distributed.tensor import DTensor  # noqa: F401 - torch 2.5 and newer
    except ImportError as error:
        return f"torch {torch.__version__}: {error}"
    known: Any = checkpoint  # its functions are not visible to type checkers
    if "no_dist" not in inspect.signature(known.load).parameters:
        return f"torch.distributed.checkpoint of torch {torch.__version__} loads in a group of ranks only"
    return ""


def first_reason(ctx: RankContext, name: str, mine: str) -> str:
    """Return the reason of the first rank that has one, or "". All ranks must call it."""
    with ctx.step("exchange", name):
        return next((text for text in ctx.exchange(name, mine) if text), "")


def failure(call: Callable[[], object]) -> str:
    """Return the error that a call of torch.distributed.checkpoint raises, or ""."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        call()
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - it gathers whatever the ranks raised
        # CheckpointException is not an Exception and holds the tracebacks of all ranks; the first one is reported.
        failures = getattr(error, "failures", None) or {}
        first = next(iter(failures.values()), (error,))[0]
        return f"{type(first).__name__}: {' '.join(str(first).split())}"[:200]
    return ""
