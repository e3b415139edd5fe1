"""Running jobs: the activity of each rank, equal ranks in one row, faulty ranks first.

127.0.0.1:29500: 4 ranks on node1, torchrun (pid 4700), gloo, torch 2.15.0; watched for 4.0 s

                pid   GPU  state     progress  activity
 !! rank 3      4711  3    sleeping  no        waits for data at train.py:89
    ranks 0-2   -     -    running   no        in all-reduce at train.py:91
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddp_doctor.features.jobs.attach import AttachReport
from ddp_doctor.features.jobs.text import gpu_use, names, says
from ddp_doctor.features.jobs.views.live import Doing, LiveJob, live_jobs, unreached
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Table, folded
from ddp_doctor.render.text import one_line
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import STATES, capital, rank_list

_MOST_ROWS = 12
_TITLES = ("", "host", "pid", "GPU", "GPU use", "state", "progress", "activity")


def story(report: AttachReport, recording: Recording, width: int | None, *, each: bool) -> Iterator[Iterable[str]]:
    """Yield the lines of each job, and of the hosts that could not be read."""
    yield from (lines(job, report, width, each=each) for job in live_jobs(recording))
    unread = unreached(recording).items()
    yield [folded(f"{host} could not be read: {one_line(why)}", width, hang=2) for host, why in unread]


def tables(report: AttachReport, recording: Recording, **_: object) -> Iterator[Table]:
    """Yield the table of each job with its description, and an empty table for each host that could not be read."""
    for job in live_jobs(recording):
        first, *further = words(job)
        yield replace(table(job, report), caption=first, notes=tuple(further))
    for host, why in unreached(recording).items():
        yield Table(caption=f"{host} could not be read: {why}")


def lines(job: LiveJob, report: AttachReport, width: int | None, *, each: bool) -> Iterator[str]:
    """Yield the lines of one job. With ``each``, every rank has a row."""
    for number, text in enumerate(words(job)):
        yield folded(text, width, hang=2 if number else 0)
    yield ""
    whole = table(job, report, each=each)
    shown = Table(whole.titles, whole.rows if each else whole.rows[:_MOST_ROWS])
    yield from shown.lines(width)
    if (left := len(whole.rows) - len(shown.rows)) > 0:
        yield f" and {left} more rows (-v shows each rank)"


def words(job: LiveJob) -> Iterator[str]:
    """Yield the description of the job, and what could not be read."""
    yield _about(job)
    if any(host.in_container for host in job.hosts):
        yield "Seen from inside a container: processes outside it are not visible"
    if job.is_elsewhere:
        unseen = capital(rank_list(job.unseen)) if job.unseen else "Its ranks on other hosts"
        yield f"{unseen} {'was' if len(job.unseen) == 1 else 'were'} not seen"
    doors = [door for host in job.hosts for door in host.refused]
    doors += [door for rank in job.ranks for door in rank.fact.refused]
    for door in dict.fromkeys(doors):
        ranks = [rank for rank in job.ranks if door in rank.fact.refused]
        of = f" of {names(ranks)}" if ranks else ""
        grant = f". To allow it: {door.grant}" if door.grant else ""
        yield f"Not read: {door.door}{of}: {one_line(door.why)}{grant}"


def table(job: LiveJob, report: AttachReport, *, each: bool = False) -> Table:
    """Return the activity of a job's ranks, faulty ranks first, equal ranks in one row unless ``each``."""
    to_blame = {(rank.node, rank.pid) for rank in report.ranks if rank.blamed and rank.job == job.name}
    blamed = {rank.rank for rank in job.ranks if (rank.fact.host, rank.fact.pid) in to_blame}
    groups = [[rank] for rank in job.ranks]
    if not each:
        stories = [(rank.rank in blamed, rank.fact.host, _state(rank), rank.moves, says(rank)) for rank in job.ranks]
        groups = list(grouped(zip(stories, job.ranks, strict=True)).values())
    groups.sort(key=lambda group: (group[0].rank not in blamed, group[0].rank))
    on_several = len(job.hosts) > 1
    rows = [_row(group, is_blamed=group[0].rank in blamed, with_host=on_several) for group in groups]
    return Table(_TITLES, rows).without_empty_columns()


def _about(job: LiveJob) -> str:
    number, first = len(job.ranks), job.hosts[0]
    of = f" of {job.world_size}" if job.world_size != number else ""
    on = name_list([host.host for host in job.hosts])
    is_ranks = job.meeting is None or job.meeting.who == "ranks"
    pid = f" (pid {first.launcher_pid})" if first.launcher_pid and len(job.hosts) == 1 else ""
    parts = (
        f"{number}{of} {'rank' if is_ranks else 'launcher'}{'s' if job.world_size != 1 else ''} on {on}",
        f"{first.launcher}{pid}" if first.launcher and is_ranks else "",
        first.backend,
        f"torch {first.torch_version}" if first.torch_version else "",
    )
    return one_line(f"{job.name}: {', '.join(filter(None, parts))}; watched for {job.watched_s:.1f} s")


def _row(ranks: Sequence[Doing], *, is_blamed: bool, with_host: bool) -> tuple[str, ...]:
    rank = ranks[0]
    alone = len(ranks) == 1
    inside = f" ({rank.fact.pid_inside} inside)" if rank.fact.pid_inside else ""
    return (
        f"{'!! ' if is_blamed else '   '}{names(ranks)}",
        one_line(rank.fact.host) if with_host else "",
        f"{rank.fact.pid}{inside}" if alone else "",
        str(rank.fact.gpu) if alone and rank.fact.gpu is not None else "",
        gpu_use(ranks),
        _state(rank),
        {True: "yes", False: "no", None: "?"}[rank.moves],
        one_line(says(rank)),
    )


def _state(rank: Doing) -> str:
    states = [look.state for look in rank.fact.looks]
    return STATES.get(states[-1], states[-1]) if states else "gone"
