"""The severity of DDL117 in a script: a warning if it shows another GPU, otherwise info."""

import ast

import pytest

from ddp_doctor.features.lint.linting import lint_text
from ddp_doctor.features.lint.report import LintFinding
from ddp_doctor.model.choices import Severity
from tests.features.lint.documents import sample

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

{group}
torch.cuda.set_device({gpu})
model = DDP(torch.nn.Linear(4, 4).cuda())
"""
LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'


def findings(group: str, gpu: str) -> list[LintFinding]:
    linted = lint_text("train.py", SCRIPT.format(group=group, gpu=gpu))
    assert (linted.unread, linted.failures) == (None, ())
    return [one for one in linted.findings if one.code == "DDL117"]


@pytest.mark.parametrize(
    ("situation", "severity", "title"),
    [
        ("offset", Severity.WARNING, "to GPU number LOCAL_RANK, but line 9 uses gpu"),
        ("spawned with an offset", Severity.WARNING, "to GPU number rank % device_count, but line 13 uses gpu"),
        ("list from outside", Severity.INFO, "which may differ from gpus[rank] in line 11"),
        ("some gpus of several nodes", Severity.INFO, "which may differ from gpu in line 12"),
    ],
)
def test_another_gpu_is_a_warning_and_an_unknown_one_is_info(situation, severity, title):
    linted = lint_text("train.py", sample("DDL117", situation).text)
    found = next(finding for finding in linted.findings if finding.code == "DDL117")

    assert found.severity is severity
    assert title in found.title
    assert "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1" in found.detail
    assert all(ast.parse(line) for line in found.remedies[0].commands)
    assert "device_id=device" in found.remedies[0].commands[-1]


@pytest.mark.parametrize(
    "gpu",
    [
        f"{LOCAL_RANK} + 4",
        f"3 - {LOCAL_RANK}",
        f"({LOCAL_RANK} + 1) % torch.cuda.device_count()",
        f"[1, 0][{LOCAL_RANK}]",
        "f'cuda:{dist.get_rank() + 4}'",
        "dist.get_rank() + 1",
    ],
)
def test_gpu_that_does_not_match_the_rank_is_a_warning(gpu):
    assert [one.severity for one in findings('dist.init_process_group("nccl")', gpu)] == [Severity.WARNING]


@pytest.mark.parametrize(
    "gpu",
    [
        LOCAL_RANK,
        f"{LOCAL_RANK} % 8",
        f"[0, 1, 2][{LOCAL_RANK}]",
        "dist.get_rank() % torch.cuda.device_count()",
        "dist.get_rank() // nodes",
        "node_rank * 8 + dist.get_rank()",
        "gpu",
        f"{LOCAL_RANK} + 4 if shared else {LOCAL_RANK}",
    ],
)
def test_gpu_of_the_rank_or_an_unknown_one_is_silent(gpu):
    assert findings('dist.init_process_group("nccl")', gpu) == []


@pytest.mark.parametrize(
    "group",
    [
        'dist.init_process_group("gloo")',
        'dist.init_process_group("nccl-legacy")',
        "dist.init_process_group(**options)",
        'dist.init_process_group("cpu:gloo")',
        'os.environ["TORCH_DIST_USE_NCCL2"] = "0"; dist.init_process_group("nccl")',
        'os.environ["LOCAL_RANK"] = "4"; dist.init_process_group("nccl")',
    ],
)
def test_a_group_that_is_not_bound_by_the_rank_is_silent(group):
    assert findings(group, f"{LOCAL_RANK} + 4") == []
