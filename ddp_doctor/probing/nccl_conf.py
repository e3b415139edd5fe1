"""nccl.conf: settings that NCCL adds to its environment, where nobody sees them.

    # comment
    NCCL_SOCKET_IFNAME=eth0
    export NCCL_DEBUG=INFO          sets a variable called "export NCCL_DEBUG", which nothing reads
     NCCL_IB_HCA=mlx5_0             so does the blank in front
    NCCL_P2P_LEVEL

Source: NCCL src/misc/param.cc (setEnvFile, initEnvFunc), tried with libnccl 2.20.5 to 2.32.3: the user's file
comes before the system's, the first of two equal names counts, and no file changes what is already set.
"""

import re
from collections.abc import Mapping

from ddp_doctor.facts.nccl import ConfFile, ConfLine, Reason
from ddp_doctor.model.context import Context
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld
from ddp_doctor.parse.utf8 import as_utf8
from ddp_doctor.settings.names import is_recorded

SYSTEM_FILE = "/etc/nccl.conf"
#: What NCCL keeps of a name or value.
LONGEST = 1023
#: A longer file is none of NCCL's.
MOST_LINES = 1000

_UID = re.compile(r"^Uid:[ \t]+([0-9]{1,10})\b", re.MULTILINE)


def conf_lines(text: str) -> tuple[ConfLine, ...]:
    """The lines of one file as NCCL reads them, up to MOST_LINES."""
    found: list[ConfLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            found.append(_line(number, line.partition("\0")[0]))
        if len(found) > MOST_LINES:
            break
    return tuple(found[:MOST_LINES])


def _line(number: int, line: str) -> ConfLine:
    name, sign, value = line.partition("=")
    if not sign or not name:
        return ConfLine(number=number)
    bare = name.strip().removeprefix("export ").strip()
    if not is_recorded(bare):
        return ConfLine(number=number, name=_shown(name) if bare.isidentifier() else "")
    value = value[:LONGEST]
    return ConfLine(
        number=number, name=_shown(name), value=None if is_withheld(name, value) else _shown(value)
    )


def _shown(text: str) -> str:
    return as_utf8(text[:LONGEST])


def settings(files: tuple[ConfFile, ...]) -> Mapping[str, tuple[str, str]]:
    """What the files together set: name to value and ``path:line``, files in NCCL's order."""
    found: dict[str, tuple[str, str]] = {}
    for file in files:
        for line in file.lines:
            if line.name and line.value is not None:
                found.setdefault(line.name, (line.value, f"{file.path}:{line.number}"))
    return found


def conf_files(ctx: Context) -> tuple[ConfFile, ...]:
    """The files that are there, and one that is named and is not.

    Without HOME, as in a prolog, whose user is not the job's, only the system's is looked at.
    """
    named, home = ctx.env.get("NCCL_CONF_FILE"), ctx.env.get("HOME")
    users: dict[str, Reason] = {}
    if home and named:
        users[named] = "named"
    elif home:
        other = _passwd_home(ctx) or home
        users[f"{other}/.nccl.conf"] = "passwd"
        users[f"{home}/.nccl.conf"] = "user" if other == home else "home"
    files = [_file(ctx, path, reason) for path, reason in {**users, SYSTEM_FILE: "system"}.items()]
    return tuple(file for file in files if file is not None)


def _file(ctx: Context, path: str, reason: Reason) -> ConfFile | None:
    if reason == "named" and is_withheld("NCCL_CONF_FILE", path):
        return ConfFile(path=KEPT_BACK, reason=reason, problem="looks like a credential")
    if not path.startswith("/"):
        return ConfFile(path=path, reason=reason, problem="is relative to the folder that the job starts in")
    try:
        text = ctx.read(path)
    except FileNotFoundError:
        return ConfFile(path=path, reason=reason, problem="does not exist") if reason == "named" else None
    except OSError as error:
        return ConfFile(path=path, reason=reason, problem=f"cannot be read: {error.strerror}")
    lines = conf_lines(text)
    whole = len(lines) < MOST_LINES
    return ConfFile(
        path=path, reason=reason, lines=lines, problem=None if whole else "is read no further than this"
    )


def _passwd_home(ctx: Context) -> str | None:
    """The home folder in this user's passwd entry, wherever that is kept."""
    try:
        status = ctx.read("/proc/self/status")
    except OSError:
        return None
    uid = _UID.search(status)
    answer = ctx.run(("getent", "passwd", uid[1]), 1.0) if uid else None
    fields = answer.stdout.strip().split(":") if answer is not None and answer.ok else []
    return fields[5] if len(fields) == 7 and fields[5].startswith("/") else None
