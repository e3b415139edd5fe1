"""The severity of one GPU for all ranks: NCCL rejects it, gloo accepts it and is slow."""

import pytest

from ddp_doctor.features.lint.linting import lint_text
from ddp_doctor.model.choices import Severity

SCRIPT = """
import argparse
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
BACKEND = "gloo"
parser = argparse.ArgumentParser()
{option}
args = parser.parse_args()
dist.init_process_group({backend})
DDP(torch.nn.Linear(4, 2).{move})
"""


def severities(backend: str, option: str, move: str) -> set[Severity]:
    found = lint_text("train.py", SCRIPT.format(backend=backend, option=option, move=move)).findings
    return {finding.severity for finding in found if finding.code in ("DDL104", "DDL106")}


@pytest.mark.parametrize("move", ["cuda()", 'to("cuda")', "cuda(0)"])
@pytest.mark.parametrize(
    ("backend", "option"),
    [
        ('"gloo"', ""),
        ("backend=BACKEND", ""),
        ("dist.Backend.GLOO", ""),
        ("args.backend", 'parser.add_argument("--backend", default="gloo")'),
        ("args.dist_backend", 'parser.add_argument("-b", "--dist-backend", type=str, default="gloo")'),
        ("args.backend", 'parser.add_argument("--be", dest="backend", default="gloo")'),
    ],
)
def test_one_gpu_for_all_ranks_is_a_warning_over_gloo(backend: str, option: str, move: str):
    assert severities(backend, option, move) == {Severity.WARNING}


@pytest.mark.parametrize("move", ["cuda()", "cuda(0)"])
@pytest.mark.parametrize(
    ("backend", "option"),
    [
        ("", ""),
        ('"nccl"', ""),
        ('"cpu:gloo,cuda:nccl"', ""),
        ('"nccl" if torch.cuda.is_available() else "gloo"', ""),
        ("args.backend", 'parser.add_argument("--backend", default="nccl")'),
        ("args.backend", 'parser.add_argument("--backend")'),
        ("args.backend", 'parser.add_argument("--other", default="gloo")'),
    ],
)
def test_one_gpu_for_all_ranks_is_an_error_over_any_other_backend(backend: str, option: str, move: str):
    assert severities(backend, option, move) == {Severity.ERROR}
