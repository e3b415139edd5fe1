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

import json
import shutil
from pathlib import Path

from ddp_doctor.checks.ddp.checkpoint import plain, rules, sharded
from ddp_doctor.facts.ddp.model_state import Checkpoint, Sharded
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> Checkpoint:
    """Save, wait, load; then the same in shards."""
    folder = _folder(ctx)
    try:
        loads = tuple(plain.save_and_load(ctx, folder, version) for version in plain.VERSIONS)
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
    with ctx.step("exchange", "can save shards"):
        reason = next((text for text in ctx.exchange("can save shards", mine) if text), None)
    if reason:
        return None, reason
    with ctx.step("save", "shards"):
        error = sharded.save(ctx, folder)
    with ctx.step("exchange", "saved shards"):
        error = next((text for text in ctx.exchange("saved shards", error) if text), "")
    if error:
        return None, f"torch could not save: {error}"
    alone = sharded.load(ctx, folder)
    with ctx.step("exchange", "loaded shards"):
        against = ctx.exchange("loaded shards", sharded.reason_against_parts(ctx))
    reason = next((text for text in against if text), None)
    found, reason = (None, reason) if reason else sharded.load_part(ctx, folder)
    return alone.model_copy(update={"resharded": found, "resharded_reason": reason}), None


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
