"""The situations of tests/recordings, each loaded and judged once for all tests of a process."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from ddp_doctor import app
from ddp_doctor.app import Outcome
from ddp_doctor.model.recording import Recording

FOLDER = Path(__file__).parent / "recordings"
SITUATIONS = sorted(path for path in FOLDER.glob("*.json") if not path.name.endswith(".expected.json"))


@cache
def load(path: Path) -> Recording:
    """The recording of this file. Recordings never change, so tests may share one."""
    return app.load_recording(path)


@cache
def judged(path: Path) -> Outcome:
    """What the rules of all checks say of it."""
    return app.judge(load(path))


def codes(path: Path) -> list[str]:
    """The codes of the findings, sorted, one for each finding."""
    return sorted(finding.code for finding in judged(path).report.findings)


def expected(path: Path) -> dict[str, Any]:
    """What SITUATION.expected.json says of it: ``about``, ``verdict`` and ``codes``."""
    said: dict[str, Any] = json.loads(path.with_suffix(".expected.json").read_text())
    return said
