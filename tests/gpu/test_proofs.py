"""Remedies tried over NCCL on a real GPU."""

from pathlib import Path

import pytest

from tests.gpu import runs, smi

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_missing_socket_interface_is_proved_to_be_the_fault(tmp_path: Path, monkeypatch):
    """One rank is enough: NCCL selects its interface before it knows any peer."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nowhere0")
    options = ("--backend", "nccl", "--nproc-per-node", "1", "--level", "quick")

    outcome = runs.run(tmp_path, *runs.only("env_vars", "process_group"), *options)

    assert outcome.code == 1
    tried = [one for one in outcome.recording.experiments if one.attempts]
    proved = [one for of in outcome.report["findings"] for one in of["remedies"] if one["proof"]["status"] == "proved"]
    assert [one.arm for one in tried[0].attempts] == ["treatment", "control", "treatment"]
    assert proved[0]["settings"][0] == {**proved[0]["settings"][0], "name": "NCCL_SOCKET_IFNAME", "action": "unset"}


def test_setting_without_effect_is_tried_and_not_recommended(tmp_path: Path, monkeypatch):
    """NCCL's log shows with two ranks that it read the variable; the rates equal those without it."""
    if len(smi.query("index")) < 2:
        pytest.skip("needs two GPUs")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    options = ("--backend", "nccl", "--nproc-per-node", "2", "--level", "thorough")

    outcome = runs.run(tmp_path, *runs.only("env_vars", "process_group"), *options)

    statuses = {one["proof"]["status"] for of in outcome.report["findings"] for one in of["remedies"]}
    assert "proved" not in statuses
    assert all(not attempt.unread for one in outcome.recording.experiments for attempt in one.attempts)
