"""Facts about a script: names, origins of values, and the ranks that run each line."""

import ast
from collections.abc import Iterator

import pytest

from ddp_doctor.features.lint.ranks import chosen_ranks
from ddp_doctor.features.lint.rule import hand_written
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.training import surely_ddp
from ddp_doctor.features.lint.values import Call

IMPORTS = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""


def script(text: str) -> Script:
    source = IMPORTS + text
    return Script("train.py", source, ast.parse(source))


def only(calls: Iterator[Call]) -> Call:
    found = list(calls)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "text",
    [
        "from torch.nn.parallel import DistributedDataParallel\nDistributedDataParallel(m)",
        "from torch.nn.parallel.distributed import DistributedDataParallel as D\nD(m)",
        "torch.nn.parallel.DistributedDataParallel(m)",
        "from torch import nn\nnn.parallel.DistributedDataParallel(m)",
        "import torch.nn.parallel as p\np.distributed.DistributedDataParallel(m)",
        "from torch.nn.parallel import *\nDistributedDataParallel(m)",
        "Wrapper = torch.nn.parallel.DistributedDataParallel\nWrapper(m)",
        "def f():\n    from torch.nn.parallel import DistributedDataParallel as D\n    return D(m)\nf()",
        "try:\n    from torch.nn.parallel import DistributedDataParallel as D\nexcept ImportError:\n    D = None\nD(m)",
    ],
)
def test_a_class_has_one_name_however_it_is_imported(text: str):
    assert len(script(text).wraps) == 1


@pytest.mark.parametrize(
    "text",
    [
        "model = DDP(model)\nmodel.train()",
        "model = DDP(model)\nmodel = model.to(0).eval()\nmodel.train()",
        "def build():\n    return DDP(m)\nmodel = build()\nmodel.train()",
        "def build():\n    return DDP(m), 1\nmodel, n = build()\nmodel.train()",
        "class T:\n  def __init__(self, m):\n    self.m = m\n  def run(self):\n    self.m.train()\nT(DDP(m)).run()",
        "class A:\n    pass\na = A()\na.model = DDP(m)\na.model.train()",
        "models = {}\nmodels['g'] = DDP(m)\nmodels['g'].train()",
        "model = m\nif distributed:\n    model = DDP(model)\nmodel.train()",
        "model = DDP(m) if distributed else m\nmodel.train()",
    ],
)
def test_a_wrapped_model_is_known_by_whatever_name(text: str):
    found = script(text)

    assert any(found.is_ddp(call.receiver) for call in found.methods("train"))


@pytest.mark.parametrize(
    "text",
    [
        "model = m\nif dist.get_world_size() > 1:\n    model = DDP(model)\nmodel(x)",
        "model = DDP(m) if dist.is_initialized() else m\nmodel(x)",
        "model = m\nif int(os.environ.get('RANK', -1)) != -1:\n    model = DDP(model)\nmodel(x)",
        "def wrap(m):\n    if not args.distributed:\n        return m\n    return DDP(m)\nmodel = wrap(m)\nmodel(x)",
    ],
)
def test_wrap_that_every_job_reaches_is_certain(text: str):
    assert surely_ddp(script(text).calls[-1].callee)


def test_wrap_under_another_condition_is_not_certain():
    text = "model = m\nif args.fast:\n    model = DDP(model)\nmodel(x)"
    assert not surely_ddp(script(text).calls[-1].callee)


@pytest.mark.parametrize(
    ("condition", "ranks"),
    [
        ("rank == 0", "rank 0"),
        ("0 == rank", "rank 0"),
        ("dist.get_rank() == 0", "rank 0"),
        ("not dist.get_rank()", "rank 0"),
        ("int(os.environ['RANK']) == 0", "rank 0"),
        ("os.environ.get('RANK', '0') == '0'", "rank 0"),
        ("args.local_rank in [-1, 0]", "local rank 0"),
        ("args.rank % n == 0", "local rank 0"),
        ("is_main_process()", "rank 0"),
        ("accelerator.is_local_main_process", "local rank 0"),
        ("not args.distributed or args.rank == 0", "rank 0"),
        ("args.save and rank == 0", "rank 0"),
        ("rank < 1", "rank 0"),
        ("rank != 0", "ranks other than 0"),
        ("rank > 0", "ranks other than 0"),
        ("rank", "ranks other than 0"),
        ("not (rank == 0)", "ranks other than 0"),
        ("rank == 3", "rank 3"),
        ("rank % n_gpus == 1", "local rank 1"),
        ("rank == source", "some ranks"),
        ("rank == 7 or rank == 9", "ranks 7 and 9"),
        ("world_size > 1 and rank < 5", "ranks 0 to 4"),
        ("rank in ranks", "some ranks"),
        ("not distributed", None),
        ("rank is None", None),
        ("rank == -1", None),
        ("rank >= 0", None),
        ("dist.get_world_size() > 1", None),
        ("dist.is_initialized()", None),
        ("args.distributed", None),
        ("epoch == 0", None),
        ("ranks == 0", None),
        ("frank == 0", None),
        ("step % n == 0", None),
        ("maintain", None),
    ],
)
def test_condition_selects_the_ranks_that_satisfy_it(condition: str, ranks: str | None):
    found = chosen_ranks(
        only(script(f"if {condition}:\n    dist.barrier()\n").named("torch.distributed.barrier")).conditions
    )

    assert (found.who if found else None) == ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("if rank == 0:\n    pass\nelse:\n    dist.barrier()", "ranks other than 0"),
        ("def f():\n    if rank != 0:\n        return\n    dist.barrier()\nf()", "rank 0"),
        ("for x in y:\n    if rank != 0:\n        continue\n    dist.barrier()", "rank 0"),
        ("for x in y:\n    if rank != 0:\n        continue\ndist.barrier()", None),
        ("def f():\n    with a:\n        if rank != 0:\n            return\n    dist.barrier()\nf()", "rank 0"),
        ("def f():\n    if rank != 0:\n        return\nf()\ndist.barrier()", None),
        ("def save():\n    dist.barrier()\nif rank == 0:\n    save()", "rank 0"),
        ("main = rank == 0\nif main:\n    dist.barrier()", "rank 0"),
        ("def is_chief():\n    return dist.get_rank() == 0\nif is_chief():\n    dist.barrier()", "rank 0"),
        ("rank == 0 and dist.barrier()", "rank 0"),
        ("dist.barrier() if rank == 0 else None", "rank 0"),
        ("if rank == 0:\n    print()\ndist.barrier()", None),
        ("if rank == 0:\n    raise SystemExit\ndist.barrier()", "ranks other than 0"),
    ],
)
def test_conditions_count_through_branches_functions_and_early_exits(text: str, ranks: str | None):
    found = chosen_ranks(only(script(text).named("torch.distributed.barrier")).conditions)

    assert (found.who if found else None) == ranks


@pytest.mark.parametrize(
    ("line", "library"),
    [
        ("from accelerate import Accelerator", "Accelerate"),
        ("import pytorch_lightning as pl", "Lightning"),
        ("import lightning as L", "Lightning"),
        ("import deepspeed", "DeepSpeed"),
        ("from transformers import Trainer", "transformers.Trainer"),
        ("import horovod.torch as hvd", "Horovod"),
    ],
)
def test_a_library_that_wraps_models_is_known(line: str, library: str):
    found = script(f"{line}\nDDP(m)\n")

    assert found.libraries == {library}
    assert found.is_distributed
    assert not hand_written(found)
