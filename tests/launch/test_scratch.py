"""What a killed run left in the temporary directory is removed by a later run, and nothing else is."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddp_doctor.launch import scratch
from ddp_doctor.launch.process import started

RUN = "import sys; from ddp_doctor.launch import scratch; print(scratch.make(), flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # short: the folder that make() is to use
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    subprocess.run(("rm", "-rf", folder), check=True)


def run() -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        (sys.executable, "-c", RUN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def left() -> Path:
    """The folder of a run that was killed."""
    process, folder = run()
    with process:
        process.kill()
    assert folder.is_dir()
    return folder


def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_living_one_stays(left):
    (left / "t0").mkdir()
    (left / "t0/rank0.log").write_text("words")
    process, living = run()
    with process:
        assert not left.exists()  # the second run swept
        mine = scratch.make()
        assert living.is_dir()
        process.kill()

    scratch.make()
    assert not living.exists()
    assert mine.is_dir()


def note(**said: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "owner.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | said))

    return change


def swap_for_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


@pytest.mark.parametrize(
    "change",
    [
        note(host="node9"),
        note(boot="an earlier one"),
        note(pid_namespace="pid:[1]"),
        note(pid=os.getpid(), started=started(os.getpid())),
        note(pid="712"),
        note(pid=[]),
        lambda folder: (folder / "owner.json").unlink(),
        lambda folder: (folder / "owner.json").write_text("[]"),
        lambda folder: folder.chmod(0o755),
        lambda folder: os.chown(folder, 12345, -1),
        swap_for_a_link,
    ],
    ids=[
        *("another host", "another boot", "another container", "a living run", "a strange pid", "no pid"),
        *("no note", "a strange note", "open to others", "another user", "a symbolic link"),
    ],
)
def test_a_folder_that_may_be_anothers_is_left_alone(left, change, request):
    if "another user" in request.node.name and os.getuid() != 0:
        pytest.skip("needs root")
    change(left)
    scratch.make()

    assert left.exists()


def test_a_pid_that_is_another_process_by_now_is_no_owner(left):
    note(pid=os.getpid())(left)
    scratch.make()

    assert not left.exists()
