"""Every call of torch that its documentation does not promise, each with a fallback.

The recorder's names changed between releases; where none exists the evidence is poorer, and the
judge falls back on the worker's own events.
"""

import json
from typing import Any

from ddp_doctor.model.trial import FlightEntry


def flight_entries(most: int = 16) -> list[FlightEntry]:
    """The last collectives this process enqueued, oldest first, from torch's flight recorder.

    Uses the JSON dump (torch ≥ 2.5 on NCCL, ≥ 2.8 or so on gloo), never the pickled one. Empty
    where this torch has no recorder.
    """
    try:
        dump = json.loads(_dump_json())
    except Exception:  # noqa: BLE001 - a private call may raise anything; no recorder is no entries
        return []
    entries = [entry for entry in dump.get("entries", []) if not entry.get("is_p2p")]
    return [_entry(entry) for entry in entries[-most:]]


def _dump_json() -> str | bytes:
    from torch._C import _distributed_c10d as c10d

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            text: str | bytes = dump(includeCollectives=True, onlyActive=False)
            return text
    return "{}"


def _entry(entry: dict[str, Any]) -> FlightEntry:
    return FlightEntry(
        seq=int(entry.get("collective_seq_id", 0)),
        op=str(entry.get("profiling_name", "")).rpartition(":")[2],
        sizes=tuple(tuple(size) for size in entry.get("input_sizes", ())),
        dtypes=tuple(str(dtype) for dtype in entry.get("input_dtypes", ())),
        retired=bool(entry.get("retired", False)),
    )
