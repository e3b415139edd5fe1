"""Real shells that source what the doctor wrote, in a folder where it would be seen if they ran more."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.waiting import LIMIT_S

#: dash stands in for every plain sh; zsh is there where it is installed.
SHELLS = tuple(shell for shell in ("bash", "dash", "zsh") if shutil.which(shell))
#: What shells set by themselves.
_THEIR_OWN = ("_", "HOME", "LOGNAME", "OLDPWD", "PWD", "SHLVL")


def environment(shell: str, text: str, folder: Path, *, host: str = "") -> dict[str, str]:
    return environments(shell, [text], folder, host=host)[0]


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / "tools" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def environments(
    shell: str,
    texts: Sequence[str],
    folder: Path,
    *,
    host: str = "",
    then: str = "env -0",
    before: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """The environment after sourcing each of the texts, all in one shell, as ``then`` prints it.

    ``host`` is what the machine calls itself. Raises AssertionError where the shell says anything, or
    leaves anything in its folder.
    """
    inputs, empty = folder / "in", folder / "empty"
    for made in (inputs, empty):
        made.mkdir(exist_ok=True)
    if host:
        tool(folder, "uname", f"echo {host}")
    for number, text in enumerate(texts):
        (inputs / str(number)).write_text(text, encoding="utf-8")
    lines = [f"( . {inputs}/{number}; {then}; printf '\\0' )" for number in range(len(texts))]
    done = subprocess.run(
        (shell, "-s"),
        input="\n".join(lines).encode(),
        check=True,
        capture_output=True,
        cwd=empty,
        env={"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", **(before or {})},
        timeout=LIMIT_S,
    )
    assert done.stderr == b""
    assert list(empty.iterdir()) == []
    found = [_read(one) for one in done.stdout.decode("utf-8", "surrogateescape").split("\0\0")[:-1]]
    assert len(found) == len(texts)
    return [{name: value for name, value in one.items() if name != "PATH"} for one in found]


def _read(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split("\0"))
    return {name: value for name, _, value in pairs if name and name not in _THEIR_OWN}
