"""``--reproducer``: a job's collectives as a script for torchrun, for a bug report; it needs only torch."""

from collections import Counter
from string import Template

from ddp_doctor.model.job_collectives import JobCollectives
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render.files import CannotWrite
from ddp_doctor.templates import packaged
from ddp_doctor.wording.ranks import rank_list

#: Number of last calls per group: earlier ones have ended on all ranks, and thousands are too many for a report.
_LAST = 6


def render(_report: Report, recording: Recording) -> str:
    """Return the script. Raises CannotWrite if no job's collectives were given."""
    job = recording.options.replay
    if job is None:
        raise CannotWrite("cannot write --reproducer: the run was made without --collectives-of")
    from_number = _first_numbers(job)
    kept = [[call for call in of_rank if call.seq >= from_number[call.group]] for of_rank in job.ranks]
    left_out = job.count - len({call.place for of_rank in kept for call in of_rank})
    about = f"The collectives of a job's ranks, made again; written by ddp-doctor from {job.source} of the job."
    if job.says:
        about += f"\nThe job: {job.says}"
    if job.unknown:
        about += f"\nNothing was recorded of {rank_list(job.unknown)}: these calls are those of another rank."
    if left_out:
        about += f"\nLeft out are {left_out} collectives before these, which all ranks came through."
    groups = (f"    {[*group.ranks]},  # {_plain(' '.join(group.words.split()))}" for group in job.groups)
    calls = (
        f"    {rank}: {[(c.group, c.seq, c.op, c.elements, c.dtype, c.root, c.is_open) for c in of_rank]},"
        for rank, of_rank in enumerate(kept)
    )
    return Template(packaged("reproducer.txt")).substitute(
        about=_plain(about), world=len(job.ranks), groups="\n".join(groups), calls="\n".join(calls)
    )


def _plain(text: str) -> str:
    """Return foreign text in a form that is safe in a comment or between quotation marks."""
    return "".join(sign if (sign.isprintable() and sign not in '\\"') or sign == "\n" else " " for sign in text)


def _first_numbers(job: JobCollectives) -> Counter[int]:
    """Return the first number of each group that is written."""
    last = Counter[int]()
    for call in (call for of_rank in job.ranks for call in of_rank):
        last[call.group] = max(last[call.group], call.seq)
    first = Counter({group: number - _LAST + 1 for group, number in last.items()})
    for call in (call for of_rank in job.ranks for call in of_rank if call.is_open or call.differs):
        first[call.group] = min(first[call.group], call.seq)
    return first
