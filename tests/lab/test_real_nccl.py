"""NVIDIA's own wheels: two that write one file, and what the real libnccl makes of nccl.conf and plug-ins.

Half a gigabyte is downloaded for each, which is why this stands with the lab.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_doctor.checks.node.nccl import probe
from ddp_doctor.checks.node.software.nccl import nccl_packages_overwrite_each_other
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Severity, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing import nccl_interface
from ddp_doctor.settings.nccl_conf import set_by_files
from ddp_doctor.sources import machine
from ddp_doctor.sources.machine import LiveContext
from tests.checks.test_software import compile_library
from tests.nccl_wheels import RELEASES, libnccl
from tests.once import once
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

#: Prints what libnccl itself says while it makes a unique id, which needs no GPU.
ASK = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))\n"
    "ctypes.CDLL(None).fflush(None)  # NCCL's lines, where stdout is a pipe\n"
    "os._exit(0)\n"
)


@pytest.fixture(scope="session")
def both() -> Path:
    """An environment into which pip put the package for CUDA 12 and then that for CUDA 13."""
    return once("two-nccl-packages", _install_both)


def _install_both(folder: Path) -> None:
    if shutil.disk_usage(folder).free < 4 * 10**9:
        pytest.skip("needs 4 GB of disk for NVIDIA's wheels")
    for_cuda_12 = newest().parents[3]
    subprocess.run((sys.executable, "-m", "venv", folder), check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    shutil.copytree(for_cuda_12, packages, dirs_exist_ok=True)
    command = (folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", "nvidia-nccl-cu13")
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a package index with nvidia-nccl-cu13")


def newest() -> Path:
    return libnccl(RELEASES[-1])


def library(both: Path) -> Path:
    return next(both.glob("lib/python*/site-packages/nvidia/nccl/lib/libnccl.so.2"))


def asked(**env: str) -> str:
    command = (sys.executable, "-c", ASK, str(newest()))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return done.stdout + done.stderr


def test_last_of_two_packages_wins_and_ddp_doctor_identifies_its_file(both):
    script = Path(machine.__file__).with_name("child_software.py")
    done = subprocess.run((both / "bin/python", "-I", script), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)

    assert sorted(told["nccl_packages"]) == ["nvidia-nccl-cu12", "nvidia-nccl-cu13"]
    assert told["nccl_file_bytes"] == library(both).stat().st_size == told["nccl_sizes"]["nvidia-nccl-cu13"]
    assert told["nccl_file_bytes"] != told["nccl_sizes"]["nvidia-nccl-cu12"]
    assert _overwritten(Software(**{**told, "torch_cuda": "12.8"})) == [Severity.WARNING]
    assert _overwritten(Software(**{**told, "torch_cuda": "13.0"})) == [Severity.INFO]


def _overwritten(fact: Software) -> list[Severity]:
    recording = Recording(readings=(Reading(check="software", status=Status.COLLECTED, fact=fact.recorded()),))
    return [finding.severity for finding in nccl_packages_overwrite_each_other.apply(recording)]


def test_nccl_uses_the_values_of_its_file_that_ddp_doctor_predicts(tmp_path):
    file = tmp_path / ".nccl.conf"
    file.write_text(
        "# c\nexport NCCL_SOCKET_FAMILY=AF_INET6\n NCCL_SOCKET_FAMILY=AF_INET6\nNCCL_SOCKET_IFNAME=lo\n"
        "NCCL_SOCKET_IFNAME=none\nNCCL_DEBUG=INFO\nNCCL_IB_DISABLE\n"
    )
    context = LiveContext({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, time.monotonic() + 60)
    read = set_by_files(nccl_interface.conf_files(context))

    said = asked(HOME=str(tmp_path))

    assert {name: value for name, (value, _) in read.items() if "SOCKET" in name} == {
        "NCCL_SOCKET_IFNAME": "lo",
        " NCCL_SOCKET_FAMILY": "AF_INET6",
        "export NCCL_SOCKET_FAMILY": "AF_INET6",
    }
    assert "NCCL_SOCKET_IFNAME set by environment to lo" in said
    assert "NCCL_SOCKET_FAMILY set by environment" not in said
    assert "Using lo:" in said


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc) to build a plug-in")
def test_plugin_is_found_or_missing_as_nccl_reports(tmp_path):
    """NCCL opens network plug-ins only with a GPU; it opens environment plug-ins the same way without one."""
    compile_library(tmp_path / "libnccl-env-x.so", "int nothing;\n")
    compile_library(tmp_path / "libnccl-net-x.so", "int nothing;\n")
    env = {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_DEBUG": "INFO", "HOME": str(tmp_path)}

    found, missed = (asked(**env, NCCL_ENV_PLUGIN=name) for name in ("x", "y"))
    (ours,), (none,) = (
        probe(LiveContext({**env, "PATH": "/usr/bin:/bin", "NCCL_NET_PLUGIN": name}, time.monotonic() + 60)).plugins
        for name in ("x", "y")
    )

    assert f"{tmp_path}/libnccl-env-x.so is unsupported" in found
    assert ours.path == f"{tmp_path}/libnccl-net-x.so"
    assert "Could not find: y libnccl-env-y.so" in missed
    assert none.path is None
