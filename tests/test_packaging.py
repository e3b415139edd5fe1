"""What is shipped: tree, sdist and both wheels hold the same files, and the wheel works by itself.

Without both force-includes of pyproject.toml a wheel built from the sdist silently lacks the checks.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddp_doctor import __version__
from tests.once import once

ROOT = Path(__file__).parent.parent
#: Folders of the tree that the sdist carries besides single files of the root.
SHIPPED = ("ddp_doctor", "checks", "tests", "docs", "tools", ".ci")


@dataclass(frozen=True)
class Built:
    """File names: of the sdist below its top folder, of both wheels without their metadata."""

    sdist: set[str]
    wheel_from_tree: set[str]
    wheel_from_sdist: set[str]
    wheel: Path


def _run(*command: str | Path, cwd: Path, **env: str) -> str:
    words = [str(part) for part in command]
    # What runs from a wheel is not the tree that coverage measures.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(words, cwd=cwd, env=clean | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: Calls the build backend as pip and build do, without an isolated environment to download: from the tree,
#: then from the sdist.
_BUILD = """
import os, sys, tarfile
from hatchling.build import build_sdist, build_wheel
folder = sys.argv[1]
sdist = os.path.join(folder, build_sdist(folder))
build_wheel(os.path.join(folder, "tree"))
with tarfile.open(sdist) as archive:
    # the filter came with a patch release of Python 3.10 and 3.11; an older one knows no better
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)
os.chdir(sdist.removesuffix(".tar.gz"))
build_wheel(os.path.join(folder, "sdist"))
"""


@pytest.fixture(scope="module")
def built() -> Built:
    folder = once("dist", _build_all)
    (sdist,), (from_tree,), (from_sdist,) = (
        folder.glob(each) for each in ("*.tar.gz", "tree/*.whl", "sdist/*.whl")
    )
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    return Built(names, _wheel_names(from_tree), _wheel_names(from_sdist), from_sdist)


def _build_all(folder: Path) -> None:
    for own in ("tree", "sdist"):
        (folder / own).mkdir()
    _run(sys.executable, "-c", _BUILD, folder, cwd=ROOT)


def _wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _tree() -> set[str]:
    """The files to ship, found by walking: the link ddp_doctor/checks is not followed."""
    found = set()
    for top in SHIPPED:
        for folder, folders, files in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found |= {(Path(folder) / name).relative_to(ROOT).as_posix() for name in files}
    return found


def test_the_sdist_holds_every_file_of_the_tree(built: Built):
    assert {name for name in built.sdist if name.startswith(tuple(f"{top}/" for top in SHIPPED))} == _tree()
    root_files = {
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        ".pre-commit-hooks.yaml",
    }
    assert root_files <= built.sdist


def test_both_wheels_hold_the_package_with_its_checks_and_nothing_else(built: Built):
    tree = _tree()
    expected = {name for name in tree if name.startswith("ddp_doctor/")}
    expected |= {f"ddp_doctor/{name}" for name in tree if name.startswith("checks/")}
    expected.add(f"ddp_doctor-{__version__}.data/data/share/man/man1/ddp-doctor.1")

    assert built.wheel_from_tree == expected
    assert built.wheel_from_sdist == expected
    assert "ddp_doctor/checks/__init__.py" in expected
    assert "ddp_doctor/py.typed" in expected
    assert any(name.startswith("ddp_doctor/templates/") and name.endswith(".sh") for name in expected)
    assert any(name.startswith("ddp_doctor/settings/data/variables/") for name in expected)


def _pip(wheel: Path, target: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target")
    _run(*pip, target, wheel, cwd=target.parent)


#: Several commands in one process, which say where they come from.
_ASK = """
import ddp_doctor.checks
from ddp_doctor.cli.main import app
from typer.testing import CliRunner
commands = (["--help"], ["checks"], ["template", "slurm-prolog"])
print(ddp_doctor.checks.__file__, *(CliRunner().invoke(app, words).output for words in commands), sep="\\0")
"""


def _unpacked(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)


@pytest.mark.parametrize("install", [_unpacked, pytest.param(_pip, marks=pytest.mark.lab)])
def test_the_installed_wheel_works_from_an_empty_folder(
    built: Built, tmp_path: Path, install: Callable[[Path, Path], None]
):
    target, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    install(built.wheel, target)
    assert not (target / "checks").exists()

    said = _run(sys.executable, "-c", _ASK, cwd=empty, PYTHONPATH=str(target))
    where, help_text, checks, script = said.split("\0")
    assert where.startswith(str(target))
    assert "prolog" in help_text
    assert "allreduce" in checks
    assert script.startswith("#!/bin/sh")
