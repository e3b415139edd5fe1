"""Finds and reads the module of ``--model MODULE:FACTORY`` without running any of its code.

A run imports the module only on its ranks, after all other checks. Faults that are certain are reported earlier: there
is no such module, it is not valid Python, or it does not contain the factory's name. Faults that only an import can
show are left to the ranks.
"""

import ast
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ddp_doctor.model.error_text import did_you_mean, quoted

#: Code that uses one of these may make names that no line binds, or modules that have no file.
_DYNAMIC = {
    "globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__getattr__", "__path__",
    "meta_path", "path_hooks", "extend_path", "import_module", "__import__",
}  # fmt: skip


def problem(name: str) -> str | None:
    """Return why no rank can use the model, in a sentence, or None if that is uncertain."""
    module, _, path = name.partition(":")
    try:
        found = _find_module(module)
        if isinstance(found, str):
            return found
        return _lacks(found, path.partition(".")[0])
    except Exception:  # noqa: BLE001 - finders and files of others; the ranks report their errors
        return None


def _find_module(module: str) -> ModuleSpec | str:
    """Return the module's spec, or a sentence that it does not exist. Raises LookupError if that is uncertain."""
    here = str(Path.cwd())
    parent: ModuleSpec | None = None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        full = ".".join(parts[:number])
        spec = _spec(full, here, parent)
        if spec is None:
            if parent is not None:  # it may have modules outside its directories; without a file it has no code
                source = _source(parent) if parent.loader is not None else ""
                if source is None or _DYNAMIC.intersection(_words(ast.parse(source))):
                    raise LookupError(full)
            return f"found no module {quoted(full)} in {quoted(here)} or on the Python path"
        parent = spec
    assert parent is not None
    return parent


def _spec(full: str, here: str, parent: ModuleSpec | None) -> ModuleSpec | None:
    """Find a module as ``import`` would on a rank, which puts the working directory first."""
    places = None
    if parent is not None:
        if parent.submodule_search_locations is None:
            return None  # not a package
        places = list(parent.submodule_search_locations)
    elif (spec := PathFinder.find_spec(full, [here])) is not None:
        return spec
    finders = (finder.find_spec(full, places) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in finders if spec is not None), None)


def _source(spec: ModuleSpec) -> str | None:
    read = getattr(spec.loader, "get_source", None)
    source = read(spec.name) if read is not None else None
    return source if isinstance(source, str) else None


def _lacks(spec: ModuleSpec, wanted: str) -> str | None:
    source = _source(spec)
    if source is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, spec.origin or "", "exec", dont_inherit=True)  # compiles the code without running it
            tree = ast.parse(source)
    except SyntaxError as error:
        return f"{spec.origin}:{error.lineno} is not valid in Python {sys.version.split()[0]}: {error.msg}"
    bound = {*_bound_names(tree)}
    if wanted in bound or "*" in bound or _DYNAMIC.intersection(_words(tree)):
        return None
    near = did_you_mean(wanted, [name for name in bound if not name.startswith("_")])
    return f"{spec.origin} has no function {quoted(wanted)}{near and f'; {near}'}"


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield every name that any line binds, and every part of the name of an imported module."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.alias():
                yield from (node.asname or node.name).split(".")
            case ast.ImportFrom():
                yield from (node.module or "").split(".")
            case ast.MatchAs() | ast.MatchStar() | ast.ExceptHandler():
                yield node.name or ""
            case ast.MatchMapping():
                yield node.rest or ""


def _words(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.alias):
            yield node.name
