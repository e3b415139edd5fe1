"""DD765: a checkpoint in shards does not load at another world size."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.checkpoint.wording import LOOK_AT_STORAGE
from ddp_doctor.facts.ddp.model_state import Checkpoint, Resharded, Sharded
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

_Bad = list[tuple[FactAt[Checkpoint], Sharded]]
_BadParts = list[tuple[FactAt[Checkpoint], Resharded]]


@rule("DD765", "sharded-checkpoint-does-not-load", Severity.ERROR, Checkpoint)
def sharded_checkpoint_does_not_load(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        All ranks saved one tensor in shards, with torch.distributed.checkpoint; a rank that loads it alone, as a
        world of another size, lacks a shard's file, gets an error or finds other numbers than were saved. Or each
        alone finds the right ones, and a group of one rank less, in which each loads a part, does not.

    Why it matters
        A job that resumes on fewer or more ranks reads every shard on every node. A shard that is lost or
        torn ends it, or gives it weights that no rank had.

    Remedy
        Look at the file system of the working directory, on the node that wrote the shard and on the one that
        reads it.

    References
        https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """
    seen = recording.facts(Checkpoint)
    alone = [(one, one.fact.sharded) for one in seen if one.fact.sharded is not None]
    bad = [(one, found) for one, found in alone if found.missing or found.off or found.error]
    parts = [(one, found.resharded) for one, found in alone if found.resharded is not None]
    bad_parts = [(one, found) for one, found in parts if found.off_elements or found.error]
    if bad:
        yield _does_not_load(recording, bad, bad_parts)
    elif bad_parts:
        yield _does_not_load_in_parts(recording, bad_parts)


def _does_not_load(recording: Recording, bad: _Bad, bad_parts: _BadParts) -> Draft:
    """A shard that nobody can read is its writer's; one that some cannot is theirs."""
    ranks = _by_group_rank(recording)
    owners = sorted({ranks[own] for _, found in bad for own in (*found.missing, *found.off) if own in ranks})
    readers = [one.rank or 0 for one, _ in bad]
    saved = bad[0][0].fact.world_size
    sizes = "1" if not bad_parts else f"1 and {bad_parts[0][1].world_size}"
    return likely(
        rank_culprits(recording, Checkpoint, owners if len(readers) == saved else readers),
        f"What {saved} ranks saved in shards does not load at world size {sizes} on"
        f" {ranks_at(recording, readers)}"
        + (f": the shard of {ranks_at(recording, owners)}" if owners else ""),
        _evidence(*bad[0]),
        LOOK_AT_STORAGE,
        detail=_detail(*bad[0]),
    )


def _does_not_load_in_parts(recording: Recording, bad: _BadParts) -> Draft:
    """Every rank alone reads the whole rightly, so that it is no shard's fault but the reader's."""
    ranks = _by_group_rank(recording)
    failed = {ranks[rank] for _, found in bad for rank in found.failed if rank in ranks}
    readers = sorted(failed | {one.rank or 0 for one, found in bad if found.off_elements})
    members, saved = bad[0][1].world_size, bad[0][0].fact.world_size
    one, found = next((each for each in bad if each[0].rank in readers), bad[0])
    return likely(
        rank_culprits(recording, Checkpoint, readers) if len(readers) < members else (),
        f"What {saved} ranks saved in shards does not load at world size {members} on"
        f" {ranks_at(recording, readers)}, though it does at world size 1",
        Evidence(
            text=f"elements of rank {one.rank}'s part that are as saved",
            value=None if found.error else found.elements - found.off_elements,
            expected=found.elements,
        ),
        LOOK_AT_STORAGE,
        detail=_detail_of_part(one, found),
    )


def _by_group_rank(recording: Recording) -> dict[int, int]:
    return {rank.fact.group_rank: rank.rank or 0 for rank in recording.facts(Checkpoint)}


def _detail_of_part(one: FactAt[Checkpoint], found: Resharded) -> str:
    if found.error:
        return f"torch says: {found.error}"
    holds = "another number" if found.off_holds is None else f"that of element {found.off_holds}"
    return (
        f"Rank {one.rank} loads elements {found.first} to {found.first + found.elements - 1}:"
        f" {found.off_elements} are off. Element {found.off_first} holds {holds}."
    )


def _detail(one: FactAt[Checkpoint], seen: Sharded) -> str:
    files = ", ".join(f"__{rank}_0.distcp" for rank in (seen.missing or seen.off)[:8])
    what = f"On rank {one.rank} {'is missing' if seen.missing else 'is off'}: {files}. " if files else ""
    return what + (f"torch says: {seen.error}" if seen.error else f"{seen.off_elements} elements are off.")


def _evidence(one: FactAt[Checkpoint], seen: Sharded) -> Evidence:
    text = f"files of shards that rank {one.rank} sees"
    return Evidence(text=text, value=seen.shards, expected=one.fact.world_size)
