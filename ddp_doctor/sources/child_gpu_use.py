"""Query NVML for the load and the processes of each GPU, in a separate program that prints one JSON object.

    python -I child_gpu_use.py 2
    {"error": null, "call": "", "gpu": null, "text": "", "elapsed_s": 0.1, "gpus": [
       {"index": 0, "busy_percent": 100, "bytes_of": {"4711": 8589934592}, "unavailable": {}}, …]}

``busy_percent`` is the share of the last moment (1/6 to 1 s) when a kernel of any process ran (nvml.h,
nvmlUtilization_t). Like child_nvml.py, it runs in a separate process, stops after the seconds in its argument by a
second thread, and continues after any refusal (both by nvml_calls.py).
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_doctor.sources.nvml_calls import Nvml

#: By path: an isolated process has no package to import from.
CALLS = runpy.run_path(str(Path(__file__).with_name("nvml_calls.py")))


def main() -> None:
    """Query NVML and print the answers, or stop at the time limit."""
    CALLS["run"](_ask, gpus=[])


def _ask(nvml: Nvml, count: int) -> None:
    for index in range(count):
        nvml.answer["gpu"] = index
        handle, reason = nvml.call("nvmlDeviceGetHandleByIndex", index)
        if reason is None:
            gpu: dict[str, Any] = {"index": index, "unavailable": {}}
            nvml.fill(gpu, "busy_percent", "nvmlDeviceGetUtilizationRates", handle, use=lambda rates: rates.gpu)
            found, _ = CALLS["processes"](nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
            gpu["bytes_of"] = {process.pid: process.usedGpuMemory or 0 for process in found or ()}
            nvml.answer["gpus"].append(gpu)


if __name__ == "__main__":
    main()
