"""Functions and imports of the files next to a script. They are parsed, never imported.

from engine import evaluate       engine.py in the script's folder, or in one of the folders above it
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from ddp_doctor.features.lint.script import Script

_MOST_BYTES = 256 * 1024
_IMPORTS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)
#: Number of parent directories to search for the package that the script imports from.
_MOST_ABOVE = 3
_MOST_FILES = 50


def script_of(script: Script, name: str) -> Script | None:
    """Return the file next to a script that defines an imported function; None if there is none."""
    module, _, wanted = name.rpartition(".")
    found = next((_parsed(path, _changed(path)) for path in _files(script, module)), None)
    functions = found.tree.body if found else ()
    return found if any(isinstance(node, ast.FunctionDef) and node.name == wanted for node in functions) else None


def import_torch(script: Script) -> bool:
    """Return True if the script imports torch, or imports a file next to it that does."""
    if any(module.partition(".")[0] == "torch" for module in script.modules):
        return True
    files = (path for module in script.modules for path in _files(script, module, above=0))
    return any(_IMPORTS_TORCH.search(_text(path, _changed(path))) for path in files)


def is_imported_folder(script: Script) -> bool:
    """Return True if a file in the script's directory or its parent imports that directory as a package."""
    folder = Path(script.path).resolve().parent
    imports = re.compile(rf"^\s*(from|import)\s+{re.escape(folder.name)}[.\s]", re.MULTILINE)
    files = (path for place in (folder, folder.parent) for path in islice(sorted(place.glob("*.py")), _MOST_FILES))
    return any(imports.search(_text(path, changed)) for path in files if (changed := _changed(path)))


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


@lru_cache(maxsize=10)
def _parsed(path: Path, changed_ns: int) -> Script | None:
    text = _text(path, changed_ns)
    try:
        return Script(str(path), text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
