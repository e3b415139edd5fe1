"""What checks that save and load with torch share: a folder of all ranks, reasons against it, texts of errors."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip

#: A file of a rank takes about 3 KiB: all together stay below 1 MiB.
MOST_RANKS = 256


def folder_of_all(ctx: RankContext) -> Path:
    """The folder of the first rank, which all other ranks should see under the same path. Raises Skip."""
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
    """Why this rank cannot take part; "" where it can."""
    import torch

    if ctx.world_size == 1:
        return "sharded checkpoints require at least two ranks"
    if ctx.world_size > MOST_RANKS:
        return f"the test writes at most the shards of {MOST_RANKS} ranks"
    try:
        torch.zeros(1).numpy()  # as objects travel between ranks (distributed_c10d.py, _tensor_to_object)
    except RuntimeError:
        return "torch.distributed.checkpoint needs numpy, which these ranks lack"
    try:
        from torch.distributed import checkpoint
        from torch.distributed.tensor import DTensor  # noqa: F401 - torch 2.5 and newer
    except ImportError as error:
        return f"torch {torch.__version__}: {error}"
    known: Any = checkpoint  # it exports its functions without a word to type checkers
    if "no_dist" not in inspect.signature(known.load).parameters:
        return f"torch.distributed.checkpoint of torch {torch.__version__} loads in a group of ranks only"
    return ""


def first_reason(ctx: RankContext, name: str, mine: str) -> str:
    """The reason of the first rank that has one, else "". All ranks call it."""
    with ctx.step("exchange", name):
        return next((text for text in ctx.exchange(name, mine) if text), "")


def failure(call: Callable[[], object]) -> str:
    """What torch.distributed.checkpoint raises in a call, "" where it raises nothing."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        call()
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - it gathers whatever the ranks raised
        # The first failure of a CheckpointException, which is no Exception and has the traces of all.
        failures = getattr(error, "failures", None) or {}
        first = next(iter(failures.values()), (error,))[0]
        return f"{type(first).__name__}: {' '.join(str(first).split())}"[:200]
    return ""
