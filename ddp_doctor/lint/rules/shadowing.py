"""A rule on what lies beside a script.

train.py
random.py      `import random` means this file, in the script and in torch
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ddp_doctor.knowledge.import_path import TORCH, hidden_modules
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.model.choices import Severity


def _trains(script: Script) -> bool:
    return script.is_distributed or bool(script.libraries)


@lint_rule("DDL170", "module-hidden-by-a-file", Severity.ERROR, concerns=_trains)
def hidden_by_a_file(script: Script) -> Iterator[Spot]:
    """A file beside the script has the name of a module that torch needs, and is imported in its place.

    What it finds
        A `torch.py`, `random.py`, `logging.py` or another file or package with the name of torch, or of a module of
        Python without which torch does not come up, in the script's folder; the script itself may be that file. Silent
        in folders with an `__init__.py`, whose modules are imported under the package's name.

    Why it matters
        `torchrun train.py` and `python train.py` search the script's folder first. All ranks end in their first import
        of torch: "cannot import name 'Random' from 'random'", "'torch' is not a package".

    Remedy
        Rename the file, and remove what `__pycache__` kept of it.

    References
        https://docs.python.org/3/library/sys_path_init.html
    """
    names = script.names_beside()
    if Path(script.path).name not in names or "__init__.py" in names:
        return
    for module, file in hidden_modules(names, script.names_beside).items():
        whose = TORCH if module == TORCH else f"Python's own {module}"
        yield Spot(
            _import_of(script, module),
            f"{file} in this folder is imported in place of {whose}: torch cannot be imported",
            remedy=f"Rename {file}",
            cost="What imports that file has to name it anew",
        )


def _import_of(script: Script, module: str) -> ast.AST:
    """The statement that imports a module; where there is none, the first import."""
    imports = [node for node in script.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        named = (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
        if any(name.partition(".")[0] == module for name in named):
            return node
    return imports[0] if imports else script.tree
