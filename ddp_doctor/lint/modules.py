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
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddp_doctor.lint.script import Script, words
from ddp_doctor.lint.values import Call, Value

#: Layers of torch.nn that have parameters.
_LAYERS = re.compile(
    r"^torch\.nn\.(Linear|Bilinear|Conv(Transpose)?[123]d|BatchNorm[123]d|LayerNorm|GroupNorm|Embedding|EmbeddingBag|"
    r"RNN|LSTM|GRU|MultiheadAttention|Transformer\w*)$"
)
#: Code that reads submodules without naming them.
_INDIRECT = re.compile(
    r"^(getattr|modules|jit|apply)$|_modules|children$|^named_|__dict__|checkpoint|register_", re.MULTILINE
)


@dataclass
class Module:
    """One class of the script that is a torch.nn.Module and nothing else."""

    definition: ast.ClassDef
    forward: ast.FunctionDef
    layers: dict[str, Value] = field(default_factory=dict)  # submodules with parameters, by attribute
    is_whole: bool = True  # all its submodules are torch's own layers

    @property
    def optional(self) -> frozenset[str]:
        """Parameters of the forward that have a default."""
        arguments = self.forward.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        behind = names[len(names) - len(arguments.defaults) :]
        return frozenset((*behind, *(argument.arg for argument in arguments.kwonlyargs)))

    @property
    def given(self) -> frozenset[str]:
        """Parameters of the forward that every caller gives."""
        arguments = self.forward.args
        return (
            frozenset(argument.arg for argument in (*arguments.posonlyargs, *arguments.args)[1:])
            - self.optional
        )


def wrapped_modules(script: Script, wrap: Call) -> list[Module]:
    """The classes that a wrapped model is made of, if the script defines all of them; else nothing."""
    model = wrap.argument(0, "module")
    made = list(model.objects()) if model is not None else []
    found: dict[int, Module] = {}
    waiting = [call.local for call in made if isinstance(call, Call) and isinstance(call.local, ast.ClassDef)]
    if len(waiting) != len(made):
        return []
    while waiting:
        definition = waiting.pop()
        if id(definition) in found:
            continue
        module = _module(script, definition)
        if module is None:
            return []
        found[id(definition)] = module
        waiting += [
            call.local for call in _made_in(script, definition) if isinstance(call.local, ast.ClassDef)
        ]
    return list(found.values())


def _module(script: Script, definition: ast.ClassDef) -> Module | None:
    cls = next((cls for cls in script.classes if cls.node is definition), None)
    forward = next(
        (
            function
            for function in definition.body
            if isinstance(function, ast.FunctionDef) and function.name == "forward"
        ),
        None,
    )
    if (
        cls is None
        or forward is None
        or not cls.parts
        or any(base.name != "torch.nn.Module" for base in cls.parts)
    ):
        return None
    if any(cls in base.parts for base in script.classes):
        return None  # another class goes on where this one ends
    module = Module(definition, forward)
    for assignment in script.assignments:
        is_built = assignment.place.cls is definition and _function(assignment.place.function) == "__init__"
        if is_built and _is_own_attribute(assignment.target) and _is_layer(assignment.value):
            module.layers.setdefault(assignment.name, assignment.value)
    module.is_whole = all(
        call.name.startswith("torch.")
        or call.local is not None
        or call.method
        or call.name in ("super", "range", "len", "int")
        for call in _made_in(script, definition)
    )
    return module


def _made_in(script: Script, definition: ast.ClassDef) -> Iterator[Call]:
    return (
        call
        for call in script.calls
        if call.place.cls is definition and _function(call.place.function) == "__init__"
    )


def _is_layer(value: Value) -> bool:
    """Whether it has parameters: a layer of torch.nn, or a Sequential that names one."""
    if not isinstance(value, Call):
        return False
    return bool(_LAYERS.match(value.name)) or (
        value.name == "torch.nn.Sequential" and not value.method and any(map(_is_layer, value.args))
    )


def _function(node: ast.AST | None) -> str:
    return getattr(node, "name", "")


def _is_own_attribute(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and _is_self(target.value)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def reads_indirectly(script: Script, module: Module) -> bool:
    """Whether submodules may be used or frozen without being named."""
    definition = module.definition
    return bool(_INDIRECT.search(words(ast.walk(definition)))) or "requires_grad" in script.words


def has_branches(module: Module) -> bool:
    """Whether any method decides anything, apart from how the model is built."""
    methods = [
        function
        for function in module.definition.body
        if isinstance(function, ast.FunctionDef) and function.name != "__init__"
    ]
    decisions = (ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.BoolOp)
    return any(isinstance(node, decisions) for method in methods for node in ast.walk(method))


def never_used(script: Script, module: Module) -> Iterator[Value]:
    """Layers whose attribute nothing in the file reads."""
    read = {
        node.attr
        for node in script.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    return (layer for name, layer in module.layers.items() if name not in read)


def sometimes_used(module: Module) -> Iterator[Value]:
    """Layers that the forward uses under a condition on its input only."""
    always = _surely_used(module, module.forward.body)
    for method in module.definition.body:
        if method is not module.forward and isinstance(method, ast.FunctionDef) and method.name != "__init__":
            always |= _attributes(method)
    sometimes = _attributes(module.forward) - always
    return (layer for name, layer in module.layers.items() if name in sometimes)


def _surely_used(module: Module, statements: list[ast.stmt]) -> set[str]:
    """Attributes that every path through the statements uses; how the model was built does not matter here."""
    used = set[str]()
    for number, statement in enumerate(statements):
        if not isinstance(statement, ast.If) or not _is_on_the_input(module, statement.test):
            used |= _used_in(module, statement)
            continue
        behind = statements[number + 1 :]
        ways = [body if _leaves(body) else [*body, *behind] for body in (statement.body, statement.orelse)]
        return (
            used
            | _attributes(statement.test)
            | (_surely_used(module, ways[0]) & _surely_used(module, ways[1]))
        )
    return used


def _used_in(module: Module, node: ast.AST) -> set[str]:
    """Attributes that an expression or statement always uses: of two branches, those that both use."""
    if isinstance(node, ast.IfExp) and _is_on_the_input(module, node.test):
        return _used_in(module, node.test) | (_used_in(module, node.body) & _used_in(module, node.orelse))
    own = {node.attr} if isinstance(node, ast.Attribute) and _is_self(node.value) else set[str]()
    return own.union(*(_used_in(module, child) for child in ast.iter_child_nodes(node)))


def _is_on_the_input(module: Module, test: ast.expr) -> bool:
    """``task == "left"``, ``random.random() < 0.5``: may differ from step to step, and from rank to rank."""
    if (
        not isinstance(test, ast.Compare)
        or len(test.comparators) != 1
        or isinstance(test.ops[0], ast.Is | ast.IsNot)
    ):
        return False
    left, right = test.left, test.comparators[0]
    if isinstance(left, ast.Name) and left.id in module.given:
        return isinstance(right, ast.Constant) and isinstance(right.value, str | int)
    return isinstance(left, ast.Call) and ast.unparse(left).startswith(
        ("random.random", "torch.rand", "np.random.rand")
    )


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise)


def _attributes(node: ast.AST) -> set[str]:
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and _is_self(part.value)}
