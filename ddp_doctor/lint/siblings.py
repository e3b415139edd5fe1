"""Functions and imports of the files next to a script. They are parsed, never imported.

from engine import evaluate       engine.py in the script's folder, or in one of the folders above it
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ddp_doctor.lint.script import Script

_MOST_BYTES = 256 * 1024
_IMPORTS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)
#: Folders above the script that may hold the package it imports from.
_MOST_ABOVE = 3


def function(script: Script, name: str) -> tuple[str, ast.FunctionDef] | None:
    """Return the file name and the definition of an imported function; None if it is not found next to the script."""
    module, _, wanted = name.rpartition(".")
    for path in _files(script, module):
        for node in _definitions(path, _changed(path)):
            if node.name == wanted:
                return path.name, node
    return None


def import_torch(script: Script) -> bool:
    """Return True if the script imports torch, or imports a file next to it that does."""
    if any(module.partition(".")[0] == "torch" for module in script.modules):
        return True
    files = (path for module in script.modules for path in _files(script, module, above=0))
    return any(_IMPORTS_TORCH.search(_text(path, _changed(path))) for path in files)


def _files(script: Script, module: str, above: int = _MOST_ABOVE) -> Iterator[Path]:
    relative = len(module) - len(module.lstrip("."))
    parts = [part for part in module.lstrip(".").split(".") if part]
    folder = Path(script.path).parent
    if not parts or not script.names_beside() or not all(part.isidentifier() for part in parts):
        return
    if relative:
        folder, above = folder.joinpath(*[".."] * (relative - 1)), 0
    for number in range(above + 1):
        path = folder.joinpath(*[".."] * number, *parts).with_suffix(".py")
        if _changed(path):
            yield path
            return


def _changed(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0
    return status.st_mtime_ns if path.is_file() and status.st_size < _MOST_BYTES else 0


@lru_cache(maxsize=100)
def _text(path: Path, _changed_ns: int) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@lru_cache(maxsize=20)
def _definitions(path: Path, changed_ns: int) -> tuple[ast.FunctionDef, ...]:
    try:
        tree = ast.parse(_text(path, changed_ns))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(node for node in tree.body if isinstance(node, ast.FunctionDef))
