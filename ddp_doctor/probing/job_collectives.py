"""One rank's calls of a job's collectives, made again in the job's order.

No recorder tells whether the job waited for a call before it went on. So a rank goes on at once, as far as the job
did: it waits for a call that ended in the job before the next one of the same group, and for all in the end. A call
that was open in the job is waited for last.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from ddp_doctor.facts.job_collectives import CallKind, JobCollectivesFact, Stop
from ddp_doctor.knowledge import job_collectives as knowledge
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.job_collectives import JobCall, JobCollectives

#: Between two looks at whether a call has ended.
_LOOK_S = 1e-4
#: Kept for the fact to be handed in, before the check's deadline.
_MARGIN_S = 5.0
_MOST_KINDS = 16


def largest_bytes(job: JobCollectives, *, on_gpu: bool) -> tuple[int, int]:
    """The most bytes of a tensor in a replay, equal on all ranks, and how many the busiest rank then gives."""
    total = knowledge.MOST_BYTES_ON_GPU if on_gpu else knowledge.MOST_BYTES_ON_CPU
    most = knowledge.LARGEST_BYTES_ON_GPU if on_gpu else knowledge.LARGEST_BYTES_ON_CPU
    sizes = [[call.elements * knowledge.BYTES[call.dtype] for call in calls] for calls in job.ranks]
    while (busiest := max(sum(min(size, most) for size in of_rank) for of_rank in sizes)) > total and most > 1:
        most //= 2
    return most, busiest


class _Stopped(Exception):
    """It goes no further."""

    def __init__(self, why: Stop) -> None:
        super().__init__(why)
        self.why = why


class Replay:
    """This rank's part of it."""

    def __init__(self, ctx: RankContext, job: JobCollectives) -> None:
        import torch.distributed as dist

        self.ctx, self.job, self.calls = ctx, job, job.calls_of(ctx.group_rank)
        self.most_bytes, busiest = largest_bytes(job, on_gpu=ctx.device.startswith("cuda"))
        self.patience_s = knowledge.HUNG_S + busiest / knowledge.SLOWEST_BYTES_PER_S
        self.members = [list(job.members(index, ctx.world_size)) for index in range(len(job.groups))]
        self.groups: list[Any] = [dist.new_group(members) for members in self.members]
        self.pending: dict[int, tuple[Any, float]] = {}  # by index of the call: torch's work, and when it was made
        self.times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.buffers: dict[tuple[str, str], Any] = {}
        self.issued = self.moved = 0
        self.waited_s = 0.0

    def run(self) -> JobCollectivesFact:
        """Make the calls; never raises what torch says of one of them."""
        began, error = self.ctx.clock(), ""
        stopped: Stop = ""
        try:
            with self.ctx.step("replay", f"{len(self.job.ranks)} ranks"):  # what stops it leaves the step open
                self._run()
        except _Stopped as stop:
            stopped = stop.why
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as refused:
            stopped, error = "raised", str(refused).partition("\n")[0][:300]
        cut = any(self._elements(call) < call.elements for call in self.calls)
        return JobCollectivesFact(
            issued=self.issued,
            open=tuple(self.pending),
            stopped=stopped,
            error=error,
            waited_s=self.waited_s,
            seconds=self.ctx.clock() - began - self.waited_s,
            moved_bytes=self.moved,
            largest_bytes=self.most_bytes if cut else None,
            kinds=self._kinds(),
        )

    def _run(self) -> None:
        last = dict[int, int]()  # by group
        for index, call in enumerate(self.calls):
            before = last.get(call.group)
            if before is not None and not self.calls[before].is_open:
                self._wait_for((before,))
            if call.differs:  # no backend says what comes of it; gloo ends the rank
                break
            began = self.ctx.clock()
            self.pending[index] = self._issue(call), began
            self.issued += 1
            last[call.group] = index
            self._look()
        if self.issued < len(self.calls):
            with suppress(_Stopped):
                self._wait_for(tuple(self.pending))
            raise _Stopped("differs")
        self._wait_for(tuple(self.pending))

    def _wait_for(self, indices: Iterable[int]) -> None:
        """Wait for these calls. Raises _Stopped."""
        for index in indices:
            began = self.ctx.clock()
            while index in self.pending:
                self._look()
                self.waited_s = self.ctx.clock() - began
                if self.ctx.remaining() < _MARGIN_S or self.waited_s > self.patience_s:
                    raise _Stopped("hung" if self.waited_s > knowledge.HUNG_S else "time")
                time.sleep(_LOOK_S)
            self.waited_s = 0.0

    def _look(self) -> None:
        for index, (work, began) in tuple(self.pending.items()):
            if work.is_completed():
                work.wait()  # raises what went wrong
                del self.pending[index]
                call = self.calls[index]
                size = self._elements(call) * knowledge.BYTES[call.dtype]
                self.moved += size
                self.times[call.op, len(self.members[call.group]), size].append(self.ctx.clock() - began)

    def _elements(self, call: JobCall) -> int:
        """Elements that it gives: what is shared out has a share for each rank."""
        ranks = len(self.members[call.group])
        most = self.most_bytes // (ranks if call.op in ("all_gather", "gather", "scatter") else 1)
        elements = min(call.elements, max(most // knowledge.BYTES[call.dtype], 1))
        return -(-elements // ranks) * ranks if call.op in ("reduce_scatter", "all_to_all") else elements

    def _buffer(self, use: str, elements: int, dtype: str) -> Any:
        """A tensor that all calls of one use and type share: what they move does not matter."""
        import torch

        held = self.buffers.get((use, dtype))
        if held is None or held.numel() < elements:
            held = torch.zeros(elements, dtype=getattr(torch, dtype), device=self.ctx.device)
            self.buffers[use, dtype] = held
        return held[:elements]

    def _issue(self, call: JobCall) -> Any:
        """Hand it to torch, and return its work."""
        import torch.distributed as dist

        members, elements = self.members[call.group], self._elements(call)
        root = members[0] if call.root is None else call.root
        how: dict[str, Any] = {"group": self.groups[call.group], "async_op": True}
        given = self._buffer("given", elements, call.dtype)

        def taken(count: int) -> Any:
            return self._buffer("taken", count, call.dtype)

        def parts() -> Any:
            return list(taken(elements * len(members)).split(elements)) if root == self.ctx.group_rank else None

        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(given, **how),
            "broadcast": lambda: dist.broadcast(given, root, **how),
            "reduce": lambda: dist.reduce(given, root, **how),
            "all_gather": lambda: dist.all_gather_into_tensor(taken(elements * len(members)), given, **how),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(taken(elements // len(members)), given, **how),
            "all_to_all": lambda: dist.all_to_all_single(taken(elements), given, **how),
            "gather": lambda: dist.gather(given, parts(), root, **how),
            "scatter": lambda: dist.scatter(given, parts(), root, **how),
            knowledge.BARRIER: lambda: dist.barrier(**how),
        }
        # gloo makes an all-reduce of it, whose work never says that it is done (torch 2.13 ProcessGroupGloo.cpp,
        # _reduce_scatter_base).
        is_made_by_gloo = call.op == "reduce_scatter" and self.ctx.backend == "gloo"
        return calls["all_reduce" if is_made_by_gloo else call.op]()

    def _kinds(self) -> tuple[CallKind, ...]:
        by_time: Sequence[tuple[tuple[str, int, int], list[float]]] = sorted(
            self.times.items(), key=lambda kind: -sum(kind[1])
        )
        return tuple(
            CallKind(op=op, ranks=ranks, size_bytes=size, calls=len(times), median_s=median(times))
            for (op, ranks, size), times in by_time[:_MOST_KINDS]
        )
