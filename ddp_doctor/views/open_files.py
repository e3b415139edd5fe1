"""The nodes of a run that reached their limit of open files (EMFILE), and the messages about it.

OSError: [Errno 24] Too many open files
"""

import errno
import re
from collections.abc import Iterator, Mapping

from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.trial import RankEvidence

#: strerror(EMFILE), as in Python's exceptions; torch's libuv writes it in lower case.
_WORDS = re.compile(rf"(?:OSError: )?(?:\[Errno {errno.EMFILE}\] )?too many open files[^\n]{{0,200}}", re.IGNORECASE)


def is_low(fact: Host, world_size: int) -> bool:
    """Return True if the limit is below the number of files that a world of this size was measured to need."""
    return fact.open_files is not None and fact.open_files < thresholds.open_files(world_size)


def says_too_many(rank: RankEvidence) -> bool:
    """Return True if this rank's exception or output mentions the limit."""
    return any(_WORDS.search(text) for text in (rank.output_tail, rank.raised.message if rank.raised else ""))


@once_a_recording
def out_of_files(recording: Recording) -> Mapping[int, str]:
    """Return the nodes with a low limit that ran out of files, each with the first message about it."""
    size = recording.world.world_size if recording.world is not None else 1
    low = {node.node for node in recording.facts(Host) if is_low(node.fact, size)}
    found: dict[int, str] = {}
    for node, text in _texts_that_may_say(recording) if low else ():
        words = _WORDS.search(text)
        if words is not None and node in low:
            found.setdefault(node, words[0])
    return found


def _texts_that_may_say(recording: Recording) -> Iterator[tuple[int, str]]:
    """Yield all texts that may mention it, with their nodes; torchrun's own output is from the head."""
    for trial in recording.trials:
        for rank in trial.evidence:
            yield rank.node, rank.raised.message if rank.raised else ""
            yield rank.node, rank.output_tail
        yield from ((0, note) for note in trial.notes)
    for reading in recording.readings:
        yield reading.node, reading.reason or ""
