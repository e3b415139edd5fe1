"""Jobs that run, as one host shows them: what each rank does, equal ones in one row, those to blame first.

127.0.0.1:29500: 4 ranks on node1, torchrun (pid 4700), gloo, torch 2.15.0; watched for 4.0 s

                pid   GPU  state     gets on  does
 !! rank 3      4711  3    sleeping  no       waits for data at train.py:89
    ranks 0-2   -     -    running   no       in all-reduce at train.py:91
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import AttachReport
from ddp_doctor.render.layout import Table, folded, width_of
from ddp_doctor.render.text import one_line
from ddp_doctor.views.live_jobs import LiveJob, live_jobs, unreached
from ddp_doctor.views.live_ranks import Doing
from ddp_doctor.wording.live_ranks import gpu_use, says
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_list

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS = 12
_TITLES = ("", "host", "pid", "GPU", "GPU use", "state", "gets on", "does")
#: Of a process, by its letter in /proc/PID/stat.
STATES = {"R": "running", "S": "sleeping", "D": "in kernel", "T": "stopped", "t": "traced", "Z": "ended"}


def show(report: AttachReport, recording: Recording, out: "Console", *, each: bool) -> None:
    """Print it; ``each``: a row for each rank, however many they are."""
    for number, job in enumerate(live_jobs(recording)):
        if number:
            out.print()
        for at, line in enumerate(lines(job, report, width_of(out), each=each)):
            out.print(line, style="dim" if at == 0 else None)
    for host, why in unreached(recording).items():
        out.print(folded(f"{host} could not be read: {one_line(why)}", width_of(out), hang=2))


def lines(job: LiveJob, report: AttachReport, width: int | None = None, *, each: bool = False) -> Iterator[str]:
    """The lines of one job."""
    for number, text in enumerate(words(job)):
        yield folded(text, width, hang=2 if number else 0)
    yield ""
    whole = table(job, report, each=each)
    shown = Table(whole.titles, whole.rows if each else whole.rows[:_MOST_ROWS])
    yield from shown.lines(width)
    if (left := len(whole.rows) - len(shown.rows)) > 0:
        yield f" and {left} rows more: -v shows each rank"


def words(job: LiveJob) -> Iterator[str]:
    """What one job is, and what could not be seen of it."""
    yield _about(job)
    if any(host.in_container for host in job.hosts):
        yield "Seen from inside a container: processes outside of it do not show"
    if job.is_elsewhere:
        unseen = capital(rank_list(job.unseen)) if job.unseen else "Its ranks on other hosts"
        yield f"{unseen} {'was' if len(job.unseen) == 1 else 'were'} not seen"
    doors = [door for host in job.hosts for door in host.refused]
    doors += [door for rank in job.ranks for door in rank.fact.refused]
    for door in dict.fromkeys(doors):
        ranks = [rank.rank for rank in job.ranks if door in rank.fact.refused]
        of = f" of {rank_list(ranks)}" if ranks else ""
        grant = f". Next time: {door.grant}" if door.grant else ""
        yield f"Not read: {door.door}{of}: {one_line(door.why)}{grant}"


def table(job: LiveJob, report: AttachReport, *, each: bool = False) -> Table:
    """What the ranks of one job do, those to blame first, equal ones in one row unless ``each`` is to have its own."""
    blamed = {rank.rank for rank in report.ranks if rank.blamed and rank.job == job.name}
    groups = [[rank] for rank in job.ranks] if each else _alike(job.ranks, blamed)
    groups.sort(key=lambda group: (group[0].rank not in blamed, group[0].rank))
    on_several = len(job.hosts) > 1
    rows = [_row(group, is_blamed=group[0].rank in blamed, with_host=on_several) for group in groups]
    kept = [column for column in range(len(_TITLES)) if column == 0 or any(row[column] for row in rows)]
    return Table(
        tuple(_TITLES[column] for column in kept), [tuple(row[column] or "-" for column in kept) for row in rows]
    )


def _about(job: LiveJob) -> str:
    number, first = len(job.ranks), job.hosts[0]
    of = f" of {job.world_size}" if job.world_size != number else ""
    on = name_list([host.host for host in job.hosts])
    pid = f" (pid {first.launcher_pid})" if first.launcher_pid and len(job.hosts) == 1 else ""
    parts = (
        f"{number}{of} rank{'s' if job.world_size != 1 else ''} on {on}",
        f"{first.launcher}{pid}" if first.launcher else "",
        first.backend,
        f"torch {first.torch_version}" if first.torch_version else "",
    )
    return one_line(f"{job.name}: {', '.join(filter(None, parts))}; watched for {job.watched_s:.1f} s")


def _alike(ranks: Sequence[Doing], blamed: set[int]) -> list[list[Doing]]:
    groups: dict[tuple[object, ...], list[Doing]] = defaultdict(list)
    for rank in ranks:
        groups[rank.rank in blamed, rank.fact.host, _state(rank), rank.moves, says(rank)].append(rank)
    return list(groups.values())


def _row(ranks: Sequence[Doing], *, is_blamed: bool, with_host: bool) -> tuple[str, ...]:
    rank = ranks[0]
    alone = len(ranks) == 1
    return (
        f"{'!! ' if is_blamed else '   '}{rank_list([of.rank for of in ranks])}",
        one_line(rank.fact.host) if with_host else "",
        _pid_and_inner_pid(rank) if alone else "",
        str(rank.fact.gpu) if alone and rank.fact.gpu is not None else "",
        gpu_use(ranks),
        _state(rank),
        {True: "yes", False: "no", None: "?"}[rank.moves],
        one_line(says(rank)),
    )


def _pid_and_inner_pid(rank: Doing) -> str:
    inside = rank.fact.pid_inside
    return f"{rank.fact.pid} ({inside} inside)" if inside else str(rank.fact.pid)


def _state(rank: Doing) -> str:
    states = [look.state for look in rank.fact.looks]
    return STATES.get(states[-1], states[-1]) if states else "gone"
