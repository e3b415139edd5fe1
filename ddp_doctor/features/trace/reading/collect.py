"""Collect events while a trace is read: times and names in arrays, the arguments of a few events, and the collectives.

Names and categories: pytorch/kineto libkineto/include/ActivityType.h; torch/csrc/distributed/c10d/reducer.cpp.
Fields: pytorch/pytorch torch/csrc/distributed/c10d/ParamCommsUtils.hpp; kernels: NVIDIA/nccl src/device/generate.py.
"""

import re
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from operator import le
from typing import Any, NamedTuple

from ddp_doctor.features.trace.reading.events import Event, arguments

#: Maximum number of names; further names share one number.
_MOST_NAMES = 500_000
#: Maximum number of annotations, collectives and copies; a trace of a day has fewer.
_MOST_KEPT = 2_000_000
_COLLECTIVE_KERNELS = ("nccl", "rccl", "msccl")  # prefixes of names
#: Operators that may wait for the GPU, because they read a number or copy. The outermost one names the user's line.
READS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
COPIES = ("aten::to", "aten::copy_")
#: The first operator of a model: the batch is its first input, or for embeddings the second.
FIRST_INPUT = {
    **dict.fromkeys(("aten::linear", "aten::addmm", "aten::matmul", "aten::conv1d", "aten::conv2d", "aten::conv3d"), 0),
    **dict.fromkeys(("aten::lstm", "aten::gru", "aten::layer_norm", "aten::batch_norm", "aten::flatten"), 0),
    "aten::embedding": 1,
}
#: The names that torch before 1.12 writes as operators.
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "DistributedDataParallel.forward")
_SYNCHRONISES = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")
#: A non-blocking copy returns within 50 us; one from pageable memory waits for the GPU (measured, torch 2.11).
_COPY_THAT_WAITED_US = 100.0
BACKWARD = "autograd::engine::evaluate_function"
#: The autograd node that passes a gradient to DistributedDataParallel, which calls the all-reduce of a full bucket.
ACCUMULATES = "AccumulateGrad"
INTO_BUCKET = ("torch::distributed::reducer::mul_out", "torch::distributed::reducer::copy_")
BACK_FROM_BUCKET = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
UNUSED_SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
#: Events around the broadcast of a model's buffers.
PACKED, UNPACKED = "aten::flatten_dense_tensors", "aten::unflatten_dense_tensors"
_REDUCER = frozenset((*INTO_BUCKET, BACK_FROM_BUCKET, UNUSED_SEARCH))


class Row(NamedTuple):
    """An event with its name; ``args`` as in the file."""

    begin: float
    end: float
    name: str
    thread: int | str
    args: bytes = b""


class Rows:
    """Events without arguments, in arrays because there are millions. Call ``sorted`` before any other method."""

    def __init__(self) -> None:
        self.flat = array("d")  # begin, duration and number of the name of each event, one after another
        self.begins, self.lasts, self.names = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self.flat) // 3

    def sorted(self) -> "Rows":
        """Sort the rows by begin and return them."""
        columns = [self.flat[column::3] for column in range(3)]
        if not all(map(le, columns[0], columns[0][1:])):
            order = sorted(range(len(self)), key=columns[0].__getitem__)
            columns = [array("d", map(column.__getitem__, order)) for column in columns]
        self.begins, self.lasts, self.names = columns
        return self

    def outermost(self) -> Iterator[tuple[float, float, int]]:
        """Yield begin, end and name of the rows that no other row contains."""
        begin = until = float("-inf")
        name = 0.0
        for at, last, called in zip(self.begins, self.lasts, self.names, strict=True):
            if at < until:
                until = max(until, at + last)
                continue
            if until > begin:
                yield begin, until, int(name)
            begin, until, name = at, at + last, called
        if until > begin:
            yield begin, until, int(name)


class Collected:
    """The relevant contents of one file."""

    def __init__(self) -> None:
        self.events = 0
        self.numbers: dict[str, int] = {"": 0}
        self.ops: defaultdict[int | str, Rows] = defaultdict(Rows)  # by thread
        self.backward = Rows()
        self.frames: defaultdict[int | str, Rows] = defaultdict(Rows)
        self.kernels = Rows()
        self.launches = Rows()
        self.annotations: list[Row] = []
        self.on_gpu: list[Row] = []  # annotations of the GPU
        self.calls: list[Row] = []  # c10d::, on the host
        self.records: list[Row] = []  # record_param_comms
        self.collectives: list[Row] = []  # kernels, or annotations of gloo
        self.copies: list[Row] = []
        self.syncs: list[Row] = []  # of the CUDA runtime
        self.waiting: list[Row] = []  # operators of READS and COPIES
        self.reducer: list[Row] = []
        self.inputs: list[Row] = []  # operators of FIRST_INPUT
        self.detached: list[Row] = []  # tensors
        self.processes: set[int | str] = set()  # processes that have steps
        self._besides: dict[str, list[Row] | None] = {}  # by the names of operators
        self._takers = {
            **dict.fromkeys(("cpu_op", "Operator"), self._operator),
            **dict.fromkeys(("kernel", "Kernel"), self._kernel),
            **dict.fromkeys(("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"), self._copy),
            **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), self._runtime),
            "user_annotation": self._annotation,
            "gpu_user_annotation": self._annotation_on_gpu,
            "python_function": self._frame,
        }

    def take(self, events: Sequence[Event]) -> None:
        """Keep the relevant ones of these events."""
        takers = self._takers
        for event in events:
            if event.ph == "X" and (taker := takers.get(event.cat or "")) is not None:
                taker(event, event.ts, event.name or "")
        self.events += len(events)

    def number(self, name: str) -> int:
        """Return a small number for a name."""
        found = self.numbers.get(name)
        if found is None:
            found = self.numbers[name] = len(self.numbers) if len(self.numbers) < _MOST_NAMES else 0
        return found

    def _keep(self, rows: list[Row], event: Event, begin: float, name: str, *, args: bool = False) -> None:
        if len(rows) < _MOST_KEPT:
            thread = event.tid if event.tid is not None else ""
            rows.append(Row(begin, begin + max(event.dur, 0.0), name, thread, bytes(event.args) if args else b""))

    def _operator(self, event: Event, begin: float, name: str) -> None:
        try:
            rows = self._besides[name]
        except KeyError:
            rows = self._rows_of(name)
            if len(self._besides) < _MOST_NAMES:
                self._besides[name] = rows
        if rows is None or not (rows is self.calls or rows is self.records or rows is self.annotations):
            number = self.numbers.get(name) or self.number(name)
            self.ops[event.tid or 0].flat.extend((begin, event.dur, number))
            if name.startswith(BACKWARD):
                self.backward.flat.extend((begin, event.dur, number))
        if rows is self.annotations:
            self._annotation(event, begin, name)
        elif rows is not None:
            self._keep(rows, event, begin, name, args=rows is self.inputs or rows is self.records)

    def _rows_of(self, name: str) -> "list[Row] | None":
        """Return the list that keeps operators of this name, or None."""
        if name.startswith("c10d::"):
            return self.calls
        if name.startswith(_ANNOTATIONS):
            return self.annotations
        tables = ((FIRST_INPUT, self.inputs), ((*READS, *COPIES), self.waiting), (_REDUCER, self.reducer))
        of_name = {"record_param_comms": self.records, "aten::detach": self.detached}
        of_name |= {key: rows for keys, rows in tables for key in keys}
        return of_name.get(name)

    def _annotation(self, event: Event, begin: float, name: str) -> None:
        if name.startswith("gloo:"):
            self._keep(self.collectives, event, begin, name, args=True)
            return
        if name.startswith("ProfilerStep#"):
            self.processes.add(event.pid or 0)
        self._keep(self.annotations, event, begin, name)

    def _annotation_on_gpu(self, event: Event, begin: float, name: str) -> None:
        if name.startswith("Optimizer.step#"):
            self._keep(self.on_gpu, event, begin, name)

    def _kernel(self, event: Event, begin: float, name: str) -> None:
        if name.startswith(_COLLECTIVE_KERNELS):
            self._keep(self.collectives, event, begin, name, args=True)
        else:
            self.kernels.flat.extend((begin, max(event.dur, 0.0), 0))

    def _copy(self, event: Event, begin: float, name: str) -> None:
        self._keep(self.copies, event, begin, name)

    def _runtime(self, event: Event, begin: float, name: str) -> None:
        if "Launch" in name:
            self.launches.flat.extend((begin, event.dur, 0))
        elif name.endswith(_SYNCHRONISES) or ("Memcpy" in name and event.dur > _COPY_THAT_WAITED_US):
            self._keep(self.syncs, event, begin, name)

    def _frame(self, event: Event, begin: float, name: str) -> None:
        number = self.numbers.get(name) or self.number(name)
        self.frames[event.tid or 0].flat.extend((begin, event.dur, number))


_BYTES = {
    **dict.fromkeys(("float", "int", "int32", "unsigned int", "float32"), 4),
    **dict.fromkeys(("double", "long", "long int", "int64", "c10::complex<float>"), 8),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "short", "float16"), 2),
    **dict.fromkeys(("char", "byte", "bool", "signed char", "unsigned char", "int8", "uint8"), 1),
}
#: As torch calls them, with and without its underscores, and as kernels are called.
_KINDS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "sendrecv": "send_recv",
}
_OF_KERNEL = re.compile(
    r"(?:nccl|rccl)\w*?_(AllReduce|Broadcast|AllGather|ReduceScatter|Reduce|SendRecv|AllToAll)", re.IGNORECASE
)


class Call(NamedTuple):
    """A collective, with the fields of TraceCall."""

    begin: float
    end: float
    kind: str
    called: float | None = None
    group: str = ""
    seq: int | None = None
    ranks: int | None = None
    size_bytes: int | None = None
    dtype: str = ""


def kind_of(name: str) -> str:
    """Return a kind: ``all_reduce`` for ``c10d::allreduce_``, ``gloo:all_reduce`` and the names of kernels."""
    if kernel := _OF_KERNEL.match(name):
        name = kernel[1]
    words = re.sub(r"[^a-z]", "", name.rpartition(":")[2].lower())
    return _KINDS.get(words, "collective")


def collectives(found: Collected, *, lossy: bool) -> list[Call]:
    """Return collectives in the host's call order if known, otherwise by begin. ``lossy``: events are missing."""
    rows = sorted(found.collectives)
    if rows and rows[0].name.startswith("gloo:"):
        return _of_gloo(rows, sorted(found.calls), lossy=lossy)
    records = {}
    for record in found.records:
        fields = arguments(record.args)
        records[fields.get("External id")] = record.begin, fields
    return [_of_kernel(row, records) for row in rows]


def _of_gloo(rows: list[Row], calls: list[Row], *, lossy: bool) -> list[Call]:
    """Match starts on gloo's threads with calls: the j-th of a kind with its j-th call, or later if starts are lost."""
    by_kind = defaultdict[str, deque[Row]](deque)
    for call in calls:
        by_kind[kind_of(call.name)].append(call)
    left = Counter(kind_of(row.name) for row in rows)
    made = []
    for row in rows:
        kind = kind_of(row.name)
        waiting = by_kind[kind]
        while lossy and len(waiting) > max(left[kind], 1) and waiting[1].begin <= row.begin:
            waiting.popleft()
        left[kind] -= 1
        # None: called before the profiler began
        called = waiting.popleft().begin if waiting and waiting[0].begin <= row.begin else None
        size, dtype = _input(arguments(row.args))
        made.append(Call(row.begin, row.end, kind, called, size_bytes=size, dtype=dtype))
    return sorted(made, key=lambda call: call.begin if call.called is None else call.called)


def _of_kernel(row: Row, records: Mapping[Any, tuple[float, dict[str, Any]]]) -> Call:
    fields = arguments(row.args)
    called, recorded = records.get(fields.get("External id"), (None, {})) if "External id" in fields else (None, {})
    fields = {**recorded, **fields}
    name = fields.get("Collective name")
    elements, dtype = fields.get("In msg nelems"), str(fields.get("dtype", "")).lower()
    seq, ranks = fields.get("Seq"), fields.get("Group size")
    known = isinstance(elements, int) and dtype in _BYTES
    return Call(
        row.begin,
        row.end,
        kind_of(name) if isinstance(name, str) and name else kind_of(row.name),
        called,
        str(fields.get("Process Group Name", "")),
        seq if isinstance(seq, int) else None,
        ranks if isinstance(ranks, int) else None,
        elements * _BYTES[dtype] if isinstance(elements, int) and known else None,
        dtype,
    )


def _input(fields: Mapping[str, Any]) -> tuple[int | None, str]:
    dims, types = fields.get("Input Dims"), fields.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return None, ""
    flat = [shape for each in dims for shape in (each if each and isinstance(each[0], list) else [each])]
    shapes = [shape for shape in flat if isinstance(shape, list) and all(isinstance(size, int) for size in shape)]
    dtype = next((kind.lower() for kind in types if isinstance(kind, str) and kind.lower() in _BYTES), "")
    if not shapes or not dtype:
        return None, dtype
    return sum(map(prod, shapes)) * _BYTES[dtype], dtype
