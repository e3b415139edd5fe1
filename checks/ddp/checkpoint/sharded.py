"""A checkpoint of which each rank saves its part, loaded by each rank alone: as a world of another size.

Source: torch/distributed/checkpoint, filesystem.py: rank r writes its part to ``__r_0.distcp`` and the first rank a
``.metadata``, which is a pickle. So nothing is loaded here but what the probe itself saved a moment before, in a folder
that nobody else may enter.
"""

import inspect
from pathlib import Path
from typing import Any

from ddp_doctor.facts.ddp.model_state import Sharded
from ddp_doctor.model.context import RankContext

FOLDER = "sharded"
ELEMENTS_OF_A_RANK = 256
#: A file of a rank takes about 3 KiB: all together stay below 1 MiB.
MOST_RANKS = 256


def reason_against(ctx: RankContext) -> str:
    """Why this rank cannot take part; "" where it can."""
    import torch

    if ctx.world_size == 1:
        return "a world of one rank has no shards"
    if ctx.world_size > MOST_RANKS:
        return f"the shards of more than {MOST_RANKS} ranks would take more than the probe may write"
    if not _has_numpy():
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


def _has_numpy() -> bool:
    """Objects travel between ranks as numpy arrays (torch/distributed/distributed_c10d.py, _tensor_to_object)."""
    import torch

    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        return False
    return True


def save(ctx: RankContext, folder: Path) -> str:
    """Save this rank's part of one tensor; what torch said where it failed, else ""."""
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    known: Any = checkpoint
    mesh = DeviceMesh.from_group(ctx.group, ctx.device.partition(":")[0])
    first = ctx.group_rank * ELEMENTS_OF_A_RANK
    own = torch.arange(first, first + ELEMENTS_OF_A_RANK, dtype=torch.float32, device=ctx.device)
    try:
        whole = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
        known.save({"weight": whole}, checkpoint_id=folder / FOLDER, process_group=ctx.group)
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - torch gathers whatever the ranks raised
        return said(error)
    return ""


def load(ctx: RankContext, folder: Path) -> Sharded:
    """What this rank alone finds in the shards of all."""
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    known: Any = checkpoint
    missing = [
        rank for rank in range(ctx.world_size) if not any((folder / FOLDER).glob(f"__{rank}_*.distcp"))
    ]
    seen = Sharded(shards=ctx.world_size - len(missing), missing=tuple(missing))
    expected = torch.arange(ctx.world_size * ELEMENTS_OF_A_RANK, dtype=torch.float32)
    held: dict[str, Any] = {"weight": torch.full_like(expected, -1.0)}
    try:
        known.load(held, checkpoint_id=folder / FOLDER, no_dist=True)
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - torn bytes raise whatever they lead to
        return seen.model_copy(update={"error": said(error)})
    off = (held["weight"] != expected).nonzero().flatten().tolist()
    owners = tuple(sorted({place // ELEMENTS_OF_A_RANK for place in off}))
    return seen.model_copy(update={"off": owners, "off_elements": len(off)})


def said(error: BaseException) -> str:
    """The first failure of a CheckpointException, which is no Exception and has the traces of all; else the error."""
    failures = getattr(error, "failures", None) or {}
    first = next(iter(failures.values()), (error,))[0]
    return f"{type(first).__name__}: {first}"[:200]
