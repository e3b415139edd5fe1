"""Which names and values a remedy may hand over to a shell.

A value that does not print (a newline, an escape, what turns text around) is refused, not quoted: no setting
needs it, and people read these lines before they paste them. So are the shell's own variables.
"""

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}")
#: What bash will not have set, and what makes a shell, the loader or Python run something else.
_NOT_FOR_JOBS = {
    *("_", "BASHOPTS", "BASH_ENV", "BASH_VERSINFO", "ENV", "EUID", "GROUPS", "IFS", "LD_AUDIT", "LD_PRELOAD"),
    *("PATH", "PPID", "PROMPT_COMMAND", "PS1", "PS2", "PS4", "PYTHONSTARTUP", "SHELLOPTS", "UID"),
}
#: The kernel takes 128 KiB; what is longer than a path is a mistake or an attack.
_LONGEST_VALUE = 4096


def why_not(name: str, value: str | None) -> str:
    """Why this variable is not handed over; empty where it can be. A value of None unsets it."""
    if not _NAME.fullmatch(name) or name in _NOT_FOR_JOBS:
        return "its name is not that of a job's variable"
    if value is not None and not value.isprintable():
        return "its value holds characters that do not print"
    if value is not None and len(value) > _LONGEST_VALUE:
        return f"its value has {len(value)} characters"
    return ""


def is_host(name: str) -> bool:
    """Whether this can be a host's name."""
    return _HOST.fullmatch(name) is not None
