"""The state of a rank that no process runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ddp_doctor.model.recording import Options
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.events import EventReader
from ddp_doctor.ranks.rank_state import RankState
from ddp_doctor.ranks.spec import WorkerSpec


def rank_state(folder: Path, trial: TrialRecord, pid: int | None = None, at: float = 0.0, **more: Any) -> RankState:
    fields: dict[str, Any] = dict.fromkeys(("node", "rank", "group_rank", "local_rank"), 0)
    fields |= {"options": Options(), "folder": str(folder), "device": "cpu", "tasks": (), "launched_at": at}
    spec = WorkerSpec(trial=trial, init_deadline_s=1.0, **fields)
    return RankState(spec, SimpleNamespace(pid=pid, exitcode=None), at, EventReader(spec.path("events")), **more)
