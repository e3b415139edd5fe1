"""Runs torch's CUDA build and ddp-doctor on simulated GPUs and writes the results: ``make planted-torch``.

    python -m tests.planted.page [--environment FOLDER] [PYTEST ARGUMENTS]

The environment is build/planted-torch, created if missing (7 GB) and kept. The results go into
docs/reference/compatibility.md, in the section "Simulated GPUs". Exits with 1 if a test failed or none could run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from tests.planted.with_torch import HOME, VARIABLE
from tools.torches import PAGE, ROOT, Case, read_cases, torch_of

#: Bundles NCCL 2.27.5. The package index has its CUDA build for Linux.
TORCH = "2.9.1"
BEGIN, END = ("<!-- Written by `make planted-torch`. -->\n", "<!-- End of what `make planted-torch` wrote. -->\n")
#: The first line of the results of one torch.
_SECTION = re.compile(r"(?m)^(?=\d{4}-\d\d-\d\d, torch )")
_TORCH = re.compile(r"torch ([^,\s]+),")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.page")
    parser.add_argument("--environment", type=Path, default=HOME, metavar="FOLDER")
    known, more = parser.parse_known_args(arguments)
    if known.environment == HOME:
        make_environment()
    results = ROOT / "build/planted-torch.xml"
    results.parent.mkdir(exist_ok=True)
    results.unlink(missing_ok=True)
    chosen = ("tests/planted", "-m", "planted_torch", f"--junit-xml={results}", *more)
    began = time.monotonic()
    subprocess.run(
        (sys.executable, "-m", "pytest", *chosen),
        check=False,
        cwd=ROOT,
        env={**os.environ, VARIABLE: str(known.environment.absolute())},
    )
    cases = tuple(read_cases(results))
    text = section(torch_of(known.environment), cases, time.monotonic() - began)
    PAGE.write_text(placed(PAGE.read_text("utf-8"), text), "utf-8")
    outcomes = {case.outcome for case in cases}
    return 0 if "passed" in outcomes and "failed" not in outcomes else 1


def make_environment() -> None:
    """Create the environment with torch's CUDA build and the pinned dependencies."""
    if (HOME / ".installed").exists():
        return
    venv.create(HOME, clear=True, with_pip=True)
    constraints = HOME / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    constraints.write_text(re.sub(r"(?m)^torch==.*\n", "", pinned), "utf-8")
    install = (HOME / "bin/python", "-m", "pip", "install", "-q", "--constraint", constraints)
    of_tests = ("numpy", "pytest", "pytest-timeout", "hypothesis")  # tests/gpu run on planted GPUs too
    subprocess.run((*install, f"torch=={TORCH}", *of_tests, "--editable", ROOT), check=True)
    (HOME / ".installed").touch()


def section(torch: str, cases: Sequence[Case], seconds: float) -> str:
    today = datetime.now(timezone.utc).date().isoformat()
    lines = [f"{today}, torch {torch}, {seconds:.0f} s in total:", "", "| test | result | seconds |", "|---|---|---|"]
    for case in cases:
        words, _, which = case.name.rpartition(".test_")[2].partition("[")
        what = words.replace("_", " ") + (f": {which.removesuffix(']')}" if which else "")
        lines.append(f"| {what} | {case.outcome} | {case.seconds:.0f} |")
    return "\n".join([*lines, ""])


def placed(page: str, text: str) -> str:
    """Return the page with a new section of this torch; other sections stay."""
    before, _, rest = page.partition(BEGIN)
    written, _, after = rest.partition(END)
    sections = {_TORCH.findall(one)[0]: one.strip() for one in _SECTION.split(written) if one.strip()}
    sections[_TORCH.findall(text)[0]] = text.strip()
    whole = "\n\n".join(sections.values())
    return f"{before}{BEGIN}\n{whole}\n\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
