"""The origin of this process's variables, as far as /proc and the login files show it.

    /proc/4711/stat        4711 (bash) S 4700 …            PID, name and parent PID
    /proc/4711/environ     PATH=/bin\\0NCCL_DEBUG=INFO\\0    its initial environment (proc(5)); variables that it sets
                                                           itself appear only in its children's environ
    /etc/environment       NCCL_DEBUG=INFO
    ~/.bashrc              export NCCL_DEBUG=INFO

If a variable is in a shell's child but not in the shell's initial environment, it was set in that shell. For processes
of other users, only the name can be read. Only the names with equal values are recorded, not the environment.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.facts.node.env_vars import Origin, SettingOrigins
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import names_in, text_of
from ddp_doctor.settings.names import is_recorded
from ddp_doctor.settings.text.setting_text import NoSettings, read_setting_text

#: Maximum depth of process nesting, to stop at a cycle.
_MOST_ANCESTORS = 32
#: Start-up files of login shells and of any bash, read if HOME is set.
_IN_HOME = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zshenv", ".pam_environment")
_OF_SYSTEM = ("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
_PROFILES = "/etc/profile.d"
_MOST_PROFILES = 100
#: Maximum size of a start-up file that a person wrote.
_LONGEST_FILE = 262_144

_STAT = re.compile(r"([0-9]{1,10}) \((.*)\) \S ([0-9]{1,10}) ", re.DOTALL)


class _Process(Frozen):
    pid: int
    name: str
    parent: int  # 0: the kernel, or a process outside this container
    env: Mapping[str, str] | None  # None: belongs to another user


def setting_origins(ctx: Context) -> SettingOrigins:
    """Inspect the ancestors of this process, and the login files. Never fails."""
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
    """Return a process's PID, name and parent PID."""
    found = _STAT.match(text)
    return (int(found[1]), found[2], int(found[3])) if found else None


def environ_of(text: str) -> Mapping[str, str]:
    """Return the recorded variables in a process's environ."""
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
    """Return the first login file and line that sets each variable to its current value."""
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
    """Yield the settings of a start-up file whose value does not depend on a shell: name, value, line."""
    try:
        written = read_setting_text(text).written
    except NoSettings:
        return
    for setting in written:
        if setting.value is not None and setting.depends_on is None and setting.void is None:
            yield setting.name, setting.value, setting.line
