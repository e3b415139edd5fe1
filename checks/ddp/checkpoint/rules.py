"""DD761 - DD765: a rank reads torn, old or another rank's state, or none; a checkpoint in shards does not load."""

from collections.abc import Callable, Iterator

from ddp_doctor.facts.ddp.model_state import Checkpoint, Loaded, Resharded, Sharded
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_code, remedy
from ddp_doctor.remedies.torch_calls import DOCS
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import of_nodes
from ddp_doctor.wording.ranks import rank_culprits, rank_of, ranks_at

#: What the first rank saves, twice under this name.
FILE = "checkpoint.pt"

ONE_WRITER = in_code(
    "Save on rank 0 alone, with the step in the file's name, rename the file when complete, and wait before loading",
    "if dist.get_rank() == 0:",
    "    torch.save(state, f'{path}.part'); os.replace(f'{path}.part', path)",
    "dist.barrier()",
    references=("https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",),
)

NEW_NAMES = in_code(
    "Give each checkpoint a name of its own: for a new name the client asks the server, not its cache",
    "torch.save(state, f'checkpoint-{step}.pt')",
    cost="disk space until old checkpoints are removed",
    references=("https://man7.org/linux/man-pages/man5/nfs.5.html",),
)

SHARED_PLACE = remedy(
    "Write checkpoints to a file system that all nodes share, or load on rank 0 and let DDP broadcast",
    scope="job",
    cost="possibly slower than the node's own disk",
    undo="write to the working directory",
    untried="ddp-doctor does not know where the job writes its checkpoints",
    references=(DOCS + "distributed.checkpoint.html",),
)

LOOK_AT_STORAGE = remedy(
    "Look at the file system of the working directory on these nodes: mount options, quota, errors in its log",
    "findmnt --target .",
    "df -h .",
    untried="ddp-doctor does not change file systems",
)

LOAD_ON_ONE_RANK = remedy(
    "Convert the checkpoint on one rank, which reads all of it correctly, and load the converted file (workaround)",
    "python -m torch.distributed.checkpoint.format_utils dcp_to_torch CHECKPOINT_FOLDER FILE",
    scope="job",
    cost="time: one process reads the entire checkpoint",
    undo="load the sharded checkpoint",
    untried="ddp-doctor does not know where the job writes its checkpoints",
    references=(DOCS + "distributed.checkpoint.html",),
)


@rule("DD761", "checkpoint-torn-or-changed", Consequence.WRONG, Checkpoint)
def checkpoint_torn_or_changed(recording: Recording) -> Iterator[Draft]:
    """Finds: A rank reads other bytes than rank 0 saved and read back itself, or bytes that torch cannot load, after
        all had waited for rank 0.
    Why: A job that resumes there fails, or trains on with weights that no rank ever had.
    Remedy: Look at the file system of the working directory. In a job's own code: save on one rank, rename when the
        file is whole, and let all ranks wait before they load.
    See: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    bad = _bad(recording, _is_torn)
    if not bad:
        return
    rank, worst = bad[0]
    short = f": {worst.size_bytes} of {worst.told_bytes} bytes" if worst.size_bytes != worst.told_bytes else ""
    ranks = [rank_of(rank) for rank, _ in bad]
    yield likely(
        () if len(ranks) == rank.fact.world_size else rank_culprits(recording, Checkpoint, ranks),
        f"The checkpoint that rank {_saver(recording)} saved is incomplete or changed when"
        f" read on {ranks_at(recording, ranks)}{short}",
        Evidence(text=f"bytes that rank {rank.rank} reads", value=worst.size_bytes, expected=worst.told_bytes),
        LOOK_AT_STORAGE,
        ONE_WRITER,
        detail=f"File {FILE} in {rank.fact.folder}, version {worst.version}"
        ". All ranks had waited until it was saved." + (f" torch says: {worst.error}" if worst.error else ""),
    )


@rule("DD762", "checkpoint-is-old", Consequence.WRONG, Checkpoint)
def checkpoint_is_old(recording: Recording) -> Iterator[Draft]:
    """Finds: Rank 0 saved a second time under the same name, and a rank still reads the first version after all had
        waited.
    Why: A job that overwrites ``latest.pt`` and resumes reads other weights on some nodes than on others. DDP
        broadcasts rank 0's weights, but not the optimiser's state nor the epoch.
    Remedy: Give each checkpoint a name of its own, or mount the file system so that it asks its server.
    See: https://man7.org/linux/man-pages/man5/nfs.5.html
    """
    bad = _bad(recording, _is_old)
    if bad:
        (rank, worst), ranks = bad[0], [rank_of(rank) for rank, _ in bad]
        yield likely(
            rank_culprits(recording, Checkpoint, ranks),
            f"The old checkpoint is still read on {ranks_at(recording, ranks)} after rank {_saver(recording)} saved a"
            " new one",
            Evidence(text=f"version that rank {rank.rank} reads", value=worst.holds_version, expected=worst.version),
            NEW_NAMES,
            LOOK_AT_STORAGE,
            detail=f"File {FILE} in {rank.fact.folder}: version {worst.holds_version} in place of {worst.version}.",
        )


@rule("DD763", "checkpoint-of-another-rank", Consequence.WRONG, Checkpoint)
def checkpoint_of_another_rank(recording: Recording) -> Iterator[Draft]:
    """Finds: The file that rank 0 saved holds another rank's state.
    Why: Ranks that save under one name overwrite one another, and may tear the file while others read it. With buffers
        or optimisers that differ by rank the wrong ones are kept.
    Remedy: Save on rank 0 alone. None of your own code runs in this check: look for code that replaces ``torch.save``.
    See: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    bad = _bad(recording, _is_strange)
    if bad:
        rank, worst = bad[0]
        places = _by_group_rank(recording)
        writers = sorted({places[load.holds_rank] for _, load in bad if load.holds_rank in places})
        yield likely(
            rank_culprits(recording, Checkpoint, writers),
            f"The checkpoint of rank {_saver(recording)} was overwritten by"
            f" {ranks_at(recording, writers) or 'an unknown rank'}",
            Evidence(text=f"rank whose state rank {rank.rank} reads", value=worst.holds_rank, expected=0),
            ONE_WRITER,
            detail=f"File {FILE} in {rank.fact.folder}, version {worst.version}, as read on"
            f" {ranks_at(recording, [rank_of(rank) for rank, _ in bad])}.",
        )


@rule("DD764", "working-directory-not-shared", Consequence.KNOWN, Checkpoint)
def working_directory_not_shared(recording: Recording) -> Iterator[Draft]:
    """Finds: Nodes that do not see a file that rank 0 saved in its working directory, within a second. That is right
        where the directory is each node's or container's own, so it is information.
    Why: A job that saves there on rank 0 cannot resume on these nodes, and one whose ranks save a sharded checkpoint
        there keeps a part of it on each node.
    Remedy: Write checkpoints to a file system that all nodes share, or load on rank 0 alone.
    See: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """
    bad = _bad(recording, lambda load: load.read is None)
    if bad:
        ranks = [rank for rank, _ in bad]
        directories = sorted({rank.fact.working_directory for rank in ranks})
        yield likely(
            of_nodes(recording, ranks),
            f"Files that rank {_saver(recording)} saves in its working directory are not visible on {{who}}",
            Evidence(text=f"file {FILE} on rank {ranks[0].rank}: not there"),
            SHARED_PLACE,
            detail=f"Saved in {ranks[0].fact.folder.rpartition('/')[0]}; the ranks there run in"
            f" {', '.join(directories[:4])}. On reading: {bad[0][1].error}",
        )


def _bad(recording: Recording, is_bad: Callable[[Loaded], bool]) -> list[tuple[FactAt[Checkpoint], Loaded]]:
    """The first bad load of each rank, by rank."""
    ranks = sorted(recording.facts(Checkpoint), key=lambda rank: rank.rank or 0)
    firsts = ((rank, next((load for load in rank.fact.loads if is_bad(load)), None)) for rank in ranks)
    return [(rank, load) for rank, load in firsts if load is not None]


def _is_strange(load: Loaded) -> bool:
    return load.holds_rank not in (None, 0)


def _is_old(load: Loaded) -> bool:
    return load.holds_rank == 0 and load.holds_version is not None and load.holds_version < load.version


def _is_torn(load: Loaded) -> bool:
    if load.read is None or _is_old(load) or _is_strange(load):
        return False
    return load.read != load.told or load.holds_version != load.version


def _saver(recording: Recording) -> int:
    """The original rank of the group's first rank, which saves."""
    ranks = _by_group_rank(recording)
    return ranks[min(ranks)]


_BadShards = list[tuple[FactAt[Checkpoint], Sharded]]
_BadParts = list[tuple[FactAt[Checkpoint], Resharded]]


@rule("DD765", "sharded-checkpoint-does-not-load", Consequence.FAILS, Checkpoint)
def sharded_checkpoint_does_not_load(recording: Recording) -> Iterator[Draft]:
    """Finds: All ranks saved one tensor in shards, with torch.distributed.checkpoint; a rank that loads it alone, as a
        world of another size, lacks a shard's file, gets an error or finds other numbers than were saved. Or each
        alone finds the right ones, and a group of one rank less, in which each loads a part, does not.
    Why: A job that resumes on fewer or more ranks reads every shard on every node. A shard that is lost or torn ends
        it, or gives it weights that no rank had.
    Remedy: Look at the file system of the working directory, on the node that wrote the shard and on the one that reads
        it. If only a smaller group fails, convert the checkpoint on one rank.
    See: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """
    ranks = recording.facts(Checkpoint)
    alone = [(rank, rank.fact.sharded) for rank in ranks if rank.fact.sharded is not None]
    bad = [(rank, found) for rank, found in alone if found.missing or found.off or found.error]
    parts = [(rank, found.resharded) for rank, found in alone if found.resharded is not None]
    bad_parts = [(rank, found) for rank, found in parts if found.off_elements or found.error]
    if bad:
        yield _does_not_load(recording, bad, bad_parts)
    elif bad_parts:
        yield _does_not_load_in_parts(recording, bad_parts)


def _does_not_load(recording: Recording, bad: _BadShards, bad_parts: _BadParts) -> Draft:
    """Blame the writer of a shard that no rank can read, else the ranks that cannot read it."""
    ranks = _by_group_rank(recording)
    owners = sorted({ranks[own] for _, found in bad for own in (*found.missing, *found.off) if own in ranks})
    readers = [rank_of(rank) for rank, _ in bad]
    sizes = "a single rank" + (f", nor by {bad_parts[0][1].world_size} ranks" if bad_parts else "")
    (rank, found), saved = bad[0], bad[0][0].fact.world_size
    files = ", ".join(f"__{shard}_0.distcp" for shard in (found.missing or found.off)[:8])
    what = f"On rank {rank.rank} {'is missing' if found.missing else 'is off'}: {files}. " if files else ""
    state = "missing" if found.missing else "wrong"
    shards = "shard" if len(owners) == 1 else "shards"
    are = "is" if len(owners) == 1 else "are"
    whose = f", and the {shards} of {ranks_at(recording, owners)} {are} {state} in the checkpoint" if owners else ""
    return likely(
        rank_culprits(recording, Checkpoint, owners if len(readers) == saved else readers),
        f"A sharded checkpoint saved by {saved} ranks cannot be loaded by {sizes}: loading fails on"
        f" {ranks_at(recording, readers)}{whose}",
        Evidence(text=f"files of shards that rank {rank.rank} sees", value=found.shards, expected=saved),
        LOOK_AT_STORAGE,
        detail=what + (f"torch says: {found.error}" if found.error else f"{found.off_elements} elements are off."),
    )


def _does_not_load_in_parts(recording: Recording, bad: _BadParts) -> Draft:
    """Every rank alone reads the whole tensor correctly, so the readers are at fault, not the shards."""
    ranks = _by_group_rank(recording)
    failed = {ranks[rank] for _, found in bad for rank in found.failed if rank in ranks}
    readers = sorted(failed | {rank.rank or 0 for rank, found in bad if found.off_elements})
    members, saved = bad[0][1].world_size, bad[0][0].fact.world_size
    rank, found = next((each for each in bad if each[0].rank in readers), bad[0])
    holds = "another number" if found.off_holds is None else f"that of element {found.off_holds}"
    return likely(
        rank_culprits(recording, Checkpoint, readers) if len(readers) < members else (),
        f"A sharded checkpoint saved by {saved} ranks cannot be loaded by {members} ranks: loading fails on"
        f" {ranks_at(recording, readers)}, although a single rank can load all of it",
        Evidence(
            text=f"elements of rank {rank.rank}'s part that are as saved",
            value=None if found.error else found.elements - found.off_elements,
            expected=found.elements,
        ),
        *([LOOK_AT_STORAGE] if found.error else []),
        LOAD_ON_ONE_RANK,
        detail=f"torch says: {found.error}"
        if found.error
        else f"Rank {rank.rank} loads elements {found.first} to {found.first + found.elements - 1}:"
        f" {found.off_elements} are off. Element {found.off_first} holds {holds}.",
    )


def _by_group_rank(recording: Recording) -> dict[int, int]:
    return {rank.fact.group_rank: rank.rank or 0 for rank in recording.facts(Checkpoint)}
