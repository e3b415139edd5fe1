"""The recorded situations, each loaded and judged once per process.

ROOM/SITUATION.json is a recording that `ddp-doctor replay` reads. One more field, ``expected``, holds what the
recording shows and where it comes from (``about``), and the verdict and findings of all rules. An unsure verdict has
its ``summary``, which gives the reason. ROOM is a check, or hang for faults in trials. `python -m tests.recordings`
writes the files.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from ddp_doctor import app
from ddp_doctor.app import Outcome, recordings
from ddp_doctor.checks import every_check
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording

FOLDER = Path(__file__).parent
SITUATIONS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json"))
_WIDTH = 100  # a shorter reading, trial or part of one is on one line
#: Constant for each code, or computed from the other fields.
_NOT_EXPECTED: dict[str, Any] = {
    "name": True,
    "page": True,
    "fingerprint": True,
    "remedies": {"__all__": {"references"}},
}


@cache
def _checks() -> dict[str, str]:
    return {rule.code: check.id for check in every_check() for rule in check.rules}


def path_of(situation: str) -> Path:
    return FOLDER / f"{situation}.json"


@cache
def load(situation: str) -> Recording:
    """Return the recording, which tests may share because recordings never change."""
    return recordings.load_recording(path_of(situation))


@cache
def judged(situation: str) -> Outcome:
    """Return the outcome of all rules for this recording."""
    return app.judge(load(situation))


def codes(situation: str) -> list[str]:
    return sorted(finding.code for finding in judged(situation).report.findings)


def raw(situation: str) -> dict[str, Any]:
    """Return the file as JSON, which the test may change."""
    data: dict[str, Any] = json.loads(path_of(situation).read_text(encoding="utf-8"))
    return data


def as_found(situation: str) -> str:
    """Return the text of the file with the findings of now."""
    file = raw(situation)
    report = judged(situation).report
    findings = [*map(_expected, report.findings)]
    found = {"about": file["expected"]["about"], "verdict": report.verdict.value}
    found |= {"summary": report.summary} if report.verdict is Verdict.UNSURE else {}
    found |= {"findings": findings}
    lines = (
        f" {json.dumps(name)}: {_formatted(value, ' ', 0 if name == 'expected' else _WIDTH)}"
        for name, value in {**file, "expected": found}.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _expected(finding: Finding) -> dict[str, Any]:
    fields = finding.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_EXPECTED)
    for evidence in fields.get("evidence", ()):
        if evidence["check"] == _checks().get(finding.code):
            del evidence["check"]
    return fields


def _formatted(value: object, indent: str, width: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and len(line) > width:
        fields = (f"{json.dumps(name)}: {_formatted(field, indent, width)}" for name, field in value.items())
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list) and len(line) > width and any(isinstance(item, dict | list) for item in value):
        items = (f"{indent} {_formatted(item, indent + ' ', width)}" for item in value)
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return line


def write(situation: str) -> bool:
    """Write the findings of now into the file. Return True if it changed."""
    before, text = path_of(situation).read_text(encoding="utf-8"), as_found(situation)
    path_of(situation).write_text(text, encoding="utf-8")
    return text != before


def add(file: Path, situation: str, about: str) -> None:
    """Write a recording as a situation. Raises UsageError if the file is not a recording."""
    recordings.load_recording(file)
    recording = json.loads(file.read_text(encoding="utf-8"))
    recording.pop("expected", None)
    path_of(situation).parent.mkdir(exist_ok=True)
    path_of(situation).write_text(json.dumps({"expected": {"about": about}, **recording}), encoding="utf-8")
    write(situation)
