"""The modes: what DDP is given, what the ranks do in each step, and how far the mean may be off.

A step is one or more micro-steps, all but the last inside ``no_sync()``. A micro-step says, for a group
rank, how often and with which multiples it uses each parameter; so the right gradient follows from the table.

Source of the hooks: torch/distributed/algorithms/ddp_comm_hooks. The compressing hooks cast to half precision, divide
by the number of ranks, then reduce. PowerSGD averages as usual before ``start_powerSGD_iter`` (counted in steps) and
then sends the factors of a matrix of rank ``matrix_approximation_rank``: a mean of that rank or a lower one arrives
whole. It imports numpy, and where torch sees a GPU it waits for the device of the gradients, which a CPU is not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext

#: Parameter number -> the multiples of its code with which the loss uses it, once for each.
Uses = Mapping[int, Sequence[float]]
MicroStep = Callable[[int], Uses]
Hook = tuple[Any, Any]  # its state and function
#: For modes with many buckets: one of the parameters is larger than a bucket.
BUCKET_CAP_BYTES = 4 * 1024
_ALL = range(7)
_FLOAT64 = 5  # the number of the one parameter of another dtype
#: The largest numbers of the formats in half precision.
LARGEST = {"float16": 65504.0, "bfloat16": 255 * 2.0**120}


def coded_model(ctx: RankContext, way: "Way") -> Any:
    """A torch module of parameters of mixed sizes, shapes, strides and dtypes.

    The rows of the one matrix that PowerSGD compresses hold 8 codes each, so that the mean of its gradient is
    of rank 1 (all rows are equal): the mean must be exact. Two rows are too few to be compressed.
    """
    import torch

    class Coded(torch.nn.Module):
        """loss = sum of multiple x parameter x code: the gradient is known in closed form."""

        def forward(self, uses: Uses, segment: Any) -> Any:
            named = list(self.parameters())
            terms = [segment(named[number], by * inputs[number]) for number in uses for by in uses[number]]
            return torch.stack(terms).sum()

    ranks, least = ctx.world_size, max(64, ctx.world_size)  # each rank needs an element of its own
    matrix, strided = (32, 8 * ranks), (8 * ranks, 2)  # one has strides that the bucket must keep
    shapes = ((least,), (3 * least + 1,), matrix, (16 * least + 7,), strided, (least + 5,), (least + 1,))
    inputs, model = [], Coded()
    for number, shape in enumerate(shapes):
        dtype = way.dtype or ("float64" if number == _FLOAT64 else "float32")
        tensor = torch.zeros(shape, dtype=getattr(torch, dtype), device=ctx.device)
        tensor = tensor.t() if shape == strided else tensor
        code = gradient_code.local(number, torch.arange(tensor.numel()), ctx.group_rank, ranks) * way.large(ranks)
        inputs.append(code.to(tensor).reshape(tensor.shape))
        parameter = torch.nn.Parameter(tensor, requires_grad=not way.one_dtype or number != _FLOAT64)
        model.register_parameter(f"weight{number}", parameter)
    return model


def plain(parameter: Any, given: Any) -> Any:
    """One use of a parameter."""
    return (parameter * given).sum()


def product(parameter: Any, given: Any) -> Any:
    """One use, which autocast computes in half precision."""
    return (given.reshape(1, -1) @ parameter.reshape(-1, 1)).sum()


def checkpointed(parameter: Any, given: Any) -> Any:
    """One use, whose forward is run again by the backward."""
    from torch.utils import checkpoint

    # As in a module, the parameter is no argument of the segment.
    return checkpoint.checkpoint(lambda tensor: plain(parameter, tensor), given, use_reentrant=False)


def reentrant(parameter: Any, given: Any) -> Any:
    """As ``checkpointed``, in torch's older way: a backward within the backward."""
    import torch
    from torch.utils import checkpoint

    gate = torch.ones((), device=given.device, dtype=given.dtype, requires_grad=True)  # an input must
    return checkpoint.checkpoint(
        lambda tensor, opened: plain(parameter, tensor) * opened, given, gate, use_reentrant=True
    )


def _compress(ctx: RankContext, name: str) -> Hook:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ctx.group, getattr(default_hooks, name)


_PLAIN_STEPS = 2  # the fewest that PowerSGD permits with error feedback
#: PowerSGD divides by a norm and multiplies matrices three times. A GPU may do so in TF32, which keeps 10 bits of
#: each factor: NVIDIA's containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 (torch/docs, CUDA semantics). All
#: factors are positive, so that three products are off by 6 roundings of 2**-11.
_FACTORED = 2.0**-8


def _power_sgd(ctx: RankContext) -> Hook:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if ctx.device == "cpu" and torch.cuda.is_available():
        raise ImportError("these ranks are on the CPU, but on a machine with GPUs torch supports PowerSGD only on GPUs")
    state = powerSGD_hook.PowerSGDState(ctx.group, matrix_approximation_rank=1, start_powerSGD_iter=_PLAIN_STEPS)
    return state, powerSGD_hook.powerSGD_hook


def times(*multiples: float) -> MicroStep:
    """Every rank uses every parameter with these multiples, once for each."""
    return lambda _rank: dict.fromkeys(_ALL, multiples)


def branch(odd: int) -> MicroStep:
    """Parameter 1 is used by even ranks (or odd ones), 3 by rank 0 (or 1) alone, 6 by nobody."""

    def uses(rank: int) -> Uses:
        left_out = {6} | ({1} if rank % 2 != odd else set()) | ({3} if rank != odd else set())
        return {number: (1,) for number in _ALL if number not in left_out}

    return uses


def float32(_rank: int, by: float = 1) -> Uses:
    """Every parameter but the one of another dtype is used."""
    return {number: (by,) for number in _ALL if number != _FLOAT64}


def _first_alone(rank: int) -> Uses:
    """A batch that the first rank has more than the others."""
    return dict.fromkeys(_ALL, (1,)) if rank == 0 else {}


@dataclass(frozen=True)
class Way:
    """One mode: what turns it on, and what the ranks do in it.

    ``sent`` is the format in which gradients travel, whose rounding the mean may be off by, and ``loses`` what it
    may be off besides. ``autocast`` is the format of the forward, ``dtype`` that of all parameters.
    """

    name: str
    switch: str
    steps: tuple[tuple[MicroStep, ...], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    level: Level = Level.THOROUGH
    segment: Callable[[Any, Any], Any] = plain
    hook: Callable[[RankContext], Hook] | None = None
    sent: str = "float32"
    loses: float = 0.0
    dtype: str = ""
    autocast: str = ""
    joined: bool = False  # under DDP.join(): a rank without a use in a step has ended
    one_dtype: bool = False  # the float64 parameter is frozen, and with it goes its bucket
    many_buckets: bool = False  # else one of each dtype, which is cheaper

    def large(self, ranks: int) -> float:
        """The multiple by which the sum of the ranks' gradients is beyond the format of ``dtype``, and no addend is."""
        return LARGEST[self.dtype] / (14 * (ranks + 1)) if self.dtype else 1.0

    def shares(self, step: tuple[MicroStep, ...], number: int, ranks: int) -> tuple[float, ...]:
        """How many times each group rank's code enters the gradient of a parameter in a step."""
        large = self.large(ranks)
        return tuple(large * sum(sum(micro(rank).get(number, ())) for micro in step) for rank in range(ranks))


_TWO_STEPS = ((times(1),), (times(2),))
_USED_TWICE = ((times(1, 2),),)
_VIEW = {"gradient_as_bucket_view": True}
_STATIC = {"static_graph": True}
_UNUSED = {"find_unused_parameters": True}
_FP16, _BF16 = "fp16_compress_hook", "bf16_compress_hook"
_COMPRESS = partial(Way, steps=_TWO_STEPS, many_buckets=True)
_CHECKPOINTED = "activation checkpoints with use_reentrant="
#: A gradient is of the forward's format, and float32 is reduced: two roundings of the format.
_AUTOCAST = partial(Way, steps=((float32,),), segment=product, one_dtype=True)
#: DDP divides, then adds: gradients near the largest number of the format have a mean, and no sum.
_HALF = partial(Way, steps=((times(1),),))

#: The multiples of accumulated micro-steps are powers of 2: the missing amount shows which one was lost.
WAYS = (
    Way("buckets", "several buckets", _TWO_STEPS, many_buckets=True),
    Way("bucket-view", "gradient_as_bucket_view=True", _TWO_STEPS, _VIEW, Level.STANDARD),
    Way("accumulation", "no_sync()", ((times(1), times(2), times(4)),), level=Level.STANDARD),
    Way("unused", "find_unused_parameters=True", ((branch(0),), (branch(1),)), _UNUSED, Level.STANDARD),
    Way("join", "join()", ((times(1),), (_first_alone,)), level=Level.STANDARD, joined=True),
    Way("twice", "a parameter used twice", _USED_TWICE * 2),
    Way("static-graph", "static_graph=True", _USED_TWICE * 3, _STATIC),
    Way("checkpoint", f"{_CHECKPOINTED}False", _TWO_STEPS, segment=checkpointed),
    Way("checkpoint-static", f"static_graph=True and {_CHECKPOINTED}True", _USED_TWICE * 2, _STATIC, segment=reentrant),
    _COMPRESS("fp16-compress", _FP16, hook=partial(_compress, name=_FP16), sent="float16"),
    _COMPRESS("bf16-compress", _BF16, hook=partial(_compress, name=_BF16), sent="bfloat16"),
    # With gloo the callbacks of several buckets reduce in no fixed order, and ranks may cross (torch 2.13).
    Way("powersgd", "powerSGD_hook", ((float32,),) * 4, hook=_power_sgd, loses=_FACTORED, one_dtype=True),
    _AUTOCAST("autocast-float16", "autocast to float16", autocast="float16", loses=2.0**-10),
    _AUTOCAST("autocast-bfloat16", "autocast to bfloat16", autocast="bfloat16", loses=2.0**-7),
    _HALF("half-float16", "large gradients in float16", sent="float16", dtype="float16"),
    _HALF("half-bfloat16", "large gradients in bfloat16", sent="bfloat16", dtype="bfloat16"),
)
