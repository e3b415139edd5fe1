"""DD223: too few open files for the connections of a world."""

from collections.abc import Iterator

from ddp_doctor.checks.node.host.facts import hits
from ddp_doctor.facts.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases import limits


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
    for hit in hits(recording, _files, lambda fact: fact.open_files):
        allowed, wanted = hit.worst.fact.open_files or 0, thresholds.open_files(hit.world.world_size)
        saw = Evidence(
            text=f"RLIMIT_NOFILE {allowed}",
            value=allowed,
            unit="files",
            expected=wanted,
            expected_from="measured on ranks with gloo",
        )
        title = f"Only {allowed} files may be open on {{nodes}}, too few for {hit.world.world_size} ranks"
        detail = "Each connection takes one; a rank that runs out fails with Too many open files."
        yield limits.hit_draft(
            recording, hit, title, saw, limits.open_files(max(wanted, 4096)), detail=detail
        )


def _files(fact: Host, _ranks: int, world: World) -> Severity | None:
    few = fact.open_files is not None and fact.open_files < thresholds.open_files(world.world_size)
    return Severity.WARNING if few else None
