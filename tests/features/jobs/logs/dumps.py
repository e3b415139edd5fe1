"""Dumps of real gloo ranks that hang (dumps.json, which make_dumps.py wrote with torch 2.13), and their diagnosis."""

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddp_doctor.app.outcome import blank
from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.causes.wait_graph import judged
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.flight_recorder import read_dump
from tests.readings import collected

Dump = dict[str, Any]
#: By situation and rank.
DUMPS: dict[str, dict[int, Dump]] = {
    name: {int(rank): dump for rank, dump in ranks.items()}
    for name, ranks in json.loads((Path(__file__).parent / "dumps.json").read_text()).items()
}


def as_json(dump: Dump) -> bytes:
    return json.dumps(dump).encode()


def as_pickle(dump: Dump, protocol: int = 2) -> bytes:
    """Return a JSON dump as torch pickles it: tuples, None for no time, numbers in pg_status, frames."""
    entries = [
        {
            **entry,
            "process_group": tuple(entry["process_group"]),
            "time_discovered_started_ns": entry["time_discovered_started_ns"] or None,
            "time_discovered_completed_ns": entry["time_discovered_completed_ns"] or None,
            "frames": [
                {"name": "all_reduce", "filename": "/opt/site-packages/torch/distributed/c10d.py", "line": 3},
                {"name": "main", "filename": "/home/me/train.py", "line": 31},
            ],
        }
        for entry in dump["entries"]
    ]
    status = {
        number: {name: int(count) for name, count in counts.items()} for number, counts in dump["pg_status"].items()
    }
    return pickle.dumps({**dump, "entries": entries, "pg_status": status}, protocol)


def facts(dumps: dict[int, Dump], folder: str = "dumps") -> list[FlightDumpFact]:
    return [read_dump(as_json(dump), f"{folder}/rank{rank}.json", None) for rank, dump in dumps.items()]


def verdicts(of: Iterable[Fact]) -> tuple[Judged, ...]:
    readings = tuple(collected("logs", fact) for fact in of)
    recording = blank(Options(command="logs"), Plan(()))
    return judged(recording.model_copy(update={"readings": readings}))


def named(of: Iterable[Fact]) -> tuple[str | None, set[int | None]]:
    """Return the one cause and the ranks it blames; (None, …) if it finds no cause."""
    found = verdicts(of)
    assert len(found) < 2
    culprits = {culprit.rank for judged in found for culprit in judged.culprits}
    return (found[0].cause.name if found else None), culprits
