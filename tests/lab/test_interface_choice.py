"""Predictions of gloo's and NCCL's interfaces compared with their real choices, on a host with many layouts."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.lab import interface_choices
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.lab

IPV6 = ("all", "default")


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict[str, object]]:
    """Return one comparison per row, made in namespaces that end with the script."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
        pytest.skip("needs root, iproute2 and util-linux")
    folder = tmp_path_factory.mktemp("host")
    script = ("exec", sys.executable, "-m", interface_choices.__name__, str(folder))
    ipv6 = "; ".join(f"echo 0 >/proc/sys/net/ipv6/conf/{one}/disable_ipv6" for one in IPV6)
    done = subprocess.run(
        ("unshare", "--net", "--uts", "--mount", "sh", "-c", f"{ipv6}; {' '.join(script)}"),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_gloo_listens_on_the_predicted_address(rows):
    wrong = [row for row in rows if not _agree(row["gloo"][0], row["real_gloo"])]

    assert len(rows) > 40
    assert {row["gloo"][0] for row in rows} >= {"127.0.1.1", "10.78.0.1", "fd00:9::1", None}
    assert wrong == []


def _agree(foretold: str | None, real: list[str] | None) -> bool:
    return foretold is None if real is None else foretold in real


def test_nccl_makes_the_predicted_choice_and_follows_its_order(rows):
    """Without libnccl, which comes with CUDA builds of torch, only the order is checked."""
    asked = [row for row in rows if row["real_nccl"] is not None]
    last = [row["nccl"][0] for row in rows if not row["env"]][-4:]

    assert [row for row in asked if row["nccl"] != row["real_nccl"]] == []
    assert last == ["10.78.0.1", "fd00:9::1", "172.17.0.1", "127.0.0.1"]
