"""The collectives of a trace: when this rank arrived in each, when it was called, and how large it is.

Fields: pytorch/pytorch torch/csrc/distributed/c10d/ParamCommsUtils.hpp; kernels: NVIDIA/nccl src/device/generate.py.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from ddp_doctor.features.trace.reading.collect import Collected, Row
from ddp_doctor.features.trace.reading.events import arguments

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
    """One collective, as TraceCall has it."""

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
    """``all_reduce`` of ``c10d::allreduce_``, ``gloo:all_reduce``, ``_allgather_base`` and kernels' names."""
    if kernel := _OF_KERNEL.match(name):
        name = kernel[1]
    words = re.sub(r"[^a-z]", "", name.rpartition(":")[2].lower())
    return _KINDS.get(words, "collective")


def collectives(found: Collected, *, lossy: bool) -> list[Call]:
    """In the order in which the host called them, where that is known, else by begin. ``lossy``: events are missing."""
    rows = sorted(found.collectives)
    if rows and rows[0].name.startswith("gloo:"):
        return _of_gloo(rows, sorted(found.calls), lossy=lossy)
    records = {}
    for record in found.records:
        fields = arguments(record.args)
        records[fields.get("External id")] = record.begin, fields
    return [_of_kernel(row, records) for row in rows]


def _of_gloo(rows: list[Row], calls: list[Row], *, lossy: bool) -> list[Call]:
    """The j-th start of a kind on gloo's threads is its j-th call; where starts are missing, a later call's."""
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
        # None: it was called before the profiler began.
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
