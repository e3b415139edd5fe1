"""Trying the commands of a package that was built; `make release` builds the packages and installs them."""

from pathlib import Path

import pytest

from ddp_doctor import __version__
from tools import release

WORKS = f"""case $1 in
--version) echo ddp-doctor {__version__} ;;
prolog) echo "Unhealthy: GPU 3 is lost. (0.4 s)"; exit 1 ;;
lint) echo "train.py:3: DDL101" ;;
esac"""


def _try(folder: Path, script: str) -> None:
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    release.check_commands(folder / "place", program)


def test_package_that_works_is_accepted_on_an_unhealthy_machine(tmp_path: Path):
    _try(tmp_path, WORKS)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo broken >&2; exit 3", r"failed with exit code 3: \S+/program --version\nbroken"),
        ("echo ddp-doctor 0.0.0", r"--version in place did not print .*\nddp-doctor 0\.0\.0"),
        (f"touch $TMPDIR/rest; {WORKS}", "place left temporary files: rest"),
    ],
)
def test_package_that_fails_is_reported(tmp_path: Path, script: str, message: str):
    with pytest.raises(SystemExit, match=f"^release: .*{message}"):
        _try(tmp_path, script)


def test_version_without_changelog_entry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)

    with pytest.raises(SystemExit, match=f"has no entry for {__version__}"):
        release.main()
