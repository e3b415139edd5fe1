"""checkpoint on real ranks: healthy worlds, and files that are incomplete, old or not visible."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor.checks.ddp import checkpoint
from ddp_doctor.checks.ddp.checkpoint import CHECK
from ddp_doctor.facts.ddp.model_state import Checkpoint
from ddp_doctor.model.choices import Severity
from tests.checks.judged_ranks import assert_found, judge_by, only, planted, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: the code of each rank.


def probed(ctx: Any, *planted: tuple[Any, str, Any]) -> Checkpoint:
    with ExitStack() as stack:
        for owner, name, value in ((checkpoint, "_PATIENCE_S", 0.05), *planted):
            stack.enter_context(patch.object(owner, name, value))
        return checkpoint.probe(ctx)


def healthy(ctx: Any) -> Checkpoint:
    return probed(ctx)


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
def test_healthy_ranks_have_no_finding_and_leave_no_files(ranks, on):
    facts = ranks.facts(healthy, on=on)

    assert judge(recording(facts, on)) == []
    assert all(one.read == one.told for fact in facts for one in fact.loads)
    assert not Path(facts[0].folder).exists()


def test_every_step_except_the_save_has_the_same_name_and_detail(ranks):
    results = ranks.run(healthy)
    others = [[step for step in one.steps if not step[1].startswith("version")] for one in results]
    assert all(steps == others[0] for steps in others)


def test_written_files_are_small(ranks):
    fact = ranks.facts(healthy, on=(0,))[0]
    assert max(one.told_bytes for one in fact.loads) < 16 * 1024


@pytest.mark.parametrize("name", ["new_folder", "save"])
def test_unwritable_working_directory_is_not_a_fault(ranks, name):
    for one in ranks.run(cannot_write, name, on=(0, 1)):
        assert one.error is not None
        assert "Skip" in one.error
        assert "Read-only file system" in one.error


# Sabotage


@planted(
    ("a rank that reads half a file", (reads_half_on_rank_1,), "DD761", [1], "(node1)", "checkpoint.pt"),
    ("a save that returns too early", (saves_in_the_background,), "DD761", [], "every rank"),
    ("a rank that reads the old file", (reads_what_it_read_before,), "DD762", [2], "version 1 in place of 2"),
)
def test_injected_defect_is_reported(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


def test_smaller_world_reports_the_rank_that_saves_in_it(ranks):
    finding = only(judge(recording(ranks.facts(reads_half_on_rank_1, on=(1, 2)), (1, 2))), "DD761")
    assert finding.title.startswith("The checkpoint that rank 1 saved is incomplete or changed when read on rank 1")


def test_node_that_does_not_see_the_file_is_info(ranks):
    finding = only(judge(recording(ranks.facts(rank_3_looks_elsewhere))), "DD764")
    assert (finding.severity, finding.culprits[0].node) == (Severity.INFO, "node3")
