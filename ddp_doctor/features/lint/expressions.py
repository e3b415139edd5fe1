"""The part of the trace that evaluates expressions: each becomes a Value, and each call is recorded in order."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.features.lint.names import canonical
from ddp_doctor.features.lint.narrowing import claims
from ddp_doctor.features.lint.ranks import SPAWN_INDEX, in_a_job, rank_condition
from ddp_doctor.features.lint.scopes import Class, Function, Key, Scope, Store
from ddp_doctor.features.lint.values import FIELDS, NOTHING, Call, Condition, Loop, Place, Value

#: Functions that run a function of the script, in this process or in new ones.
_LAUNCHERS = frozenset(("spawn", "start_processes", "Process", "Thread", "Fire", "launch", "notebook_launcher", "run"))
#: The functions that run it in this process.
_RUN_HERE = ("Thread", "Fire", "run")
_BUILTINS = frozenset(dir(builtins))
#: Maximum number of ``**`` dictionaries to evaluate; each is compared with all calls before it.
_MOST_LOOKED_INTO = 50
_ANNOTATIONS = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp)
_MAY_BE_LOCAL = ("other", "choice")


@dataclass(eq=False, slots=True)
class Assignment:
    """A binding of a name, attribute or element; ``name`` is its last part (``x`` of ``self.x``)."""

    node: ast.AST
    target: ast.expr
    name: str
    owner: Value
    value: Value
    place: Place
    order: int
    root: int


class Expressions:
    """Evaluates expressions of one script. Subclassed by Trace, which knows the statements."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.assignments: list[Assignment] = []
        self.place = Place()
        self.root = 0
        self._order = 0
        self._looked_into = 0  # dictionaries
        self._narrowed: set[Value] = set()  # values of names in one branch
        self._scope = Scope()
        self._store = Store()
        self.instances: dict[Value, Class] = {}
        self.parameters: dict[Value, tuple[Value, Value]] = {}  # annotation, and class of the method

    def follow(
        self, function: Function, given: Sequence[Value], named: dict[str, Value], bound: Value = NOTHING
    ) -> Value:
        """Follow a call of a local function and return its result."""
        raise NotImplementedError

    # --- expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression, and record the calls in it."""
        if type(node) is ast.Name:  # nearly half of all
            found = self._store.find(self._scope, node.id)
            if found is not None:
                return found
        elif type(node) is ast.Constant:
            return Value(node, "constant")
        read = _READERS.get(type(node))
        if read is not None:
            return read(self, node)
        return Value(node, "other", parts=self._children(node))

    def _children(self, node: ast.AST) -> tuple[Value, ...]:
        found = []
        for name in FIELDS[type(node)]:
            child = getattr(node, name, None)
            if isinstance(child, ast.expr):
                found.append(self.value(child))
            elif type(child) is list:
                found += [self.value(expression) for expression in child if isinstance(expression, ast.expr)]
        return tuple(found)

    def _unbound(self, node: ast.Name) -> Value:
        if node.id in _BUILTINS:
            return Value(node, "name", name=node.id)
        found = Value(node, "free", name=node.id)
        self._store.keep(self._scope.module, node.id, found)
        return found

    def _attribute(self, node: ast.Attribute) -> Value:
        return self._attribute_of(self.value(node.value), node.attr, node, keep=True)

    def _attribute_of(self, owner: Value, name: str, node: ast.expr, *, keep: bool) -> Value:
        module = owner.reference
        if module:
            found = self._store.get(module, name)
            return found or Value(node, "name", canonical(f"{module}.{name}"))
        first = _object(owner)
        found = self._store.get(first, name)
        if found is None and first in self.instances:
            found = self._of_base(self.instances[first], name)
        if found is None and owner is not first:
            found = self._store.get(owner, name)
        if found is None:
            others = [option for option in owner.objects() if option is not first] if owner is not first else []
            found = Value(node, "attribute", parts=(first, *others), attribute=name)
            if keep:
                self._store.keep(owner, name, found)
        return found

    def _of_base(self, cls: Class, name: str) -> Value | None:
        """Return the value that a base class of the script bound to an attribute."""
        bases = (option for part in cls.parts for option in part.alternatives() if isinstance(option, Class))
        own = (found for base in bases if (found := self._store.get(base, "self")))
        return next((found for each in own if (found := self._store.get(each, name))), None)

    def _subscript(self, node: ast.Subscript) -> Value:
        owner, index = self.value(node.value), self.value(node.slice)
        if isinstance(index.node, ast.Constant):
            if owner.kind == "tuple" and isinstance(index.constant, int) and index.constant < len(owner.parts):
                return owner.parts[index.constant]
            name = f"[{index.constant!r}]"
            found = self._store.get(_object(owner), name)
            return found or Value(node, "element", parts=(owner, index), attribute=str(index.constant))
        return Value(node, "element", parts=(owner, index))

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        return Value(node, "tuple", parts=tuple([self.value(element) for element in node.elts]))

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target, value, node)
        return value

    def _if(self, node: ast.IfExp) -> Value:
        test, before, options = self.value(node.test), self.place, []
        held = in_a_job(test)
        for branch, holds in ((node.body, True), (node.orelse, False)):
            self.place = before.under(Condition(test, holds=holds, always=held is holds))
            narrowed = self.narrow(test, node.test, holds=holds)
            options.append(self.value(branch))
            for key, value in narrowed.items():
                self._store.bind(*key, value)
        self.place = before
        return Value(node, "choice", parts=tuple(options)) if held is None else options[not held]

    def _bool(self, node: ast.BoolOp) -> Value:
        """Evaluate ``rank == 0 and save()``: the right side runs under a condition."""
        parts = [self.value(node.values[0])]
        before = self.place
        for operand in node.values[1:]:
            holds = isinstance(node.op, ast.And)
            self.place = self.place.under(Condition(parts[-1], holds=holds))
            parts.append(self.value(operand))
        self.place = before
        return Value(node, "other", parts=tuple(parts))

    def _lambda(self, node: ast.Lambda) -> Value:
        outer, self._scope = self._scope, Scope(self._scope)
        self._bind_opaque(node.args)
        body = self.value(node.body)
        self._scope = outer
        return Value(node, "other", parts=(body,))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        outer, before = self._scope, self.place
        self._scope = Scope(outer)
        parts: list[Value] = []
        for generator in node.generators:
            over = self.value(generator.iter)
            parts.append(over)
            self.place = self.place.inside(Loop(generator, over))
            self.assign(generator.target, Value(generator.target, "loop", parts=(over,)), generator)
            for test in generator.ifs:
                parts.append(self.value(test))
                self.place = self.place.under(Condition(parts[-1], holds=True))
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        parts += [self.value(element) for element in elements]
        self._scope, self.place = outer, before
        return Value(node, "other", parts=tuple(parts))

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Call:
        function, given, owner = node.func, node.args, NOTHING
        if isinstance(function, ast.Attribute):
            owner = self.value(function.value)
            callee = self._attribute_of(owner, function.attr, function, keep=False)
        else:
            callee = self.value(function)
        keywords: dict[str, Value] = {}
        stars: list[Value] = []
        args = tuple([self.value(argument) for argument in given if type(argument) is not ast.Starred])
        if len(args) < len(given):
            stars = [self.value(argument.value) for argument in given if isinstance(argument, ast.Starred)]
        if node.keywords:
            keywords = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
            for keyword in node.keywords:
                if keyword.arg is None:
                    options = self.value(keyword.value)
                    entries = self._entries(options)
                    if entries is None:
                        stars.append(options)
                    else:
                        keywords |= entries
        receiver, method = NOTHING, ""
        name = callee.name if callee.kind == "free" else callee.reference
        parts = (*args, *keywords.values(), *stars) if keywords or stars else args
        if callee.kind == "attribute":
            receiver, method = callee.owner, callee.attribute
            parts = (owner if owner.kind == "choice" else receiver, *parts)  # for a choice: all its alternatives
        self._order += 1
        place, order, root = self.place, self._order, self.root
        call = Call(  # names of arguments would take as long again
            node, "call", name, parts, "", callee, method, receiver, args, keywords, bool(stars), place, order, root
        )
        self.calls.append(call)
        self._follow_into_script(call, callee)
        if call.returned:
            call.parts = (*call.parts, call.returned)
        return call

    def _entries(self, value: Value) -> dict[str, Value] | None:
        """Return the arguments in ``**value``, or None if they are unknown or may have changed since then."""
        found = _entries_of(value) if self._looked_into < _MOST_LOOKED_INTO else None
        if found is None:
            return None
        self._looked_into += 1
        is_changed = any(assignment.owner is value for assignment in self.assignments) or any(
            value is call.receiver or value in call.args or value in call.keywords.values() for call in self.calls
        )
        return None if is_changed else found

    def _follow_into_script(self, call: Call, callee: Value) -> None:
        for option in callee.alternatives() if callee.kind in _MAY_BE_LOCAL else ():
            if isinstance(option, Function):
                call.local = option.node
                call.returned = self.follow(option.decorated or option, call.args, call.keywords)
                return
            if isinstance(option, Class):
                call.local = option.node
                self.instances[call] = option
                if maker := option.find("__init__"):
                    self.follow(maker, call.args, call.keywords, call)
                return
        if call.method != "launch" and call.method:
            if _inside(_object(call.receiver)) in self.instances:
                self._follow_callable(call, callee, call.args)
        elif is_launch(call):
            self._launch(call)
        elif callee.kind == "call":
            self._follow_callable(call, callee, call.args)

    def _follow_callable(self, call: Call, target: Value, args: Sequence[Value]) -> None:
        """Follow a function, a method of an object of the script, or a partial of one of them."""
        for option in target.alternatives():
            named = call.keywords if target is call.callee else {}
            if isinstance(option, Call) and option.name == "functools.partial" and option.args:
                return self._follow_callable(call, option.args[0], (*option.args[1:], *args))
            if isinstance(option, Function):
                call.returned = self.follow(option.decorated or option, args, named)
                return None
            if option in self.instances and (method := self.instances[option].find("__call__")):
                call.returned = self.follow(method.decorated or method, args, named, option)
                return None
            made = _inside(_object(option.owner))
            cls = self.instances.get(made) if option.kind == "attribute" else None
            if cls and (method := cls.find(option.attribute)):
                returned = self.follow(method.decorated or method, args, named, made)
                if made is _object(option.owner):  # rules see a call around the wrapper as a call
                    call.local = method.node if target is call.callee else call.local
                    call.returned = returned
                return None
        return None

    def _launch(self, call: Call) -> None:
        target = call.argument(0, "fn", "target", "function")
        given = call.argument(1, "args")
        args = list(given.parts) if given.kind == "tuple" else []
        if call.name.endswith(("spawn", "start_processes")):
            args.insert(0, Value(call.node, "parameter", name=SPAWN_INDEX))
        elif call.name.endswith("Process"):
            args = [Value(call.node, "parameter", name=SPAWN_INDEX) if _counts(each) else each for each in args]
        if call.method:  # of a Fabric, which gives itself and what follows
            args = [call.receiver, *call.args[1:]]
        before = self.place
        if not call.name.endswith(_RUN_HERE):  # conditions in the parent process hold on all ranks
            held = [each if rank_condition(each) else each._replace(always=True) for each in before.conditions]
            self.place = Place(conditions=tuple(held), depth=before.depth, launch=call)
        self._follow_callable(call, target, args)
        self.place = before

    # --- bindings ---------------------------------------------------------------------------------

    def narrow(self, test: Value, node: ast.expr, *, holds: bool) -> Mapping[Key, Value]:
        """Bind names to their values while a test holds or does not hold; return their previous values."""
        found: dict[Key, Value] = {}
        for claim in claims(test, holds=holds):
            old, new = claim.subject, claim.narrowed()
            parts = (*ast.walk(node), *ast.walk(claim.at)) if new is not old else ()
            for part in parts:
                if isinstance(part, ast.Name) and self.value(part) is old:
                    key: Key = (self._scope, part.id)
                elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and self.value(part) is old:
                    key = (_object(self.value(part.value)), part.attr)
                else:
                    continue
                self._store.bind(*key, new)
                found[key] = old
                self._narrowed.add(new)
        return found

    def assign(self, target: ast.expr, value: Value, node: ast.AST) -> None:
        """Bind a target to a value."""
        if isinstance(target, ast.Name):
            self._note(node, target, target.id, NOTHING, value)
            self.bind(target.id, value)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            self._note(node, target, target.attr, owner, value)
            self._store.bind(owner.reference or _object(owner), target.attr, value)
        elif isinstance(target, ast.Subscript):
            owner, index = self.value(target.value), self.value(target.slice)
            name = str(index.constant) if index.kind == "constant" else ""
            self._note(node, target, name, owner, value)
            if name:
                self._store.bind(_object(owner), f"[{index.constant!r}]", value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Value(target, "element", parts=(value,)), node)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, node)

    def _unpack(self, targets: Sequence[ast.expr], value: Value, node: ast.AST) -> None:
        wholes = list(value.objects())
        fits = bool(wholes) and all(each.kind == "tuple" and len(each.parts) == len(targets) for each in wholes)
        fits = fits and not any(isinstance(target, ast.Starred) for target in targets)
        for number, target in enumerate(targets):
            parts = list(dict.fromkeys(each.parts[number] for each in wholes)) if fits else []
            if len(parts) == 1:
                part = parts[0]
            elif parts:
                part = Value(target, "choice", parts=tuple(parts))
            else:
                part = Value(target, "element", parts=(value,), attribute=str(number))
            self.assign(target, part, node)

    def _note(self, node: ast.AST, target: ast.expr, name: str, owner: Value, value: Value) -> None:
        self._order += 1
        self.assignments.append(Assignment(node, target, name, owner, value, self.place, self._order, self.root))

    def bind(self, name: str, value: Value) -> None:
        """Bind a name in the scope that the script would use."""
        scope = self._scope.module if name in self._scope.outer_names else self._scope
        self._store.bind(scope, name, value)

    def _bind_opaque(self, arguments: ast.arguments, cls: Class | None = None) -> set[str]:
        """Bind all parameters to unknown values. Return the names."""
        stars = [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]
        for parameter in named:
            value = Value(parameter, "parameter", attribute=parameter.arg)
            if cls or parameter.annotation:
                self.parameters[value] = self._annotation(parameter.annotation), cls or NOTHING
            self.bind(parameter.arg, value)
        return {parameter.arg for parameter in named}

    def _annotation(self, node: ast.expr | None) -> Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            first, *rest = node.value.split(".")
            found = self._store.find(self._scope, first) or NOTHING
            return Value(node, "name", ".".join((found.reference, *rest))) if rest and found.reference else found
        return self.value(node) if isinstance(node, _ANNOTATIONS) else NOTHING


def _entries_of(value: Value) -> dict[str, Value] | None:
    """Return the entries of ``{"batch_size": 32}`` and ``dict(batch_size=32)``, or None if some are unknown."""
    if isinstance(value, Call):
        is_dict = value.name == "dict" and not value.args and not value.has_stars
        return value.keywords if is_dict else None
    node = value.node
    if not isinstance(node, ast.Dict) or value.kind != "other" or len(value.parts) != 2 * len(node.keys):
        return None  # ``**others`` adds a value without a key
    keys = [key.constant for key in value.parts[: len(node.keys)]]
    if not all(isinstance(key, str) for key in keys):
        return None
    return dict(zip(map(str, keys), value.parts[len(node.keys) :], strict=True))


def is_launch(call: Call) -> bool:
    """Return True if it runs a function on all ranks or in its own process: ``mp.spawn(train, ...)``."""
    if call.method == "launch":
        return any(made.name.endswith(".Fabric") for made in call.receiver.makers())
    return call.name.rpartition(".")[2] in _LAUNCHERS


def _counts(value: Value) -> bool:
    """Return True for ``rank`` of ``for rank in range(gpus)``."""
    return value.kind == "loop" and any(made.name == "range" for made in value.owner.makers())


def _object(value: Value) -> Value:
    """Return the object that owns the attributes; for a choice, its first alternative."""
    if value.kind == "choice" or (isinstance(value, Call) and not value.is_itself):
        return next(iter(value.objects()), value)
    return value


def _inside(value: Value) -> Value:
    """Return the wrapped object, ``net`` of ``DDP(net).module``, or the object itself."""
    maker = next(iter(value.wrapper.objects()), None) if value.wrapper is not value else None
    return _object(maker.args[0]) if isinstance(maker, Call) and maker.args and not maker.method else value


_READERS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Name: Expressions._unbound,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.Tuple: Expressions._tuple,
    ast.List: Expressions._tuple,
    ast.NamedExpr: Expressions._named,
    ast.IfExp: Expressions._if,
    ast.BoolOp: Expressions._bool,
    ast.Lambda: Expressions._lambda,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Call: Expressions._call,
}
