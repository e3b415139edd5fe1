"""Hosts that lack something every host has: /dev/shm, a loopback interface, a writable disk, room for open files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.lab

#: A separate /dev without shm.
NO_SHM = """
mkdir dev; mount -t tmpfs tmpfs dev; cp -a /dev/null /dev/zero /dev/random /dev/urandom dev/
ln -s /proc/self/fd dev/fd; mount --move dev /dev
"""
#: Only /dev/shm is writable, as with Kubernetes' readOnlyRootFilesystem.
READ_ONLY = "unset TMPDIR; for each in / /tmp; do mount --bind $each $each; mount -o remount,ro,bind $each; done"


def doctor(tmp_path: Path, within: str, before: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, report and stderr of ddp-doctor in separate namespaces, in which ``before`` ran first."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    script = f"set -e; {before}\nexec {sys.executable} -m ddp_doctor {' '.join(arguments)} --json -"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    command = (*within.split(), "bash", "-c", script)
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.parametrize("command", ["prolog", "run --level quick --budget 60"])
@pytest.mark.parametrize(
    ("within", "before", "code", "said"),
    [
        ("unshare -m", NO_SHM, "DD221", "/dev/shm does not exist"),
        ("unshare -m", f"{NO_SHM} mkdir /dev/shm; mount -t tmpfs -o ro tmpfs /dev/shm", "DD221", "mounted read-only"),
        ("unshare -n", "", "DD240", "lo is down"),
        ("unshare -n", "ip link set lo up; ip address flush dev lo scope host", "DD240", "no address 127.0.0.1"),
    ],
)
def test_host_without_a_requirement_is_unhealthy_and_the_report_names_it(tmp_path, within, before, code, said, command):
    exit_code, report, _ = doctor(tmp_path, within, before, *command.split())
    assert (exit_code, report["verdict"]) == (1, "unhealthy")
    assert [finding["code"] for finding in report["findings"] if finding["severity"] == "error"] == [code]
    assert said in report["summary"]


def test_limit_of_twenty_files_is_the_reported_cause(tmp_path):
    exit_code, report, _ = doctor(tmp_path, "env", "ulimit -n 20", "run", "--budget", "60")
    assert (exit_code, report["findings"][0]["code"]) == (1, "DD223")
    assert "too many open files" in report["findings"][0]["evidence"][0]["text"].lower()
    assert "DD501" not in [finding["code"] for finding in report["findings"]]


def test_disk_without_write_access_is_reported_in_a_sentence(tmp_path):
    exit_code, _, said = doctor(tmp_path, "unshare -m", f"cd /; {READ_ONLY}", "run", "--level", "quick")
    assert exit_code == 2
    assert "cannot write to '/tmp': Read-only file system; set TMPDIR to a writable directory" in said
