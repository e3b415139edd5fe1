"""checkpoint: whether every rank loads what the first rank saved.

The probe works in a new directory below the working directory and removes it at the end::

    rank 0    torch.save(version 1)   wait   load   wait   torch.save(version 2, same file)   wait   load
    rank 1                            wait   load   wait                                      wait   load
    read      4.7 KB, sha256 8f3c… on both: stamp [1]                     sha256 12ab… on both: stamp [2]

The stamp shows the version of the state. The probe loads only its own files, with ``weights_only``.

Why it matters: a job that saves on rank 0 and resumes on all ranks relies on every node reading the same file, complete
and current. If a node does not see the file, the job fails when it resumes. If it reads an old file, its ranks train
with different weights.
"""

import hashlib
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

from ddp_doctor.checks.ddp.checkpoint import rules
from ddp_doctor.facts.ddp.model_state import Checkpoint, Loaded
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.checkpoints import folder_of_all

#: Like a job, the test saves several times under the same name.
_VERSIONS = (1, 2)
_ELEMENTS = 1000
#: A network file system may show a new file with a delay. By default, NFS trusts its cache for 3 s or more, but asks
#: its server for a name that it never looked up (nfs(5), acregmin and lookupcache).
_PATIENCE_S = 1.0


def probe(ctx: RankContext) -> Checkpoint:
    """Save, wait and load, twice under one name."""
    folder = folder_of_all(ctx)
    try:
        loads = tuple(_save_and_load(ctx, folder, version) for version in _VERSIONS)
        return Checkpoint(
            world_size=ctx.world_size,
            group_rank=ctx.group_rank,
            folder=str(folder),
            working_directory=str(Path.cwd()),
            loads=loads,
        )
    except OSError as error:
        raise Skip(f"the first rank cannot save a checkpoint in {folder.parent}: {error}") from error
    finally:
        if ctx.group_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _save_and_load(ctx: RankContext, folder: Path, version: int) -> Loaded:
    """Save on the first rank, load on all ranks, and wait until every rank has finished reading."""
    saved = ""
    with ctx.step("save", f"version {version}"):  # on all ranks, because steps with equal numbers are compared
        if ctx.group_rank == 0:
            saved = _save(folder / rules.FILE, version)
    with ctx.step("exchange", f"saved {version}"):
        outcome = json.loads(ctx.exchange(f"saved {version}", saved)[0])
    if "error" in outcome:
        raise OSError(outcome["error"])
    with ctx.step("load", f"version {version}"):
        loaded = load(ctx, folder / rules.FILE, version, outcome["bytes"], outcome["sha256"])
    with ctx.step("exchange", f"loaded {version}"):
        ctx.exchange(f"loaded {version}", "")
    return loaded


def _state(version: int) -> dict[str, Any]:
    """Return the tensors that the first rank saves. They identify the version."""
    import torch

    return {"stamp": torch.tensor([version]), "weight": torch.full((_ELEMENTS,), float(version))}


def _save(file: Path, version: int) -> str:
    import torch

    try:
        torch.save(_state(version), file)
        data = file.read_bytes()
    except (OSError, RuntimeError) as error:  # torch's writer reports a full disk as a RuntimeError
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:200]})
    return json.dumps({"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})


def load(ctx: RankContext, file: Path, version: int, size: int, sha256: str) -> Loaded:
    """Return what this rank reads from the file."""
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
        (version,) = held["stamp"].tolist()
        if not torch.equal(held["weight"].cpu(), _state(version)["weight"]):
            return {"error": "its weights do not match its stamp"}
    except Exception as error:  # noqa: BLE001 - incomplete bytes may raise anything
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"holds_version": version}


CHECK = Check(
    id="checkpoint",
    title="Every rank loads what was saved",
    where=Where.RANK,
    probe=probe,
    facts=(Checkpoint,),
    rules=rules_in(rules),
    level=Level.THOROUGH,
    cost_s=0.5,
    deadline_s=30.0,
)
