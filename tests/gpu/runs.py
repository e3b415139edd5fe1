"""The real command on this machine's GPUs: its report and its recording."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_doctor.model.recording import Recording
from tests.lab.processes import to_its_end

DOCTOR = (sys.executable, "-m", "ddp_doctor")


@dataclass(frozen=True)
class Outcome:
    code: int
    report: dict[str, Any]
    recording: Recording

    def statuses(self) -> dict[str, str]:
        return {check["id"]: check["status"] for check in self.report["checks"]}

    def codes(self) -> set[str]:
        return {finding["code"] for finding in self.report["findings"]}


def only(*checks: str) -> tuple[str, ...]:
    return tuple(word for check in checks for word in ("--only", check))


def command(folder: Path, *options: str) -> tuple[str, ...]:
    return (
        *(*DOCTOR, "run", "--quiet", "--json", str(folder / "report.json")),
        *("--record", str(folder / "recording.json"), *options),
    )


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(folder)}


def run(folder: Path, *options: str) -> Outcome:
    done = to_its_end(command(folder, *options), environment(folder), limit_s=200)
    return read(folder, done.returncode, done.stderr)


def read(folder: Path, code: int, said: str = "") -> Outcome:
    path = folder / "report.json"
    assert path.exists(), said
    recording = Recording.model_validate_json((folder / "recording.json").read_text())
    return Outcome(code, json.loads(path.read_text()), recording)
