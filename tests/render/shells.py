"""Real shells that source ddp-doctor's output, in a directory that shows whether they ran more."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.waiting import LIMIT_S

#: dash represents every plain sh; zsh is used if installed.
SHELLS = tuple(shell for shell in ("bash", "dash", "zsh") if shutil.which(shell))
#: Variables that shells set themselves.
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
    """Return the environment after sourcing each of the texts in one shell, as ``then`` prints it.

    ``host`` is the machine's host name. Raises AssertionError if the shell prints anything, or leaves anything in its
    directory.
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
