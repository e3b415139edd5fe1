"""A later run removes the files of a killed run from the temporary directory, and no other files."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddp_doctor.model.choices import UsageError
from ddp_doctor.ranks import folders
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

RUN = "import sys; from ddp_doctor.ranks import folders; print(folders.make_run_folder(), flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # short: the folder that make() is to use
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    subprocess.run(("rm", "-rf", folder), check=True)


def run(*within: str) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        (*within, sys.executable, "-c", RUN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def left() -> Path:
    process, folder = run()
    with process:
        process.kill()
    assert folder.is_dir()
    return folder


def test_directory_of_a_killed_run_is_removed_but_not_of_a_living_one(left):
    (left / "t0").mkdir()
    (left / "t0/rank0.log").write_text("words")
    process, living = run()
    with process:
        assert not left.exists()  # the second run swept
        mine = folders.make_run_folder()
        assert living.is_dir()
        process.kill()

    folders.make_run_folder()
    assert not living.exists()
    assert mine.is_dir()


def test_error_without_a_writable_directory_gives_the_reason_and_the_setting(temporary, monkeypatch):
    missing = temporary / "missing"
    monkeypatch.setenv("TMPDIR", str(missing))
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(missing)])

    with pytest.raises(
        UsageError, match=r"cannot write to '/.*/missing': No such file or directory; set TMPDIR to a writable"
    ):
        folders.make_run_folder()


def test_full_disk_leaves_no_incomplete_directory(temporary, monkeypatch):
    def no_room(_folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders, "_hold", no_room)
    with pytest.raises(UsageError, match="No space left on device"):
        folders.make_run_folder()
    assert list(temporary.iterdir()) == []


def test_directory_is_made_without_boot_data_and_no_other_is_removed(left, monkeypatch):
    def no_boot() -> dict[str, str]:
        raise FileNotFoundError

    monkeypatch.setattr(folders, "_here", no_boot)
    assert (folders.make_run_folder() / folders.NOTE).read_text() == ""
    assert left.is_dir()


def as_text(said: str) -> Callable[[Path], object]:
    return lambda folder: (folder / folders.NOTE).write_text(said)


def swap_for_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def swap_for_a_pipe(folder: Path) -> None:
    (folder / folders.NOTE).unlink()
    os.mkfifo(folder / folders.NOTE)


@pytest.mark.parametrize(
    "change",
    [
        as_text('{"boot": "an earlier one"}'),
        as_text("[]"),
        as_text(""),
        lambda folder: (folder / folders.NOTE).unlink(),
        lambda folder: swap_for_a_link(folder / folders.NOTE),
        swap_for_a_pipe,
        lambda folder: folder.chmod(0o755),
        lambda folder: os.chown(folder, 12345, -1),
        swap_for_a_link,
    ],
    ids=[
        *("another boot", "a strange note", "an empty note", "no note", "a note that is a link"),
        *("a note that is a pipe", "open to others", "another user", "a symbolic link"),
    ],
)
def test_directory_that_may_belong_to_another_run_is_not_removed(left, change, request):
    if "another user" in request.node.name and os.getuid() != 0:
        pytest.skip("needs root")
    change(left)
    folders.make_run_folder()

    assert left.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_directory_of_a_killed_container_is_removed_but_not_of_a_living_one():
    process, folder = run("unshare", "--uts", "--pid", "--fork", "--kill-child")
    with process:
        folders.make_run_folder()
        assert folder.is_dir()
        process.kill()

    # the kernel ends the container a moment after its first process
    wait_until(lambda: folders.make_run_folder() != folder and not folder.exists())


def test_link_target_in_a_killed_runs_directory_is_not_removed(left, tmp_path):
    (tmp_path / "mine").write_text("words")
    (left / "t0").symlink_to(tmp_path)
    folders.make_run_folder()

    assert not left.exists()
    assert (tmp_path / "mine").exists()


def test_a_run_that_is_killed_leaves_a_folder_that_the_next_run_removes(temporary):
    doctor = (sys.executable, "-m", "ddp_doctor", "run", "--nproc-per-node", "2", "--level", "quick")
    env = {**os.environ, "XDG_STATE_HOME": str(temporary / "state")}
    with subprocess.Popen(doctor, env=env, stdout=subprocess.DEVNULL) as killed:
        wait_until(lambda: list(temporary.glob("ddp-doctor-*/preload.json")))
        killed.kill()
    assert len(list(temporary.glob("ddp-doctor-*"))) == 1

    subprocess.run(doctor, env=env, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    assert not list(temporary.glob("ddp-doctor-*"))
