"""checkpoint: does every rank load what the first one saved, and do all ranks load what each saved of its own?

What the probe does in a new folder of the working directory, which it removes at the end::

    rank 0    torch.save(version 1)   wait   load   wait   torch.save(version 2, same file)   wait   load
    rank 1                            wait   load   wait                                      wait   load
    read      4.7 KB, sha256 8f3c… on both: stamp [0, 1]                      sha256 12ab… on both: stamp [0, 2]
    all       torch.distributed.checkpoint.save of one tensor in shards: __0_0.distcp, __1_0.distcp, .metadata
    each      loads the whole tensor alone, as a world of one rank
    all but one  load it together, cut anew: with three ranks of four, rank 1 gets elements 342 to 683 of 1024

The stamp shows the rank and the version of the state. The probe loads only its own files, with ``weights_only``,
except for the pickle in ``.metadata`` that torch itself wrote a moment before.

Why it matters: a job that saves on rank 0 and resumes on all relies on every node seeing the same file, whole and
new. A file that a node does not see ends the job when it resumes; an old one lets its ranks train on other weights.
"""

import hashlib
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

from ddp_doctor.checks.ddp.checkpoint import rules
from ddp_doctor.facts.ddp.model_state import Checkpoint, Loaded, Resharded, Sharded
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.checkpoints import error_text, failure, first_reason, folder_of_all, reason_against

#: A job writes the same name again and again.
_VERSIONS = (1, 2)
_ELEMENTS = 1000
#: A network file system may show a new file a moment later; by default NFS believes itself for 3 s and more, but
#: asks its server for a name that it never looked up (nfs(5), acregmin and lookupcache).
_PATIENCE_S = 1.0
SHARDS = "sharded"
ELEMENTS_OF_A_RANK = 256


def probe(ctx: RankContext) -> Checkpoint:
    """Save, wait, load; then the same in shards."""
    folder = folder_of_all(ctx)
    try:
        loads = tuple(_save_and_load(ctx, folder, version) for version in _VERSIONS)
        found, reason = _in_shards(ctx, folder, sees=loads[-1].read is not None)
        return Checkpoint(
            world_size=ctx.world_size,
            group_rank=ctx.group_rank,
            folder=str(folder),
            working_directory=str(Path.cwd()),
            loads=loads,
            sharded=found,
            sharded_reason=reason,
        )
    except OSError as error:
        raise Skip(f"the first rank cannot save a checkpoint in {folder.parent}: {error}") from error
    finally:
        if ctx.group_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _in_shards(ctx: RankContext, folder: Path, sees: bool) -> tuple[Sharded | None, str | None]:
    """Save and load in shards where all ranks can: the others would wait for a rank that cannot."""
    mine = reason_against(ctx) if sees else "not all ranks see the folder"
    if reason := first_reason(ctx, "can save shards", mine):
        return None, reason
    with ctx.step("save", "shards"):
        error = save_shards(ctx, folder)
    if error := first_reason(ctx, "saved shards", error):
        return None, f"torch could not save: {error}"
    alone = load_shards(ctx, folder)
    reason = first_reason(ctx, "loaded shards", reason_against_parts(ctx))
    found, why_not = (None, reason) if reason else load_part(ctx, folder)
    return alone.model_copy(update={"resharded": found, "resharded_reason": why_not}), None


def _save_and_load(ctx: RankContext, folder: Path, version: int) -> Loaded:
    """The first rank saves; all wait for it and load; then all wait until every rank has finished reading."""
    saved = ""
    with ctx.step("save", f"version {version}"):  # on all ranks, for steps of equal numbers are compared
        if ctx.group_rank == 0:
            saved = _save(ctx, folder / rules.FILE, version)
    with ctx.step("exchange", f"saved {version}"):
        outcome = json.loads(ctx.exchange(f"saved {version}", saved)[0])
    if "error" in outcome:
        raise OSError(outcome["error"])
    with ctx.step("load", f"version {version}"):
        loaded = load(ctx, folder / rules.FILE, version, outcome["bytes"], outcome["sha256"])
    with ctx.step("exchange", f"loaded {version}"):
        ctx.exchange(f"loaded {version}", "")
    return loaded


def state(rank: int, version: int) -> dict[str, Any]:
    """What a rank saves: tensors that identify the rank and the version."""
    import torch

    stamp = torch.tensor([rank, version])
    return {"stamp": stamp, "weight": torch.full((_ELEMENTS,), float(10 * rank + version))}


def _save(ctx: RankContext, file: Path, version: int) -> str:
    import torch

    try:
        torch.save(state(ctx.group_rank, version), file)
        data = file.read_bytes()
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:200]})
    return json.dumps({"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})


def load(ctx: RankContext, file: Path, version: int, size: int, sha256: str) -> Loaded:
    """What this rank finds in the file."""
    loaded, started = Loaded(version=version, told_bytes=size, told=sha256), ctx.clock()
    data = None
    while data is None:
        try:
            data = file.read_bytes()
        except OSError as error:
            if ctx.clock() - started > _PATIENCE_S:
                return loaded.model_copy(update={"error": f"{type(error).__name__}: {error}"[:200]})
            time.sleep(0.02)
    found = {
        "size_bytes": len(data),
        "read": hashlib.sha256(data).hexdigest(),
        "seen_after_s": round(ctx.clock() - started, 3),
        **_content(ctx, data),
    }
    return loaded.model_copy(update=found)


def _content(ctx: RankContext, data: bytes) -> dict[str, Any]:
    import torch

    try:
        held = torch.load(io.BytesIO(data), map_location=ctx.device, weights_only=True)
        rank, version = held["stamp"].tolist()
        if not torch.equal(held["weight"].cpu(), state(rank, version)["weight"]):
            return {"error": "its weights are not those that go with its stamp"}
    except Exception as error:  # noqa: BLE001 - torn bytes raise whatever they lead to
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"holds_rank": rank, "holds_version": version}


# Source: torch/distributed/checkpoint, filesystem.py: rank r writes its part to ``__r_0.distcp`` and the first rank a
# ``.metadata``, which is a pickle. So nothing is loaded here but what the probe itself saved a moment before, in a
# folder that nobody else may enter. planner_helpers.py: a rank that loads a DTensor reads from each saved shard what
# overlaps its own part, by the offsets of both. Parts are those of torch.chunk: rounded up, the last ones shorter.


def save_shards(ctx: RankContext, folder: Path) -> str:
    """Save this rank's part of one tensor; the text of the error where torch failed, else ""."""
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    known: Any = checkpoint
    mesh = DeviceMesh.from_group(ctx.group, ctx.device.partition(":")[0])
    first = ctx.group_rank * ELEMENTS_OF_A_RANK
    own = torch.arange(first, first + ELEMENTS_OF_A_RANK, dtype=torch.float32, device=ctx.device)

    def save() -> None:
        whole = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
        known.save({"weight": whole}, checkpoint_id=folder / SHARDS, process_group=ctx.group)

    return failure(save)


def load_shards(ctx: RankContext, folder: Path) -> Sharded:
    """What this rank alone finds in the shards of all."""
    import torch
    from torch.distributed import checkpoint

    known: Any = checkpoint
    missing = [rank for rank in range(ctx.world_size) if not any((folder / SHARDS).glob(f"__{rank}_*.distcp"))]
    loaded = Sharded(shards=ctx.world_size - len(missing), missing=tuple(missing))
    expected = torch.arange(ctx.world_size * ELEMENTS_OF_A_RANK, dtype=torch.float32)
    held: dict[str, Any] = {"weight": torch.full_like(expected, -1.0)}
    if error := failure(lambda: known.load(held, checkpoint_id=folder / SHARDS, no_dist=True)):
        return loaded.model_copy(update={"error": error})
    off = (held["weight"] != expected).nonzero().flatten().tolist()
    owners = tuple(sorted({place // ELEMENTS_OF_A_RANK for place in off}))
    return loaded.model_copy(update={"off": owners, "off_elements": len(off)})


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
        known.load({"weight": part}, checkpoint_id=folder / SHARDS, process_group=group)
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


CHECK = Check(
    id="checkpoint",
    title="Every rank loads what was saved",
    where=Where.RANK,
    probe=probe,
    facts=(Checkpoint,),
    rules=rules_in(rules),
    level=Level.THOROUGH,
    cost_s=3.0,
    deadline_s=30.0,
)
