"""A checkpoint of which each rank saves its part, loaded by each rank alone, then by a group with one rank fewer.

Source: torch/distributed/checkpoint, filesystem.py: rank r writes its part to ``__r_0.distcp`` and the first rank a
``.metadata``, which is a pickle. So nothing is loaded here but what the probe itself saved a moment before, in a folder
that nobody else may enter.

Source: planner_helpers.py of the same: a rank that loads a DTensor reads from each saved shard what overlaps its own
part, by the offsets of both. Parts are those of torch.chunk: rounded up, the last ones shorter.
"""

import inspect
from pathlib import Path
from typing import Any

from ddp_doctor.facts.ddp.model_state import Resharded, Sharded
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


def save(ctx: RankContext, folder: Path) -> str:
    """Save this rank's part of one tensor; the text of the error where torch failed, else ""."""
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
        return error_text(error)
    return ""


def load(ctx: RankContext, folder: Path) -> Sharded:
    """What this rank alone finds in the shards of all."""
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    known: Any = checkpoint
    missing = [rank for rank in range(ctx.world_size) if not any((folder / FOLDER).glob(f"__{rank}_*.distcp"))]
    loaded = Sharded(shards=ctx.world_size - len(missing), missing=tuple(missing))
    expected = torch.arange(ctx.world_size * ELEMENTS_OF_A_RANK, dtype=torch.float32)
    held: dict[str, Any] = {"weight": torch.full_like(expected, -1.0)}
    try:
        known.load(held, checkpoint_id=folder / FOLDER, no_dist=True)
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - torn bytes raise whatever they lead to
        return loaded.model_copy(update={"error": error_text(error)})
    off = (held["weight"] != expected).nonzero().flatten().tolist()
    owners = tuple(sorted({place // ELEMENTS_OF_A_RANK for place in off}))
    return loaded.model_copy(update={"off": owners, "off_elements": len(off)})


def error_text(error: BaseException) -> str:
    """The first failure of a CheckpointException, which is no Exception and has the traces of all; else the error."""
    failures = getattr(error, "failures", None) or {}
    first = next(iter(failures.values()), (error,))[0]
    return f"{type(first).__name__}: {first}"[:200]


def reason_against_parts(ctx: RankContext) -> str:
    """Why this rank cannot take part; "" where it can."""
    import torch.distributed as dist

    if ctx.world_size < 3:
        return "two ranks have no smaller group of several"
    if ctx.world_size != dist.get_world_size():
        return "all ranks of the job must make a new group, and these are a part of them"
    return ""


def load_part(ctx: RankContext, folder: Path) -> tuple[Resharded | None, str | None]:
    """What this rank's part holds when all but the last rank load, or why it was not loaded. All ranks call it."""
    import torch.distributed as dist

    members = ctx.world_size - 1
    is_member = ctx.group_rank < members
    with ctx.step("new_group", f"{members} ranks"):
        group: Any = dist.new_group(list(range(members)))
    try:
        part, error = _part(ctx, group, members) if is_member else (None, "")
        error = first_reason(ctx, "made parts", error)
        found = None
        with ctx.step("load", f"shards by {members} ranks"):
            if part is not None and not error:
                found, error = _load_in_group(ctx, folder, group, part)
        with ctx.step("exchange", "loaded parts"):
            ctx.exchange("loaded parts", "")
    finally:
        if is_member:
            dist.destroy_process_group(group)
    if not is_member:
        error = error or "the last rank is left out of the smaller group"
    return found, error or None


def _part(ctx: RankContext, group: Any, members: int) -> tuple[Any, str]:
    """An empty part of the whole for this rank, or why torch makes none."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    whole = torch.Size([ctx.world_size * ELEMENTS_OF_A_RANK])
    first, end = part_of(ctx.group_rank, members, whole[0])
    own = torch.full((end - first,), -1.0, device=ctx.device)
    try:
        mesh = DeviceMesh.from_group(group, ctx.device.partition(":")[0])
        return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=whole, stride=(1,)), ""
    except Exception as error:  # noqa: BLE001 - what a torch of another version makes of it
        return None, f"torch makes no parts for a smaller group: {error_text(error)}"


def _load_in_group(ctx: RankContext, folder: Path, group: Any, part: Any) -> tuple[Resharded | None, str]:
    """What the part holds; what is no fault of the files or of the plan to read them is a reason."""
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    known: Any = checkpoint  # it exports its functions without a word to type checkers
    members = dist.get_world_size(group)
    first, end = part_of(ctx.group_rank, members, ctx.world_size * ELEMENTS_OF_A_RANK)
    loaded = Resharded(world_size=members, first=first, elements=end - first)
    try:
        known.load({"weight": part}, checkpoint_id=folder / FOLDER, process_group=group)
    except CheckpointException as error:
        failed = tuple(sorted(error.failures))
        return loaded.model_copy(update={"error": error_text(error), "failed": failed}), ""
    except Exception as error:  # noqa: BLE001 - a connection that was lost is not judged here
        return None, f"torch could not load in a smaller group: {error_text(error)}"
    own = part.to_local()
    expected = torch.arange(first, end, dtype=torch.float32, device=own.device)  # each element is its own place
    off = (own != expected).nonzero().flatten().tolist()
    if not off:
        return loaded, ""
    held = own[off[0]].item()
    holds = int(held) if held.is_integer() and held >= 0 else None
    update = {"off_elements": len(off), "off_first": first + off[0], "off_holds": holds}
    return loaded.model_copy(update=update), ""


def part_of(rank: int, ranks: int, elements: int) -> tuple[int, int]:
    """The elements of a rank, first and end, as torch.chunk and Shard(0) cut them."""
    size = -(-elements // ranks)
    return min(rank * size, elements), min((rank + 1) * size, elements)
