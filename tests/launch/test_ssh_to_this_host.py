"""`run --hosts` over a real ssh and an sshd of this user, which serves this host as a second one."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.processes import to_its_end
from tests.once import free_port
from tests.waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
SERVER = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
"""
CLIENT = """
Host far
    HostName 127.0.0.1
    Port {port}
    HostKeyAlias far
    IdentityFile {folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known
"""


@pytest.fixture
def path_with_ssh(tmp_path: Path) -> Iterator[str]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("ssh and sshd are not installed")
    port = free_port()
    for key in ("user", "host"):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key), check=True)
    (tmp_path / "sshd.conf").write_text(SERVER.format(folder=tmp_path, port=port))
    (tmp_path / "config").write_text(CLIENT.format(folder=tmp_path, port=port))
    (tmp_path / "known").write_text(f"far {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd of root changes to this directory
    log = tmp_path / "sshd.log"
    with (
        log.open("w") as errors,
        subprocess.Popen((SSHD, "-D", "-e", "-f", tmp_path / "sshd.conf"), stderr=errors) as sshd,
    ):
        try:
            wait_until(lambda: "listening" in log.read_text() or sshd.poll() is not None, "sshd listens")
            reached = to_its_end((tmp_path / "ssh", "-o", "BatchMode=yes", "far", "true"))
            if reached.returncode != 0:
                pytest.skip(f"this user cannot log in to this host: {reached.stderr} {log.read_text()}")
            yield f"{tmp_path}:{os.environ['PATH']}"
        finally:
            sshd.kill()


@pytest.mark.smoke
@pytest.mark.ranks
def test_run_over_ssh_reports_both_hosts(path_with_ssh: str, tmp_path: Path):
    options = ("--level", "quick", "--only", "process_group", "--rdzv-endpoint", f"localhost:{free_port()}")
    done = to_its_end(
        (sys.executable, "-m", "ddp_doctor", "run", "--hosts", f"{socket.gethostname()},far", *options),
        {**os.environ, "PATH": path_with_ssh, "XDG_STATE_HOME": str(tmp_path)},
    )

    assert done.returncode == 0, done
    assert "Healthy: 2 ranks on 2 nodes passed over gloo" in done.stdout
