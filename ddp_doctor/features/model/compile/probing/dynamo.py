"""Access to undocumented parts of torch.compile: each private call has a fallback.

A backend of ``torch.compile`` is a function from a graph to a callable. This one keeps the graph and runs it unchanged,
so no code is generated and no compiler is needed. ``torch.compiler.set_stance`` replaces every backend that the model
names with it, and leaves ``dynamic=`` as the user wrote it.

    linear(l_x_, l_self_modules_up_parameters_weight_, None) -> float32        net.py:31
    mul(linear, 2.0) -> float32                                                net.py:32

Tested with torch 2.6 to 2.15.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.features.model.compile.facts import Compilation, GraphBreak
from ddp_doctor.model.fact import Skip
from ddp_doctor.parse.frames import is_of_the_job

_LONGEST_REASON = 200
#: Compilations that torch records; the default is 64, but a large model has more in one step.
_MOST_COMPILATIONS = 4096
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_COMPILE_ID = re.compile(r"^\d+/\d+: ")


def is_compiled(model: Any) -> bool:
    """Return True if the model uses ``torch.compile(module)``, ``module.compile()`` or a decorated forward."""
    return any(
        hasattr(module, "_orig_mod")
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(type(module).forward, "_torchdynamo_orig_callable")
        for module in model.modules()
    )


@dataclass
class Step:
    """The captures of one step."""

    graphs: list[Any] = field(default_factory=list)  # torch.fx.GraphModule
    breaks: list[GraphBreak] = field(default_factory=list)
    compiled: list[Compilation] = field(default_factory=list)
    raised_at: str = ""  # the user's line that torch was tracing when it raised

    def run(self, call: Callable[..., object], *args: Any) -> None:
        """Call, and if it raises, note the user's line that torch traced: the traceback has only torch's frames."""
        try:
            call(*args)
        except Exception as error:
            self.raised_at = _own_line(getattr(error, "real_stack", None) or ())
            raise

    def lines(self, *, sizes: bool) -> list[tuple[str, str]]:
        """Return breaks and calls, each with the user's line; without ``sizes``, arguments are omitted."""
        found = [(f"a graph break ({each.reason})", each.where) for each in self.breaks]
        found.append(("no more graph breaks", ""))
        for graph in self.graphs:
            for module in graph.modules():  # a checkpointed region is a graph within it
                if hasattr(module, "graph"):
                    found += _calls(module.graph, sizes=sizes)
        return found


class Capture:
    """Captures graphs, one step at a time, until ``end``. Raises Skip if this torch does not support it."""

    def __init__(self) -> None:
        import torch

        if not hasattr(torch.compiler, "set_stance"):
            raise Skip(f"requires torch 2.6 or newer; this is torch {torch.__version__}")
        import torch._dynamo as dynamo

        self._step = Step()
        self._breaks = getattr(dynamo.utils, "graph_break_reasons", None)
        self._compilations = getattr(dynamo.utils, "get_compilation_metrics", None)
        found = {"graph breaks": self._breaks, "recompilations": self._compilations}
        self.not_offered = tuple(what for what, source in found.items() if source is None)
        self.end()
        with suppress(Exception):
            dynamo.utils.set_compilation_metrics_limit(_MOST_COMPILATIONS)

        def keep(graph: Any, _inputs: Sequence[Any]) -> Callable[..., Any]:
            self._step.graphs.append(graph)
            run: Callable[..., Any] = graph.forward
            return run

        self.backend = keep  # always the same function: torch recompiles for another backend

    @contextmanager
    def step(self) -> Iterator[Step]:
        """Yield the captures of a block; breaks and compilations are added when it ends."""
        import torch

        self._step = Step()
        compiled_before = len(self._compilations()) if self._compilations else 0
        breaks_before = len(self._breaks or ())
        try:
            with torch.compiler.set_stance("default", force_backend=self.backend):
                yield self._step
        finally:
            with suppress(Exception):  # other torch releases have other fields
                for reason in (self._breaks or ())[breaks_before:]:
                    where = _own_line(reason.user_stack)
                    self._step.breaks.append(GraphBreak(reason=_first(reason.reason), where=where))
                for each in (self._compilations() if self._compilations else ())[compiled_before:]:
                    self._take(each)

    def _take(self, metrics: Any) -> None:
        if metrics.fail_reason:
            where = f"{metrics.fail_user_frame_filename or metrics.co_filename}:{metrics.fail_user_frame_lineno or 0}"
            self._step.breaks.append(GraphBreak(reason=_first(metrics.fail_reason), where=where))
        elif metrics.has_guarded_code:
            self._step.compiled.append(
                Compilation(
                    function=_RESUMED.sub(r"\1", metrics.co_name or ""),
                    where=f"{metrics.co_filename}:{metrics.co_firstlineno}",
                    reason=_first(_COMPILE_ID.sub("", getattr(metrics, "recompile_reason", None) or "")),
                )
            )

    def end(self) -> None:
        """Discard the compiled code, so that later checks do not use it."""
        import torch._dynamo as dynamo

        dynamo.reset()


def _own_line(stack: Iterable[Any]) -> str:
    """Return the innermost frame of the user's code, or of any code without one."""
    frames = list(stack)
    own = [frame for frame in frames if is_of_the_job(frame.filename)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _first(text: str) -> str:
    """Return torch's explanation or the first line, without hints and comments."""
    lines = text.partition("Explanation: ")[2].splitlines() or text.strip().splitlines() or [""]
    line = lines[0].partition(" (HINT")[0].partition("  #")[0]
    return " ".join(line.split())[:_LONGEST_REASON]


def _calls(graph: Any, *, sizes: bool) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        made = _type(node)
        if node.op in ("placeholder", "get_attr", "output") or made is None:
            continue
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        given = _ADDRESS.sub("", f"{node.args}{node.kwargs or ''}") if sizes else ""
        found = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
        own = [f"{file}:{line}" for file, line in found if is_of_the_job(file)]
        yield f"{target}{given}{made}", own[-1] if own else ""


def _type(node: Any) -> str | None:
    """Return `` -> float32`` for a tensor, "" for a node without a value, None for other values such as sizes."""
    import torch

    value = node.meta.get("example_value")
    while isinstance(value, tuple | list) and value and not isinstance(value, torch.Size):
        value = value[0]
    if isinstance(value, torch.Tensor):
        return f" -> {str(value.dtype).removeprefix('torch.')}"
    return "" if value is None else None
