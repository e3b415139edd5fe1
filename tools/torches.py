"""Run a short set of tests against the oldest, the pinned and the newest torch: ``make torches``.

    python -m tools.torches [--environment FOLDER ...]

The set is the tests with the marker ``torches``, whose argument is the subject of the test. Each torch has a separate
environment, build/torches/VERSION, which is made if it is missing (2 GB and more, with NVIDIA's libraries) and kept.
``--environment`` names an existing one. The results are written into docs/reference/compatibility.md, below its
handwritten part. Exits with 1 if a test failed or a torch could not be tested.

pytest loads this module as a plug-in, which adds the subject of each test to the results.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ddp_doctor import __version__

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "torches"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN = "<!-- Written by `make torches` from here on. -->\n"


@dataclass(frozen=True)
class Case:
    """A test and its result. ``reason``: why it was skipped."""

    name: str
    subject: str
    outcome: str  # passed, failed or skipped
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Trial:
    """A torch by the version that it reports, and its tests; no tests if it could not be tested."""

    torch: str
    role: str
    cases: tuple[Case, ...] = ()

    @property
    def is_good(self) -> bool:
        """Return True if a test passed and no test failed."""
        outcomes = {case.outcome for case in self.cases}
        return "passed" in outcomes and "failed" not in outcomes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the subject of each test into the results."""
    for item in items:
        marker = item.get_closest_marker("torches")
        if marker:
            item.user_properties.append(("subject", marker.args[0]))


# --- which torch ----------------------------------------------------------------------------------


def wanted(listing: str, pyproject: str, constraints: str) -> dict[str, str]:
    """Return release and role of each torch to test, from the output of ``pip index versions torch`` and two files.

    Raises ValueError if the index has no torch of the oldest supported series for this Python.
    """
    line = re.search(r"^Available versions: (.+)$", listing, re.MULTILINE)
    versions = [version.partition("+")[0] for version in line[1].split(", ")] if line else []
    offered = [version for version in versions if re.fullmatch(r"[\d.]+", version)]
    series = _only(r'"torch>=([\d.]+)"', pyproject)
    oldest = [version for version in offered if version.startswith(f"{series}.")]
    if not oldest:
        raise ValueError(f"the package index has no torch {series} for Python {platform.python_version()}")
    found = {max(oldest, key=_order): "oldest supported"}
    found.setdefault(_only(r"^torch==(\S+)", constraints), "pinned in constraints.txt")
    found.setdefault(max(offered, key=_order), "newest")
    return found


def _only(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, pattern
    return found[1]


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


# --- its environment ------------------------------------------------------------------------------


def make_environment(version: str) -> Path:
    """Return the environment of a torch. It is updated only if it is older than its sources."""
    folder, stamp = BUILD / version, BUILD / version / ".installed"
    sources = (ROOT / "pyproject.toml", ROOT / "constraints.txt")
    if stamp.exists() and all(stamp.stat().st_mtime > source.stat().st_mtime for source in sources):
        return folder
    BUILD.mkdir(parents=True, exist_ok=True)
    constraints = BUILD / f"{version}.txt"
    constraints.write_text(re.sub(r"(?m)^torch==.*", f"torch=={version}", sources[1].read_text("utf-8")), "utf-8")
    names = {"CONSTRAINTS": str(constraints), "PYTHON": sys.executable}
    command = [str(ROOT / "tools" / "make_venv.sh"), str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **names})
    return folder


def torch_of(folder: Path) -> str:
    """Return the version that the torch of an environment reports, 2.4.1+cu121 for example."""
    command = [str(folder / "bin" / "python"), "-W", "ignore", "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


# --- its tests ------------------------------------------------------------------------------------


def run_tests(folder: Path, results: Path) -> None:
    """Run the tests with the marker in an environment, and write their results as a JUnit file."""
    results.unlink(missing_ok=True)
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _is_marked(path)]
    python = str((folder / "bin" / "python").absolute())
    chosen = ("-m", "torches", "-p", "tools.torches", "-p", "no:cacheprovider", f"--junit-xml={results}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([python, "-m", "pytest", *files, *chosen], check=False, cwd=ROOT, env=environment)


def _is_marked(path: Path) -> bool:
    return "pytest.mark.torches(" in path.read_text(encoding="utf-8")


def read_cases(results: Path) -> Iterator[Case]:
    """Yield the tests of a JUnit file; none if pytest did not write a file."""
    if not results.exists():
        return
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - written by our own pytest
        subjects = [item.get("value") for item in case.iter("property") if item.get("name") == "subject"]
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        yield Case(
            name=f"{case.get('classname')}.{case.get('name')}",
            subject=(subjects[0] if subjects else None) or "could not be collected",
            outcome="failed" if failed else "passed" if skipped is None else "skipped",
            seconds=float(case.get("time", 0)),
            reason="" if skipped is None else skipped.get("message") or "",
        )


# --- the page -------------------------------------------------------------------------------------


def page(trials: Sequence[Trial], head: str) -> str:
    """Return the entire page: ``head`` up to the generated part, and a new generated part."""
    today = datetime.now(timezone.utc).date().isoformat()
    where = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    lines = [
        f"{today}, ddp-doctor {__version__}, {where}, ranks on the CPU over gloo:",
        "",
        "| torch | which one | what ran | passed | failed | skipped | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for trial in trials:
        lines += _rows(trial)
    notes = [note for trial in trials for note in _notes(trial)]
    return head.partition(BEGIN)[0] + BEGIN + "\n".join(["", *lines, *([""] if notes else []), *notes, ""])


def _rows(trial: Trial) -> Iterator[str]:
    if not trial.cases:
        yield f"| {trial.torch} | {trial.role} | nothing: it could not be tried | 0 | 0 | 0 | 0 |"
    for subject in dict.fromkeys(case.subject for case in trial.cases):
        cases = [case for case in trial.cases if case.subject == subject]
        count = Counter(case.outcome for case in cases)
        seconds = sum(case.seconds for case in cases)
        numbers = f"{count['passed']} | {count['failed']} | {count['skipped']} | {seconds:.0f}"
        yield f"| {trial.torch} | {trial.role} | {subject} | {numbers} |"


def _notes(trial: Trial) -> Iterator[str]:
    """Yield the failed tests, and the reasons for skipped tests."""
    for case in trial.cases:
        if case.outcome == "failed":
            yield f"* torch {trial.torch}, failed: `{case.name}`"
    reasons = Counter((case.subject, case.reason) for case in trial.cases if case.outcome == "skipped")
    for (subject, reason), count in reasons.items():
        yield f"* torch {trial.torch}, {subject}, {count} skipped: {reason}"


# --- all of it ------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every torch passed, 1 if one did not, 2 if it is unknown which to test."""
    parser = argparse.ArgumentParser(prog="python -m tools.torches")
    parser.add_argument("--environment", type=Path, action="append", default=[], metavar="FOLDER")
    folders = parser.parse_args(arguments).environment
    index = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    listing = subprocess.run(index, check=False, stdout=subprocess.PIPE, text=True).stdout
    files = [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt")]
    try:
        roles = wanted(listing, *files)
        given = {torch_of(folder).partition("+")[0]: folder for folder in folders}
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    roles |= {version: "named by --environment" for version in given if version not in roles}
    trials = [try_torch(version, roles[version], given.get(version)) for version in sorted(roles, key=_order)]
    PAGE.write_text(page(trials, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0 if all(trial.is_good for trial in trials) else 1


def try_torch(version: str, role: str, folder: Path | None) -> Trial:
    """Make the environment of a torch unless there is one, and run the tests in it."""
    sys.stderr.write(f"\n=== torch {version}, {role}\n")
    try:
        folder = folder or make_environment(version)
        name = torch_of(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"torch {version} could not be tried: {error}\n")
        return Trial(version, role)
    results = BUILD / f"{version}.xml"
    run_tests(folder, results)
    return Trial(name, role, tuple(read_cases(results)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
