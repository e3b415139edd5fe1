"""The words of findings: names and lines of the script itself, and a fix that can be pasted."""

import pytest

from ddp_doctor.features.lint.linting import lint_text
from ddp_doctor.features.lint.report import LintFinding

START = """import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
"""


def only(code: str, text: str) -> LintFinding:
    (found,) = (each for each in lint_text("train.py", text).findings if each.code == code)
    return found


def fix(code: str, text: str) -> tuple[str, tuple[str, ...]]:
    (remedy,) = only(code, text).remedies
    return remedy.summary, tuple(remedy.commands)


@pytest.mark.parametrize(
    ("uses", "where"),
    [
        ("torch.cuda.set_device(dist.get_rank())", ""),
        ("rank = dist.get_rank()\ntorch.cuda.set_device(rank)\nnet.to(rank)", "line 4"),
        ("def rank():\n    return dist.get_rank()\nnet.to(rank())\ntorch.device(f'cuda:{rank()}')", "line 5"),
        (
            "torch.cuda.set_device(int(os.environ['RANK']))\nnet.to(dist.get_rank())\nnet.cuda(dist.get_rank())",
            "lines 3 and 4",
        ),
    ],
)
def test_a_rank_that_chooses_the_gpu_in_several_lines_is_one_finding_with_the_other_lines(uses: str, where: str):
    start = "import os, torch, torch.distributed as dist; dist.init_process_group('nccl'); net = torch.nn.Linear(4, 2)"
    text = f"{start}\n{uses}\n"

    assert only("DDL105", text).detail == (f"The global rank also chooses it in {where}." if where else "")


@pytest.mark.parametrize(
    ("made", "loop", "written"),
    [
        (
            "shuffler = DistributedSampler(data)\nloader = DataLoader(data, sampler=shuffler)",
            "for turn in range(9):",
            "shuffler.set_epoch(turn)",
        ),
        (
            "loader = DataLoader(data, sampler=DistributedSampler(data))",
            "for epoch in range(9):",
            "loader.sampler.set_epoch(epoch)",
        ),
        (
            "loader = DataLoader(data, sampler=DistributedSampler(data))",
            "for _ in range(9):",
            "loader.sampler.set_epoch(epoch)",
        ),
    ],
)
def test_the_fix_of_a_missing_epoch_has_the_names_and_the_line_of_the_loop(made: str, loop: str, written: str):
    text = f"{START}model = DDP(net.cuda())\n{made}\n{loop}\n    for x in loader:\n        model(x).sum().backward()\n"

    line = text.splitlines().index(loop) + 1
    assert fix("DDL122", text) == (
        f"Call set_epoch at the start of every epoch, in the loop in line {line}",
        (written,),
    )


@pytest.mark.parametrize(
    ("loop", "last"),
    [
        (
            "for i, x in enumerate(xs):\n    net(x).sum().backward()\n    if (i + 1) % 4 == 0:\n        o.step()\n",
            "(i + 1) % 4 == 0",
        ),
        (
            "for i, x in enumerate(xs):\n    net(x).sum().backward()\n    if i % 4:\n        continue\n    o.step()\n",
            "not (i % 4)",
        ),
        (
            "for x in xs:\n    for k in range(parts):\n        net(x[k]).sum().backward()\n    o.step()\n",
            "k == parts - 1",
        ),
        (
            "for x in xs:\n    for part in torch.chunk(x, 4):\n        net(part).sum().backward()\n    o.step()\n",
            "...  # True in the last pass before optimizer.step()",
        ),
    ],
)
def test_fix_of_an_accumulation_identifies_the_last_pass(loop: str, last: str):
    text = f"{START}net = DDP(torch.nn.Linear(4, 2).cuda())\no = torch.optim.SGD(net.parameters(), 0.1)\n{loop}"

    written = (f"last = {last}", "with contextlib.nullcontext() if last else net.no_sync():")
    assert fix("DDL124", text)[1] == written


def test_a_forward_on_one_rank_is_fixed_by_the_model_inside_and_a_collective_by_all_ranks():
    forward = "net = DDP(torch.nn.BatchNorm1d(4).cuda())\nif dist.get_rank() == 0:\n    net(x)\n"
    barrier = "if dist.get_rank() == 0:\n    dist.barrier()\n"

    assert fix("DDL133", START + forward)[0] == "Call net.module(...) here, or run the forward on all ranks"
    assert fix("DDL133", START + barrier)[0] == "Move the collective out of the condition, so that all ranks call it"


def test_method_of_a_library_is_named_as_in_the_script():
    text = "import accelerate\na = accelerate.Accelerator()\nif a.is_main_process:\n    a.gather_for_metrics(x)\n"

    assert only("DDL133", text).title.startswith("Only rank 0 calls a.gather_for_metrics() (condition in line 3)")
