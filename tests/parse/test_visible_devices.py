"""CUDA_VISIBLE_DEVICES and grants, against the rules of CUDA and torch."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.parse.visible_devices import granted_gpus, hides_all, job_gpus, job_view, select_devices, visible_gpus

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8932aaaa-0000-4106-c12f-20bd9faed9f6",
    "GPU-5a5a0000-0000-4106-c12f-20bd9faed9f6",
    "GPU-77000000-0000-4106-c12f-20bd9faed9f6",
)
FOUR = tuple(Gpu(index=at, uuid=uuid, minor_number=at) for at, uuid in enumerate(UUIDS))


def shown(value: str | None, gpus: tuple[Gpu, ...] = FOUR) -> list[int]:
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    return [gpu.index for gpu in visible_gpus(GpusFact(gpus=gpus), env)]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,2,-1,1", [0, 2]),  # the programming guide's own example
        ("0,1,9,2", [0, 1]),
        ("9,0", []),
        ("0,1,", [0, 1]),
        ("1gpu2,2ampere", [1, 2]),  # torch's example of strtoul
        ("+1", [1]),
        ("0,0", []),  # a repeated entry hides all
        ("1,2,1", []),
        ("all", []),
        ("GPU-8932f", [0]),
        ("GPU-5a,GPU-8932f", [2, 0]),
        ("GPU-8932", []),  # ambiguous
        ("GPU-5a,GPU-nobody,GPU-77", [2]),
        ("GPU-5a,0", [2]),  # an index after a UUID ends the list
        ("0,GPU-5a", [0]),
        ("GPU-5a,GPU-5a5a", []),  # one GPU under two names
    ],
)
def test_visible_devices_follow_the_rules_of_cuda(value: str | None, indices: list[int]) -> None:
    assert shown(value) == indices


SLICED = Gpu(index=1, uuid=UUIDS[1], mig_enabled=True, mig_uuids=("MIG-5e7d-a", "MIG-77aa-b"))


@pytest.mark.parametrize("value", [None, "0,1", "1", "MIG-5e7d", "MIG-5e7d-a,MIG-77aa-b", f"MIG-{UUIDS[1]}/1/0"])
def test_process_with_mig_sees_one_slice_and_no_entire_gpu(value: str | None) -> None:
    assert shown(value, (FOUR[0], SLICED)) == [1]


def test_a_gpu_in_mig_mode_without_slices_is_not_shown() -> None:
    assert shown(None, (FOUR[0], SLICED.model_copy(update={"mig_uuids": ()}))) == [0]


@given(st.text(alphabet="0123456789,-+GPUMIG abcdef/", max_size=40))
def test_any_value_selects_a_part_without_repeats(value: str) -> None:
    selection = select_devices(FOUR, {"CUDA_VISIBLE_DEVICES": value})
    assert len(set(selection.positions)) == len(selection.positions)
    assert set(selection.positions) <= set(range(4))


ENTRIES = st.integers(-2, 3).map(str) | st.sampled_from([uuid[:10] for uuid in UUIDS])


@given(st.lists(ENTRIES, max_size=5).map(",".join))
def test_indices_and_uuids_are_counted_as_in_torch(value: str) -> None:
    from torch import cuda

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", value)
        parsed: list[Any] = cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        parsed = cuda._transform_uuid_to_ordinals(parsed, list(UUIDS))
    assert shown(value) == parsed


@dataclass
class Case:
    env: dict[str, str]
    granted: int | None


@pytest.mark.parametrize(
    "case",
    [
        Case({}, None),
        Case({"CUDA_VISIBLE_DEVICES": "0,1"}, None),  # set by hand as often as by a scheduler
        Case({"NVIDIA_VISIBLE_DEVICES": "all"}, None),  # the default of CUDA images, also without a GPU
        Case({"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        Case({"NVIDIA_VISIBLE_DEVICES": "none"}, None),
        Case({"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}, None),
        Case({"NVIDIA_VISIBLE_DEVICES": "0,1"}, 2),
        Case({"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}, 1),
        Case({"SLURM_JOB_GPUS": "0,1,2,3"}, 4),
        Case({"SLURM_JOB_GPUS": "0-3"}, 4),
        Case({"SLURM_JOB_GPUS": ""}, None),
        Case({"SLURM_GPUS_ON_NODE": "8"}, 8),
        Case({"SLURM_GPUS_ON_NODE": "many"}, None),
        Case({"SLURM_STEP_GPUS": "4,5", "SLURM_STEP_ID": "0"}, 2),
        Case({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}, None),  # inherited
        Case({"SLURM_JOB_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": "0"}, 1),  # a task bound to one
        Case({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        Case({"SLURM_JOB_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "4"}, 2),
    ],
    ids=lambda case: " ".join(f"{k}={v}" for k, v in case.env.items())[:60] or "nothing",
)
def test_grant_is_counted_only_if_a_scheduler_made_one(case: Case) -> None:
    assert granted_gpus(case.env, in_container=True) == case.granted


def test_cuda_visible_devices_hides_all_only_on_purpose() -> None:
    assert hides_all({"CUDA_VISIBLE_DEVICES": ""})
    assert hides_all({"CUDA_VISIBLE_DEVICES": "-1"})
    assert not hides_all({"CUDA_VISIBLE_DEVICES": "9"})
    assert not hides_all({})


def test_a_prolog_judges_the_granted_device_numbers_only() -> None:
    assert [gpu.index for gpu in job_gpus(FOUR, {"SLURM_JOB_GPUS": "2,3"})] == [2, 3]


def test_gpu_in_mig_mode_without_slices_is_checked() -> None:
    bare = SLICED.model_copy(update={"mig_uuids": ()})
    assert job_view((FOUR[0], bare), {}, in_container=False)["used"] == (0, 1)


def test_number_of_five_thousand_digits_is_not_a_gpu() -> None:
    digits = "9" * 5000

    assert shown(f"1,{digits}") == [1]
    assert granted_gpus({"SLURM_GPUS_ON_NODE": digits}) is None


def test_repeated_ranges_of_ten_thousand_gpus_are_counted_once() -> None:
    assert (granted_gpus({"SLURM_JOB_GPUS": "0-9999," * 10_000}) or 0) < 100_000
