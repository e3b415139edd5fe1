"""Models that a script defines: their submodules, and whether the forward pass always uses them.

class Net(nn.Module):
    def __init__(self):
        self.left = nn.Linear(4, 2)        a submodule with parameters, in line 3
    def forward(self, x, task):
        if task == "left":                 a branch on what the caller gives
            return self.left(x)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from ddp_doctor.features.lint.chance import flags, is_drawn
from ddp_doctor.features.lint.script import Script, words
from ddp_doctor.features.lint.values import Call, Place, Value, written

#: Layers of torch.nn that have parameters.
LAYERS = re.compile(
    r"^torch\.nn\.(Linear|Bilinear|Conv(Transpose)?[123]d|BatchNorm[123]d|LayerNorm|GroupNorm|Embedding|EmbeddingBag|"
    r"RNN|LSTM|GRU|MultiheadAttention|Transformer\w*)$"
)
_LISTS = ("torch.nn.ModuleList", "torch.nn.ModuleDict")
_PICKS = re.compile(r"\b(choice|choices|sample)$")
#: Attributes that move a tensor or return its device.
_PLACES = ("to", "cuda", "type_as", "device")
#: Code that reads submodules without naming them.
_INDIRECT = re.compile(
    r"^(getattr|modules|jit|apply)$|_modules|children$|^named_|__dict__|checkpoint|register_", re.MULTILINE
)


@dataclass
class Module:
    """A class of the script that is only a torch.nn.Module."""

    definition: ast.ClassDef
    forward: ast.FunctionDef
    made: tuple[Call, ...]  # the calls in its constructor
    layers: dict[str, Value] = field(default_factory=dict)  # submodules with parameters, by attribute
    lists: dict[str, Value] = field(default_factory=dict)  # ModuleLists and ModuleDicts
    chances: frozenset[int | str] = frozenset()  # random calls of the forward, and names of their results
    flags: Mapping[str, bool] = field(default_factory=dict)  # the result of chance.flags

    @property
    def is_whole(self) -> bool:
        """Return True if all its submodules are torch's own layers or classes of the script."""
        known = ("super", "range", "len", "int")
        return all(
            call.name.startswith("torch.") or call.local is not None or call.method or call.name in known
            for call in self.made
        )

    @property
    def optional(self) -> frozenset[str]:
        """The parameters of the forward that have a default."""
        arguments = self.forward.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        behind = names[len(names) - len(arguments.defaults) :]
        return frozenset((*behind, *(argument.arg for argument in arguments.kwonlyargs)))

    @property
    def given(self) -> frozenset[str]:
        """The parameters of the forward that every caller gives."""
        arguments = self.forward.args
        return frozenset(argument.arg for argument in (*arguments.posonlyargs, *arguments.args)[1:]) - self.optional


def wrapped_modules(script: Script, wrap: Call) -> list[Module]:
    """Return the classes in a wrapped model, if the script defines all of them; otherwise an empty list."""
    objects = list(wrap.argument(0, "module").objects())
    found: dict[int, Module] = {}
    waiting = [made.local for made in objects if isinstance(made, Call) and isinstance(made.local, ast.ClassDef)]
    if len(waiting) != len(objects):
        return []
    while waiting:
        definition = waiting.pop()
        if id(definition) in found:
            continue
        module = _module(script, definition)
        if module is None:
            return []
        found[id(definition)] = module
        waiting += [call.local for call in module.made if isinstance(call.local, ast.ClassDef)]
    return list(found.values())


def _module(script: Script, definition: ast.ClassDef) -> Module | None:
    cls = next((cls for cls in script.classes if cls.node is definition), None)
    forward = next((method for method in _methods(definition) if method.name == "forward"), None)
    if cls is None or forward is None or not cls.parts or any(base.name != "torch.nn.Module" for base in cls.parts):
        return None
    if any(cls in base.parts for base in script.classes):
        return None  # another class extends this one
    made = tuple(call for call in script.calls if _is_built_by(definition, call.place))
    module = Module(definition, forward, made)
    for assignment in script.assignments:
        if not _is_built_by(definition, assignment.place) or not is_own_attribute(assignment.target):
            continue
        value = assignment.value
        part = value.local if isinstance(value, Call) else None
        has_layers = isinstance(part, ast.ClassDef) and any(
            _is_layer(inner.value) and is_own_attribute(inner.target)
            for inner in script.assignments
            if inner.place.cls is part
        )
        if has_layers or _is_layer(value):
            module.layers.setdefault(assignment.name, value)
        elif value.name in _LISTS and any(
            _is_layer(call) or isinstance(call.local, ast.ClassDef) for call in value.calls()
        ):
            module.lists.setdefault(assignment.name, value)
    return module


def _methods(definition: ast.ClassDef) -> list[ast.FunctionDef]:
    return [method for method in definition.body if isinstance(method, ast.FunctionDef)]


def _is_built_by(definition: ast.ClassDef, place: Place) -> bool:
    """Return True for a place in the constructor of a class."""
    return place.cls is definition and getattr(place.function, "name", "") == "__init__"


def _is_layer(value: Value) -> bool:
    """Return True if the value has parameters: a layer of torch.nn, or a Sequential that contains one."""
    if not isinstance(value, Call):
        return False
    return bool(LAYERS.match(value.name)) or (
        value.name == "torch.nn.Sequential" and not value.method and any(map(_is_layer, value.args))
    )


def is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """``self.layer``."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


class Use(NamedTuple):
    """A place where a class reads or binds one of its attributes."""

    is_in_init: bool
    is_operand: bool  # operand of an operator, or argument of a method or of a function of a module
    is_moved: bool  # ``self.mask.to(x)``
    is_rebound: bool


def uses(definition: ast.ClassDef, name: str) -> Iterator[Use]:
    """Yield the places where a class uses ``self.name``, except assignments and appended values in ``__init__``."""
    for method in _methods(definition):
        is_init = method.name == "__init__"
        for node in ast.walk(method):
            for child in ast.iter_child_nodes(node):
                if not is_own_attribute(child) or child.attr != name:
                    continue
                if is_init and (isinstance(child.ctx, ast.Store) or getattr(node, "attr", "") == "append"):
                    continue
                is_argument = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and child in node.args
                yield Use(
                    is_init,
                    isinstance(node, ast.BinOp) or is_argument,
                    isinstance(node, ast.Attribute) and node.attr in _PLACES,
                    isinstance(child.ctx, ast.Store),
                )


def reads_indirectly(script: Script, module: Module) -> bool:
    """Return True if submodules may be used or frozen without their names in the script."""
    definition = module.definition
    return bool(_INDIRECT.search(words(ast.walk(definition)))) or script.uses("requires_grad")


def has_branches(module: Module) -> bool:
    """Return True if any method except the constructor branches."""
    methods = [method for method in _methods(module.definition) if method.name != "__init__"]
    decisions = (ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.BoolOp)
    return any(isinstance(node, decisions) for method in methods for node in ast.walk(method))


def never_used(script: Script, module: Module) -> Iterator[Value]:
    """Return the layers whose attribute nothing in the file reads."""
    read = {node.attr for node in script.nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    return (layer for name, layer in module.layers.items() if name not in read)


def sometimes_used(script: Script, module: Module) -> Iterator[Value]:
    """Return the layers that the forward uses only under a condition on its input, or randomly."""
    module.chances = frozenset(_by_chance(script, module))
    known = dict(flags(script, module.definition, module.forward.args))
    decided = (ast.BoolOp, ast.Compare, ast.UnaryOp)
    for node in ast.walk(module.forward) if known else ():  # ``deep = flag and self.training``
        if isinstance(node, ast.Assign) and isinstance(node.value, decided) and _asks(known, node.value):
            known |= {target.id: False for target in node.targets if isinstance(target, ast.Name)}
    module.flags = known
    always = _surely_used(module, module.forward.body)
    for method in _methods(module.definition):
        if method is not module.forward and method.name != "__init__":
            always |= _attributes(method)
    sometimes = (_attributes(module.forward) - always) | _picked(module)
    return (layer for name, layer in (*module.layers.items(), *module.lists.items()) if name in sometimes)


def _by_chance(script: Script, module: Module) -> Iterator[int | str]:
    """Yield the nodes of calls in the forward that are random or depend on the rank, and the names of their results."""
    calls = {id(call.node) for call in script.calls if call.place.function is module.forward and is_drawn(call)}
    yield from calls
    own, held = module.given | module.optional, set[str]()
    for node in ast.walk(module.forward) if calls else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        parts = list(ast.walk(node.value))
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        if (used & held or any(id(part) in calls for part in parts)) and not used & (own - held):
            held.add(node.targets[0].id)  # except ``x = x + torch.randn_like(x)``
        own |= {node.targets[0].id}
    yield from held


def _is_chance(module: Module, node: ast.AST) -> bool:
    return any(
        id(part) in module.chances or (isinstance(part, ast.Name) and part.id in module.chances)
        for part in ast.walk(node)
    )


def _picked(module: Module) -> set[str]:
    """Return submodules that the forward picks at random: ``random.choice(self.layers)``, ``self.layers[random...]``.

    Includes those skipped at random: ``for layer in self.layers: if random.random() < 0.1: continue``.
    """
    found = set[str]()
    for node in ast.walk(module.forward) if module.chances or module.flags else ():
        if isinstance(node, ast.Subscript) and is_own_attribute(node.value):
            asked = {part.id for part in ast.walk(node.slice) if isinstance(part, ast.Name)}
            if _is_chance(module, node.slice) or asked & set(module.flags):
                found |= _attributes(node.value)
        elif isinstance(node, ast.Call) and id(node) in module.chances and _PICKS.search(written(node.func)):
            called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
            found |= {part.attr for part in ast.walk(node) if is_own_attribute(part) and id(part) not in called}
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            tests = (part for part in node.body if isinstance(part, ast.If) and _is_chance(module, part.test))
            if any(_decides_on_layer(test, node.target.id) for test in tests):
                found |= _attributes(node.iter)
    return found


def _decides_on_layer(test: ast.If, layer: str) -> bool:
    calls = [
        any(
            isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == layer
            for statement in branch
            for part in ast.walk(statement)
        )
        for branch in (test.body, test.orelse)
    ]
    return isinstance(test.body[-1], ast.Continue) or calls[0] != calls[1]


def _surely_used(module: Module, statements: list[ast.stmt]) -> set[str]:
    """Return the attributes that every path through the statements uses, however the model was built."""
    used = set[str]()
    for number, statement in enumerate(statements):
        if not isinstance(statement, ast.If) or not _is_on_the_input(module, statement.test):
            used |= _used_in(module, statement)
            continue
        ways = []
        for body in (statement.body, statement.orelse):
            leaves = bool(body) and isinstance(body[-1], ast.Return | ast.Raise)
            ways.append(_surely_used(module, body if leaves else [*body, *statements[number + 1 :]]))
        return used | _attributes(statement.test) | (ways[0] & ways[1])
    return used


def _used_in(module: Module, node: ast.AST) -> set[str]:
    """Return the attributes that an expression or statement always uses; for two branches, the attributes in both."""
    if isinstance(node, ast.IfExp) and _is_on_the_input(module, node.test):
        return _used_in(module, node.test) | (_used_in(module, node.body) & _used_in(module, node.orelse))
    used = {node.attr} if is_own_attribute(node) else set[str]()
    return used.union(*(_used_in(module, child) for child in ast.iter_child_nodes(node)))


def _is_on_the_input(module: Module, test: ast.expr) -> bool:
    """Return True for ``task == "left"`` or ``random.random() < 0.5``, which may differ between steps and ranks."""
    if _is_chance(module, test) or _asks(module.flags, test):
        return True
    if not isinstance(test, ast.Compare) or len(test.comparators) != 1 or isinstance(test.ops[0], ast.Is | ast.IsNot):
        return False
    left, right = test.left, test.comparators[0]
    is_given = isinstance(left, ast.Name) and left.id in module.given
    return is_given and isinstance(right, ast.Constant) and isinstance(right.value, str | int)


def _asks(flags: Mapping[str, bool], test: ast.expr) -> bool:
    """Return True if a test depends on a flag: ``if flag``, ``if self.training and not flag``, ``if flag == 1``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot):
        return isinstance(test.left, ast.Name) and flags.get(test.left.id, False)
    if isinstance(test, ast.Compare | ast.BoolOp):
        operands = test.values if isinstance(test, ast.BoolOp) else [test.left, *test.comparators]
        return any(_asks(flags, operand) for operand in operands)
    if isinstance(test, ast.UnaryOp):
        return _asks(flags, test.operand)
    return isinstance(test, ast.Name) and test.id in flags


def _attributes(node: ast.AST) -> set[str]:
    return {part.attr for part in ast.walk(node) if is_own_attribute(part)}
