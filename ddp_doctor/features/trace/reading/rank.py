"""Convert a trace to the facts of its rank: the analyzed steps with their parts, and the collectives in them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from operator import add
from typing import Any, Literal, NamedTuple

from ddp_doctor.features.trace.facts import Gap, SyncPoint, TraceCall, TraceFact, TraceStep
from ddp_doctor.features.trace.reading import collect
from ddp_doctor.features.trace.reading.collect import Call, Collected, Row, Rows, collectives
from ddp_doctor.features.trace.reading.events import EventStream, NotATrace, arguments
from ddp_doctor.model.intervals import Times

__all__ = ["NotATrace", "read_trace"]

#: Maximum numbers kept per window: the latest steps, and collectives.
_MOST_STEPS, _MOST_CALLS = 64, 3_000
#: Maximum number of digits in a step number.
_MOST_DIGITS = 18
#: Upper limit for rank numbers.
_MOST_RANKS = 10_000_000
#: Longest plausible step (eleven days).
_LONGEST_STEP_US = 1e12
#: Maximum number per step: the longest intervals with only communication.
_MOST_EXPOSED = 100
#: Maximum number of names that enclose a gap or a call; the innermost are kept.
_MOST_INSIDE = 8
#: Maximum number of threads that may have made a call while another thread waits.
_MOST_THREADS = 8
#: Number of frames searched for those that enclose a moment.
_LOOK_BACK = 20_000
#: Code that is not the user's.
_NOT_THE_USERS = ("torch/", "<built-in", "nn.Module:", "<string>", "threading.py", "contextlib.py", "runpy.py")
_NOT_THE_USERS_PATHS = ("site-packages", "dist-packages", "/lib/python3")


class _Step(NamedTuple):
    number: int
    begin: float
    end: float


def read_trace(name: str, chunks: Iterable[bytes]) -> TraceFact:
    """Return the facts of one file. Raises NotATrace."""
    stream, found = EventStream(chunks), Collected()
    for piece in stream.pieces():
        found.take(piece)
    if not found.events:
        raise NotATrace("the trace has no events")
    return _Rank(name, found, stream).fact()


class _Rank:
    def __init__(self, name: str, found: Collected, stream: EventStream) -> None:
        self.name, self.found, self.stream = name, found, stream
        self.header = stream.header()
        self.on_gpu = len(found.kernels) > 0
        self.names = list(found.numbers)
        self.steps, self.marked_by, self.left_out, self.main = self._steps()
        self.forwards = self._annotated("DistributedDataParallel.forward")
        self.optimizers = self._annotated("Optimizer.step#")
        self.loaders = self._annotated("enumerate(DataLoader)")
        self.in_loader = Times.union(_spans(self.loaders))
        self.in_optimizer = Times.union(_spans(self.optimizers))
        self.ops = list(found.ops.get(self.main, Rows()).sorted().outermost())
        self.autograd = found.backward.sorted()
        self.calls = collectives(found, lossy=stream.cut or stream.damaged > 0)
        self.averaging = sorted(_called(call) for call in self.calls if self._averages(call))
        kept = (found.on_gpu, found.copies, found.syncs, found.waiting, found.reducer, found.inputs, found.detached)
        for rows in kept:
            rows.sort()
        self.kernels, self.launches = found.kernels.sorted(), found.launches.sorted()
        self.stack = found.frames.get(self.main, Rows()).sorted()
        self.on_device = self._parts_on_gpu() if self.on_gpu else self._parts_on_cpu()

    def fact(self) -> TraceFact:
        info = self.header.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        base_ns = self.header.get("baseTimeNanoseconds")
        origin = self.steps[0].begin if self.steps else 0.0
        rank, size = (_sensible(info.get(name)) for name in ("rank", "world_size"))
        found = self.found
        loaders = {row.name for row in self.loaders}
        devices = self.header.get("deviceProperties")
        gpu = (
            devices[0].get("name", "") if isinstance(devices, list) and devices and isinstance(devices[0], dict) else ""
        )
        steps = [self._step(step, origin) for step in self.steps]
        return TraceFact(
            file=self.name,
            rank=rank,
            world_size=size or None,
            host=str(self.header.get("host_name") or ""),
            device="gpu" if self.on_gpu else "cpu",
            gpu=str(gpu) if self.on_gpu else "",
            begin_us=(base_ns / 1e3 if isinstance(base_ns, int | float) else 0.0) + origin,
            steps=tuple(steps),
            left_out=self.left_out,
            marked_by=self.marked_by,
            calls=tuple(self._calls(origin)),
            groups=_groups(info),
            is_ddp=bool(self.forwards or found.reducer),
            hook=any(row.name == collect.INTO_BUCKET[1] for row in found.reducer),
            loader=("workers" if any("MultiProcessing" in name for name in loaders) else "main") if loaders else "none",
            optimizer=next((row.name.partition("#")[2].partition(".")[0] for row in self.optimizers), ""),
            damaged=self.stream.damaged,
            cut=self.stream.cut,
            processes=max(len(found.processes), 1),
        )

    def _steps(self) -> tuple[list[_Step], Literal["profiler", "optimizer", ""], int, int | str]:
        """Return the steps to analyze, their kind of marks, the number of steps before them, and their thread."""
        marks = [row for row in self.found.annotations if row.name.startswith("ProfilerStep#")]
        updates = sorted(row for row in self.found.annotations if row.name.startswith("Optimizer.step#"))
        marked_by: Literal["profiler", "optimizer", ""] = "profiler" if marks else "optimizer" if updates else ""
        if len(self.found.processes) > 1:
            return [], marked_by, 0, 0
        if marks:
            numbered = ((row.name.partition("#")[2], row) for row in sorted(marks))
            told = ((number, row) for number, row in numbered if number.isdecimal() and len(number) <= _MOST_DIGITS)
            steps = [_Step(int(number), row.begin, row.end) for number, row in told]
        else:
            ends = [row.end for row in updates]
            steps = [_Step(number, *span) for number, span in enumerate(pairwise(ends), start=1)]
        last = self._last_moment()
        whole = [step for step in steps if step.end <= last and 0 < step.end - step.begin < _LONGEST_STEP_US]
        first = [step for step in steps if marks and step.number < 2] or (steps[:1] if len(steps) > 2 else [])
        first = first if len(first) < len(steps) else first[:-1]
        kept = [step for step in whole if step not in first][-_MOST_STEPS:]
        thread = (marks or updates or [Row(0, 0, "", 0)])[0].thread
        return kept, marked_by, len(whole) - len(kept), thread

    def _last_moment(self) -> float:
        """Return the time up to which the trace is complete; a truncated file may lack everything on the GPU."""
        if not self.stream.cut:
            return float("inf")
        of_threads = [max(rows.flat[0::3]) for rows in self.found.ops.values()]
        on_gpu = max(self.found.kernels.flat[0::3], default=0.0)
        has_gpu = self.header.get("deviceProperties") or "nccl" in str(self.header.get("distributedInfo"))
        if not of_threads or (not on_gpu and (self.found.launches or has_gpu)):
            return float("-inf")
        return min(max(of_threads), on_gpu or float("inf"))

    def _annotated(self, name: str) -> list[Row]:
        return sorted(row for row in self.found.annotations if row.name.startswith(name))

    def _parts_on_gpu(self) -> dict[str, Times]:
        kernels = self.kernels
        ends = map(add, kernels.begins, kernels.lasts)
        running = Times.union(zip(kernels.begins, ends, strict=True))
        updating = running & Times.union(_spans(self.found.on_gpu))
        flying = Times.union((call.begin, call.end) for call in self.calls)
        copying = Times.union(_spans(self.found.copies)) - running - flying
        busy = running | flying | copying
        return {
            "compute": running - updating,
            "optimizer": updating,
            "exposed": flying - running,
            "other": copying,
            "loading": self.in_loader - busy,
            "hidden": flying & running,
        }

    def _parts_on_cpu(self) -> dict[str, Times]:
        flying = Times.union((call.begin, call.end) for call in self.calls)
        calling = Times.union(_spans(row for row in self.found.calls if row.thread == self.main))
        taken = self.in_optimizer | self.in_loader
        computing = Times.union((begin, end) for begin, end, _ in self.ops) - taken - calling
        exposed = (flying | calling) - computing - taken
        return {
            "compute": computing,
            "optimizer": self.in_optimizer,
            "exposed": exposed,
            "other": Times(),
            "loading": self.in_loader - self.in_optimizer,
            "hidden": flying - exposed,
        }

    def _step(self, step: _Step, origin: float) -> TraceStep:
        _, begin, end = step
        found = self.found
        parts = {name: times.within(begin, end) for name, times in self.on_device.items()}
        lasts = {f"{name}_us": round(times.total, 3) for name, times in parts.items()}
        idle = Times([begin], [end])
        for name, times in parts.items():
            idle = idle if name == "hidden" else idle - times
        forwards = _within(self.forwards, begin, end)
        exposed = sorted(parts["exposed"], key=lambda span: span[0] - span[1])[:_MOST_EXPOSED]
        ops = self.ops[bisect_left(self.ops, (begin,)) : bisect_left(self.ops, (end,))]
        updates = _within(self.optimizers, begin, end)
        reducer, copies = _within(found.reducer, begin, end), _within(found.copies, begin, end)
        back = [row for row in reducer if row.name == collect.BACK_FROM_BUCKET]
        into = [row for row in reducer if row.name in collect.INTO_BUCKET]
        searched = [row for row in reducer if row.name == collect.UNUSED_SEARCH]
        pageable = [row for row in copies if "Pageable -> Device" in row.name]
        detached = [row for row in _within(found.detached, begin, end) if row.thread == self.main]
        backward = self._backward(forwards, begin, end)
        syncs = self._syncs(begin, end)
        pinned = sum("Pinned -> Device" in row.name for row in copies)
        return TraceStep(
            number=step.number,
            begin_us=begin - origin,
            end_us=end - origin,
            **lasts,
            host_us=round(idle.total, 3),
            exposed=tuple(sorted((begin - origin, end - origin) for begin, end in exposed)),
            forward_us=_total(forwards),
            backward_us=sum(end - begin for begin, end in backward),
            backward_end_us=backward[-1][1] - origin if backward else None,
            first_reduce_us=next((at - origin for at in self._sent(backward[-1:])), None),
            loader_us=self.in_loader.within(begin, end).total,
            optimizer_host_us=self.in_optimizer.within(begin, end).total,
            passes=len(forwards),
            updates=len(updates),
            ops=len(ops),
            op_us=sum(end - begin for begin, end, _ in ops),
            kernels=_count(self.kernels, begin, end),
            optimizer_kernels=self._optimizer_kernels(begin, end, updates),
            launch_us=_sum(self.launches, begin, end),
            batch=self._batch(forwards[0].begin if forwards else begin, end),
            reduced=len(into),
            copied_back=len(back),
            copied_back_us=_total(back),
            averaged=sum(bool(self._sent([span])) for span in backward),
            buffers_us=sum(map(self._buffers, forwards)),
            searched_us=_total(searched) if searched else None,
            detached=sum(not self._in_forward(row.begin) for row in detached),
            gap=self._gap(idle, origin),
            syncs=tuple(syncs),
            pageable=len(pageable),
            pageable_us=_total(pageable),
            pinned_blocking=min(pinned, sum(sync.count for sync in syncs if sync.name in collect.COPIES)),
        )

    def _backward(self, forwards: Sequence[Row], begin: float, end: float) -> list[tuple[float, float]]:
        """Return the time from the first to the last autograd node after each forward."""
        rows, spans = self.autograd, []
        bounds = [*([row.end for row in forwards] or [begin]), end]
        for after, before in pairwise(bounds):
            first, last = bisect_left(rows.begins, after), bisect_left(rows.begins, before)
            if first < last:
                spans.append((rows.begins[first], rows.begins[last - 1] + rows.lasts[last - 1]))
        return spans

    def _sent(self, backward: Sequence[tuple[float, float]]) -> list[float]:
        sent = self.averaging
        return [at for begin, end in backward for at in sent[bisect_left(sent, begin) : bisect_left(sent, end)]]

    def _buffers(self, forward: Row) -> float:
        """Return the time from the first buffer packed for the broadcast to the last buffer copied back."""
        if collect.PACKED not in self.found.numbers:
            return 0.0
        ops = self.ops[bisect_left(self.ops, (forward.begin,)) : bisect_left(self.ops, (forward.end,))]
        inside = [(begin, end, self.names[name]) for begin, end, name in ops]
        packed = [begin for begin, _, name in inside if name == collect.PACKED]
        unpacked = [at for at, (_, _, name) in enumerate(inside) if name == collect.UNPACKED]
        if not packed or not unpacked:
            return 0.0
        copies = takewhile(lambda op: op[2] in ("aten::copy_", "c10d::broadcast_"), inside[unpacked[-1] + 1 :])
        return max((end for _, end, _ in copies), default=inside[unpacked[-1]][1]) - packed[0]

    def _optimizer_kernels(self, begin: float, end: float, updates: Sequence[Row]) -> int:
        if self.on_gpu:
            return sum(_count(self.kernels, row.begin, row.end) for row in _within(self.found.on_gpu, begin, end))
        return sum(bisect_left(self.ops, (row.end,)) - bisect_left(self.ops, (row.begin,)) for row in updates)

    def _batch(self, begin: float, end: float) -> tuple[int, ...]:
        for row in _within(self.found.inputs, begin, end):
            dims = arguments(row.args).get("Input Dims")
            at = collect.FIRST_INPUT[row.name]
            if isinstance(dims, list) and len(dims) > at and isinstance(dims[at], list):
                shape = [size for size in dims[at] if isinstance(size, int)]
                if len(shape) >= 2:
                    return tuple(shape)
        return ()

    def _gap(self, idle: Times, origin: float) -> Gap | None:
        longest = max(idle, key=lambda span: span[1] - span[0], default=None)
        if longest is None:
            return None
        begin, end = longest
        middle = (begin + end) / 2
        around = [row.name for row in self.found.annotations if row.begin <= middle < row.end]
        inside = [name for name in around if not name.startswith("ProfilerStep#")] + self._frames_at(middle)
        return Gap(begin_us=begin - origin, end_us=end - origin, inside=tuple(inside[-_MOST_INSIDE:]))

    def _frames_at(self, moment: float) -> list[str]:
        rows, found = self.stack, list[str]()
        last = bisect_right(rows.begins, moment)
        for at in range(last - 1, max(last - _LOOK_BACK, 0) - 1, -1):
            if rows.begins[at] + rows.lasts[at] > moment:
                found.append(self.names[int(rows.names[at])])
        return found[::-1]

    def _syncs(self, begin: float, end: float) -> list[SyncPoint]:
        """Return sync points by outermost waiting operator; a CPU trace has only operators, which cost little."""
        outer: list[Row] = []
        for row in _within(self.found.waiting, begin, end):
            if not outer or row.begin >= outer[-1].end or row.thread != outer[-1].thread:
                outer.append(row)
        calls = _within(self.found.syncs, begin, end)
        counted: dict[tuple[str, str], tuple[int, float]] = {}
        for row in calls if self.on_gpu else self._reads(outer, begin, end):
            near = outer[: bisect_right(outer, (row.begin, float("inf")))][-_MOST_THREADS:]
            around = [op for op in near if row.begin < op.end and op.thread == row.thread]
            key = around[0].name if around else row.name, self._users_line(row.begin)
            count, wait_us = counted.get(key, (0, 0.0))
            counted[key] = count + 1, wait_us + row.end - row.begin
        return [
            SyncPoint(name=name, count=count, wait_us=wait_us, where=where)
            for (name, where), (count, wait_us) in counted.items()
        ]

    def _reads(self, outer: Sequence[Row], begin: float, end: float) -> Iterator[Row]:
        """Yield the operators that read numbers, except the optimizer's and the reducer's."""
        reducer = _within(self.found.reducer, begin, end)
        since, until = (reducer[0].begin, reducer[-1].end) if reducer else (end, end)
        for row in outer:
            in_optimizer = self.in_optimizer.within(row.begin, row.end).begins
            if row.name in collect.READS and not (since <= row.begin < until or in_optimizer):
                yield row

    def _users_line(self, moment: float) -> str:
        users = (
            name
            for name in reversed(self._frames_at(moment) if len(self.stack) else [])
            if "(" in name
            and not name.startswith(_NOT_THE_USERS)
            and not any(part in name for part in _NOT_THE_USERS_PATHS)
        )
        return next(users, "")

    def _calls(self, origin: float) -> Iterator[TraceCall]:
        if not self.steps:
            return
        begins = [step.begin for step in self.steps]
        exposed = self.on_device["exposed"]
        for call in self.calls[-_MOST_CALLS:]:
            called = _called(call)
            at = bisect_right(begins, called) - 1
            if at < 0 or called >= self.steps[at].end:
                continue
            yield TraceCall(
                kind=call.kind,
                begin_us=call.begin - origin,
                end_us=call.end - origin,
                called_us=None if call.called is None else call.called - origin,
                step=at,
                group=call.group,
                seq=call.seq,
                ranks=call.ranks,
                size_bytes=call.size_bytes,
                dtype=call.dtype,
                during="forward" if self._in_forward(called) else "backward" if self._nodes_at(called) else "",
                averages=self._averages(call),
                exposed_us=round(exposed.within(call.begin, call.end).total, 3),
            )

    def _in_forward(self, moment: float) -> bool:
        at = bisect_left(self.forwards, (moment, float("inf"))) - 1
        return at >= 0 and moment < self.forwards[at].end

    def _nodes_at(self, moment: float) -> list[str]:
        rows = self.autograd
        last = bisect_right(rows.begins, moment) - 1
        near = range(max(last - 3, 0), last + 1)
        return [self.names[int(rows.names[at])] for at in near if moment < rows.begins[at] + rows.lasts[at]]

    def _averages(self, call: Call) -> bool:
        """Return True if it averages gradients, unlike collectives of layers such as SyncBatchNorm in backward."""
        nodes = self._nodes_at(_called(call)) if call.kind == "all_reduce" else []
        return any(collect.ACCUMULATES in node for node in nodes) or (bool(nodes) and call.called is None)


def _called(call: Call) -> float:
    return call.begin if call.called is None else call.called


def _spans(rows: Iterable[Row]) -> list[tuple[float, float]]:
    return [(row.begin, row.end) for row in rows]


def _within(rows: Sequence[Row], begin: float, end: float) -> Sequence[Row]:
    return rows[bisect_left(rows, (begin,)) : bisect_left(rows, (end,))]


def _total(rows: Iterable[Row]) -> float:
    return sum(row.end - row.begin for row in rows)


def _count(rows: Rows, begin: float, end: float) -> int:
    return bisect_left(rows.begins, end) - bisect_left(rows.begins, begin)


def _sum(rows: Rows, begin: float, end: float) -> float:
    return sum(rows.lasts[bisect_left(rows.begins, begin) : bisect_left(rows.begins, end)])


def _sensible(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS else None


def _groups(info: dict[str, Any]) -> dict[str, int]:
    listed = info.get("pg_config")
    if not isinstance(listed, list):
        return {}
    groups = {str(each.get("pg_name", "")): each.get("pg_size") for each in listed if isinstance(each, dict)}
    return {name: size for name, size in groups.items() if isinstance(size, int)}
