"""checkpoint on real ranks: healthy worlds, and files torn, old, overwritten, unseen or lost."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_doctor.checks.ddp import checkpoint
from ddp_doctor.checks.ddp.checkpoint import CHECK, rules
from ddp_doctor.facts.ddp.model_state import Checkpoint
from ddp_doctor.model.choices import Severity
from tests.checks.judged_ranks import assert_found, judge_by, only, planted, record
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: what runs on each rank.


def probed(ctx: Any, *planted: tuple[Any, str, Any]) -> Checkpoint:
    with ExitStack() as stack:
        for owner, name, value in ((checkpoint, "_PATIENCE_S", 0.05), *planted):
            stack.enter_context(patch.object(owner, name, value))
        return checkpoint.probe(ctx)


def healthy(ctx: Any) -> Checkpoint:
    return probed(ctx)


def in_shards(ctx: Any, spoil: Callable[[Any, Path], None] | None = None) -> Checkpoint:
    """The whole probe; ``spoil(ctx, folder)`` when all have saved their shards."""
    save = checkpoint.save_shards

    def spoilt(ctx: Any, folder: Path) -> str:
        error = save(ctx, folder)
        if spoil is not None:
            spoil(ctx, folder / checkpoint.SHARDS)
        return error

    return probed(ctx, (checkpoint, "save_shards", spoilt))


def loses_its_shard(ctx: Any, folder: Path) -> None:
    if ctx.rank == 1:
        (folder / f"__{ctx.group_rank}_0.distcp").unlink()


def tears_its_shard(ctx: Any, folder: Path) -> None:
    if ctx.rank == 2:
        file = folder / f"__{ctx.group_rank}_0.distcp"
        file.write_bytes(file.read_bytes()[:100])


def garbles_its_shard(ctx: Any, folder: Path) -> None:
    if ctx.rank == 2:
        import struct

        file, held = folder / "__2_0.distcp", struct.pack("<f", 520.0)
        data = file.read_bytes()
        assert data.count(held) == 1
        file.write_bytes(data.replace(held, struct.pack("<f", 521.5)))


def reads_from_wrong_offsets(ctx: Any, *deceived: int) -> Checkpoint:
    from torch.distributed.checkpoint import planner_helpers
    from torch.distributed.tensor import _utils

    known: Any = planner_helpers
    stock = _utils.compute_local_shape_and_global_offset

    def shifted(shape: Any, mesh: Any, placements: Any) -> Any:
        sizes, offsets = stock(shape, mesh, placements)
        off = 256 if mesh.size() == 3 and ctx.rank in deceived else 0
        return sizes, tuple(max(0, offset - off) for offset in offsets)

    return probed(ctx, (known, "compute_local_shape_and_global_offset", shifted))


def cannot_read_in_a_group(ctx: Any) -> Checkpoint:
    load = checkpoint.load_part

    def refused(ctx: Any, folder: Path) -> Any:
        if ctx.rank == 2:
            from torch.distributed.checkpoint.filesystem import FileSystemReader

            def refuse(*_: object) -> None:
                raise OSError(5, "Input/output error")

            with patch.object(FileSystemReader, "read_data", refuse):
                return load(ctx, folder)
        return load(ctx, folder)

    return probed(ctx, (checkpoint, "load_part", refused))


def torch_without_meshes_of_groups(ctx: Any) -> Checkpoint:
    from torch.distributed.device_mesh import DeviceMesh

    stock = DeviceMesh.from_group

    def from_group(group: Any, device: str) -> Any:
        if ctx.rank == 1 and group.size() == 3:
            raise RuntimeError("not a group of all ranks")
        return stock(group, device)

    return probed(ctx, (DeviceMesh, "from_group", from_group))


def reads_half_on_rank_1(ctx: Any) -> Checkpoint:
    whole = Path.read_bytes

    def half(path: Path) -> bytes:
        data = whole(path)
        return data[: len(data) // 2] if ctx.rank == 1 else data

    return probed(ctx, (Path, "read_bytes", half))


def saves_in_the_background(ctx: Any) -> Checkpoint:
    import torch

    save, exchange, halves = torch.save, ctx.exchange, []

    def save_half(state: Any, file: Path) -> None:
        save(state, file)
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
        halves.append((file, data))

    def exchange_and_finish(name: str, text: str) -> tuple[str, ...]:
        told: tuple[str, ...] = exchange(name, text)
        while name.startswith("loaded") and halves:
            file, data = halves.pop()
            file.write_bytes(data)
        return told

    ctx.exchange = exchange_and_finish
    return probed(ctx, (torch, "save", save_half))


def reads_what_it_read_before(ctx: Any) -> Checkpoint:
    read, known = Path.read_bytes, dict[Path, bytes]()

    def cached(path: Path) -> bytes:
        return known.setdefault(path, read(path)) if ctx.rank == 2 else read(path)

    return probed(ctx, (Path, "read_bytes", cached))


def rank_1_saves_too(ctx: Any) -> Checkpoint:
    import torch
    import torch.distributed as dist

    exchange, folder = ctx.exchange, ""

    def after_rank_1(name: str, text: str) -> tuple[str, ...]:
        nonlocal folder
        if name == "saved 2":
            dist.barrier(ctx.group)
            if ctx.rank == 1:
                torch.save(checkpoint.state(ctx.group_rank, 2), Path(folder) / rules.FILE)
            dist.barrier(ctx.group)
        said: tuple[str, ...] = exchange(name, text)
        if name == "folder":
            folder = json.loads(said[0])["folder"]
        return said

    return probed(ctx, (ctx, "exchange", after_rank_1))


def rank_3_looks_elsewhere(ctx: Any) -> Checkpoint:
    load = checkpoint.load

    def elsewhere(ctx: Any, file: Path, *told: Any) -> Any:
        return load(ctx, Path("/nowhere") / file.name if ctx.rank == 3 else file, *told)

    return probed(ctx, (checkpoint, "load", elsewhere))


def cannot_write(ctx: Any, name: str) -> Any:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    owner = ctx if name == "new_folder" else __import__("torch")
    return probed(ctx, (owner, name, refuse))


# Healthy worlds


@pytest.mark.parametrize("on", [(0,), (0, 1), (1, 3), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_give_no_finding_and_leave_nothing(ranks, on):
    facts = ranks.facts(healthy, on=on)

    assert judge(recording(facts, on)) == []
    assert all(one.read == one.told for fact in facts for one in fact.loads)
    assert not Path(facts[0].folder).exists()


@pytest.mark.parametrize("on", [(0, 1), (0, 1, 2, 3)], ids=str)
def test_shards_load_at_another_world_size(ranks, on):
    facts = ranks.facts(in_shards, on=on)

    assert judge(recording(facts, on)) == []
    assert [fact.sharded.shards for fact in facts] == [len(on)] * len(on), facts[0].sharded_reason


def test_shards_load_in_a_group_of_one_rank_less(ranks):
    parts = [fact.sharded.resharded for fact in ranks.facts(healthy)]
    assert [(one.world_size, one.first, one.elements) for one in parts[:3]] == [
        *((3, 0, 342), (3, 342, 342), (3, 684, 340))
    ]
    assert parts[3] is None


@pytest.mark.parametrize("on", [(0, 1), (1, 2, 3)], ids=str)
def test_why_there_is_no_smaller_group_is_said(ranks, on):
    for fact in ranks.facts(healthy, on=on):
        assert fact.sharded.resharded is None
        assert fact.sharded.resharded_reason


def test_a_torch_that_makes_no_parts_on_one_rank_leaves_nobody_waiting(ranks):
    facts = ranks.facts(torch_without_meshes_of_groups)
    assert judge(recording(facts)) == []
    assert all("not a group of all ranks" in fact.sharded.resharded_reason for fact in facts)


@settings(max_examples=30)
@given(ranks=st.integers(1, 40), each=st.integers(1, 40))
def test_parts_are_those_of_torch_s_chunk(ranks, each):
    import torch

    whole = torch.arange(ranks * each)
    for rank, chunk in enumerate(whole.chunk(max(1, ranks - 1))):
        first, end = checkpoint.part_of(rank, max(1, ranks - 1), ranks * each)
        assert chunk.tolist() == list(range(first, end))


def test_ranks_without_numpy_say_why_they_load_no_shards():
    code = """
import sys
sys.modules["numpy"] = None
from types import SimpleNamespace
from ddp_doctor.checks.ddp import checkpoint
print(checkpoint.reason_against(SimpleNamespace(world_size=2)))
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.stdout == "torch.distributed.checkpoint needs numpy, which these ranks lack\n", ended.stderr


def test_why_there_are_no_shards_is_said(ranks):
    (fact,) = ranks.facts(healthy, on=(0,))
    assert (fact.sharded, fact.sharded_reason) == (None, "sharded checkpoints require at least two ranks")


def test_every_step_has_the_same_name_and_detail_but_for_the_save(ranks):
    results = ranks.run(in_shards)
    others = [[step for step in one.steps if not step[1].startswith("version")] for one in results]
    assert all(steps == others[0] for steps in others)


def test_what_is_written_is_small(ranks):
    fact = ranks.facts(healthy, on=(0,))[0]
    assert max(one.told_bytes for one in fact.loads) < 16 * 1024


@pytest.mark.parametrize("name", ["new_folder", "save"])
def test_a_working_directory_that_takes_no_file_is_no_fault(ranks, name):
    for one in ranks.run(cannot_write, name, on=(0, 1)):
        assert one.error is not None
        assert "Skip" in one.error
        assert "Read-only file system" in one.error


# Sabotage


@planted(
    ("a rank that reads half a file", (reads_half_on_rank_1,), "DD761", [1], "(node1)", "checkpoint.pt"),
    ("a save that returns too early", (saves_in_the_background,), "DD761", [], "every rank"),
    ("a rank that reads the old file", (reads_what_it_read_before,), "DD762", [2], "version 1 in place of 2"),
    ("a rank that overwrites the file, and not its readers", (rank_1_saves_too,), "DD763", [1]),
    (
        *("a lost shard", (in_shards, loses_its_shard), "DD765", [1], "__1_0.distcp"),
        "cannot be loaded by a single rank, nor by 3 ranks: loading fails on every rank, and the shard of rank 1",
    ),
    ("a torn shard", (in_shards, tears_its_shard), "DD765", [], "torch says: "),
    ("a garbled shard", (in_shards, garbles_its_shard), "DD765", [2]),
    (
        *("a rank that reads from wrong offsets, and no shard", (reads_from_wrong_offsets, 1), "DD765", [1]),
        "be loaded by 3 ranks: loading fails on rank 1 (node1), although a single rank can load all of it",
        "loads elements 342 to 683: 342 are off. Element 342 holds that of element 86.",
    ),
    (  # rank 0 begins at 0 in any case
        *("wrong offsets on several ranks", (reads_from_wrong_offsets, 0, 1, 2), "DD765", [1, 2]),
        "on rank 1 (node1) and rank 2 (node2)",
    ),
    (
        *("a rank that cannot read its part, and not those that hear of it", (cannot_read_in_a_group,)),
        *("DD765", [2], "Input/output error"),
    ),
)
def test_a_planted_defect_is_found_and_named(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


def test_a_smaller_world_names_the_rank_that_saves_in_it(ranks):
    finding = only(judge(recording(ranks.facts(reads_half_on_rank_1, on=(1, 2)), (1, 2))), "DD761")
    assert finding.title.startswith("The checkpoint that rank 1 saved is incomplete or changed when read on rank 1")


def test_a_node_that_does_not_see_the_file_is_information(ranks):
    facts = ranks.facts(rank_3_looks_elsewhere)
    finding = only(judge(recording(facts)), "DD764")
    assert (finding.severity, finding.culprits[0].node) == (Severity.INFO, "node3")
    assert {fact.sharded_reason for fact in facts} == {"not all ranks see the folder"}
