"""The answer of the NVML child, whole, partial and hostile."""

import pytest

from ddp_doctor.checks.node.gpus.accelerators import parse_nvml
from ddp_doctor.facts.node.gpus import sysfs_bus_id


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000E2B3:00:00.0", "e2b3:00:00.0"),
    ],
)
def test_bus_ids_are_written_as_sysfs_writes_them(nvml: str, sysfs: str) -> None:
    assert sysfs_bus_id(nvml) == sysfs
    assert sysfs_bus_id(sysfs) == sysfs


def test_an_error_answer_becomes_a_failure() -> None:
    answer = parse_nvml('{"error": "timed_out", "call": "nvmlInit", "gpu": null, "text": "no answer", "gpus": []}')
    failure = answer.failure()
    assert failure is not None
    assert (failure.code, failure.call, failure.gpu) == ("timed_out", "nvmlInit", None)


def test_answer_without_an_error_has_no_failure() -> None:
    assert parse_nvml('{"error": null, "gpus": [{"index": 0}]}').failure() is None


def test_fields_of_a_newer_child_are_dropped() -> None:
    assert parse_nvml('{"gpus": [{"index": 0, "color": "green"}], "mood": 1}').gpus[0].index == 0


def test_a_gpu_is_labelled_with_index_uuid_and_bus() -> None:
    gpu = parse_nvml('{"gpus": [{"index": 3, "uuid": "GPU-1", "bus_id": "00000000:61:00.0"}]}').gpus[0]
    assert gpu.label == "GPU 3 (GPU-1, 0000:61:00.0)"
    assert parse_nvml('{"gpus": [{"index": 3}]}').gpus[0].label == "GPU 3"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"gpus": [{}]}', '{"gpus": 3}', "Traceback: no"])
def test_invalid_answer_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_nvml(text)
