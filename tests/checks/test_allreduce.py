"""all-reduce: whom wrong sums name, whom they do not, and what the sweep leaves untested."""

from typing import Any

import pytest

from ddp_doctor.checks.collectives import allreduce
from ddp_doctor.checks.collectives.allreduce import CHECK
from ddp_doctor.facts.collectives import ELEMENTS, AllReduceFact, Wrong
from ddp_doctor.model.choices import Confidence, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.probing import all_reduces
from tests.rank_harness import HarnessContext
from tests.recorded import judged


def off(dtype: str = "int64", blamed: tuple[int, ...] = (2,), **more: Any) -> Wrong:
    fields: dict[str, Any] = {
        "op": "sum",
        "elements": ELEMENTS,
        "expected": 15.0,
        "got": 19.0,
        "alike": True,
    } | more
    return Wrong(dtype=dtype, blamed=blamed, **fields)


def seen(*wrong: Wrong, **more: Any) -> AllReduceFact:
    return AllReduceFact(ranks=4, tested=("int64 sum",), wrong=wrong, repeatable=True, **more)


def recording(*facts: AllReduceFact) -> Recording:
    readings = tuple(
        Reading(check=CHECK.id, status=Status.COLLECTED, rank=rank, fact=fact.recorded())
        for rank, fact in enumerate(facts)
    )
    world = World(nproc_per_node=4, world_size=4, nodes=(Node(hostname="node0"),))
    return Recording(world=world, readings=readings)


def judge(*facts: AllReduceFact) -> Finding:
    (finding,) = allreduce.wrong_result.apply(recording(*facts))
    return finding


def test_a_share_that_several_types_find_wrong_on_every_rank_is_proved():
    finding = judge(*[seen(off("int64"), off("float32"), off("int64", (), op="max"))] * 4)
    assert "the share of rank 2 is wrong" in finding.title
    assert [one.rank for one in finding.culprits] == [2]
    assert finding.confidence is Confidence.PROVED


def test_a_share_that_one_type_finds_wrong_is_likely():
    finding = judge(*[seen(off())] * 4)
    assert [one.rank for one in finding.culprits] == [2]
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param([seen(off()), seen(off(blamed=(1,))), seen(off()), seen(off())], id="ranks disagree"),
        pytest.param([seen(off(), off("float32", (1,)))] * 4, id="types disagree"),
        pytest.param([seen(off(), off("float32", ()))] * 4, id="one does not decode"),
        pytest.param([seen(off(blamed=(0, 2)))] * 4, id="two ranks have this share"),
        pytest.param([seen(), seen(off()), seen(), seen()], id="one rank alone saw it"),
        pytest.param([seen(off("float32", (), op="max"))] * 4, id="no sum is wrong"),
        pytest.param([seen(off(elements=1))] * 4, id="an older recording blamed one element"),
    ],
)
def test_wrong_sums_that_do_not_agree_name_nobody(facts: list[AllReduceFact]):
    finding = judge(*facts)
    assert finding.title.endswith("unsure whose share is wrong")
    assert finding.culprits == ()


def test_one_flipped_bit_names_nobody():
    (finding,) = judged("allreduce/one-flipped-bit").report.findings
    assert (finding.title, finding.culprits) == (
        "All-reduce gives wrong results on rank 1 (CUDA device 1): unsure whose share is wrong",
        (),
    )


def compared(wrong_elements: dict[int, int]) -> Wrong | None:
    """What rank 0 of 4 makes of an int64 sum of 15 with these elements changed."""
    import torch

    tensor = torch.full((ELEMENTS,), 15)
    for index, value in wrong_elements.items():
        tensor[index] = value
    ctx = HarnessContext(rank=4, group_rank=0, world_size=4, ranks=(4, 5, 6, 7), local_rank=0, group=None)
    return allreduce.compare(tensor, "int64", "sum", ctx)


def test_only_a_tensor_that_is_off_throughout_blames_by_original_number():
    everywhere = compared(dict.fromkeys(range(ELEMENTS), 19))
    assert everywhere is not None
    assert (everywhere.blamed, everywhere.elements, everywhere.alike) == ((6,), ELEMENTS, True)
    bit = compared({7: 19})
    assert bit is not None
    assert (bit.blamed, bit.elements, bit.alike) == ((), 1, True)
    mixed = compared(dict.fromkeys(range(ELEMENTS), 19) | {9: 17})
    assert mixed is not None
    assert (mixed.blamed, mixed.alike) == ((), False)
    assert compared({}) is None


def test_the_size_at_which_the_sweep_ended_early_is_measured():
    names = {
        one.name: one for one in allreduce.measurements(recording(*[seen(stopped_at_bytes=1 << 20)] * 4))
    }
    untested = names["allreduce_untested_from"]
    assert (untested.value, untested.unit, untested.labels) == (1 << 20, "B", {"ranks": 4})
    assert not list(allreduce.measurements(recording(seen())))


@pytest.mark.parametrize(("ranks", "busbw"), [(1, 0.0), (2, 100.0), (8, 175.0)])
def test_busbw_is_that_of_nccl_tests(ranks: int, busbw: float):
    assert all_reduces.busbw(100.0, ranks) == busbw
