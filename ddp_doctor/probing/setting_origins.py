"""Where the variables of this process come from, as far as /proc and the files of a login show.

    /proc/4711/stat        4711 (bash) S 4700 …            which process started which
    /proc/4711/environ     PATH=/bin\\0NCCL_DEBUG=INFO\\0    what a process was started with (proc(5)), and not what
                                                           it set itself: that stands in its children's
    /etc/environment       NCCL_DEBUG=INFO
    ~/.bashrc              export NCCL_DEBUG=INFO

A variable that a shell's child has and the shell itself was started without was set in that shell. Of processes
of other users only the name can be read. Only which names have the same value is recorded, no environment.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.facts.node.env_vars import Origin, SettingOrigins
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import names_in, text_of
from ddp_doctor.settings.names import is_recorded
from ddp_doctor.settings.text.setting_text import NoSettings, read_setting_text

#: Processes are not nested deeper; a cycle must end here.
_MOST_ANCESTORS = 32
#: Read where there is a HOME; those of a login shell and of any bash.
_IN_HOME = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zshenv", ".pam_environment")
_OF_SYSTEM = ("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
_PROFILES = "/etc/profile.d"
_MOST_PROFILES = 100
#: A longer start-up file is none that somebody wrote.
_LONGEST_FILE = 262_144

_STAT = re.compile(r"([0-9]{1,10}) \((.*)\) \S ([0-9]{1,10}) ", re.DOTALL)


class _Process(Frozen):
    pid: int
    name: str
    parent: int  # 0: the kernel, or somebody outside of this container
    env: Mapping[str, str] | None  # None: another user's


def setting_origins(ctx: Context) -> SettingOrigins:
    """Look at the ancestors of this process, and at the files of a login. Never fails."""
    env = {name: value for name, value in ctx.env.items() if is_recorded(name)}
    if not env:
        return SettingOrigins()
    ancestors = list(_ancestors(ctx))
    found = {name: _origin(name, value, ancestors) for name, value in env.items()}
    return SettingOrigins(
        origins={name: origin for name, origin in found.items() if origin is not None}, files=_login_files(ctx, env)
    )


def _ancestors(ctx: Context) -> Iterator[_Process]:
    own = stat_of(text_of(ctx, "/proc/self/stat") or "")
    for _ in range(_MOST_ANCESTORS):
        if own is None or own[2] == 0:
            return
        pid = own[2]
        own = stat_of(text_of(ctx, f"/proc/{pid}/stat") or "")
        if own is None:
            return
        environ = text_of(ctx, f"/proc/{pid}/environ")
        yield _Process(pid=pid, name=own[1], parent=own[2], env=environ_of(environ) if environ else None)


def stat_of(text: str) -> tuple[int, str, int] | None:
    """Number, name and parent's number of a process."""
    found = _STAT.match(text)
    return (int(found[1]), found[2], int(found[3])) if found else None


def environ_of(text: str) -> Mapping[str, str]:
    """The variables that matter in a process's environ."""
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if is_recorded(name)}


def _origin(name: str, value: str, ancestors: Sequence[_Process]) -> Origin | None:
    for process in ancestors:
        if process.env is None:
            return Origin(how="given", process=process.name, pid=process.pid)
        if process.env.get(name) != value:
            return Origin(how="set", process=process.name, pid=process.pid)
        if process.parent == 0:
            return Origin(how="first", process=process.name, pid=process.pid)
    return None


def _login_files(ctx: Context, env: Mapping[str, str]) -> dict[str, str]:
    """The first file of a login that gives a variable the value that it has."""
    found: dict[str, str] = {}
    home = ctx.env.get("HOME", "")
    in_home = [f"{home.rstrip('/')}/{name}" for name in _IN_HOME if home.startswith("/")]
    profiles = [f"{_PROFILES}/{name}" for name in names_in(ctx, _PROFILES) if name.endswith(".sh")]
    for path in (*in_home, *_OF_SYSTEM, *profiles[:_MOST_PROFILES]):
        text = text_of(ctx, path)
        if text and len(text) <= _LONGEST_FILE:
            for name, value, line in file_settings(text):
                if env.get(name) == value:
                    found.setdefault(name, f"{path}:{line}")
    return found


def file_settings(text: str) -> Iterator[tuple[str, str, int]]:
    """What a start-up file sets to a value that no shell is needed for: name, value, line."""
    try:
        written = read_setting_text(text).written
    except NoSettings:
        return
    for setting in written:
        if setting.value is not None and setting.depends_on is None and setting.void is None:
            yield setting.name, setting.value, setting.line
