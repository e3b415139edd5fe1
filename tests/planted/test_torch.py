"""torch's CUDA build on planted GPUs, and the doctor on top of it, from one end to the other.

Nothing here was seen on a GPU. ``make planted-torch`` runs these.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import servers
from tests.planted.test_nccl import skip_where_none_can_be_planted
from tests.planted.with_torch import PlantedTorch

pytestmark = [pytest.mark.planted_torch, pytest.mark.timeout(1200)]

TRAINS = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(rank)
layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 1))
module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(*layers)).cuda()
model = torch.nn.parallel.DistributedDataParallel(module, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.rand(4, 1, 4, 4, device="cuda")).square().mean().backward()
    optimizer.step()
assert (torch.arange(3, device="cuda") % 2).tolist() == [0, 1, 0]
total = torch.zeros(1, device="cuda", dtype=torch.bfloat16) + rank + 1
dist.all_reduce(total)
print("weights", sum(each.double().sum().item() for each in model.parameters()), "total", total.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two() -> Iterator[PlantedTorch]:
    """A host with eight A100."""
    skip_where_none_can_be_planted()
    with PlantedTorch([servers.hgx_a100_roce()]) as planted:
        yield planted


def test_ddp_trains_to_the_same_weights_on_all_ranks(two: PlantedTorch, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(TRAINS)

    ran = two.ranks(script, 2, limit_s=300)

    assert [rank.code for rank in ran.values()] == [0, 0], ran
    assert "is not planted" not in ran[0].said + ran[1].said
    assert ran[0].output.splitlines()[-1] == ran[1].output.splitlines()[-1]
    assert ran[0].output.endswith("total 3.0\n")
