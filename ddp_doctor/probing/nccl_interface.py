"""The inputs of NCCL's choice of an interface other than the environment: the nccl.conf files, and libnccl itself.

The answers of the helper script ``nccl_interface``::

    {"version_code": 22907, "address": "10.0.0.1"}
    {"version_code": 22907, "status": 5, "error": "Bootstrap : no socket interface found"}
    {"absent": "libnccl.so.2: cannot open shared object file: No such file or directory"}
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

from ddp_doctor.facts.node.nccl import ConfFile, Reason
from ddp_doctor.knowledge.network.interface_choice import Choice, holder
from ddp_doctor.model.context import CommandResult, Context, Interface
from ddp_doctor.parse.json_value import NotJson, json_object
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld
from ddp_doctor.probing.kernel_files import text_of
from ddp_doctor.settings.nccl_conf import MOST_LINES, SYSTEM_FILE, conf_lines, read_by, set_by_files


def nccl_environment(ctx: Context) -> dict[str, str]:
    """Return the environment as NCCL sees it: the process's variables, then the user's file, then the system's."""
    added = set_by_files(read_by(conf_files(ctx)))
    return {**{name: value for name, (value, _) in added.items()}, **ctx.env}


def library_choice(answer: CommandResult, interfaces: Sequence[Interface]) -> Choice | None:
    """Return the interface that libnccl chose; None without libnccl, or if it cannot answer, as without a driver."""
    output = _last_object(answer.stdout)
    address, error = output.get("address"), output.get("error")
    if isinstance(address, str):
        with suppress(ValueError):
            ip_address(address)
            why = "libnccl itself put it into its unique id"
            return Choice(interface=holder(interfaces, address), address=address, why=why)
    if isinstance(error, str) and "interface" in error:
        return Choice(why="libnccl itself says so", error=error)
    return None


def _last_object(stdout: str) -> dict[str, object]:
    """Return the JSON object in the last line; NCCL_DEBUG prints lines before it."""
    lines = stdout.strip().splitlines()
    try:
        return json_object(lines[-1]) if lines else {}
    except NotJson:
        return {}


_UID = re.compile(r"^Uid:[ \t]+([0-9]{1,10})\b", re.MULTILINE)


def conf_files(ctx: Context) -> tuple[ConfFile, ...]:
    """Return the existing files, and the file that NCCL_CONF_FILE names even if it is missing.

    Without HOME, as in a prolog, whose user is not the job's, only the system's file is read.
    """
    named, home = ctx.env.get("NCCL_CONF_FILE"), ctx.env.get("HOME")
    users: dict[str, Reason] = {}
    if home:
        passwd_home = _passwd_home(ctx) or home
        users[f"{passwd_home}/.nccl.conf"] = "passwd"
        users[f"{home}/.nccl.conf"] = "user" if passwd_home == home else "home"
    if home and named:
        users[named] = "named"
    files = [_file(ctx, path, reason) for path, reason in {**users, SYSTEM_FILE: "system"}.items()]
    return tuple(file for file in files if file is not None)


def _file(ctx: Context, path: str, reason: Reason) -> ConfFile | None:
    if reason == "named" and is_withheld("NCCL_CONF_FILE", path):
        return ConfFile(path=KEPT_BACK, reason=reason, problem="looks like a credential")
    if not path.startswith("/"):
        return ConfFile(path=path, reason=reason, problem="is relative to the directory in which the job starts")
    try:
        text = ctx.read(path)
    except FileNotFoundError:
        return ConfFile(path=path, reason=reason, problem="does not exist") if reason == "named" else None
    except OSError as error:
        return ConfFile(path=path, reason=reason, problem=f"cannot be read: {error.strerror}")
    lines = conf_lines(text)
    whole = len(lines) < MOST_LINES
    return ConfFile(path=path, reason=reason, lines=lines, problem=None if whole else "is read no further than this")


def _passwd_home(ctx: Context) -> str | None:
    """Return the home directory in this user's passwd entry, from any source that getent knows."""
    uid = _UID.search(text_of(ctx, "/proc/self/status") or "")
    answer = ctx.run(("getent", "passwd", uid[1]), 1.0) if uid else None
    fields = answer.stdout.strip().split(":") if answer is not None and answer.ok else []
    return fields[5] if len(fields) == 7 and fields[5].startswith("/") else None
