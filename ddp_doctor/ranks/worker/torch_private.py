"""Calls of torch that its documentation does not promise, each with a fallback.

Names and backends changed between releases. If no call answers, there is less evidence, and the judge uses the worker's
own events.
"""

import json
from collections.abc import Iterator
from typing import Any

from ddp_doctor.model.trial import FlightEntry
from ddp_doctor.parse.flight_recorder import entry_of

#: The classes of "nccl" whose work only ``_dump_nccl_trace_json`` shows. The classes of torch 2.15 and newer record
#: through a hook, each under its own name (torch 2.15 c10d/FlightRecorder.hpp, distributed_c10d.py).
_SELF_RECORDING = ("nccl", "nccl-legacy")
_ENTRIES_KEPT = 16


def backend_impl(group: Any, device: str) -> str | None:
    """Return the class that runs the group's collectives on ``device``, or None if torch does not report it.

    ``get_backend()`` returns "nccl" for two classes since torch 2.15. The older class calls itself "nccl" in all
    releases; if ProcessGroupNCCL2 exists, torch calls the older one "nccl-legacy".
    """
    import torch
    from torch.distributed import distributed_c10d

    try:
        backend = group._get_backend(torch.device(device))  # noqa: SLF001 - get_backend_impl() is new in 2.14
        name = str(backend.name())
    except Exception:  # noqa: BLE001 - a private call may raise anything
        return None
    return "nccl-legacy" if name == "nccl" and hasattr(distributed_c10d, "ProcessGroupNCCL2") else name


def bound_device(group: Any) -> str | None:
    """Return the device that the group is bound to, such as "cuda:0", or None if it is not bound."""
    device = getattr(group, "bound_device_id", None)
    return None if device is None else str(device)


def flight_entries(backend: str) -> tuple[str | None, list[FlightEntry]]:
    """Return the flight recorder with entries of ``backend``, and its last ones, oldest first; (None, []) without any.

    ``backend`` is "nccl" or "gloo", as returned by get_backend(). Each class records under its own name: the first
    recorder with entries counts. Uses the JSON dump (torch 2.5 and newer on NCCL, 2.8 or so on gloo), never the pickled
    one.
    """
    for name, text in _dumps(backend):
        try:
            entries = [entry_of(entry) for entry in json.loads(text)["entries"] if not entry.get("is_p2p")]
        except (KeyError, TypeError, ValueError, AttributeError):  # an unknown backend: no "entries" and no error
            continue
        if entries:
            return name, entries[-_ENTRIES_KEPT:]
    return None, []


def _dumps(backend: str) -> Iterator[tuple[str, str | bytes]]:
    from torch._C import _distributed_c10d as c10d

    generic = getattr(c10d, "_dump_fr_trace_json", None)
    calls: list[tuple[str, Any, dict[str, str]]]
    if backend == "nccl":
        calls = [(name, generic, {"backend": name}) for name in ("nccl2", "nccl-lazy")]
        calls.append(("nccl", getattr(c10d, "_dump_nccl_trace_json", None), {}))
    else:
        calls = [("gloo", generic, {})]  # the default backend of the call
    for name, dump, options in calls:
        try:
            yield name, dump(includeCollectives=True, onlyActive=False, **options)
        except Exception:  # noqa: BLE001, S112 - a private call may raise anything, or not exist
            continue


def retires_late(recorder: str | None) -> bool:
    """Return True if finished work may be listed as not retired: only the watchdog retires hooked entries."""
    return recorder is not None and recorder not in (*_SELF_RECORDING, "gloo")
