"""The files kept of a job, the variables that make the job write them, and their removal."""

import os
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.watch import evidence
from ddp_doctor.features.jobs.watch.evidence import Evidence, Output
from ddp_doctor.ranks.process import oom_kills

ALL = ["TORCH_FR_DUMP_TEMP_FILE", "TORCHELASTIC_ERROR_FILE", "NCCL_DEBUG", "NCCL_DEBUG_FILE"]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "closed"))
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.mark.parametrize(
    ("given", "conf", "left"),
    [
        ({}, "", ALL),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/x/"}, "", ALL[1:]),
        ({"TORCHELASTIC_ERROR_FILE": "/x"}, "", [ALL[0], *ALL[2:]]),
        ({"NCCL_DEBUG": "WARN"}, "", ALL[:2]),
        ({"NCCL_DEBUG_FILE": "/x"}, "", ALL[:2]),
        ({}, "NCCL_DEBUG=INFO\n", ALL[:2]),
    ],
)
def test_variables_do_not_override_settings_of_the_user(env, tmp_path, given, conf, left):
    (tmp_path / ".nccl.conf").write_text(conf)
    kept = Evidence(env | given, "job%1", 0)

    assert list(kept.variables) == left
    assert kept.folder is not None
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert all(
        str(kept.folder).replace("%", "%%" if name == "NCCL_DEBUG_FILE" else "%") in value
        for name, value in kept.variables.items()
        if name != "NCCL_DEBUG"
    )


def test_new_files_at_paths_of_the_user_are_included(env, tmp_path):
    old, new = tmp_path / "dump7", tmp_path / "dump8"
    old.write_text("of an earlier job")
    os.utime(old, (1e9, 1e9))
    kept = Evidence(
        env | {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump", "NCCL_DEBUG_FILE": f"{tmp_path}/%h"}, "job", 0
    )
    assert kept.folder is not None
    (kept.folder / "error-0.json").write_text("{}")
    new.write_text("of this job")

    assert kept.files()[0] == str(kept.folder / "error-0.json")
    assert str(new) in kept.files()
    assert str(old) not in kept.files()


def test_watcher_finds_the_other_tasks_of_its_node(env):
    Evidence(env, "job", 1).add_task(1, [Output("/a b", 7)])

    kept = Evidence(env, "job", 0)
    assert list(kept.tasks()) == [(os.getpid(), [Output("/a b", 7)])]
    assert kept.files() == []


def test_directory_size_is_limited_and_old_directories_are_removed(env, monkeypatch):
    folders = []
    for number in range(evidence._KEPT + 3):
        folder = Evidence(env, f"job{number}", 0)
        assert folder.folder is not None
        os.utime(folder.folder, (1e9 + number, 1e9 + number))
        if folder._lock is not None and number:
            os.close(folder._lock)
        folders.append(folder)
    assert [folder.folder.exists() for folder in folders if folder.folder] == [True, False, *[True] * 6]

    kept = folders[-1]
    assert kept.folder is not None
    (kept.folder / "big").write_bytes(b"x" * 100_000)
    (kept.folder / "small").write_bytes(b"x")
    assert not kept.bound()
    monkeypatch.setattr(evidence, "MOST_BYTES", 50_000)
    assert kept.bound()
    assert (kept.folder / "big").stat().st_size == 0
    assert (kept.folder / "small").stat().st_size == 1


@pytest.mark.parametrize("trouble", ["full", "closed"])
def test_no_variable_is_set_if_the_directory_cannot_be_used(env, tmp_path, monkeypatch, trouble):
    if trouble == "full":
        monkeypatch.setattr(evidence, "_LEAST_FREE_BYTES", 1 << 62)
    else:
        (tmp_path / "state").write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "state"))
    kept = Evidence(env, "job", 0)

    assert (kept.folder, kept.variables) == (None, {})
    assert trouble == "closed" or "is full" in str(kept.problem)
    assert kept.files() == []
    assert not kept.bound()
    kept.forget()


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/job\n", "/sys/fs/cgroup/job/memory.events"),
        ("8:pids:/\n4:memory:/job\n0::/\n", "/sys/fs/cgroup/memory/job/memory.oom_control"),
    ],
)
def test_oom_kills_are_counted_in_the_memory_cgroup_of_the_job(monkeypatch, groups, file):
    texts = {"/proc/self/cgroup": groups, file: "low 0\noom_kill 1\n", "/proc/vmstat": "oom_kill 7\n"}
    monkeypatch.setattr("ddp_doctor.sources.proc.read", texts.get)
    before = oom_kills(of_host=False)

    texts[file], texts["/proc/vmstat"] = "low 0\noom_kill 3\n", "oom_kill 99\n"
    assert oom_kills(of_host=False) - before == 2


def test_output_is_kept_as_soon_as_its_directory_exists(tmp_path):
    kept = evidence._Kept(tmp_path / "later", "stdout-0")
    kept.add(b"lost")
    (tmp_path / "later").mkdir()
    kept.add(b"kept")

    assert [path.read_bytes() for path in (tmp_path / "later").iterdir()] == [b"kept"]
