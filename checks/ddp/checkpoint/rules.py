"""DD761, DD762, DD764: a rank reads a checkpoint that is incomplete, changed or old, or does not see it."""

from collections.abc import Callable, Iterator

from ddp_doctor.facts.ddp.model_state import Checkpoint, Loaded
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_code, remedy
from ddp_doctor.remedies.torch_calls import DOCS
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import of_nodes
from ddp_doctor.wording.ranks import rank_culprits, rank_of, ranks_at

#: The name under which the first rank saves twice.
FILE = "checkpoint.pt"

ONE_WRITER = in_code(
    "Save only on rank 0, with the step in the file's name, rename the file when complete, and wait before loading",
    "if dist.get_rank() == 0:",
    "    torch.save(state, f'{path}.part'); os.replace(f'{path}.part', path)",
    "dist.barrier()",
    references=("https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",),
)

NEW_NAMES = in_code(
    "Give each checkpoint its own name: for a new name the client asks the server, not its cache",
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


@rule("DD761", "checkpoint-torn-or-changed", Consequence.WRONG, Checkpoint)
def checkpoint_torn_or_changed(recording: Recording) -> Iterator[Draft]:
    """Finds: After all ranks waited for rank 0, a rank reads other bytes than rank 0 saved and read back itself, or
        bytes that torch cannot load.
    Why: A job that resumes from it fails, or continues with weights that no rank ever had.
    Remedy: Check the file system of the working directory. In a job's own code, save on one rank, rename the file when
        it is complete, and let all ranks wait before they load.
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
    """Finds: Rank 0 saved a second time under the same name, and a rank still reads the first version after all ranks
        waited.
    Why: A job that overwrites ``latest.pt`` and resumes reads different weights on some nodes. DDP broadcasts rank 0's
        weights, but not the optimizer's state or the epoch.
    Remedy: Give each checkpoint a different name, or mount the file system so that it asks its server.
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


@rule("DD764", "working-directory-not-shared", Consequence.KNOWN, Checkpoint)
def working_directory_not_shared(recording: Recording) -> Iterator[Draft]:
    """Finds: Nodes do not see a file that rank 0 saved in its working directory within a second. This is correct if
        each node or container has its own directory, so severity is info.
    Why: A job that saves in this directory on rank 0 cannot resume on these nodes. If all ranks save a sharded
        checkpoint in it, each node has only a part.
    Remedy: Write checkpoints to a file system that all nodes share, or load only on rank 0.
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
    """Return the first bad load of each rank, by rank."""
    ranks = sorted(recording.facts(Checkpoint), key=lambda rank: rank.rank or 0)
    firsts = ((rank, next((load for load in rank.fact.loads if is_bad(load)), None)) for rank in ranks)
    return [(rank, load) for rank, load in firsts if load is not None]


def _is_old(load: Loaded) -> bool:
    return load.holds_version is not None and load.holds_version < load.version


def _is_torn(load: Loaded) -> bool:
    if load.read is None or _is_old(load):
        return False
    return load.read != load.told or load.holds_version != load.version


def _saver(recording: Recording) -> int:
    """Return the original rank of the group's first rank, which saves."""
    first = min(recording.facts(Checkpoint), key=lambda rank: rank.fact.group_rank)
    return first.rank or 0
