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

from ddp_doctor.checks.ddp.checkpoint import rules, sharded
from ddp_doctor.facts.ddp.model_state import Checkpoint, Loaded, Sharded
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.rule import rules_in

#: A job writes the same name again and again.
_VERSIONS = (1, 2)
_ELEMENTS = 1000
#: A network file system may show a new file a moment later; by default NFS believes itself for 3 s and more, but
#: asks its server for a name that it never looked up (nfs(5), acregmin and lookupcache).
_PATIENCE_S = 1.0


def probe(ctx: RankContext) -> Checkpoint:
    """Save, wait, load; then the same in shards."""
    folder = _folder(ctx)
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
        raise Skip(f"the first rank cannot save in {folder.parent}: {error}") from error
    finally:
        if ctx.group_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _folder(ctx: RankContext) -> Path:
    """The folder of the first rank, which all other ranks should see under the same path."""
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


def _in_shards(ctx: RankContext, folder: Path, sees: bool) -> tuple[Sharded | None, str | None]:
    """Save and load in shards where all ranks can: the others would wait for a rank that cannot."""
    mine = sharded.reason_against(ctx) if sees else "not all ranks see the folder"
    if reason := sharded.first_reason(ctx, "can save shards", mine):
        return None, reason
    with ctx.step("save", "shards"):
        error = sharded.save(ctx, folder)
    if error := sharded.first_reason(ctx, "saved shards", error):
        return None, f"torch could not save: {error}"
    alone = sharded.load(ctx, folder)
    reason = sharded.first_reason(ctx, "loaded shards", sharded.reason_against_parts(ctx))
    found, why_not = (None, reason) if reason else sharded.load_part(ctx, folder)
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
