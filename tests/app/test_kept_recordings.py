"""Recordings of several nodes in one state folder, as with homes on a shared file system."""

from pathlib import Path

from ddp_doctor.app.folders import keep_recording, kept_note, save_recording
from ddp_doctor.model.recording import Recording

RECORDING = Recording(run_id="20260102T030405Z-0a1b2c", tool_version="1")


def test_head_has_the_plain_name_and_other_nodes_add_their_host(tmp_path: Path):
    saved = [save_recording(RECORDING, tmp_path / "state", host) for host in (None, "node1", "node/../2", None)]

    names = [Path(path or "").name for path in saved]
    assert names == ["recording.json", "recording-node1.json", "recording-node_.._2.json", "recording.json"]
    assert len(list((tmp_path / "state" / "runs").iterdir())) == 1


def test_node_with_its_own_home_has_the_plain_name(tmp_path: Path):
    assert (save_recording(RECORDING, tmp_path / "state", "node1") or "").endswith("/recording.json")


def test_kept_note_names_number_size_and_switch(tmp_path: Path):
    saved_as = save_recording(RECORDING, tmp_path)

    size = f"{Path(saved_as or '').stat().st_size} bytes"
    assert kept_note(saved_as or "") == (
        f"The newest 20 recordings are kept there ({size} now); DDP_DOCTOR_KEEP=0 keeps none."
    )


def test_keep_variable_of_zero_stores_no_recording(tmp_path: Path):
    env = {"XDG_STATE_HOME": str(tmp_path)}

    assert keep_recording(RECORDING, {**env, "DDP_DOCTOR_KEEP": "0"}) is None
    assert list(tmp_path.iterdir()) == []
    assert keep_recording(RECORDING, env) == str(tmp_path / "ddp-doctor/runs" / RECORDING.run_id / "recording.json")
