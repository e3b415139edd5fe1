"""A real sshd on every host of a lab, and a user's own ssh that reaches them with a key and without a password."""

import subprocess
from pathlib import Path

from tests.lab.hosts import Host, Lab, why_no_lab
from tests.waiting import LIMIT_S

SSHD = """
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile none
SetEnv TMPDIR={host}/tmp XDG_STATE_HOME={host}/home/.local/state PYTHONDONTWRITEBYTECODE=1
"""
SSH = """
Host *
    IdentityFile {folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known
    StrictHostKeyChecking yes
"""


def why_no_ssh(*more_tools: str) -> str | None:
    """Return why no ssh can be served here, or None if it can."""
    return why_no_lab("sshd", "ssh", "ssh-keygen", *more_tools)


def serve_ssh(lab: Lab) -> None:
    """Start them; ``folder/ssh/ssh`` is the user's."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd locks itself in
    folder = lab.folder / "ssh"
    folder.mkdir()
    for key in ("user", "host"):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key), check=True, timeout=LIMIT_S)
    (folder / "config").write_text(SSH.format(folder=folder))
    (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    (folder / "ssh").chmod(0o755)
    for host in lab.hosts:
        (folder / f"{host.name}.conf").write_text(SSHD.format(folder=folder, host=host.folder))
        sshd = f"exec /usr/sbin/sshd -D -e -f {folder}/{host.name}.conf 2>&1"
        host.start(("sh", "-c", sshd)).wait_for_output("Server listening")


def know_hosts(lab: Lab) -> None:
    """Let the user know the keys of all hosts."""
    key = (lab.folder / "ssh/host.pub").read_text()
    (lab.folder / "ssh/known").write_text("".join(f"{host.name} {key}" for host in lab.hosts))


def environment(lab: Lab, host: Host) -> dict[str, str]:
    """Return the environment that makes the lab's ssh the user's."""
    return {"PATH": f"{lab.folder}/ssh:{host.environment['PATH']}"}
