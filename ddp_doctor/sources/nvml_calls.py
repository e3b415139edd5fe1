"""The common part of the child programs that query NVML: the calls, the time limit and the exit.

    {"error": "timed_out", "call": "nvmlDeviceGetName", "gpu": 3, "text": "no answer within 15 s", "elapsed_s": 15.0, …}

Loaded by path (runpy), because those programs run isolated and have no package to import from. Only the standard
library and pynvml are imported.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_leaving = threading.Lock()


def run(ask: "Callable[[Nvml, int], None]", **more: Any) -> NoReturn:
    """Query the GPUs, print the answer and exit. The watchdog does the last two if NVML does not answer."""
    limit_s = float(sys.argv[1])
    answer = {"error": None, "call": "", "gpu": None, "text": "", "elapsed_s": 0.0, **more}
    started = time.monotonic()
    threading.Thread(target=_watch, args=(answer, limit_s, started), daemon=True).start()
    begun = _begin(answer)
    if begun is not None:
        ask(*begun)
        answer.update(call="", gpu=None)
    _leave(answer, started)


def _watch(answer: dict[str, Any], limit_s: float, started: float) -> None:
    """Stop after the time limit, which excludes the time that the main thread waits for a processor."""
    while (left_s := started + limit_s + _queued_s() - time.monotonic()) > 0:
        time.sleep(left_s)
    text = f"no answer within {limit_s:g} s"
    _leave({**answer, "error": "timed_out", "text": text}, started)


def _queued_s() -> float:
    """Return how long the main thread was ready to run but did not, in seconds; 0.0 if the kernel does not count it.

    schedstat holds "4711000 123000 42": time on a processor and time ready to run, in ns, and how often it ran.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _leave(answer: dict[str, Any], started: float) -> NoReturn:
    """Print the answer once and end the process, without any cleanup that the driver could hang."""
    if not _leaving.acquire(blocking=False):
        time.sleep(60)  # the other thread is printing and ends the process in a moment
    answer["elapsed_s"] = round(time.monotonic() - started, 3)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


class Nvml:
    """pynvml, with errors turned into their names and the current call noted in the answer."""

    def __init__(self, pynvml: Any, answer: dict[str, Any]) -> None:
        self.pynvml = pynvml
        self.answer = answer
        self.last_text = ""
        self.mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        prefix = "NVML_ERROR_"
        names = [name for name in dir(pynvml) if name.startswith(prefix)]
        self.codes = {getattr(pynvml, name): name[len(prefix) :].lower() for name in names}

    def call(self, name: str, *args: Any) -> tuple[Any, str | None]:
        """Return (value, None), or (None, the reason)."""
        self.answer["call"] = name
        function = getattr(self.pynvml, name, None)
        if function is None:
            return None, "binding_too_old"
        try:
            return function(*args), None
        except self.pynvml.NVMLError as error:
            self.last_text = str(error)
            return None, self.code(error.value)
        except self.mismatch:  # the binding's error for an older library, outside NVMLError
            return None, "function_not_found"
        except (TypeError, ValueError, OSError) as error:  # a binding and a library that are incompatible
            self.last_text = f"{type(error).__name__}: {error}"
            return None, "unexpected"

    def code(self, value: int) -> str:
        """Return NVML's name of a return value, in lower case."""
        return self.codes.get(value, f"error_{value}")

    def fill(self, values: dict[str, Any], field: str, name: str, *args: Any, use: Any = None) -> None:
        """Store the result of a call, through ``use``, in ``values[field]``, or None and the reason."""
        value, reason = self.call(name, *args)
        values[field] = value if reason or use is None else use(value)
        if reason:
            values["unavailable"][field] = reason


def _begin(answer: dict[str, Any]) -> tuple[Nvml, int] | None:
    """Initialize NVML and return it with the number of GPUs, or None with the reason in the answer."""
    sys.path.append(str(Path(__file__).parents[2]))  # has pynvml if ddp-doctor is not installed
    try:
        import pynvml
    except ImportError as error:
        answer.update(error="pynvml_missing", call="import pynvml", text=str(error))
        return None
    nvml = Nvml(pynvml, answer)
    _, reason = nvml.call("nvmlInit")
    count, reason = (None, reason) if reason else nvml.call("nvmlDeviceGetCount")
    if reason:
        answer.update(error=reason, text=nvml.last_text)
        return None
    return nvml, count or 0


def identity(nvml: Nvml, index: int) -> tuple[dict[str, Any], Any]:
    """Return a GPU's identity and NVML's handle of it, unless there is an error."""
    nvml.answer["gpu"] = index
    gpu: dict[str, Any] = {"index": index, "error": None, "unavailable": {}}
    handle, gpu["error"] = nvml.call("nvmlDeviceGetHandleByIndex", index)
    if gpu["error"] is None:
        nvml.fill(gpu, "uuid", "nvmlDeviceGetUUID", handle)
        nvml.fill(gpu, "name", "nvmlDeviceGetName", handle)
        nvml.fill(gpu, "bus_id", "nvmlDeviceGetPciInfo", handle, use=bus_id)
        nvml.fill(gpu, "minor_number", "nvmlDeviceGetMinorNumber", handle)
        nvml.fill(gpu, "mig_enabled", "nvmlDeviceGetMigMode", handle, use=lambda modes: bool(modes[0]))
    return gpu, handle


def processes(nvml: Nvml, handle: Any, name: str) -> tuple[Any, str | None]:
    """Return the processes on a GPU, by ``nvmlDeviceGet…RunningProcesses`` or its name before driver 510."""
    found, reason = nvml.call(name, handle)
    if reason in ("function_not_found", "binding_too_old"):
        found, reason = nvml.call(f"{name}_v2", handle)
    return found, reason


def bus_id(pci: Any) -> str:
    """Return the PCI address from nvmlDeviceGetPciInfo; older bindings return bytes."""
    text = pci.busId
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
