"""One file that the first rank saves, twice under one name, and all ranks load after it."""

import hashlib
import io
import json
import time
from pathlib import Path
from typing import Any

from ddp_doctor.facts.ddp.model_state import Loaded
from ddp_doctor.model.context import RankContext

FILE = "checkpoint.pt"
#: A job writes the same name again and again.
VERSIONS = (1, 2)
_ELEMENTS = 1000
#: A network file system may show a new file a moment later; by default NFS believes itself for 3 s and more, but
#: asks its server for a name that it never looked up (nfs(5), acregmin and lookupcache).
_PATIENCE_S = 1.0


def save_and_load(ctx: RankContext, folder: Path, version: int) -> Loaded:
    """The first rank saves; all wait for it and load; then all wait until every rank has finished reading."""
    saved = ""
    with ctx.step("save", f"version {version}"):  # on all ranks, for steps of equal numbers are compared
        if ctx.group_rank == 0:
            saved = _save(ctx, folder / FILE, version)
    with ctx.step("exchange", f"saved {version}"):
        outcome = json.loads(ctx.exchange(f"saved {version}", saved)[0])
    if "error" in outcome:
        raise OSError(outcome["error"])
    with ctx.step("load", f"version {version}"):
        loaded = load(ctx, folder / FILE, version, outcome["bytes"], outcome["sha256"])
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
