"""A directory is private only if no other user can have put something in it."""

import os
from pathlib import Path

import pytest

from ddp_doctor.app.folders import meeting_folder
from ddp_doctor.sources.own_folders import private_folder, state_folder


def test_missing_directory_is_created_for_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "ddp-doctor"

    assert private_folder(folder) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_missing_home_is_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "nonexistent"

    assert state_folder({"HOME": str(missing)}) is None
    assert state_folder({"HOME": str(tmp_path / ("x" * 300))}) is None
    assert state_folder({"HOME": str(tmp_path)}) == tmp_path / ".local/state/ddp-doctor"
    assert state_folder({"HOME": str(missing), "XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "ddp-doctor"
    assert meeting_folder({"XDG_RUNTIME_DIR": str(missing)}) != missing / f"ddp-doctor-{os.getuid()}"
    assert not missing.exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)

    assert private_folder(tmp_path / "open") is None


def test_symbolic_link_is_refused_and_its_target_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")

    assert private_folder(tmp_path / "link") is None
    assert private_folder(tmp_path / "dangling") is None
    assert not (tmp_path / "new").exists()


def test_a_file_and_a_folder_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert private_folder(tmp_path / "file") is None
    assert private_folder(tmp_path / "file" / "below") is None


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)

    assert private_folder(tmp_path / "folder") is None
