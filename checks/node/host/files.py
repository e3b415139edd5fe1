"""DD223: too few open files for the connections of a world."""

from collections.abc import Iterator

from ddp_doctor.checks.node.host.shortages import shortage_draft, shortages
from ddp_doctor.facts.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.host_limits import UNCHANGED
from ddp_doctor.remedies.kinds import remedy


@rule("DD223", "too-few-open-files", Severity.WARNING, Host)
def too_few_open_files(recording: Recording) -> Iterator[Draft]:
    """The limit of open files is too low for a world of this size.

    What it finds
        RLIMIT_NOFILE under 128 and two for each rank of the world.

    Why it matters
        Every connection, and every tensor that a data loader passes, is a file: "Too many open files".

    Remedy
        ulimit -n in the script that starts the job.

    References
        https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    """
    for short in shortages(recording, _files, lambda fact: fact.open_files):
        allowed, wanted = short.worst.fact.open_files or 0, thresholds.open_files(short.world.world_size)
        saw = Evidence(
            text=f"RLIMIT_NOFILE {allowed}",
            value=allowed,
            unit="files",
            expected=wanted,
            expected_from="measured on ranks with gloo",
        )
        title = f"Only {allowed} files may be open on {{nodes}}, too few for {short.world.world_size} ranks"
        detail = "Each connection takes one; a rank that runs out fails with Too many open files."
        yield shortage_draft(recording, short, title, saw, _more_files(max(wanted, 4096)), detail=detail)


def _files(fact: Host, _ranks: int, world: World) -> Severity | None:
    few = fact.open_files is not None and fact.open_files < thresholds.open_files(world.world_size)
    return Severity.WARNING if few else None


def _more_files(wanted: int) -> Remedy:
    """More file descriptors, in the shell that starts the job."""
    return remedy(
        f"Raise the limit of open files to {wanted} or more before the job starts",
        f"ulimit -n {wanted}",
        scope="job",
        undo="start a new shell",
        untried=UNCHANGED,
    )
