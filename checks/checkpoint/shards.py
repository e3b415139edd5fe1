"""DD765: a checkpoint in shards does not load at another world size."""

from collections.abc import Iterator

from ddp_doctor.checks.checkpoint.facts import Checkpoint, Sharded
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.checkpoints import LOOK_AT_STORAGE
from ddp_doctor.phrases.ranks import rank_culprits, ranks_at


@rule("DD765", "sharded-checkpoint-does-not-load", Severity.ERROR, Checkpoint)
def sharded_checkpoint_does_not_load(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        All ranks saved one tensor in shards, with torch.distributed.checkpoint; a rank that loads it alone, as a
        world of another size, lacks a shard's file, gets an error or finds other numbers than were saved.

    Why it matters
        A job that resumes on fewer or more ranks reads every shard on every node. A shard that is lost or
        torn ends it, or gives it weights that no rank had.

    Remedy
        Look at the file system of the working directory, on the node that wrote the shard and on the one that
        reads it.

    References
        https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """
    ranks = {one.fact.group_rank: one.rank or 0 for one in recording.facts(Checkpoint)}
    bad = [(one, one.fact.sharded) for one in recording.facts(Checkpoint) if one.fact.sharded is not None]
    bad = [(one, seen) for one, seen in bad if seen.missing or seen.off or seen.error]
    if not bad:
        return
    owners = sorted(
        {ranks[owner] for _, seen in bad for owner in (*seen.missing, *seen.off) if owner in ranks}
    )
    readers = [one.rank or 0 for one, _ in bad]
    everyone = len(readers) == bad[0][0].fact.world_size
    # A shard that nobody can read is its writer's; one that some cannot is theirs.
    yield Draft(
        title=f"A sharded checkpoint does not load on {ranks_at(recording, readers)}"
        + (f": the shard of {ranks_at(recording, owners)}" if owners else ""),
        detail=_detail(*bad[0]),
        culprits=rank_culprits(recording, Checkpoint, owners if everyone else readers),
        evidence=(_evidence(*bad[0]),),
        remedies=(LOOK_AT_STORAGE,),
    )


def _detail(one: Seen[Checkpoint], seen: Sharded) -> str:
    files = ", ".join(f"__{rank}_0.distcp" for rank in (seen.missing or seen.off)[:8])
    what = f"On rank {one.rank} {'is missing' if seen.missing else 'is off'}: {files}. " if files else ""
    return what + (f"torch says: {seen.error}" if seen.error else f"{seen.off_elements} elements are off.")


def _evidence(one: Seen[Checkpoint], seen: Sharded) -> Evidence:
    text = f"files of shards that rank {one.rank} sees"
    return Evidence(check="checkpoint", text=text, value=seen.shards, expected=one.fact.world_size)


RULES = (sharded_checkpoint_does_not_load,)
