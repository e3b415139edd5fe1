"""Recordings of several nodes in one state folder, as with homes on a shared file system."""

from pathlib import Path

from ddp_doctor.app.folders import save_recording
from ddp_doctor.model.recording import Recording

RECORDING = Recording(run_id="20260102T030405Z-0a1b2c", tool_version="1")


def test_the_head_has_the_plain_name_and_the_others_stand_beside_it(tmp_path: Path):
    saved = [save_recording(RECORDING, tmp_path / "state", host) for host in (None, "node1", "node/../2", None)]

    names = [Path(path or "").name for path in saved]
    assert names == ["recording.json", "recording-node1.json", "recording-node_.._2.json", "recording.json"]
    assert len(list((tmp_path / "state" / "runs").iterdir())) == 1


def test_a_node_with_a_home_of_its_own_has_the_plain_name(tmp_path: Path):
    assert (save_recording(RECORDING, tmp_path / "state", "node1") or "").endswith("/recording.json")
