"""Shipped files: the tree, the sdist and both wheels have the same files, and the single file runs on a bare Python.

Without both force-includes of pyproject.toml a wheel built from the sdist silently lacks the checks. tools/release.py,
which continuous integration runs, installs the packages and tries their commands.
"""

import fcntl
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddp_doctor import __version__
from tests.once import once
from tests.recordings import path_of
from tests.waiting import LIMIT_S
from tools import release, single_file, single_file_start

ROOT = Path(__file__).parent.parent
#: Directories of the tree in the sdist, in addition to single files of the root.
SHIPPED = ("ddp_doctor", "checks", "tests", "docs", "tools", ".ci")
#: Changes a library of NVIDIA's in memory, so it is only for a checkout (docs/adr/0020).
NOT_SHIPPED = "tests/planted/"


@dataclass(frozen=True)
class Built:
    """The file names of the sdist below its top directory, and of both wheels without their metadata."""

    sdist: set[str]
    wheel_from_tree: set[str]
    wheel_from_sdist: set[str]
    wheel: Path


@pytest.fixture(scope="module")
def built() -> Built:
    folder = once("dist", _build_all)
    (sdist,), (from_tree,), (from_sdist,) = (
        folder.glob(each) for each in ("sdist/*.tar.gz", "tree/*.whl", "sdist/*.whl")
    )
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    return Built(names, _wheel_names(from_tree), _wheel_names(from_sdist), from_sdist)


#: Without an isolated environment, which pip would have to download.
_BUILD_WHEEL = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"


def _build_all(folder: Path) -> None:
    for own in ("tree", "sdist"):
        (folder / own).mkdir()
    release.build(folder / "sdist")
    subprocess.run((sys.executable, "-c", _BUILD_WHEEL, folder / "tree"), cwd=ROOT, check=True, capture_output=True)


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
    return {name for name in found if not name.startswith(NOT_SHIPPED)}


@pytest.mark.lab
def test_sdist_has_every_file_of_the_tree_except_the_simulated_gpus(built: Built):
    assert (ROOT / NOT_SHIPPED).is_dir()
    assert {name for name in built.sdist if name.startswith(tuple(f"{top}/" for top in SHIPPED))} == _tree()
    root_files = {
        "pyproject.toml", "Makefile", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md",
        "CONTRIBUTING.md", "SECURITY.md", ".pre-commit-hooks.yaml",
    }  # fmt: skip
    assert root_files <= built.sdist


@pytest.mark.lab
def test_both_wheels_contain_exactly_the_package_with_its_checks(built: Built):
    tree = _tree()
    expected = {name for name in tree if name.startswith("ddp_doctor/")}
    expected |= {f"ddp_doctor/{name}" for name in tree if name.startswith("checks/")}

    assert built.wheel_from_tree == expected
    assert built.wheel_from_sdist == expected
    assert "ddp_doctor/checks/__init__.py" in expected
    assert "ddp_doctor/py.typed" in expected
    assert any(name.startswith("ddp_doctor/templates/") and name.endswith(".sh") for name in expected)
    assert any(name.startswith("ddp_doctor/settings/data/variables/") for name in expected)


# --- the single file, on a Python that has nothing else ------------------------------------------------


def test_single_file_for_another_python_names_the_required_one(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as leaving:
        single_file_start.main("0.1.0-1", "Python 3.9 on riscv64", ".cpython-39-riscv64-linux-gnu.so", 23)

    assert leaving.value.code == 2
    assert "ddp-doctor: this file requires Python 3.9 on riscv64, but " in capsys.readouterr().err


@pytest.fixture(scope="module")
def pyz(built: Built) -> Path:
    folder = once("single-file", lambda folder: single_file.make(built.wheel, folder))
    return next(folder.glob("*.pyz"))


def _bare(pyz: Path, home: Path, *words: str, before: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the file with an interpreter without site packages, in the empty environment of a prolog.

    ``before``: commands that a shell runs first, if it can mount.
    """
    shell = f'{before} exec "$0" -S -E "$@"'
    command = ["unshare", "--mount"] if before else []
    command += ["sh", "-c", shell, sys.executable, str(pyz), *words]
    bare = {"HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": str(home / "tmp"), **env}
    return subprocess.run(command, env=bare, cwd="/", capture_output=True, text=True, check=False, timeout=LIMIT_S)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in ("", "tmp", "small"):
        (tmp_path / "home" / folder).mkdir()
    return tmp_path / "home"


#: Commands that need only Python, and their exit code.
_WITHOUT_TORCH = (
    (("prolog",), 0),
    (("env",), 0),
    (("topology", str(ROOT / "tests/samples/topology/classic-two-socket.txt")), 0),
    (("lint", str(ROOT / "tools/refuse_skips.py")), 0),
    (("replay", str(path_of("gpus/one-lost"))), 1),
    (("explain", "DD401"), 0),
    (("run", "--only", "env_vars"), 0),
)


@pytest.mark.lab
def test_bare_python_runs_all_commands_without_ranks_from_one_directory(pyz: Path, home: Path):
    for words, code in _WITHOUT_TORCH:
        done = _bare(pyz, home, *words)
        assert done.returncode == code, done
        assert "Traceback" not in done.stdout + done.stderr
    refused = _bare(pyz, home, "run")
    assert refused.returncode == 2
    assert re.fullmatch(
        r"ddp-doctor: ranks need torch, but it is not installed in '.*'; .* -m pip install torch\n", refused.stderr
    )

    (kept,) = (home / ".cache/ddp-doctor").iterdir()
    assert kept.name.startswith(f"{__version__}-")
    assert [folder.stat().st_mode & 0o777 for folder in (kept.parent, kept)] == [0o700, 0o700]
    assert list((home / "tmp").iterdir()) == []
    assert f"-I {pyz} prolog " in _bare(pyz, home, "template", "slurm-prolog").stdout


def _mount(folder: str, options: str) -> str:
    return f'mount -t tmpfs -o {options} none "$HOME/{folder}";'


@pytest.mark.lab
@pytest.mark.parametrize(
    ("before", "env"),
    [
        pytest.param(_mount("small", "size=1m"), {"XDG_CACHE_HOME": "small"}, id="full"),
        pytest.param(_mount("small", "noexec"), {"XDG_CACHE_HOME": "small"}, id="noexec"),
        pytest.param('chmod 777 "$HOME/small";', {"XDG_CACHE_HOME": "small"}, id="open-to-others"),
        pytest.param('mkdir "$HOME/small/ddp-doctor";', {"XDG_CACHE_HOME": "small"}, id="open-folder"),
        pytest.param("", {"HOME": "/nonexistent"}, id="no-home"),
    ],
)
def test_packages_are_unpacked_for_one_run_without_a_trusted_writable_cache(
    pyz: Path, home: Path, before: str, env: dict[str, str]
):
    cache = {"XDG_CACHE_HOME": str(home / "small")} if "XDG_CACHE_HOME" in env else env
    done = _bare(pyz, home, "--version", before=before, **cache)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"ddp-doctor {__version__}\n", "")
    assert [*(home / "tmp").iterdir(), *(home / "small").glob("ddp-doctor/*")] == []


@pytest.mark.lab
def test_error_without_any_space_lists_the_searched_directories(pyz: Path, home: Path):
    full = "; ".join(f"mount -t tmpfs -o size=1m none {folder}" for folder in ('"$HOME"', "/var/tmp", "/dev/shm"))

    done = _bare(pyz, home, "prolog", before=f"{full};")

    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"ddp-doctor: no directory has room for \d+ MB of packages: \S+/\.cache/ddp-doctor: No space left on device;"
        r" \S+/tmp: No such file or directory; /var/tmp: No space left on device; /dev/shm: No space left on device;"
        r" set TMPDIR to one that has\n",
        done.stderr,
    )


@pytest.mark.lab
def test_files_of_a_killed_run_are_removed_by_the_next_and_held_ones_stay(pyz: Path, home: Path):
    left, held = (home / "tmp" / f"ddp-doctor-files-{name}" for name in ("left", "held"))
    for folder in (left, held):
        folder.mkdir(mode=0o700)
        (folder / ".lock").touch()
    lock = os.open(held / ".lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)

    done = _bare(pyz, home, "--version", HOME="/nonexistent")
    os.close(lock)

    assert done.returncode == 0
    assert list((home / "tmp").iterdir()) == [held]
