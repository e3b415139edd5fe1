"""gradient_modes: is the gradient right in every mode that DistributedDataParallel has?

gradient_sync looks at an ordinary step. This check turns the switches that training scripts turn, one at a
time, on a small model of parameters of mixed sizes, shapes, strides and dtypes in several buckets::

    mode                 what the ranks do                                      right gradient, 2 ranks
    bucket-view          gradient_as_bucket_view=True                           mean, and part of its bucket
    accumulation         micro-steps of 1, 2, 4 times; two inside no_sync()     7 times the mean
    unused               find_unused_parameters=True; rank 1 leaves weight3 out sum over 1 rank / 2 ranks
    twice, checkpoint    a parameter used twice, a forward that is run again    3 times the mean, the mean
    static-graph         static_graph=True, also with reentrant checkpoints     3 times the mean
    fp16-compress, …     communication hooks                                    mean, to the format's rounding

Every local gradient is known in closed form (knowledge/ddp/gradient_shares.py), so that the right gradient of each
element is compared in float64, and a share that is missing or counted twice is named.

Why it matters: each switch is another path through DDP, and a wrong mean raises nothing.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ddp_doctor.checks.ddp.gradient_modes import other_faults, wrong
from ddp_doctor.checks.ddp.gradient_modes.modes import (
    BUCKET_CAP_BYTES,
    FLOAT64,
    WAYS,
    MicroStep,
    Way,
    coded_model,
    shares,
)
from ddp_doctor.facts.ddp.gradients import GradientModes, Mode, OffInMode
from ddp_doctor.knowledge.ddp import gradient_code, gradient_shares
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.all_reduces import not_reduced

_LINE = 300  # characters of an error: what it is stands at its beginning
Wrap = Callable[[RankContext, Way, Any], Any]


class _NotLooked(Exception):
    """The mode cannot be tested, on no rank; the message is the reason."""


class _Refused(_NotLooked):
    """torch refuses the mode for these ranks, with a reason."""


def wrap(ctx: RankContext, way: Way, module: Any) -> Any:
    """The module in DistributedDataParallel, as the mode wants it."""
    from torch.nn.parallel import DistributedDataParallel

    cap_bytes = BUCKET_CAP_BYTES if way.many_buckets else sum(parameter.nbytes for parameter in module.parameters())
    return DistributedDataParallel(module, process_group=ctx.group, bucket_cap_mb=cap_bytes / 2**20, **way.options)


def measure(ctx: RankContext, wrapped: Wrap = wrap, names: tuple[str, ...] = ()) -> GradientModes:
    """All modes of this level, or the named ones. After an error on any rank no further mode is tried."""
    modes, stopped, parameters = [], "", 0
    chosen = [way for way in WAYS if (way.name in names if names else ctx.level.includes(way.level))]
    for way in chosen:
        if stopped:
            modes.append(Mode(name=way.name, not_looked=stopped))
            continue
        # A wrapper that something still holds (a traceback, for example) acts on its own model only.
        module = coded_model(ctx)
        parameters = len(list(module.parameters()))
        mode, failed = _ModeProbe(ctx, way, module, wrapped).take()
        modes.append(mode)
        stopped = f"a rank failed in the mode {way.name} before" if failed else ""
    return GradientModes(world_size=ctx.world_size, parameters=parameters, modes=tuple(modes))


class _ModeProbe:
    """One mode on one rank."""

    def __init__(self, ctx: RankContext, way: Way, module: Any, wrapped: Wrap) -> None:
        self._ctx, self._way, self._module, self._wrap = ctx, way, module, wrapped
        kind, loses = (way.hook.dtype, way.hook.loses) if way.hook else ("float32", 0.0)
        self._relative = gradient_shares.tolerance(ctx.world_size, kind) + loses
        self._compared: list[OffInMode] = []
        self._sums: list[int | None] = []
        self._mode = Mode(name=way.name, tolerance=self._relative)

    def take(self) -> tuple[Mode, bool]:
        """What was measured, and whether DDP raised on any rank."""
        error: str | None = None
        try:
            self._steps()
        except _NotLooked as reason:
            return self._with(not_looked=str(reason), refused=isinstance(reason, _Refused)), False
        except Exception as raised:  # noqa: BLE001 - whatever DDP raises is what this check looks for
            error = f"{type(raised).__name__}: {raised}"[:_LINE]
        of_ranks = self._exchange("ended", {"error": error, "sums": self._sums})
        if any(rank["error"] for rank in of_ranks):
            return self._with(error=error), True
        differ = [len({rank["sums"][number] for rank in of_ranks}) > 1 for number in range(len(self._sums))]
        return self._with(off=self._off(differ)), False

    def _with(self, **measured: Any) -> Mode:
        return self._mode.model_copy(update=measured)

    def _exchange(self, name: str, what: Any) -> list[Any]:
        """The values of all ranks, by group rank."""
        name = f"{self._way.name} {name}"
        with self._ctx.step("exchange", name):
            return [json.loads(text) for text in self._ctx.exchange(name, json.dumps(what))]

    def _steps(self) -> None:
        hook = self._hook()
        for number, parameter in enumerate(self._module.parameters()):
            parameter.requires_grad_(not self._way.one_dtype or number != FLOAT64)
        with self._ctx.step("ddp_construct", self._way.name):
            model = self._wrap(self._ctx, self._way, self._module)
        if hook:
            try:
                model.register_comm_hook(*hook)
            except TypeError as refused:  # bf16_compress_hook, by a torch without a fit NCCL
                raise _Refused(f"torch refuses the hook here: {refused}") from refused
        for number, step in enumerate(self._way.steps, 1):
            model.zero_grad()
            if not self._step(model, number, step):
                return
            self._compare(model, number, step)
        if model.gradient_as_bucket_view:
            self._mode = self._with(not_views=unshared(model))

    def _hook(self) -> tuple[Any, Any] | None:
        """The hook's state and function; a rank that lacks it must not leave the others waiting."""
        if self._way.hook is None:
            return None
        if self._relative > gradient_shares.MOST_TOLERANCE:
            raise _NotLooked(f"over {self._ctx.world_size} ranks, rounding alone hides a missing rank")
        found, lacks = None, ""
        try:
            found = self._way.hook.get(self._ctx)
        except (ImportError, AttributeError) as lacking:
            lacks = f"the hook is not available: {lacking}"
        others = [lack for lack in self._exchange("ready", lacks) if lack]
        if others:
            raise _NotLooked(others[0])
        if refused := not_reduced(self._ctx, self._way.hook.dtype):
            raise _NotLooked(refused)
        return found

    def _step(self, model: Any, number: int, step: tuple[MicroStep, ...]) -> bool:
        """All micro-steps; False where the last backward would hang and was skipped."""
        detail = f"{self._way.name}, step {number}"
        for micro in step:
            last = micro is step[-1]
            with nullcontext() if last else model.no_sync():
                with self._ctx.step("forward", detail):
                    loss = model(micro(self._ctx.group_rank), self._way.segment)
                if self._way.branches and number == 1 and not self._may_go_backward(model, loss):
                    return False
                with self._ctx.step("backward", detail):
                    loss.backward()
        return True

    def _may_go_backward(self, model: Any, loss: Any) -> bool:
        """Whether ranks that use different parameters can run the backward without a hang."""
        used = parameters_used(model.module, loss)
        unused = [name for name, _ in model.module.named_parameters() if name not in used]
        of_ranks = self._exchange("uses", {"unused": unused, "finds": model.find_unused_parameters})
        if all(rank["finds"] for rank in of_ranks) or all(rank["unused"] == unused for rank in of_ranks):
            return True
        self._mode = self._with(unused=tuple(unused))
        return False

    def _compare(self, model: Any, number: int, step: tuple[MicroStep, ...]) -> None:
        """Compare all gradients with their closed forms, and sum their bits."""
        ctx = self._ctx
        layout: dict[str, int] | None = None
        for index, (name, parameter) in enumerate(model.module.named_parameters()):
            place = gradient_code.Place(name, index, parameter.numel(), ctx.group_rank, ctx.ranks)
            expected = gradient_shares.Expectation(place, shares(step, index, ctx.world_size), self._relative)
            grad = None if parameter.grad is None else parameter.grad.detach().reshape(-1)
            gradient = gradient_shares.compare(expected, grad, identical=None)
            self._sums.append(None if grad is None else int(gradient_code.checksum(grad)))
            layout = buckets(model) if not gradient.equal and layout is None else layout
            bucket = (layout or {}).get(name)
            self._compared.append(OffInMode(step=number, bucket=bucket, gradient=gradient))

    def _off(self, differ: list[bool]) -> tuple[OffInMode, ...]:
        """What is not the mean, or not the same on all ranks."""
        compared = [
            found.model_copy(update={"gradient": found.gradient.model_copy(update={"identical": not differs})})
            for found, differs in zip(self._compared, differ, strict=True)
        ]
        return tuple(found for found in compared if not found.gradient.equal or not found.gradient.identical)


def buckets(model: Any) -> dict[str, int]:
    """The bucket of each parameter that a DDP-wrapped model reduces now, by name; empty if unknown."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    try:
        found = model.reducer._get_zeros_like_grad_buckets()  # noqa: SLF001 - see the module's docstring
        return {names[id(parameter)]: bucket.index() for bucket in found for parameter in bucket.parameters()}
    except (AttributeError, KeyError, RuntimeError):
        return {}


def parameters_used(module: Any, loss: Any) -> frozenset[str]:
    """The names of the parameters that this rank's loss depends on."""
    reached, waiting = set(), [loss.grad_fn]
    found = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        reached.add(id(getattr(node, "variable", None)))
        new = [following for following, _ in node.next_functions if following not in found]
        found.update(new)
        waiting += new
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in reached)


def unshared(model: Any) -> tuple[str, ...]:
    """The parameters whose gradients are memory of their own, though their bucket holds others too."""
    layout = buckets(model)
    alone = {bucket for bucket in layout.values() if list(layout.values()).count(bucket) == 1}
    return tuple(
        name
        for name, parameter in model.module.named_parameters()
        if name in layout
        and layout[name] not in alone
        and parameter.grad is not None
        and parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
    )


def probe(ctx: RankContext) -> GradientModes:
    """Take steps in all modes of this level and compare the gradients with their closed form."""
    return measure(ctx)


CHECK = Check(
    id="gradient_modes",
    title="DDP averages gradients in all its modes",
    where=Where.RANK,
    probe=probe,
    facts=(GradientModes,),
    rules=rules_in(other_faults, wrong),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.1,
)
