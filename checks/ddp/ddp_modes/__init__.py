"""ddp_modes: does the machine's torch keep what DistributedDataParallel promises, in each of its modes?

gradient_sync looks at an ordinary step. This check turns the switches that training scripts turn, one at a
time, on a small model of parameters of mixed sizes, shapes, strides and dtypes::

    mode                 what the ranks do                                      right gradient, 2 ranks
    bucket-view          gradient_as_bucket_view=True                           mean
    accumulation         micro-steps of 1, 2, 4 times; two inside no_sync()     7 times the mean
    unused               find_unused_parameters=True; rank 1 leaves weight3 out sum over 1 rank / 2 ranks
    join                 the first rank has a batch more, under join()          its own / 2 ranks
    autocast-bfloat16    autocast, then three steps with a GradScaler, of       mean, to the format's rounding;
                         which one has an infinite gradient on the last rank    all skip that step
    half-float16, …      gradients near the largest number of the format        mean, to the format's rounding

At level thorough also several buckets, parameters used twice, static graphs, activation checkpoints, communication
hooks, and models in half precision. Every local gradient is known in closed form (knowledge/ddp/gradient_code.py),
so that the right gradient of each element is compared in float64, and a share that is missing or counted twice is
named. The indices that torch's DistributedSampler gives the ranks must cover a data set once.

Why it matters: each switch is another path through DDP and its backend, and a wrong mean raises nothing.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import inf
from typing import Any

from ddp_doctor.checks.ddp.ddp_modes import cases, rules
from ddp_doctor.checks.ddp.ddp_modes.cases import WAYS, MicroStep, Way
from ddp_doctor.facts.ddp.gradients import DdpModes, Mode, OffInMode, ScaledStep, Share
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.all_reduces import not_reduced

_LINE = 300  # characters of an error: what it is stands at its beginning
#: Far below the default of 65536, so that the largest scaled gradient of 1000 ranks still fits into float16.
SCALE = 4.0
_MOST_RANKS = 1000
#: Samples of each rank: enough that no two epochs have the same order by chance.
_LEAST, _PER_RANK = 16, 4
Wrap = Callable[[RankContext, Way, Any], Any]


class _NotLooked(Exception):
    """The mode cannot be tested, on no rank; the message is the reason."""


class _Refused(_NotLooked):
    """torch refuses the mode for these ranks, with a reason."""


def wrap(ctx: RankContext, way: Way, module: Any) -> Any:
    """The module in DistributedDataParallel, as the mode wants it."""
    from torch.nn.parallel import DistributedDataParallel

    size = sum(parameter.nbytes for parameter in module.parameters())
    cap_bytes = cases.BUCKET_CAP_BYTES if way.many_buckets else size
    return DistributedDataParallel(module, process_group=ctx.group, bucket_cap_mb=cap_bytes / 2**20, **way.options)


def measure(ctx: RankContext, wrapped: Wrap = wrap, names: tuple[str, ...] = ()) -> DdpModes:
    """All modes of this level, or the named ones. After an error on any rank no further mode is tried."""
    modes, stopped = [], ""
    usual = "float16" if ctx.device.startswith("cuda") else "bfloat16"  # what jobs autocast to on such a device
    for way in WAYS:
        level = Level.STANDARD if way.autocast == usual else way.level
        if way.name not in names if names else not ctx.level.includes(level):
            continue
        mode, failed = (Mode(name=way.name, not_looked=stopped), False)
        if not stopped:
            mode, failed = _ModeProbe(ctx, way, wrapped).take()
        modes.append(mode)
        stopped = f"a rank failed in the mode {way.name} before" if failed else stopped
    return DdpModes(world_size=ctx.world_size, modes=tuple(modes))


class _Optimizer:
    """Counts its steps: torch.optim takes a second to import."""

    def __init__(self, parameters: list[Any]) -> None:
        self.param_groups = [{"params": parameters}]
        self.steps = 0

    def step(self) -> None:
        """A GradScaler calls it only where all gradients are finite."""
        self.steps += 1


class _ModeProbe:
    def __init__(self, ctx: RankContext, way: Way, wrapped: Wrap) -> None:
        # A wrapper that something still holds (a traceback, for example) acts on its own model only.
        self._ctx, self._way, self._module, self._wrap = ctx, way, cases.coded_model(ctx, way), wrapped
        self._relative = gradient_code.tolerance_in(way.sent, ctx.world_size) + way.loses
        self._scaler: Any = None
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
        sums = [rank["sums"] for rank in of_ranks]
        same = [len({each[number] for each in sums if number < len(each)}) == 1 for number in range(len(self._sums))]
        compared = [
            found.model_copy(update={"gradient": found.gradient.model_copy(update={"identical": identical})})
            for found, identical in zip(self._compared, same, strict=True)
        ]
        off = tuple(found for found in compared if not found.gradient.equal or not found.gradient.identical)
        return self._with(off=off), False

    def _with(self, **measured: Any) -> Mode:
        return self._mode.model_copy(update=measured)

    def _exchange(self, name: str, what: Any) -> list[Any]:
        name = f"{self._way.name} {name}"
        with self._ctx.step("exchange", name):
            return [json.loads(text) for text in self._ctx.exchange(name, json.dumps(what))]

    def _steps(self) -> None:
        hook = self._ready()
        with self._ctx.step("ddp_construct", self._way.name):
            model = self._wrap(self._ctx, self._way, self._module)
        if hook:
            try:
                model.register_comm_hook(*hook)
            except TypeError as refused:  # bf16_compress_hook, by a torch without a fit NCCL
                raise _Refused(f"torch rejects the communication hook: {refused}") from refused
        with self._joined(model):
            for number, step in enumerate(self._way.steps, 1):
                if self._way.joined and not step[-1](self._ctx.group_rank):
                    break
                self._step(model, f"{self._way.name}, step {number}", step)
                self._compare(number, step)
        if self._scaler:
            self._mode = self._with(
                scaled=tuple(self._scaled_step(model, infinite) for infinite in (False, True, False))
            )

    def _ready(self) -> Any:
        """The hook, where there is any; a rank that lacks something must not leave the others waiting."""
        way, hook, lacks = self._way, None, ""
        if not (way.hook or way.autocast or way.dtype):
            return None
        if self._relative > gradient_code.MOST_TOLERANCE:
            raise _NotLooked(
                f"with {self._ctx.world_size} ranks, rounding errors are too large to detect a missing rank"
            )
        try:
            hook = way.hook(self._ctx) if way.hook else None
            lacks = self._make_scaler() if way.autocast else ""
        except (ImportError, AttributeError, TypeError) as lacking:
            other = lacking.name if isinstance(lacking, ModuleNotFoundError) else None
            lacks = (
                f"{f'requires {other}' if other and other[:5] != 'torch' else 'not available in this torch'}: {lacking}"
            )
        if others := [lack for lack in self._exchange("ready", lacks) if lack]:
            raise _NotLooked(others[0])
        if way.sent != "float32" and (refused := not_reduced(self._ctx, way.sent)):
            raise _NotLooked(refused)
        return hook

    def _make_scaler(self) -> str:
        """Make the scaler; why this mode cannot be tested: an older GPU does not compute in bfloat16, for example."""
        import torch

        ctx, dtype = self._ctx, getattr(torch, self._way.autocast)
        kind = ctx.device.partition(":")[0]
        self._scaler = torch.amp.GradScaler(kind, init_scale=SCALE)
        if ctx.world_size > _MOST_RANKS:
            return f"{ctx.world_size} ranks need larger gradients"
        try:
            with self._autocast(), torch.no_grad():
                one = torch.ones(1, 1, device=ctx.device)
                return "" if (one @ one).dtype is dtype else f"torch does not autocast to {dtype} on {kind}"
        except RuntimeError as refused:
            return f"torch does not autocast to {dtype} on {kind}: {refused}".partition("\n")[0][:_LINE]

    @contextmanager
    def _joined(self, model: Any) -> Iterator[None]:
        """Under join() the ranks take different steps, which cannot be compared: all of it is one step."""
        if not self._way.joined:
            yield
            return
        with self._ctx.step("join", self._way.name), model.join():
            yield

    def _autocast(self) -> AbstractContextManager[Any]:
        import torch

        kind, dtype = self._ctx.device.partition(":")[0], self._way.autocast
        return torch.autocast(kind, getattr(torch, dtype)) if dtype else nullcontext()

    def _step(self, model: Any, detail: str, step: tuple[MicroStep, ...], scale: Any = lambda loss: loss) -> None:
        """All micro-steps, the last of them outside no_sync()."""
        timed: Any = (lambda *_: nullcontext()) if self._way.joined else self._ctx.step
        model.zero_grad()
        for micro in step:
            with nullcontext() if micro is step[-1] else model.no_sync():
                with timed("forward", detail), self._autocast():
                    loss = model(micro(self._ctx.group_rank), self._way.segment)
                with timed("backward", detail):
                    scale(loss).backward()

    def _compare(self, number: int, step: tuple[MicroStep, ...]) -> None:
        ctx = self._ctx
        for index, (name, parameter) in enumerate(self._module.named_parameters()):
            place = gradient_code.Place(name, index, parameter.numel(), ctx.group_rank, ctx.ranks)
            shares = self._way.shares(step, index, ctx.world_size)
            expected = gradient_code.Expectation(place, shares, self._relative)
            grad = None if parameter.grad is None else parameter.grad.detach().reshape(-1)
            self._sums.append(None if grad is None else int(gradient_code.checksum(grad)))
            self._compared.append(
                OffInMode(step=number, gradient=gradient_code.compare(expected, grad, identical=None))
            )

    def _scaled_step(self, model: Any, infinite: bool) -> ScaledStep:
        """A step with the GradScaler, whose gradient is infinite on the last rank if ``infinite`` is set."""
        last = self._ctx.group_rank == self._ctx.world_size - 1
        optimizer = _Optimizer([parameter for parameter in self._module.parameters() if parameter.requires_grad])
        step = (partial(cases.float32, by=inf if infinite and last else 1),)
        detail = f"{self._way.name}, {'infinite' if infinite else 'finite'} gradient"
        self._step(model, detail, step, self._scaler.scale)
        self._scaler.step(optimizer)
        self._scaler.update()
        return ScaledStep(infinite=infinite, stepped=bool(optimizer.steps), scale=self._scaler.get_scale())


def _shares(ctx: RankContext) -> tuple[Share, ...]:
    """This rank's shares of a data set that divides evenly and of one that does not, in two epochs."""
    import torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler

    even, found = max(_PER_RANK, -(-_LEAST // ctx.world_size)) * ctx.world_size, []
    for length, drop_last in ((even, False), (even + 1, False), (even + 1, True)):
        data: Any = range(length)  # a Dataset is anything with a length and items
        ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        sampler: Any = DistributedSampler(data, num_replicas=ranks, rank=rank, drop_last=drop_last)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            found.append(Share(data_length=length, drop_last=drop_last, epoch=epoch, indices=tuple(sampler)))
    return tuple(found)


def probe(ctx: RankContext) -> DdpModes:
    """Take steps in all modes of this level, compare the gradients with their closed form, and take shares of data."""
    import torch

    seed, customized = torch.initial_seed(), [sys.modules.get(name) for name in ("sitecustomize", "usercustomize")]
    files = [getattr(module, "__file__", None) for module in customized]
    found = {"torch_seed": seed, "start_up_files": tuple(file for file in files if file), "shares": _shares(ctx)}
    return measure(ctx).model_copy(update=found)


CHECK = Check(
    id="ddp_modes",
    title="DDP keeps its promises in its modes",
    where=Where.RANK,
    probe=probe,
    facts=(DdpModes,),
    rules=rules_in(rules),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.2,
)
