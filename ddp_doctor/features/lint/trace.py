"""Follow a script once, from its first line, as Python would run it, and record calls and bindings in that order.

Local functions are followed where they are called, so ``setup()`` before ``model.to(device)`` precedes it. A function
with several callers is followed a few times. A loop's body runs once. Both branches run, each under its Condition, and
their bindings become a choice. Functions without callers are followed at the end, each as a separate root: their order
is unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ddp_doctor.features.lint.expressions import Expressions
from ddp_doctor.features.lint.names import STARS, canonical
from ddp_doctor.features.lint.ranks import in_a_job
from ddp_doctor.features.lint.scopes import Class, Function, Key, Scope
from ddp_doctor.features.lint.values import NOTHING, Call, Condition, Guard, Leave, Loop, Place, Value, written

#: Number of callers from which a function is followed: enough to see it with and without a condition.
_MOST_VISITS = 3
#: Depth of nested calls; deeper functions are followed as separate roots.
_DEEPEST = 12
#: Number of conditions kept of a long list of ``if ...: return``, the innermost.
_MOST_CONDITIONS = 50
#: Decorators that exclude ranks: ``rank_zero_only``, ``accelerator.on_main_process``.
_MAY_CHOOSE_RANKS = re.compile(r"(^|\.)(on_\w*process|(rank_?(zero|0)|main|master|main_process)_only)\b")
_EXITS = ("exit", "quit", "sys.exit", "os._exit")


class Trace(Expressions):
    """A walk through a module."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__()
        self.modules: set[str] = set()  # all imports, by full name
        self.has_unknown_star = False
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        self.leaves: list[Leave] = []
        self.delegated: list[tuple[Value, Place]] = []  # the iterables of ``yield from``
        self._visits: dict[int, int] = {}
        self._results: dict[tuple[object, ...], Value] = {}  # results of functions, by their arguments
        self._returns: list[list[tuple[Value, bool]]] = []  # returned values, and whether a job can reach them
        self._entered = 0  # number of conditions around the call of the function that is followed
        self._lasting: list[Condition] = []
        self.block(tree.body)
        for function in self.functions:  # grows during the loop, by nested definitions
            if function.cls is None:
                self._walk_alone(function)
        for function in self.functions:  # methods last, after the code that creates and uses objects
            self._walk_alone(function)

    def _walk_alone(self, function: Function) -> None:
        if id(function.node) not in self._visits:
            self.root += 1
            self.place = Place(conditions=function.conditions)
            self.follow(function, (), {}, self._instance_of(function.cls) if function.cls else NOTHING)

    def _instance_of(self, cls: Class) -> Value:
        for call in self.calls:
            if self.instances.get(call) is cls:
                return call
        found = self._store.get(cls, "self")
        if found is None:
            found = Value(cls.node, "parameter", attribute="self")
            self._store.keep(cls, "self", found)
            self.instances[found] = cls
        return found

    # --- functions --------------------------------------------------------------------------------

    def follow(
        self, function: Function, given: Sequence[Value], named: dict[str, Value], bound: Value = NOTHING
    ) -> Value:
        """Follow a call of a local function. Returns its result, or NOTHING if unknown."""
        visits = self._visits.get(id(function.node), 0)
        arguments = (*given, *named.values(), bound)
        asked = (function.node, *named, *(each.constant if each.kind == "constant" else each for each in arguments))
        if visits >= _MOST_VISITS or self.place.depth >= _DEEPEST:
            return self._results.get(asked, NOTHING)
        self._visits[id(function.node)] = visits + 1
        outer, before, lasting = self._scope, self.place, self._lasting
        self._scope, self._lasting = Scope(function.scope), []
        cls = function.cls.node if function.cls else None
        chosen = (Condition(decorator, holds=True) for decorator in function.decorators)
        self.place = before.under(*chosen)._replace(function=function.node, cls=cls, depth=before.depth + 1)
        first = [] if not bound or _is_static(function.node) else [bound]
        self._bind_parameters(function, [*first, *given], named)
        self._returns.append([])
        entered, self._entered = self._entered, len(self.place.conditions)
        self.block(function.node.body)
        returned, self._entered = self._returns.pop(), entered
        found = [value for value, is_of_a_job in returned if is_of_a_job] or [value for value, _ in returned]
        self._scope, self.place, self._lasting = outer, before, lasting
        if not found:
            return NOTHING
        self._results[asked] = found[0] if len(found) == 1 else Value(found[0].node, "choice", parts=tuple(found))
        return self._results[asked]

    def _bind_parameters(self, function: Function, given: Sequence[Value], named: dict[str, Value]) -> None:
        arguments = function.node.args
        known = self._bind_opaque(arguments, function.cls)
        places = [*arguments.posonlyargs, *arguments.args]
        if not self.root or self.place.depth > 1:  # a function without callers here may get other values elsewhere
            last = places[len(places) - len(arguments.defaults) :]
            defaults = (*arguments.defaults, *arguments.kw_defaults)
            for parameter, default in zip((*last, *arguments.kwonlyargs), defaults, strict=True):
                if isinstance(default, ast.Constant):
                    self.bind(parameter.arg, Value(default, "constant"))
        for parameter, value in zip(places, given, strict=False):
            self.bind(parameter.arg, value)
        for name, value in named.items():
            if name in known:
                self.bind(name, value)

    # --- statements -------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements. Return True if control never gets past them (return, raise, continue, break, exit)."""
        before = self.place
        for statement in statements:
            if self._statement(statement):
                self.place = before
                return True
            if self._lasting:  # the other branch has left, so the following statements run under the condition
                kept = self.place.conditions[-_MOST_CONDITIONS:]
                self.place = self.place._replace(conditions=(*kept, *self._lasting))
                self._lasting = []
        self._lasting = []
        if self.place.conditions is not before.conditions:
            outer = {id(condition) for condition in before.conditions}
            self._lasting = [condition for condition in self.place.conditions if id(condition) not in outer]
        self.place = before
        return False

    def _statement(self, node: ast.stmt) -> bool:
        walk = _WALKERS.get(type(node))
        if walk is not None:
            return bool(walk(self, node))
        self._children(node)
        return False

    def _inner(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow a block whose early exits do not affect the statements after it."""
        ends = self.block(statements)
        self._lasting = []
        return ends

    def _expression(self, node: ast.Expr) -> bool:
        value = self.value(node.value)
        if isinstance(node.value, ast.YieldFrom):
            self.delegated.append((value.parts[0], self.place))
        if not (isinstance(value, Call) and value.name in _EXITS):
            return False
        if not value.args or value.args[0].constant == 0:
            self._note_leave(node)
        return True

    def _return(self, node: ast.Return) -> bool:
        value = self.value(node.value) if node.value is not None else NOTHING
        if value and self._returns:
            inside = self.place.conditions[self._entered :]
            is_of_a_job = all(in_a_job(each.test) is not (not each.holds) for each in inside)
            self._returns[-1].append((value, is_of_a_job))
        self._note_leave(node, value)
        return True

    def _leave(self, node: ast.stmt) -> bool:
        self._children(node)
        if not isinstance(node, ast.Raise):
            self._note_leave(node)
        return True

    def _note_leave(self, node: ast.stmt, value: Value = NOTHING) -> None:
        self._order += 1
        self.leaves.append(Leave(node, self.place, self._order, self.root, value))

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.value(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assign(target, value, node)

    def _augmented(self, node: ast.AugAssign) -> None:
        value = Value(node, "other", parts=(self.value(node.target), self.value(node.value)))
        self.assign(node.target, value, node)

    def _branches(self, node: ast.If) -> bool:
        test = self.value(node.test)
        match node.test:
            case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
                self.block(node.body)  # a linted script is run directly
                return False
        held = in_a_job(test)
        if held is not None and _starts_the_group(node):
            held = None
        body_ends, body = self._branch(node.body, Condition(test, holds=True, always=held is True), node.test)
        else_ends, orelse = self._branch(node.orelse, Condition(test, holds=False, always=held is False), node.test)
        if not (body_ends or else_ends or self._narrowed.isdisjoint((*body.values(), *orelse.values()))):
            body, orelse = self._widened(body), self._widened(orelse)
        alive = [bound for bound, ends in ((body, body_ends), (orelse, else_ends)) if not ends]
        if held is not None and len(alive) == 2:  # bindings in the other branch count only for names without a value
            other, taken = (orelse, body) if held else (body, orelse)
            alive = [{**{key: value for key, value in other.items() if self._store.get(*key) is None}, **taken}]
        self._store.join(alive or [body, orelse])
        if body_ends != else_ends:
            self._lasting = [Condition(test, holds=else_ends, early=True, always=held is else_ends)]
        return body_ends and else_ends

    def _branch(
        self, statements: Sequence[ast.stmt], condition: Condition, test: ast.expr | None = None
    ) -> tuple[bool, Mapping[Key, Value]]:
        before = self.place
        self.place = before.under(condition)
        self._store.begin()
        if test is not None:
            self.narrow(condition.test, test, holds=condition.holds)
        ends = self._inner(statements)
        self.place = before
        return ends, self._store.end()

    def _widened(self, bound: Mapping[Key, Value]) -> Mapping[Key, Value]:
        return {key: value for key, value in bound.items() if value not in self._narrowed}

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        before = self.place
        if isinstance(node, ast.While):
            self.place = before.inside(Loop(node, test=self.value(node.test)))
        else:
            over = self.value(node.iter)
            self.place = before.inside(Loop(node, over))
            self.assign(node.target, Value(node.target, "loop", parts=(over,)), node)
        self._inner(node.body)
        self.place = before
        self._inner(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        before = self.place
        for item in node.items:
            value = self.value(item.context_expr)
            self.place = self.place._replace(withs=(*self.place.withs, value))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, node)
        ends = self.block(node.body)
        self.place = before
        return ends

    def _try(self, node: ast.Try) -> bool:
        before = self.place
        caught = tuple(self.value(each.type) if each.type is not None else NOTHING for each in node.handlers)
        self._store.begin()
        self.place = before._replace(guards=(*before.guards, Guard(node, before.loops, caught)))
        ends = self.block(node.body)
        self.place = before
        ends = ends or (bool(node.orelse) and self.block(node.orelse))
        lasting, self._lasting = self._lasting, []
        branches = [] if ends else [self._store.end()]
        if ends:
            self._store.end()
        for handler in node.handlers:
            self.place = before._replace(in_handler=True)
            self._store.begin()
            left = self._inner(handler.body)
            bound = self._store.end()
            branches += [] if left else [bound]
        self.place = before
        self._store.join(branches)
        ends_behind = self._inner(node.finalbody)
        self._lasting = lasting
        return ends_behind or not branches

    def _match(self, node: ast.Match) -> None:
        subject = self.value(node.subject)
        branches: list[Mapping[Key, Value]] = [{}]
        before = self.place
        for case in node.cases:
            test = self._matched(subject, node.subject, case.pattern)
            ends, bound = self._branch(case.body, Condition(test, holds=True))
            branches += [] if ends else [bound]
            if case.guard is None and test.node is not case.pattern:
                self.place = self.place.under(Condition(test, holds=False))
        self.place = before
        self._store.join(branches)

    def _matched(self, subject: Value, node: ast.expr, pattern: ast.pattern) -> Value:
        """Evaluate ``case 0`` as the comparison ``subject == 0``."""
        if not isinstance(pattern, ast.MatchValue):
            return Value(pattern, "other", parts=(subject,))
        compared = ast.copy_location(ast.Compare(node, [ast.Eq()], [pattern.value]), pattern)
        return Value(compared, "other", parts=(subject, self.value(pattern.value)))

    # --- definitions ------------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = [self.value(decorator) for decorator in node.decorator_list]
        pairs = zip(node.decorator_list, decorators, strict=True)
        choosing = tuple(value for written_as, value in pairs if _MAY_CHOOSE_RANKS.search(written(written_as)))
        around = self.place.conditions if self.place.function else ()
        function = Function(node, scope=self._scope, decorators=choosing, conditions=around)
        self.functions.append(function)
        for decorator in decorators:
            if isinstance(decorator, Function):
                returned = self.follow(decorator, [replace(function)], {})
                function.decorated = returned if isinstance(returned, Function) else None
        self.bind(node.name, function)

    def _class(self, node: ast.ClassDef) -> None:
        bases = tuple(self.value(expression) for expression in (*node.decorator_list, *node.bases))
        cls = Class(node, parts=bases)
        self.classes.append(cls)
        self.bind(node.name, cls)
        outer, first = self._scope, len(self.functions)
        self._scope = Scope(outer)
        self._inner(node.body)
        self._scope = outer
        for function in self.functions[first:]:
            if function.cls is None and function.node in node.body:
                function.cls, function.scope = cls, outer
                cls.methods[function.node.name] = function

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.modules.add(alias.name)
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.bind(alias.asname or name, Value(node, "name", name=canonical(name)))

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.modules.add(module)
        for alias in node.names:
            if alias.name == "*":
                self.has_unknown_star |= module not in STARS
                for name in STARS.get(module, ()):
                    self.bind(name, Value(node, "name", name=canonical(f"{module}.{name}")))
                continue
            full = f"{module}.{alias.name}"
            self.modules.add(full)
            self.bind(alias.asname or alias.name, Value(node, "name", name=canonical(full)))

    def _global(self, node: ast.Global) -> None:
        self._scope.outer_names.update(node.names)


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)


def _starts_the_group(node: ast.If) -> bool:
    """Return True for ``if not dist.is_initialized(): dist.init_process_group("nccl")``."""
    return any(
        isinstance(part, ast.Name | ast.Attribute) and _last(part) == "init_process_group"
        for statement in node.body
        for part in ast.walk(statement)
    )


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


_WALKERS: dict[type[ast.stmt], Callable[..., bool | None]] = {
    ast.Expr: Trace._expression,
    ast.Return: Trace._return,
    ast.Raise: Trace._leave,
    ast.Continue: Trace._leave,
    ast.Break: Trace._leave,
    ast.Assign: Trace._assign,
    ast.AnnAssign: Trace._assign,
    ast.AugAssign: Trace._augmented,
    ast.If: Trace._branches,
    ast.For: Trace._loop,
    ast.AsyncFor: Trace._loop,
    ast.While: Trace._loop,
    ast.With: Trace._with,
    ast.AsyncWith: Trace._with,
    ast.Try: Trace._try,
    ast.Match: Trace._match,
    ast.FunctionDef: Trace._function,
    ast.AsyncFunctionDef: Trace._function,
    ast.ClassDef: Trace._class,
    ast.Import: Trace._import,
    ast.ImportFrom: Trace._import_from,
    ast.Global: Trace._global,
}
if hasattr(ast, "TryStar"):  # Python 3.11
    _WALKERS[ast.TryStar] = Trace._try
