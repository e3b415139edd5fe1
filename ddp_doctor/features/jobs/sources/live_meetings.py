"""The endpoint that the processes of a job need before it starts, and the state of its port.

The command of a launcher such as torchrun names the endpoint (torch 2.13 torch/distributed/run.py; accelerate 1.15
commands/launch.py). Ranks use MASTER_ADDR and MASTER_PORT.
"""

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path, PurePath

from ddp_doctor.features.jobs.facts import Meeting
from ddp_doctor.features.jobs.live_frames import MEETING_FILES
from ddp_doctor.features.jobs.sources.live_process import (
    Candidate,
    below,
    candidate,
    connections,
    connects,
    listener,
    listening,
    network_of,
)
from ddp_doctor.sources import network, proc

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
#: Options of torchrun and accelerate without a value.
_FLAGS = re.compile(r"-m|--(?:standalone|module|no_python|run_path|use_env|multi_gpu|cpu|debug|quiet|same_network)")
#: Launchers that start the ranks of other nodes through other programs, and do not need torch themselves.
_STARTERS = {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prterun", "prun"}
_STARTERS |= {"srun", "pdsh", "deepspeed"}
_CONFIGURED = re.compile(
    r"^(main_process_ip|main_process_port|num_machines|machine_rank|rdzv_backend): *['\"]?([A-Za-z0-9_.:-]+)",
    re.MULTILINE,
)
#: Options of ssh with a value (ssh(1)).
_OF_SSH = re.compile(r"-[a-zA-Z]*[BbcDEeFIiJLlmOoPpQRSWw]")
_STATIC_PORT, _DYNAMIC_PORT = "29500", "29400"
_PATIENCE_S = 1.5
_ENDPOINT = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\s]+)(?::(?P<port>\d{1,5}))?", re.ASCII)


def is_launcher(process: Candidate) -> bool:
    """Return True if a process is torchrun or accelerate. Both import torch but are not ranks."""
    return _program(process.command) is not None


def of_launcher(process: Candidate) -> Meeting:
    """Return the endpoint of a launcher, from its command and the variables PET_*."""
    name, at = _program(process.command) or ("", 0)
    given = {key[4:].lower(): value for key, value in process.env.items() if key.startswith("PET_")}
    given |= _options(process.command[at + 1 :])
    if name == "accelerate":
        given = _configured(process, given.get("config_file")) | given
    nodes = given.get("nnodes") or given.get("num_machines") or "1"
    least = nodes.partition(":")[0]
    node = given.get("node_rank") or given.get("machine_rank") or ""
    is_static = given.get("rdzv_backend", "static") == "static"
    address = given.get("master_addr") or given.get("main_process_ip") or ("localhost" if name == "torchrun" else "")
    port = given.get("master_port") or given.get("main_process_port") or _STATIC_PORT
    endpoint = given.get("rdzv_endpoint") or (f"{address}:{port}" if is_static and address else "")
    found = _ENDPOINT.fullmatch(endpoint or f"localhost:{_DYNAMIC_PORT}" * (name == "torchrun"))
    return Meeting(
        who=name,
        endpoint=f"{found['host']}:{found['port'] or (_STATIC_PORT if is_static else _DYNAMIC_PORT)}" if found else "",
        node=int(node) if node.isdecimal() and is_static else None,
        expected=int(least) if least.isdecimal() else None,
    )


def _configured(process: Candidate, file: str | None) -> dict[str, str]:
    """Return the plain settings of accelerate's YAML file (accelerate 1.15 commands/config/config_args.py)."""
    cache = process.env.get("HF_HOME") or f"{process.env.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    path = file or f"{cache}/accelerate/default_config.yaml"
    path = re.sub("^~(?=/)", process.env.get("HOME", "~"), path)
    own = Path(proc.path_of(process.pid, path))
    with suppress(OSError):
        if own.is_file():  # a pipe would never end
            return dict(_CONFIGURED.findall(own.read_text("utf-8", "replace")))
    return {}


def starter(process: Candidate) -> str:
    """Return the name of a launcher that starts ranks through other programs, such as mpirun; empty for others."""
    names = [PurePath(word).name for word in process.command[:2]]
    return next((name for name in names if name in _STARTERS), "")


def of_starter(process: Candidate, tree: Mapping[int, Sequence[int]]) -> Meeting:
    """Return what such a launcher waits for: the programs below it that have no children. ``tree``: children by pid."""
    waited_s = time.clock_gettime(time.CLOCK_BOOTTIME) - proc.started_s(process.pid)
    ends = sorted(pid for pid in below(process.pid, tree) if not tree.get(pid))
    ends = [pid for pid in ends if proc.command(pid)[:1] != list(process.command[:1])]
    silent = [pid for pid in ends if connects(pid)]
    first = next(iter(silent or ends), None)
    more = f" and {len(ends) - 1} more" if len(ends) > 1 else ""
    return Meeting(
        who=starter(process),
        program=f"{_called(proc.command(first))} (pid {first}){more}" if first else "",
        answer="silent" if silent else "",
        waited_s=round(waited_s, 1),
    )


def _called(words: Sequence[str]) -> str:
    name = PurePath(words[0]).name if words else "a program"
    left = list(words[1:])
    while left and left[0].startswith("-"):
        left = left[2 if name in ("ssh", "rsh") and _OF_SSH.fullmatch(left[0]) else 1 :]
    return " ".join((name, *left[:1]))


def of_rank(process: Candidate) -> Meeting:
    """Return the endpoint of a rank, from MASTER_ADDR and MASTER_PORT."""
    address, port = process.env.get("MASTER_ADDR", ""), process.env.get("MASTER_PORT", "")
    return Meeting(who="ranks", endpoint=f"{address}:{port}" if address and port else "")


def is_meeting(frames: Sequence[str]) -> bool:
    """Return True if a stack waits for the other nodes or ranks of a job that has not begun."""
    return any(map(MEETING_FILES.search, frames))


def with_answer(meeting: Meeting, processes: Sequence[Candidate], end: float) -> Meeting:
    """Return the meeting with the state of its endpoint and the number of nodes; opens one connection."""
    pids = [process.pid for process in processes]
    waited_s = time.clock_gettime(time.CLOCK_BOOTTIME) - max(map(proc.started_s, pids))
    meeting = meeting.model_copy(update={"waited_s": round(waited_s, 1)})
    host, _, port_text = meeting.endpoint.rpartition(":")
    port = int(port_text or 0)
    if not port or any(network_of(pid) != network_of(pids[0]) for pid in pids):
        return meeting
    serving = next((pid for pid in pids if port in listening(pid)), None)
    if serving is not None:
        return meeting.model_copy(update={"answer": "served", "came": _came(serving, pids, port)})
    ends = [(this, other) for at in connections(pids).values() for this, other, *_ in at.values()]
    connected = [this for this, other in ends if other.endswith(f":{port}")]
    if network_of(pids[0]) != network_of(os.getpid()):
        return meeting.model_copy(update={"answer": "connected" if connected else ""})
    answer, is_here = _asked(host.strip("[]"), port, end)
    if answer == "open":
        server = listener(port) if is_here else None
        is_foreign = server is not None and candidate(server) is None
        name = (proc.read(f"/proc/{server}/comm") or "").strip()
        update = {"answer": "connected" if connected else "open", "server": f"{name} (pid {server})" * is_foreign}
        return meeting.model_copy(update=update)
    return meeting.model_copy(update={"answer": answer})


def _came(serving: int, pids: Sequence[int], port: int) -> int:
    lines = [(this, other) for this, other, *_ in connections([serving])[serving].values()]
    served = [(this.rpartition(":"), other.rpartition(":")[0]) for this, other in lines]
    others = {other for (own, _, at), other in served if at == str(port) and other != own}
    return len(pids) + len(others)


def _asked(host: str, port: int, end: float) -> tuple[str, bool]:
    patience_s = min(_PATIENCE_S, max(end - time.monotonic(), 0.1))
    try:
        address = network.resolve(host, patience_s)[0]
    except (OSError, UnicodeError, IndexError):
        return "unresolved", False
    try:
        with socket.create_connection((address, port), patience_s) as line:
            is_here = line.getsockname()[0] == line.getpeername()[0] or ip_address(address).is_loopback
            return "open", is_here
    except ConnectionRefusedError:
        return "refused", False
    except OSError:
        return "silent", False


def _program(words: Sequence[str]) -> tuple[str, int] | None:
    at = 0 if words and PurePath(words[0]).name in ("torchrun", "accelerate") else 1
    with suppress(IndexError):
        while words[at].startswith("-") and words[at] != "-m":  # the interpreter's own options
            at += 2 if words[at] in ("-X", "-W") else 1
        if words[at] == "-m":
            name = _MODULES.get(words[at + 1])
            return (name, at + 1) if name else None
        name = PurePath(words[at]).name
        if name == "torchrun":
            return name, at
        if name == "accelerate" and words[at + 1] == "launch":
            return name, at + 1
    return None


def _options(words: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    left = list(words)
    with suppress(IndexError):
        while left[0].startswith("-"):
            name, is_one, value = left.pop(0).partition("=")
            key = name.replace("-", "_").lstrip("_")
            if not is_one and not _FLAGS.fullmatch(f"--{key}" if name != "-m" else name):
                value = left.pop(0)
            found[key] = value
    return found
