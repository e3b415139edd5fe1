"""The GPU of a rank and how busy it is, from the real pynvml with a compiled stand-in for the driver."""

import json
import os
import time

import pytest

from ddp_doctor.features.jobs.sources import live_gpus
from ddp_doctor.features.jobs.sources.live_gpus import GpuUse, gpu_of, gpu_use
from ddp_doctor.features.jobs.sources.live_process import Candidate
from ddp_doctor.model.context import CommandResult
from ddp_doctor.sources import proc
from ddp_doctor.sources.machine import LiveContext
from tests.nvml_stand_in import answer


def asked(monkeypatch: pytest.MonkeyPatch, fault: str = "healthy", *defines: str, **more: str) -> GpuUse:
    monkeypatch.setattr(LiveContext, "child", lambda _, *words: answer(*words, fault, *defines, **more))
    return gpu_use({}, time.monotonic() + 60)


def rank(pid: int, local: int, **env: str) -> Candidate:
    env = {"RANK": str(local), "LOCAL_RANK": str(local), **env}
    return Candidate(pid, 1, 1, env, {1: "pt_nccl_watchdg"}, ["python"])


@pytest.mark.parametrize("defines", [(), ("OLD_DRIVER",)])
def test_driver_reports_the_gpu_of_each_process_and_its_utilization(monkeypatch, defines):
    use = asked(monkeypatch, "healthy", *defines, NVML_STAND_IN_PIDS="12,11", NVML_STAND_IN_BUSY="100,7")

    assert (dict(use.of), use.busy[0], use.busy[1], use.refused) == ({12: 0, 11: 1}, 100, 7, None)
    assert gpu_of(rank(11, 0), [use], [11, 12]) == 1


HANGS = {
    "error": "timed_out", "call": "nvmlDeviceGetUtilizationRates", "gpu": 3, "text": "no answer within 2 s",
    "elapsed_s": 2.0, "gpus": [{"index": 0, "unavailable": {}, "busy_percent": 100, "bytes_of": {"11": 1}}],
}  # fmt: skip


def test_hanging_driver_is_reported_with_its_gpu_and_earlier_answers_are_kept(monkeypatch):
    printed = CommandResult((), "ended", 0, json.dumps(HANGS))
    monkeypatch.setattr(LiveContext, "child", lambda *_: printed)

    use = gpu_use({}, time.monotonic() + 60)

    assert (use.busy, use.of) == ({0: 100}, {11: 0})
    assert use.refused is not None
    assert use.refused.why.startswith("NVML: no answer within 2 s for GPU 3; its driver may be at fault")


@pytest.mark.parametrize(("status", "said"), [("timed_out", ""), ("ended", "Traceback\nSegmentation fault")])
def test_nvml_without_an_answer_is_reported(monkeypatch, status, said):
    monkeypatch.setattr(LiveContext, "child", lambda *_: CommandResult((), status, -11, "", said))

    use = gpu_use({}, time.monotonic() + 60)

    assert use.refused is not None
    assert use.refused.why.startswith(f"NVML: {said.rpartition(chr(10))[2] or 'it gave no answer in time'}")


def test_unloaded_driver_is_reported_and_the_likely_gpu_is_used(monkeypatch):
    use = asked(monkeypatch, "not_loaded")

    assert use.refused is not None
    assert "Driver Not Loaded" in use.refused.why
    assert gpu_of(rank(11, 1, CUDA_VISIBLE_DEVICES="4,5"), [use], [11]) == 5
    assert gpu_of(rank(11, 1), [use], [11]) == 1


def test_open_device_file_shows_that_a_process_has_a_gpu(monkeypatch):
    assert not live_gpus.has_gpu(os.getpid())
    monkeypatch.setattr(proc, "open_files", lambda _: ["/dev/null", "/dev/nvidia3"])
    assert live_gpus.has_gpu(1)
