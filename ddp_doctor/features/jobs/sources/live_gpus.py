"""The GPU of a process and how busy it is, from NVML in a child process that may hang and be killed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.features.jobs.facts import Refused
from ddp_doctor.features.jobs.sources.live_process import Candidate
from ddp_doctor.model.base import Json
from ddp_doctor.parse.json_value import OTHER_SHAPE, json_object
from ddp_doctor.sources import proc
from ddp_doctor.sources.machine import LiveContext

#: Timeout of NVML. It takes a tenth of a second, and hangs with a failed driver.
_PATIENCE_S = 2.0
_GPU_FILE = re.compile(r"/dev/(?:nvidia\d+|dxg)")  # dxg: WSL 2


@dataclass(frozen=True)
class GpuUse:
    """The GPUs at one moment, by NVML's index as in nvidia-smi."""

    busy: Mapping[int, int] = field(default_factory=dict)  # percent of time that any kernel ran
    of: Mapping[int, int] = field(default_factory=dict)  # by pid; the GPU with most of its memory
    refused: Refused | None = None


def has_gpu(pid: int) -> bool:
    """Return True if a process has opened a GPU."""
    return any(_GPU_FILE.fullmatch(file) for file in proc.open_files(pid))


def gpu_use(env: Mapping[str, str], end: float) -> GpuUse:
    """Return the current use of the GPUs. What NVML does not report by ``end`` of time.monotonic() is refused."""
    done = LiveContext(env, end).child("gpu_use", f"{_PATIENCE_S:g}")
    try:
        return _gpu_use_in(json_object(done.stdout))
    except OTHER_SHAPE:
        ended = "it gave no answer in time" if done.status == "timed_out" else f"it ended with {done.returncode}"
        words = done.stderr.strip().splitlines()[-1:] or [ended]
        return _gpu_use_in({"error": done.status, "text": words[0], "gpus": []})


def _gpu_use_in(answer: dict[str, Json]) -> GpuUse:
    by_pid: dict[int, tuple[int, int]] = {}
    for gpu in answer["gpus"]:
        for pid, held in gpu["bytes_of"].items():
            by_pid[int(pid)] = max(by_pid.get(int(pid), (-1, 0)), (int(held), int(gpu["index"])))
    refused = None
    if answer["error"]:
        where = "" if answer.get("gpu") is None else f" for GPU {answer['gpu']}"
        hint = "; its driver may be at fault: look for NVRM and Xid in dmesg" if answer["error"] == "timed_out" else ""
        words = str(answer["text"] or answer["error"])
        refused = Refused(door="use of the GPUs", why=f"{'' if 'NVML' in words else 'NVML: '}{words}{where}{hint}")
    return GpuUse(
        {int(gpu["index"]): int(gpu["busy_percent"]) for gpu in answer["gpus"] if gpu["busy_percent"] is not None},
        {pid: index for pid, (_, index) in by_pid.items()},
        refused,
    )


def gpu_of(rank: Candidate, uses: Sequence[GpuUse], ranks: Sequence[int]) -> int | None:
    """Return the GPU of a rank as the driver lists it, or a likely GPU if it lists none of the pids ``ranks``."""
    of = {pid: gpu for use in uses for pid, gpu in use.of.items()}
    if not of.keys().isdisjoint(ranks):
        return of.get(rank.pid)
    if rank.backend != "nccl":
        return None
    # Usually, a local rank uses the GPU with its number among the visible GPUs.
    visible = [number.strip() for number in rank.env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if visible == [""]:
        return rank.local_rank
    chosen = visible[0 if len(visible) == 1 or rank.local_rank is None else rank.local_rank % len(visible)]
    return int(chosen) if chosen.isdigit() else None
