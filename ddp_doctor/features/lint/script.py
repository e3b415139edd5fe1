"""A script for the rules: its calls in execution order, their receivers, and its kind."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path

from ddp_doctor.features.lint import names
from ddp_doctor.features.lint.scopes import Class
from ddp_doctor.features.lint.trace import Trace
from ddp_doctor.features.lint.values import FIELDS, Call, Value

#: The start of a module's name, and the library's usual name.
_LIBRARIES = {
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "lightning_fabric": "Lightning",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
    "transformers.Trainer": "transformers.Trainer",
    "transformers.trainer": "transformers.Trainer",
    "transformers.Seq2SeqTrainer": "transformers.Trainer",
    "trl": "TRL",
    "composer": "Composer",
    "ignite.distributed": "Ignite",
    "colossalai": "Colossal-AI",
    "fairscale": "FairScale",
    "ray.train": "Ray Train",
    "smdistributed": "SageMaker",
    "bagua": "Bagua",
    "catalyst": "Catalyst",
    "mmengine": "MMEngine",
    "mmcv.runner": "MMCV",
    "detectron2.engine": "Detectron2",
    "torch_xla": "PyTorch/XLA",
    "oneflow": "OneFlow",
    "paddle": "Paddle",
    "mindspore": "MindSpore",
    "jax": "JAX",
    "byteps": "BytePS",
    "patrickstar": "PatrickStar",
    "megatron": "Megatron",
    "torchtnt": "TorchTNT",
}


#: Parts of these libraries that scripts use under DDP, and that do not wrap anything.
_PARTS = ("fairscale.optim", "deepspeed.ops")


@lru_cache(maxsize=4)  # of all scripts in the directory
def _names_in(folder: Path, _changed_ns: int) -> frozenset[str]:
    return frozenset(entry.name for entry in os.scandir(folder))


def words(nodes: Iterable[ast.AST]) -> str:
    """Return the names among these nodes, and the strings without a space, one per line."""
    found = {getattr(node, _NAMED[type(node)]) for node in nodes if type(node) in _NAMED}
    return "\n".join(text for text in found if isinstance(text, str) and " " not in text and "\n" not in text)


#: The attribute with the name of a node. An import does not use the imported names.
_NAMED: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.Constant: "value",
    ast.keyword: "arg",
    ast.arg: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
}


#: Maximum number of wrapped models; rules compare each with all calls before it.
_MOST_WRAPS = 50


class Script:
    """A parsed file. Rules query it instead of walking the tree again."""

    def __init__(self, path: str, source: str, tree: ast.Module) -> None:
        self.path = path
        self.source = source
        self.tree = tree
        trace = Trace(tree)
        self.calls = tuple(trace.calls)
        self.assignments = tuple(trace.assignments)
        self.delegated = tuple(trace.delegated)
        self.classes = tuple(trace.classes)
        self.leaves = tuple(trace.leaves)
        self.instances: Mapping[Value, Class] = trace.instances
        self.parameters: Mapping[Value, tuple[Value, Value]] = trace.parameters
        self.modules = frozenset(trace.modules)  # also the names imported from them
        self.has_unknown_star = trace.has_unknown_star
        self.forwards: dict[Value, list[Call]] = {}  # results of training.forwards_in
        self._ddp: dict[Value, bool] = {}  # results of is_ddp

    def names_beside(self, folder: str = "") -> frozenset[str]:
        """Return the names in the script's directory or one below it; empty if it cannot be read."""
        beside = Path(self.path).parent / folder
        try:
            return _names_in(beside, beside.stat().st_mtime_ns)
        except (OSError, ValueError):
            return frozenset()

    @cached_property
    def lines(self) -> list[str]:
        """The lines as the parser counts them."""
        return self.source.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """Return statements, expressions and parameters, outer ones first; takes a third of ast.walk's time."""
        found: list[ast.AST] = [self.tree]
        for node in found:  # grows during the loop
            has = vars(node).get  # takes two thirds of getattr's time
            for name in FIELDS[type(node)]:
                child = has(name)
                if type(child) is list:
                    found += [part for part in child if isinstance(part, ast.AST)]
                elif isinstance(child, ast.AST):
                    found.append(child)
        return found

    @cached_property
    def texts(self) -> frozenset[str]:
        """Return the strings in it, except for docstrings and other standalone strings."""
        documents, found = set[int](), set[str]()
        for node in self.nodes:
            if isinstance(node, ast.Expr):
                documents.add(id(node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                found.add(node.value)
        return frozenset(found)

    def uses(self, *parts: str) -> bool:
        """Return True if one of these is part of a name in the script, or of a string without a space.

        Comments, imports and sentences do not count. Checking the source first avoids a search of the words.
        """
        return any(part in self.source and part in self._words for part in parts)

    def uses_in_any_case(self, *parts: str) -> bool:
        """Do the same for lowercase parts, ignoring the case of the script."""
        return any(part in self._lowered and part in self._words.lower() for part in parts)

    @cached_property
    def _lowered(self) -> str:
        return self.source.lower()

    @cached_property
    def _words(self) -> str:
        return words(self.nodes)

    @cached_property
    def assigned_in(self) -> dict[int, ast.Assign]:
        """The assignment on each line; if there are several, the first one that ran."""
        found: dict[int, ast.Assign] = {}
        nodes = dict.fromkeys(assignment.node for assignment in self.assignments)
        for node in nodes:
            if isinstance(node, ast.Assign):
                for line in range(node.lineno, (node.end_lineno or 0) + 1):
                    found.setdefault(line, node)
        return found

    @cached_property
    def libraries(self) -> frozenset[str]:
        """The libraries between the script and DDP: Accelerate, Lightning, DeepSpeed and others."""
        begins = set[str]()
        for module in self.modules:
            if module.startswith(_PARTS):
                continue
            while module and module not in begins:
                begins.add(module)
                module = module.rpartition(".")[0]  # noqa: PLW2901 - the module around it
        return frozenset(name for prefix, name in _LIBRARIES.items() if prefix in begins)

    @cached_property
    def _by_name(self) -> Mapping[str, list[Call]]:
        found = defaultdict[str, list[Call]](list)
        for call in self.calls:
            found[call.name or f".{call.method}"].append(call)
        return found

    def named(self, *full_names: str) -> Iterator[Call]:
        """Yield the calls of functions and classes by their canonical names (lint/names.py)."""
        for name in full_names:
            yield from self._by_name.get(name, ())

    def calls_any(self, *full_names: str) -> bool:
        """Return True if it calls one of these."""
        return any(name in self._by_name for name in full_names)

    def methods(self, *method_names: str) -> Iterator[Call]:
        """Yield the calls of methods with these names on any value."""
        for name in method_names:
            yield from self._by_name.get(f".{name}", ())

    @cached_property
    def wraps(self) -> tuple[Call, ...]:
        """The calls that wrap a model in DistributedDataParallel; only the first ones in a generated script."""
        return tuple(islice(self.named(names.DDP), _MOST_WRAPS))

    @cached_property
    def launches(self) -> tuple[Call, ...]:
        """The calls that start the ranks: spawn, and calls that start the processes of a group."""
        spawns = self.named(names.SPAWN, "torch.multiprocessing.start_processes")
        return (*spawns, *(call.place.launch for call in self.named(names.INIT) if call.place.launch))

    @cached_property
    def is_distributed(self) -> bool:
        """Return True if the script belongs to a distributed job: it wraps a model or starts a process group."""
        return self.calls_any(names.DDP, names.INIT, *names.FSDP)

    def is_ddp(self, value: Value) -> bool:
        """Return True if a value is, or may be, a model wrapped in DistributedDataParallel."""
        if value.kind not in ("choice", "call"):
            return False
        if value not in self._ddp:
            self._ddp[value] = any(made.name == names.DDP for made in value.makers())
        return self._ddp[value]
