"""nccl.conf: which files there are, and what they say."""

import re

from ddp_doctor.facts.node.nccl import ConfFile, Reason
from ddp_doctor.model.context import Context
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld
from ddp_doctor.settings.nccl_conf import MOST_LINES, SYSTEM_FILE, conf_lines

_UID = re.compile(r"^Uid:[ \t]+([0-9]{1,10})\b", re.MULTILINE)


def conf_files(ctx: Context) -> tuple[ConfFile, ...]:
    """The files that are there, and one that is named and is not.

    Without HOME, as in a prolog, whose user is not the job's, only the system's is looked at.
    """
    named, home = ctx.env.get("NCCL_CONF_FILE"), ctx.env.get("HOME")
    users: dict[str, Reason] = {}
    if home and named:
        users[named] = "named"
    elif home:
        passwd_home = _passwd_home(ctx) or home
        users[f"{passwd_home}/.nccl.conf"] = "passwd"
        users[f"{home}/.nccl.conf"] = "user" if passwd_home == home else "home"
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
