"""Forwards in functions of files next to the linted script."""

from pathlib import Path

import pytest

from ddp_doctor.features.lint.linting import lint_bytes

ENGINE = """
def evaluate(net, batches):
    for x in batches:
        net(x)

def on_one_rank(net, args):
    if args.rank != 0:
        return
    net(args.batch)

def of_the_inside(net, batches):
    net = net.module
    for x in batches:
        net(x)
"""
TRAIN = """
import os
import torch, torch.distributed as dist
from engine import evaluate, of_the_inside, on_one_rank
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models import resnet18, vgg16

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = DDP({model}())
if dist.get_rank() == 0:
    {inside}
{outside}
dist.destroy_process_group()
"""


def codes(folder: Path, script: str) -> list[tuple[str, str]]:
    (folder / "engine.py").write_text(ENGINE)
    (folder / "train.py").write_text(script)
    linted = lint_bytes(str(folder / "train.py"), script.encode())
    assert not linted.failures
    return [(finding.code, finding.title) for finding in linted.findings if finding.code == "DDL133"]


@pytest.mark.parametrize(
    ("model", "inside", "outside", "place"),
    [
        ("resnet18", "evaluate(model, data)", "", "engine.py:4"),
        ("resnet18", "evaluate(batches=data, net=model)", "", "engine.py:4"),
        ("resnet18", "pass", "on_one_rank(model, args)", "engine.py:9"),
        ("resnet18", "evaluate(model.module, data)", "evaluate(model, data)", ""),
        ("resnet18", "of_the_inside(model, data)", "", ""),
        ("vgg16", "evaluate(model, data)", "on_one_rank(model, args)", ""),
    ],
)
def test_forward_in_another_file_is_reported_if_some_ranks_run_it(model, inside, outside, place, tmp_path: Path):
    found = codes(tmp_path, TRAIN.format(model=model, inside=inside, outside=outside))

    assert len(found) == bool(place)
    assert all(place in title for _, title in found)
