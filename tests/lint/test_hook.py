"""The hook for pre-commit: what it calls, and that it installs what lint imports and nothing more."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lint.test_command import HEALTHY, SICK, lint

HOOK = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
ENTRY = re.findall(r"^  entry: (.+)$", HOOK, re.MULTILINE)[0].split()
ADDED = re.findall(r"^    - (.+)$", HOOK, re.MULTILINE)
#: What the typer needs that Python 3.10 gets.
OLDER = {"click"}


def needed(name: str) -> set[str]:
    """A package and, without its extras, all that it needs here."""
    requirements = map(Requirement, metadata.requires(name) or ())
    direct = {one.name for one in requirements if not one.marker or one.marker.evaluate({"extra": ""})}
    return {canonicalize_name(name)}.union(*map(needed, direct))


def test_the_hook_is_called_as_pre_commit_calls_it(tmp_path: Path):
    for name, text in {"healthy.py": HEALTHY, "sick.py": SICK}.items():
        (tmp_path / name).write_text(text)

    assert ENTRY[:2] == ["ddp-doctor", "lint"]
    done = lint(*ENTRY[2:], "healthy.py", "sick.py", cwd=tmp_path)  # file names at the end

    assert done.returncode == 1
    assert "sick.py:5:1: error DDL104" in done.stdout


def test_the_hook_installs_what_lint_imports_with_all_that_this_needs_and_no_torch(tmp_path: Path):
    (tmp_path / "sick.py").write_text(SICK)
    code = (
        "import os, sys; sys.argv = ['ddp-doctor', 'lint', 'sick.py']; before = {*sys.modules}\n"
        "os._exit = lambda code: print(*{name.partition('.')[0] for name in {*sys.modules} - before})\n"
        "from ddp_doctor.cli.main import entry; entry()"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), check=True, capture_output=True, text=True, cwd=tmp_path
    )
    owners = metadata.packages_distributions()
    imported = {one for name in done.stdout.splitlines()[-1].split() for one in owners.get(name, ())}
    packages = {canonicalize_name(one) for one in imported} - {"ddp-doctor"}

    assert {"typer", "rich", "pydantic"} <= packages
    assert ADDED[:2] == ["--no-deps", "--constraint=constraints.txt"]
    assert {canonicalize_name(one) for one in ADDED[2:]} == OLDER.union(*map(needed, packages))
