"""A path that carries small packets and swallows large ones, planted in a network namespace."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.lab

RULES = """
table inet hole {
  chain in {
    type filter hook input priority 0;
    iif lo tcp flags & (syn | fin | rst) == 0 meta length > 20000 drop
  }
}
"""


@pytest.fixture
def hole() -> Iterator[str]:
    """Yield a namespace whose loopback interface drops packets above 20 kB."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nft")):
        pytest.skip("needs root, iproute2 and nftables")
    name = f"ddpd-hole-{os.getpid()}"
    subprocess.run(("ip", "netns", "add", name), check=True)
    try:
        subprocess.run(("ip", "-n", name, "link", "set", "lo", "up"), check=True)
        subprocess.run(("ip", "netns", "exec", name, "nft", "-f", "-"), input=RULES, text=True, check=True)
        yield name
    finally:
        subprocess.run(("ip", "netns", "delete", name), check=True)


@pytest.mark.parametrize(
    "skipped",
    [
        pytest.param((), id="in an all-reduce, that neither rank leaves"),
        pytest.param(("--skip", "allreduce"), id="in DDP's broadcast, that the sender leaves"),
    ],
)
def test_black_hole_between_two_ranks_is_reported_as_the_link(skipped, hole, tmp_path):
    done = subprocess.run(
        (
            *("ip", "netns", "exec", hole, sys.executable, "-m", "ddp_doctor"),
            *("run", "-q", "--level", "quick", "--json", str(tmp_path / "out.json"), *skipped),
        ),
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    report = json.loads((tmp_path / "out.json").read_text())

    assert done.returncode == 1, done.stdout
    assert [finding["code"] for finding in report["findings"] if finding["severity"] == "error"] == ["DD615"]
    (culprit,) = report["findings"][0]["culprits"]
    assert (culprit["kind"], culprit["rank"], culprit["peer_rank"]) == ("pair", 0, 1)
