"""What tells NCCL's choice of an interface beyond the environment: its files, and libnccl itself.

/etc/nccl.conf, NCCL_CONF_FILE or ~/.nccl.conf, and the answers of the helper script ``nccl_interface``::

    # comment
    NCCL_SOCKET_IFNAME=eth0

    {"version_code": 22907, "address": "10.0.0.1"}
    {"version_code": 22907, "status": 5, "error": "Bootstrap : no socket interface found"}
    {"absent": "libnccl.so.2: cannot open shared object file: No such file or directory"}

Source: NCCL 2.30.7 src/misc/param.cc, setEnvFile and initEnvFunc: the user's file comes before the system's, and
no file changes what is already set.
"""

import json
from collections.abc import Mapping, Sequence

from ddp_doctor.knowledge.interface_choice import Choice, holder
from ddp_doctor.model.context import CommandResult, Context, Interface

SYSTEM_FILE = "/etc/nccl.conf"


def nccl_environment(ctx: Context) -> dict[str, str]:
    """The environment as NCCL sees it: the process's own, then the user's file, then the system's."""
    users = ctx.env.get("NCCL_CONF_FILE") or f"{ctx.env.get('HOME', '')}/.nccl.conf"
    return {**file_settings(_text(ctx, SYSTEM_FILE)), **file_settings(_text(ctx, users)), **ctx.env}


def file_settings(text: str) -> Mapping[str, str]:
    """The variables of one file; the first of two equal names counts."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, sign, value = line.partition("=")
        if sign and name and not name.startswith("#"):
            found.setdefault(name, value)
    return found


def _text(ctx: Context, path: str) -> str:
    try:
        return ctx.read(path)
    except OSError:
        return ""


def library_choice(answer: CommandResult, interfaces: Sequence[Interface]) -> Choice | None:
    """What libnccl chose; None where there is none, or where it could not be asked, as without a driver."""
    told = _last_object(answer.stdout)
    address, error = told.get("address"), told.get("error")
    if isinstance(address, str):
        why = "libnccl itself put it into its unique id"
        return Choice(interface=holder(interfaces, address), address=address, why=why)
    if isinstance(error, str) and "interface" in error:
        return Choice(why="libnccl itself says so", error=error)
    return None


def _last_object(stdout: str) -> dict[str, object]:
    """The JSON object in the last line: NCCL_DEBUG prints before it."""
    lines = stdout.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) else {}
