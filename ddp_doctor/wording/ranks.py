"""Texts about ranks in findings, and ranks as culprits on a host."""

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ddp_doctor.model.base import grouped
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.trial import RankEvidence
from ddp_doctor.parse.frames import of_the_job
from ddp_doctor.views.gpus import gpu_of
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, and_more, hosts, name_list

F = TypeVar("F", bound=Fact)

#: Maximum number of frames of the job's code to show, because a recursion would fill a page.
_MOST_FRAMES = 8
#: Maximum number of runs of consecutive ranks in a sentence.
RUNS_IN_A_SENTENCE = 8
#: The states of a process, by its letter in /proc/PID/stat.
STATES = {"R": "running", "S": "sleeping", "D": "in kernel", "T": "stopped", "t": "traced", "Z": "ended"}
_LAST_ERROR = re.compile(r"last error:", re.IGNORECASE)
_ENFORCE = re.compile(r"^\[enforce fail at [^\]]*\] [^.]*\. ")


def rank_of(reading: FactAt[F]) -> int:
    """Return the rank, which a reading of a rank check always has."""
    return reading.rank or 0


def rank_culprits(recording: Recording, kind: type[Fact], ranks: Iterable[int]) -> tuple[Culprit, ...]:
    """Return the ranks as culprits, with the hosts that the facts of class ``kind`` were read on."""
    nodes = {reading.rank: reading.node for reading in recording.facts(kind)}
    return tuple(rank_culprit(recording, rank, nodes.get(rank)) for rank in ranks)


def rank_culprit(recording: Recording, rank: int, node: int | None = None) -> Culprit:
    """Return a rank as a culprit, with its host, and with its GPU if it is known."""
    world = recording.world
    if world is None:
        return Culprit(kind="rank", rank=rank, node_rank=node)
    node = world.node_of(rank) if node is None else node
    gpu = gpu_of(recording, rank)
    return Culprit(kind="rank", rank=rank, node_rank=node, node=world.hostname(node), gpu=gpu)


def pair_culprit(recording: Recording, rank: int, peer: int) -> Culprit:
    """Return the link between two ranks as a culprit."""
    end, other_end = rank_culprit(recording, rank), rank_culprit(recording, peer)
    return end.model_copy(update={"kind": "pair", "peer_rank": peer, "peer_node": other_end.node})


def rank_list(numbers: Sequence[int]) -> str:
    """Return ``rank 1`` or ``ranks 0-4, 6, 7``: consecutive numbers as a range, further runs as their count."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:RUNS_IN_A_SENTENCE]]
    more = and_more(sum(map(len, runs[RUNS_IN_A_SENTENCE:])))
    return f"rank{'s' if len(ordered) != 1 else ''} {', '.join(parts)}{more}"


def where_they_wait(places: Iterable[tuple[str, int]]) -> str:
    """Return ``Ranks 0-4 wait in all-reduce 17; rank 6 waits in broadcast 2``; a place is ``in all-reduce 17``."""
    at = grouped(places)
    parts = (f"{rank_list(ranks)} {'waits' if len(ranks) == 1 else 'wait'} {place}" for place, ranks in at.items())
    return capital("; ".join(parts))


def rank_at(recording: Recording, rank: int) -> str:
    """Return ``rank 5 (node2, GPU1)``: with its host, and with NCCL its GPU, or its CUDA device."""
    world = recording.world
    if world is None:
        return f"rank {rank}"
    place = [world.hostname(world.node_of(rank))] if world.nnodes > 1 else []
    if world.backend == "nccl":
        gpu = gpu_of(recording, rank)
        place.append(f"CUDA device {world.local_rank(rank)}" if gpu is None else f"GPU{gpu}")
    return f"rank {rank} ({', '.join(place)})" if place else f"rank {rank}"


def ranks_at(recording: Recording, ranks: Iterable[int]) -> str:
    """Return ranks for a sentence, with their places: a few ranks one by one, many ranks by their hosts.

    ``rank 5 (node2, GPU1) and rank 6 (node2, GPU2)``, ``all 8 ranks of node2``, ``ranks 0-3, 8-11 (node0 and node1)``,
    ``every rank``.
    """
    numbers = sorted(set(ranks))
    world = recording.world
    if world is not None and numbers == list(range(world.world_size)) and len(numbers) > 1:
        return "every rank"
    if world is None or world.nnodes == 1:
        each = [rank_at(recording, rank) for rank in numbers]
        return name_list(each) if len(numbers) <= NAMES_IN_A_SENTENCE else rank_list(numbers)
    nodes = list(dict.fromkeys(world.node_of(rank) for rank in numbers))
    where = hosts(recording, nodes)
    whole = numbers == [rank for node in nodes for rank in world.ranks_of(node)]
    if whole and len(numbers) > len(nodes):
        return f"{'both' if len(numbers) == 2 else f'all {len(numbers)}'} ranks of {where}"
    if len(numbers) <= NAMES_IN_A_SENTENCE:
        return name_list([rank_at(recording, rank) for rank in numbers])
    return f"{rank_list(numbers)} ({where})"


def capital(sentence: str) -> str:
    """Return the sentence with a capital first letter; the rest is unchanged."""
    return sentence[:1].upper() + sentence[1:]


def line_in_the_job(rank: RankEvidence) -> str:
    """Return the rank's line in the job's own code, `` at net.py:31 `time.sleep(10)```, or "" if unknown."""
    for _, line, text in _job_frames(rank):
        return f" at {line}{text}"
    return ""


def stack_in_the_job(rank: RankEvidence) -> str:
    """Return the rank's stack in the job's own code, as a line of evidence."""
    frames = [f"{line} in {function}{text}" for function, line, text in _job_frames(rank)]
    if not frames:
        return f"rank {rank.rank}: position unknown"
    left = len(frames) - _MOST_FRAMES
    frames = [*frames[:_MOST_FRAMES], *([f"{left} more"] if left > 0 else [])]
    used = f"; {rank.cpu_s_per_s:.0%} of a core in the last second" if rank.cpu_s_per_s is not None else ""
    return f"rank {rank.rank} is at {', called from '.join(frames)}{used}"


def _job_frames(rank: RankEvidence) -> Iterator[tuple[str, str, str]]:
    """Yield function, line and text of each frame in the job's own code, the innermost first."""
    texts = dict(zip(rank.stack, rank.source, strict=False))
    for frame in reversed(of_the_job(rank.stack)):
        line, _, function = short(frame).partition(" in ")
        yield function, line, f" `{texts[frame]}`" if texts.get(frame) else ""


def ended(rank: RankEvidence) -> str:
    """Return how a process exited: ``was killed by SIGFPE``, ``exited early with code 3``."""
    code = rank.exit_code or 0
    if code >= 0:
        return f"exited early with code {code}"
    if rank.out_of_memory and -code == signal.SIGKILL:
        return "was killed by the kernel: out of memory (OOM, SIGKILL)"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def short(where: str) -> str:
    """Return ``train.py:88`` for ``/long/path/train.py:88``."""
    return where.rpartition("/")[2]


def cause(message: str) -> str:
    """Return the line of an exception that explains it: NCCL's after ``Last error:``, or the first line.

    The location in gloo's code before it is omitted: ``[enforce fail at …/tcp/device.cc:84] ifa != nullptr. Unable …``.
    """
    after = _LAST_ERROR.split(message, maxsplit=1)[1:]
    lines = [line.strip() for line in "".join(after).splitlines() if line.strip()]
    first = (lines or message.strip().splitlines() or ["no message"])[0]
    return _ENFORCE.sub("", first) or first
