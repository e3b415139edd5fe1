"""Tests of tools/run_tests.py, which the Makefile uses to start pytest."""

import subprocess
import sys
from pathlib import Path
from shlex import quote

from tests.documents import ROOT


def test_variables_of_the_outer_make_do_not_reach_a_make_below_the_tests(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec make -s -f {tmp_path}/Makefile\n")
    python.chmod(0o755)
    run = f"{quote(sys.executable)} -m tools.run_tests part marks '' {python} --"
    text = f"ARGS ?=\nall:\n\t@echo below: $(ARGS)\nouter:\n\t@cd {quote(str(ROOT))} && {run}\n"
    (tmp_path / "Makefile").write_text(text)

    command = ("make", "-s", "-f", tmp_path / "Makefile", "outer", "ARGS=tests/cli")
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "below:\n"
