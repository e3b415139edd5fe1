"""Starting agents over the user's own ssh: nothing to install on the other hosts but the package.

The user's configuration, keys and known hosts are used as they are; what would ask a question fails
instead. Remote shells may be any (csh, fish), so the script goes to ``sh`` as one quoted word.
"""

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ddp_doctor.starters import starter_channel
from ddp_doctor.starters.detect import HOSTS_VARIABLE
from ddp_doctor.starters.endpoint import is_mine, resolve
from ddp_doctor.starters.started_process import Start

_CONNECT_S = 10
#: At the same time: a dead name server takes seconds for each.
_LOOK_UPS = 16
#: LogLevel ERROR leaves out banners, and keeps why a connection failed.
_OPTIONS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-o", "LogLevel=ERROR"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
)
#: What a job's ranks read, and nothing else: an environment holds passwords, too.
_TAKEN = re.compile(
    r"(NCCL|TORCH|PYTORCH|GLOO|CUDA|OMP|GOMP|KMP|MKL|UCX|FI|IBV|RDMAV|MLX5|C10D|TP)_[A-Z0-9_]+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PATH",
    re.ASCII,
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)


def over_ssh(
    hosts: Sequence[str], commands: Sequence[Sequence[str]], env: Mapping[str, str], folder: str
) -> list[Start]:
    """One start for each host, which may be USER@HOST; on this host without ssh.

    Raises FileNotFoundError where ssh is needed and there is none.
    """
    ssh = shutil.which("ssh", path=env.get("PATH"))
    ours = {starter_channel.VARIABLE: "1", HOSTS_VARIABLE: ",".join(names(hosts))}
    own = {name: value for name, value in env.items() if not name.startswith("PET_")}
    taken = {
        name: value
        for name, value in env.items()
        if _TAKEN.fullmatch(name) and not _SECRET.search(name) and "\n" not in value
    }
    settings = [f"{name}={value}" for name, value in sorted({**taken, **ours}.items())]
    with ThreadPoolExecutor(_LOOK_UPS) as pool:
        here = list(pool.map(is_here, hosts))
    starts = []
    for rank, (host, command) in enumerate(zip(hosts, commands, strict=True)):
        if here[rank]:
            starts.append(Start("this host", tuple(command), {**own, **ours}, (rank,)))
        elif ssh is None:
            raise FileNotFoundError("ssh")
        else:
            script = f"cd {shlex.quote(folder)} 2>/dev/null || :; exec {shlex.join(['env', *settings, *command])}"
            remote = f"exec sh -c {shlex.quote(script)}"
            starts.append(Start(f"ssh {host}", (ssh, *_OPTIONS, host, remote), env, (rank,)))
    return starts


def names(hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts without users."""
    return tuple(host.rpartition("@")[2] for host in hosts)


def is_here(host: str) -> bool:
    """Whether this is the host, by its name or one of its addresses; another user's agent is started by ssh."""
    if "@" in host:
        return False
    return host in (socket.gethostname(), socket.getfqdn()) or is_mine(resolve(host)[0])


def address_of(host: str, env: Mapping[str, str]) -> str:
    """What the others can call a host: its name where that resolves, else what ssh's configuration says."""
    name = names([host])[0]
    ssh = shutil.which("ssh", path=env.get("PATH"))
    if resolve(name)[0] or ssh is None:
        return name
    words = ""
    with suppress(OSError, subprocess.TimeoutExpired):  # its configuration may run commands (Match exec)
        words = subprocess.run(
            (ssh, "-G", host), check=False, capture_output=True, text=True, timeout=_CONNECT_S
        ).stdout
    found = re.search(r"^hostname (\S+)$", words, re.MULTILINE)
    return found[1] if found else name
