"""Complete, split, truncated and damaged traces are read; the kept values equal the values in the file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.reading.events import NotATrace
from ddp_doctor.features.trace.reading.rank import read_trace
from ddp_doctor.model.intervals import Times
from tests.features.trace.written import event, steps, written

TEXT = written(steps())


def read(text: str | bytes, size: int = 1 << 20) -> TraceFact:
    data = text.encode() if isinstance(text, str) else text
    return read_trace("rank0.json", [data[at : at + size] for at in range(0, len(data), size)])


def test_a_step_is_divided_into_its_parts_which_add_up():
    fact = read(TEXT)
    step = fact.steps[-1]

    assert (fact.rank, fact.world_size, fact.device) == (0, 2, "cpu")
    assert (fact.left_out, [each.number for each in fact.steps]) == (1, [3, 4])
    assert fact.begin_us == 1790857026000000 + 6000
    assert (step.loading_us, step.compute_us, step.optimizer_us) == (100, 490, 100)
    assert step.exposed_us == 210  # 200 after backward, 10 in the call
    assert step.exposed_us + step.hidden_us == 280 + 10
    parts = (step.compute_us, step.optimizer_us, step.loading_us, step.exposed_us, step.other_us, step.host_us)
    assert sum(parts) == step.end_us - step.begin_us == 1000
    assert (step.batch, step.passes, step.updates, step.ops, step.optimizer_kernels) == ((32, 8), 1, 1, 3, 1)
    assert (step.backward_end_us, step.first_reduce_us) == (1600, 1500)
    (call,) = [call for call in fact.calls if call.step == 1]
    assert (call.kind, call.size_bytes, call.during) == ("all_reduce", 288, "backward")
    assert (call.called_us, call.begin_us, call.end_us) == (1500, 1520, 1800)


@pytest.mark.parametrize("size", [7, 100, 1000, 1 << 20])
def test_size_of_the_pieces_does_not_change_the_result(size: int):
    assert read(TEXT, size) == read(TEXT)


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_file_rewritten_by_a_script_gives_the_same_result(indent: int | None):
    again = json.dumps(json.loads(TEXT), indent=indent)

    assert read(again, 500) == read(TEXT)
    bare = json.dumps(json.loads(TEXT)["traceEvents"], indent=indent)
    assert read(bare, 500).steps == read(TEXT).steps
    assert read(bare).rank is None


DAMAGE = {
    "raw backslash": (r'"name": "aten::addmm"', r'"name": "C:\path\modules.py(9): forward"', 3),
    "unescaped quote": ('"name": "aten::addmm"', '"name": "TORCH_LIBRARY("mylib", m)"', 3),
    "negative time": ('"dur": 50.0', '"dur": -0.-12', 3),
    "newline in a string": ('"name": "aten::addmm"', '"name": "Library(_test,\n IMPL)"', 0),
    "infinity": ('"args": {\n      ', '"args": {"GB/s": inf, "x": -nan, "y": Infinity, ', 0),
    "trailing comma": ("\n  }\n  ],", "\n  },\n  ],", 0),
}


@pytest.mark.parametrize(("honest", "spoilt", "damaged"), DAMAGE.values(), ids=[*DAMAGE])
def test_damage_stays_in_its_event(honest: str, spoilt: str, damaged: int):
    text = TEXT.replace('"dur": 50', '"dur": 50.0').replace(honest, spoilt, 3)
    fact = read(re.sub(r", \s+\}", "}", text))

    assert fact.damaged == damaged
    assert not fact.cut
    assert len(fact.steps) == 2
    assert fact.steps[-1].exposed_us == 210


@given(st.integers(0, len(TEXT)))
def test_only_complete_steps_before_a_cut_are_used(end: int):
    try:
        fact = read(TEXT[:end])
    except NotATrace:
        return
    whole = read(TEXT)

    assert fact.cut is (end < TEXT.index("traceName") - 5)
    assert fact.damaged == 0
    for step in fact.steps:
        assert step.number in (3, 4) or end < len(TEXT)
        assert step.end_us - step.begin_us == 1000
        assert len(fact.steps) <= len(whole.steps)


def test_a_trace_of_a_gpu_that_is_cut_before_its_kernels_has_no_steps():
    text = written(steps(), deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])

    assert len(read(text).steps) == 2
    assert read(text[: text.index("traceName") - 20]).steps == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ('{"loss": 0.5}', "no traceEvents"),
        ('{"traceEvents": []}', "no event"),
        ('{"traceEvents": [1, "a", null, {"ph": 3}]}', "no event"),
        ("[]", "no event"),
        ("[" * 100_000, "no event"),
        ('{"traceEvents": [' + '{"a":' * 100_000, "no event"),
    ],
)
def test_invalid_trace_is_refused_with_the_reason(text: str, says: str):
    with pytest.raises(NotATrace, match=says):
        read(text)


def test_ranks_merged_into_one_file_are_counted_but_not_analyzed():
    other = [{**each, "pid": 200, "tid": each["tid"] + 100} for each in steps()]
    fact = read(written([*steps(), *other]))

    assert (fact.processes, fact.steps) == (2, ())


def _flood(piece: bytes, size: int) -> Iterator[bytes]:
    yield b'{"traceEvents": ['
    for _ in range(size // len(piece)):
        yield piece


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "piece", [b'{"name": "' + b"x" * 1_000_000, b" " * 1_000_000, b"{" * 1_000_000], ids=["string", "blanks", "nesting"]
)
def test_endless_string_or_nesting_is_skipped_in_bounded_time(piece: bytes):
    began = time.process_time()
    with pytest.raises(NotATrace):
        read_trace("hostile.json", _flood(piece, 20_000_000))

    assert time.process_time() - began < 7


def test_kernels_collectives_copies_and_synchronization_are_distinguished():
    gpu = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("ProfilerStep#4", 1000, 1000, "user_annotation"),
        event("aten::item", 1050, 100),
        event("cudaStreamSynchronize", 1060, 80, "cuda_runtime"),
        event("record_param_comms", 1100, 10, args={"External id": 7, "Collective name": "allreduce", "Seq": 4}),
        event("sgemm", 1100, 300, "kernel", 7),
        event("Stream Sync", 1400, 500, "cuda_sync", 7),
        event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1300, 300, "kernel", 20,
            args={"External id": 7, "In msg nelems": 100, "dtype": "Float", "Group size": 2, "Process Group Name": "0"},
        ),
        event("Memcpy HtoD (Pageable -> Device)", 1650, 50, "gpu_memcpy", 7),
        event("Optimizer.step#SGD.step", 1350, 50, "gpu_user_annotation", 7),
    ]  # fmt: skip
    fact = read(written(gpu))
    step, (call,) = fact.steps[-1], fact.calls

    assert fact.gpu == ""
    parts = [step.compute_us, step.optimizer_us, step.exposed_us, step.other_us, step.host_us, step.hidden_us]
    assert parts == [250, 50, 200, 50, 450, 100]
    assert (step.pageable, step.pageable_us) == (1, 50)
    assert [(sync.name, sync.count, sync.wait_us) for sync in step.syncs] == [("aten::item", 1, 80)]
    assert (call.kind, call.seq, call.size_bytes, call.ranks, call.group) == ("all_reduce", 4, 400, 2, "0")
    assert call.called_us == 1100


def test_copy_that_blocks_the_host_is_a_synchronization():
    gpu = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("ProfilerStep#4", 1000, 1000, "user_annotation"),
        event("aten::to", 1100, 500),
        event("cudaMemcpyAsync", 1110, 450, "cuda_runtime"),
        event("aten::copy_", 1700, 60),
        event("cudaMemcpyAsync", 1710, 40, "cuda_runtime"),
        event("sgemm", 1600, 300, "kernel", 7),
    ]

    step = read(written(gpu)).steps[-1]

    assert [(sync.name, sync.count, sync.wait_us) for sync in step.syncs] == [("aten::to", 1, 450)]


def test_time_of_sending_buffers_is_from_packing_to_copying_back():
    packing = [
        event("aten::flatten_dense_tensors", 6_110, 5),
        event("c10d::broadcast_", 6_116, 4),
        event("aten::unflatten_dense_tensors", 6_122, 4),
        event("aten::copy_", 6_127, 1),
        event("aten::copy_", 6_129, 1),
        event("aten::linear", 6_140, 20),
        event("aten::copy_", 6_170, 1),
    ]
    fact = read(written([each for each in steps() if each["name"] not in ("aten::linear", "aten::addmm")] + packing))

    assert [step.buffers_us for step in fact.steps] == [20, 0]


def test_collective_of_a_layer_in_backward_is_not_a_gradient_bucket():
    of_layer = [
        {**each, "name": each["name"].replace("torch::autograd::AccumulateGrad", "SyncBatchNormBackward")}
        for each in steps()
    ]

    assert {(call.during, call.averages) for call in read(written(steps())).calls} == {("backward", True)}
    assert {(call.during, call.averages) for call in read(written(of_layer)).calls} == {("backward", False)}


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda at: (at[0], at[0] + at[1])))


@given(SPANS, SPANS, st.integers(0, 60), st.integers(0, 60))
def test_time_spans_behave_like_sets(one: list[tuple[int, int]], other: list[tuple[int, int]], begin: int, end: int):
    def moments(spans: object) -> set[int]:
        return {at for first, last in spans for at in range(int(first), int(last))}  # type: ignore[attr-defined]

    a, b = Times.union(one), Times.union(other)

    assert moments(a | b) == moments(one) | moments(other)
    assert moments(a - b) == moments(one) - moments(other)
    assert moments(a & b) == moments(one) & moments(other)
    assert moments(a.within(begin, end)) == moments(one) & set(range(begin, end))
    assert a.total == len(moments(one))


def test_many_forwards_and_detached_tensors_in_one_step_take_linear_time():
    def row(cat: str, name: str, at: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": dur, "pid": 1, "tid": 1}

    events = [row("user_annotation", f"ProfilerStep#{number}", number * 1e6, 1e6) for number in (2, 3)]
    for at in range(20_000):
        events.append(row("user_annotation", "DistributedDataParallel.forward", 3e6 + at * 50, 10.0))
        events.append(row("cpu_op", "aten::detach", 3e6 + at * 50 + 20, 1.0))
    text = json.dumps({"traceEvents": events})
    before = time.process_time()

    assert read(text).steps[-1].detached == 20_000
    assert time.process_time() - before < 10
