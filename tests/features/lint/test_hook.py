"""The hook is called as pre-commit does, which installs the package for it without torch."""

import re
from pathlib import Path

from tests.features.lint.test_command import HEALTHY, SICK, lint

HOOK = (Path(__file__).parents[3] / ".pre-commit-hooks.yaml").read_text()
ENTRY = re.findall(r"^  entry: (.+)$", HOOK, re.MULTILINE)[0].split()


def test_the_hook_is_called_as_pre_commit_calls_it(tmp_path: Path):
    for name, text in {"healthy.py": HEALTHY, "sick.py": SICK}.items():
        (tmp_path / name).write_text(text)

    assert ENTRY[:2] == ["ddp-doctor", "lint"]
    done = lint(*ENTRY[2:], "healthy.py", "sick.py", cwd=tmp_path)  # file names at the end

    assert done.returncode == 1
    assert "sick.py:5:1: error DDL104" in done.stdout
