"""ddp-doctor itself fails while it tests remedies: this is reported, and nothing else changes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.processes import to_its_end

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.ranks
#: ``python -c`` of a ddp-doctor in which one function raises.
BROKEN = """
from unittest.mock import patch
from ddp_doctor.__main__ import main
with patch("{name}", side_effect=RuntimeError("broken on purpose")):
    main()
"""


def run_broken(tmp_path: Path, name: str, **env: str) -> tuple[int, dict[str, Any]]:
    argv = ("run", "--level", "quick", "--nproc-per-node", "2", "--only", "process_group", "--only", "env_vars")
    report = tmp_path / "report.json"
    whole = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path), **env}
    done = to_its_end((sys.executable, "-c", BROKEN.format(name=name), *argv, "--json", str(report)), whole)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, json.loads(report.read_text())


def test_trial_that_raises_keeps_the_finding_and_explains_the_untested_remedy(tmp_path):
    code, report = run_broken(
        tmp_path, "ddp_doctor.engine.node_run.agent.Agent.attempt", GLOO_SOCKET_IFNAME="no-such-nic"
    )
    proofs = [remedy["proof"] for finding in report["findings"] for remedy in finding["remedies"]]

    assert (code, report["verdict"]) == (1, "unhealthy")
    assert "internal error in the test of the fix (RuntimeError: broken on purpose)" in [
        one["reason"] for one in proofs
    ]
    assert {one["status"] for one in proofs} == {"not_tried"}
    assert "failed" not in {check["status"] for check in report["checks"] if check["id"] != "process_group"}


@pytest.mark.parametrize(("nic", "verdict"), [("lo", "unsure"), ("no-such-nic", "unhealthy")])
def test_search_for_remedies_that_raises_is_reported_and_never_healthy(tmp_path, nic, verdict):
    _code, report = run_broken(tmp_path, "ddp_doctor.engine.node_run.node.prove", GLOO_SOCKET_IFNAME=nic)

    assert report["verdict"] == verdict
    assert "internal error: RuntimeError: broken on purpose" in json.dumps(report["checks"])
