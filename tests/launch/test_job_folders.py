"""All files that ranks create outside the run directory are removed, and no others, however the ranks exit."""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.checks.ddp import checkpoint
from ddp_doctor.facts.ddp.model_state import Checkpoint
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.ranks import folders
from tests.launch.conftest import Play
from tests.waiting import LIMIT_S, wait_forever, wait_until


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    folder = tmp_path / "t0"
    folder.mkdir()
    return folder


@pytest.fixture
def working(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def test_directory_is_private_and_removed_with_its_contents(trial, working):
    made = Path(folders.make_job_folder(trial / "rank0.note", working))
    (made / "checkpoint.pt").write_bytes(b"weights")

    assert made.stat().st_mode & 0o777 == 0o700
    folders.remove_job_folders(trial)
    assert list(working.iterdir()) == []


def test_failed_creation_of_a_directory_leaves_no_files(trial, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        folders.make_job_folder(trial / "rank0.note", tmp_path / "missing")
    folders.remove_job_folders(trial)
    assert list(trial.iterdir()) == []


@pytest.mark.parametrize("name", ["mine", "ddp-doctor-job-link"])
def test_note_with_another_path_does_not_remove_anything(trial, working, name):
    kept = working / "kept"
    kept.mkdir()
    named = working / name
    if name == "mine":
        named.mkdir()
    else:
        named.symlink_to(kept)
    (trial / "rank0.job_folder").write_text(str(named))

    folders.remove_job_folders(trial)

    assert named.exists()
    assert kept.exists()


def test_hanging_file_system_does_not_block(trial, working, monkeypatch):
    folders.make_job_folder(trial / "rank0.note", working)
    monkeypatch.setattr(folders, "_WAIT_S", 0.05)
    answers = threading.Event()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: answers.wait())

    folders.remove_job_folders(trial)

    (remover,) = (thread for thread in threading.enumerate() if thread.name == "job-folders")
    answers.set()
    remover.join()


# Real ranks, in a working directory that no other test uses.


@pytest.fixture
def nothing_is_left(working: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(working)
    yield
    wait_until(lambda: not list(working.iterdir()))


def kills_the_saver(ctx: RankContext) -> Fact:
    if ctx.rank == 0:
        ctx.new_folder()
        os.kill(os.getpid(), signal.SIGKILL)
    with ctx.step("exchange", "never"):
        ctx.exchange("never", "")
    raise AssertionError("unreachable")


def stuck_beside_its_folder(ctx: RankContext) -> Fact:
    ctx.new_folder()
    with ctx.step("sleep"):
        wait_forever()


@pytest.mark.ranks
@pytest.mark.usefixtures("nothing_is_left")
def test_killed_rank_leaves_no_directory(play: Play):
    scenario = play(kills_the_saver, ranks=2, deadline_s=LIMIT_S)

    assert scenario.outcome.recording.trials[0].outcome == "broken"


@pytest.mark.ranks
@pytest.mark.usefixtures("nothing_is_left")
def test_stuck_rank_leaves_no_directory(play: Play):
    play(stuck_beside_its_folder, ranks=1, deadline_s=0.3)


@pytest.mark.ranks
@pytest.mark.usefixtures("nothing_is_left")
def test_checkpoint_is_healthy_on_workers(play: Play):
    scenario = play(checkpoint.probe, ranks=2, deadline_s=LIMIT_S)

    facts = [seen.fact for seen in scenario.outcome.recording.facts(Checkpoint)]
    assert [fact.working_directory for fact in facts] == [str(Path.cwd())] * 2
    assert [rule.code for rule in checkpoint.CHECK.rules if rule.apply(scenario.outcome.recording)] == []


def test_sweep_removes_the_directories_of_a_killed_agents_ranks(working, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # the folder that make() is to use
        monkeypatch.setattr(tempfile, "tempdir", short)
        left = folders.make_run_folder()
        note = left / folders.NOTE
        said = note.read_text()
        note.unlink()
        note.write_text(said)  # no process holds a lock on this file
        (left / "t3").mkdir()
        made = Path(folders.make_job_folder(left / "t3" / "rank0.note", working))

        folders.make_run_folder()

        assert not made.exists()
        assert not left.exists()
