"""The situations of tests/recordings, each loaded and judged once for all tests of a process.

ROOM/SITUATION.json is a recording, which `ddp-doctor replay` reads too, with one field more, ``expected``: ``about``
says what it shows and where it comes from, ``verdict`` and ``codes`` what all rules together must find, a code for each
finding. ROOM is a check, or hang for what goes wrong in trials.

    python -m tests.recorded FILE ROOM/SITUATION ABOUT

writes one of the recording FILE, which may be a situation itself, and expects what the rules find in it now.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ddp_doctor import app
from ddp_doctor.app import Outcome, recordings
from ddp_doctor.model.recording import Recording

FOLDER = Path(__file__).parent / "recordings"
SITUATIONS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json"))
_WIDTH = 100  # what is no longer than this stays on one line


def path_of(situation: str) -> Path:
    """The file of ROOM/SITUATION."""
    return FOLDER / f"{situation}.json"


@cache
def load(situation: str) -> Recording:
    """The recording of this situation. Recordings never change, so tests may share one."""
    return recordings.load_recording(path_of(situation))


@cache
def judged(situation: str) -> Outcome:
    """What the rules of all checks say of it."""
    return app.judge(load(situation))


def codes(situation: str) -> list[str]:
    """The codes of the findings, sorted, one for each finding."""
    return sorted(finding.code for finding in judged(situation).report.findings)


def raw(situation: str) -> dict[str, Any]:
    """The file as JSON, for tests that change it."""
    data: dict[str, Any] = json.loads(path_of(situation).read_text(encoding="utf-8"))
    return data


def expected(situation: str) -> dict[str, Any]:
    """What the file says of itself: ``about``, ``verdict`` and ``codes``."""
    said: dict[str, Any] = raw(situation)["expected"]
    return said


def formatted(situation: dict[str, Any]) -> str:
    """The text of a file: a line for each field, reading and trial, and for each GPU or the like of a long one."""
    fields = (f" {json.dumps(name)}: {_formatted(value, ' ')}" for name, value in situation.items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _formatted(value: object, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and len(line) > _WIDTH:
        fields = (f"{json.dumps(name)}: {_formatted(field, indent)}" for name, field in value.items())
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list) and len(line) > _WIDTH and any(isinstance(item, dict | list) for item in value):
        items = (f"{indent} {_formatted(item, indent + ' ')}" for item in value)
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return line


def add(file: Path, situation: str, about: str) -> None:
    """Write a situation of a recording, with what the rules find in it now. Raises UsageError for a foreign file."""
    report = recordings.replay(file).report
    found = sorted(finding.code for finding in report.findings)
    recording = json.loads(file.read_text(encoding="utf-8"))
    recording.pop("expected", None)
    says = {"about": about, "verdict": report.verdict.value, "codes": found}
    path_of(situation).parent.mkdir(exist_ok=True)
    path_of(situation).write_text(formatted({"expected": says, **recording}), encoding="utf-8")


if __name__ == "__main__":
    add(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
