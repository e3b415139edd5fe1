"""The limits of a node, and the nodes that have too little of something."""

from collections.abc import Callable, Iterator

from ddp_doctor.facts.host import Host
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.phrases import limits
from ddp_doctor.phrases.limits import Hit


def hits(
    recording: Recording,
    judge: Callable[[Host, int, World], Severity | None],
    least: Callable[[Host], float | None],
    *,
    of_the_job: bool = True,
) -> Iterator[Hit[Host]]:
    """The nodes that ``judge`` speaks of; the worst has the ``least`` of something.

    ``of_the_job``: about limits of the job's own process, which a prolog, being root's, does not have.
    """
    if not (of_the_job and recording.options.command == "prolog"):
        yield from limits.hits(recording, Host, judge, least)
