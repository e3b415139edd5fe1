"""Replay one rank's collectives of a recorded job, in the job's order.

A recording does not show whether the job waited for a call before it continued. Therefore, a rank continues at once, as
far as the job did. If a call ended in the job, the rank waits for it before the next call of the same group, and at the
end it waits for all calls. It waits last for a call that was open in the job.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ddp_doctor.facts.job_collectives import JobCollectivesFact, Stop
from ddp_doctor.knowledge import job_collectives as knowledge
from ddp_doctor.knowledge.collectives import ALL_REDUCE, TABLE
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.job_collectives import JobCall, JobCollectives
from ddp_doctor.probing.collectives import Call

#: Seconds between two polls for completed calls.
_LOOK_S = 1e-4
#: Time kept before the check's deadline to report the fact.
_MARGIN_S = 5.0


def largest_bytes(job: JobCollectives, *, on_gpu: bool) -> tuple[int, int]:
    """Return the maximum bytes of a tensor in a replay, equal on all ranks, and the busiest rank's total bytes."""
    total = knowledge.MOST_BYTES_ON_GPU if on_gpu else knowledge.MOST_BYTES_ON_CPU
    most = knowledge.LARGEST_BYTES_ON_GPU if on_gpu else knowledge.LARGEST_BYTES_ON_CPU
    sizes = [[call.elements * knowledge.BYTES[call.dtype] for call in calls] for calls in job.ranks]
    while (busiest := max(sum(min(size, most) for size in of_rank) for of_rank in sizes)) > total and most > 1:
        most //= 2
    return most, busiest


class _Stopped(Exception):
    """The replay stops; its argument is a Stop."""


class Replay:
    """This rank's part of a replay."""

    def __init__(self, ctx: RankContext, job: JobCollectives) -> None:
        import torch.distributed as dist

        self.ctx, self.job, self.calls = ctx, job, job.ranks[ctx.group_rank]
        self.most_bytes, busiest = largest_bytes(job, on_gpu=ctx.device.startswith("cuda"))
        self.patience_s = knowledge.HUNG_S + busiest / knowledge.SLOWEST_BYTES_PER_S
        used = {call.group for calls in job.ranks for call in calls}
        self.groups = {index: dist.new_group(list(job.groups[index].ranks)) for index in sorted(used)}
        self.pending: dict[int, tuple[Call, Any]] = {}  # by index of the call: its tensors, and torch's work
        self.issued = self.moved = 0
        self.is_cut = False

    def run(self) -> JobCollectivesFact:
        """Make the calls. Errors that torch raises are recorded, not raised."""
        began, error = self.ctx.clock(), ""
        stopped: Stop = ""
        try:
            with self.ctx.step("replay", f"{len(self.job.ranks)} ranks"):  # a failure leaves the step open
                self._run()
        except _Stopped as stop:
            stopped = stop.args[0]
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as refused:
            stopped, error = "raised", str(refused).partition("\n")[0][:300]
        return JobCollectivesFact(
            issued=self.issued,
            open=tuple(self.pending),
            stopped=stopped,
            error=error,
            seconds=self.ctx.clock() - began,
            moved_bytes=self.moved,
            largest_bytes=self.most_bytes if self.is_cut else None,
        )

    def _run(self) -> None:
        last = dict[int, int]()  # by group
        for index, call in enumerate(self.calls):
            before = last.get(call.group)
            if before is not None and not self.calls[before].is_open:
                self._wait_for((before,))
            if call.differs:  # no backend defines the result; gloo ends the rank
                with suppress(_Stopped):
                    self._wait_for(tuple(self.pending))
                raise _Stopped("differs")
            self.pending[index] = self._issue(call)
            self.issued += 1
            last[call.group] = index
            self._look()
        self._wait_for(tuple(self.pending))

    def _wait_for(self, indices: Iterable[int]) -> None:
        """Wait for these calls. Raises _Stopped."""
        for index in indices:
            began = self.ctx.clock()
            while index in self.pending:
                self._look()
                waited_s = self.ctx.clock() - began
                if self.ctx.remaining() < _MARGIN_S or waited_s > self.patience_s:
                    raise _Stopped("hung" if waited_s > knowledge.HUNG_S else "time")
                time.sleep(_LOOK_S)

    def _look(self) -> None:
        for index, (call, work) in tuple(self.pending.items()):
            if work.is_completed():
                work.wait()  # raises the error of a failed call
                del self.pending[index]
                self.moved += call.given.numel() * call.given.itemsize

    def _issue(self, call: JobCall) -> tuple[Call, Any]:
        """Start a call. Tensors that are split among the ranks have a share for each rank."""
        row, ranks = TABLE[call.op], len(self.job.groups[call.group].ranks)
        share = -(-call.elements // ranks) if row.for_each and not row.from_root else call.elements
        most = self.most_bytes // (ranks if row.of_shares else 1) // knowledge.BYTES[call.dtype]
        self.is_cut |= share > max(most, 1)
        share = min(share, max(most, 1))
        if call.op == "reduce_scatter" and self.ctx.backend == "gloo":
            # gloo runs it as an all-reduce, whose work never reports completion (torch 2.13 ProcessGroupGloo.cpp,
            # _reduce_scatter_base).
            row, share = TABLE[ALL_REDUCE], share * ranks
        made = Call(self.ctx, row, call.dtype, share, root=call.root, group=self.groups[call.group])
        return made, made.run(is_async=True)
