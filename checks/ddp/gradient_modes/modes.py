"""The modes: a small model, the hooks, DDP's options, and what the ranks do in each step.

A step is one or more micro-steps, all but the last inside ``no_sync()``. A micro-step says, for a group
rank, how often and with which multiples it uses each parameter; so the right gradient follows from the table.

Source of the hooks: torch/distributed/algorithms/ddp_comm_hooks. The compressing hooks cast to half precision, divide
by the number of ranks, then reduce, so that only a single gradient beyond the format's range overflows. PowerSGD
averages as usual before ``start_powerSGD_iter`` (counted in steps) and then sends the factors of a matrix of
rank ``matrix_approximation_rank``: a mean of that rank or a lower one arrives whole. It imports numpy, and
where torch sees a GPU it waits for the device of the gradients, which a CPU is not: it raises ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext

#: For modes with many buckets: one of the parameters is larger than a bucket.
BUCKET_CAP_BYTES = 4 * 1024
#: The number of the one parameter of another dtype.
FLOAT64 = 5
#: Parameter number -> the multiples of its code with which the loss uses it, once for each.
Uses = Mapping[int, Sequence[int]]


def coded_model(ctx: RankContext) -> Any:
    """A torch module of parameters of mixed sizes, shapes, strides and dtypes.

    The rows of the one matrix that PowerSGD compresses hold 8 codes each, so that the mean of its gradient is
    of rank 1 (all rows are equal): the mean must be exact. Two rows are too few to be compressed.
    """
    import torch

    class Coded(torch.nn.Module):
        """loss = sum of multiple x parameter x code: the gradient is known in closed form."""

        def forward(self, uses: Uses, segment: Any) -> Any:
            named = list(self.named_parameters())
            terms = [
                segment(named[number][1], multiple * inputs[number])
                for number, multiples in uses.items()
                for multiple in multiples
            ]
            return torch.stack(terms).sum()

    ranks, least = ctx.world_size, max(64, ctx.world_size)  # each rank needs an element of its own
    made: dict[str, Any] = {"dtype": torch.float32, "device": ctx.device}
    tensors = [
        torch.zeros(least, **made),
        torch.zeros(3 * least + 1, **made),
        torch.zeros(32, 8 * ranks, **made),
        torch.zeros(16 * least + 7, **made),
        torch.zeros(8 * ranks, 2, **made).t(),  # strides that the bucket must keep
        torch.zeros(least + 5, dtype=torch.float64, device=ctx.device),  # a bucket of another dtype
        torch.zeros(least + 1, **made),
    ]
    inputs = [_input(ctx, number, tensor) for number, tensor in enumerate(tensors)]
    model = Coded()
    for number, tensor in enumerate(tensors):
        model.register_parameter(f"weight{number}", torch.nn.Parameter(tensor))
    return model


def _input(ctx: RankContext, number: int, like: Any) -> Any:
    import torch

    index = torch.arange(like.numel(), device=ctx.device)
    values = gradient_code.local(number, index, ctx.group_rank, ctx.world_size)
    return values.to(like.dtype).reshape(like.shape)


def plain(parameter: Any, given: Any) -> Any:
    """One use of a parameter."""
    return (parameter * given).sum()


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


_PLAIN_STEPS = 2  # the fewest that PowerSGD permits with error feedback
#: PowerSGD divides by a norm and multiplies matrices three times. A GPU may do so in TF32, which keeps 10 bits of
#: each factor: NVIDIA's containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 (torch/docs, CUDA semantics). All
#: factors are positive, so that three products are off by 6 roundings of 2**-11.
_FACTORED = 2.0**-8


@dataclass(frozen=True)
class Hook:
    """A hook: how to get its state and function, the dtype that it sends, what else it may lose."""

    get: Callable[[RankContext], tuple[Any, Any]]
    dtype: str
    loses: float = 0.0


def _fp16(ctx: RankContext) -> tuple[Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ctx.group, default_hooks.fp16_compress_hook


def _bf16(ctx: RankContext) -> tuple[Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ctx.group, default_hooks.bf16_compress_hook


def _power_sgd(ctx: RankContext) -> tuple[Any, Any]:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if ctx.device == "cpu" and torch.cuda.is_available():
        raise ImportError("torch has it for GPUs alone on a machine with one, and these ranks are on the CPU")
    state = powerSGD_hook.PowerSGDState(ctx.group, matrix_approximation_rank=1, start_powerSGD_iter=_PLAIN_STEPS)
    return state, powerSGD_hook.powerSGD_hook


FP16 = Hook(_fp16, "float16")
BF16 = Hook(_bf16, "bfloat16")
POWER_SGD = Hook(_power_sgd, "float32", _FACTORED)


MicroStep = Callable[[int], Uses]
_ALL = range(7)


@dataclass(frozen=True)
class Way:
    """One mode: options of DDP, a communication hook, how a parameter is used, and the steps."""

    name: str
    steps: tuple[tuple[MicroStep, ...], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    segment: Callable[[Any, Any], Any] = plain
    hook: Hook | None = None
    level: Level = Level.THOROUGH
    branches: bool = False  # ranks use different parameters
    one_dtype: bool = False  # the float64 parameter is frozen, and with it goes its bucket
    many_buckets: bool = False  # else one of each dtype, which is cheaper


def times(*multiples: int) -> MicroStep:
    """Every rank uses every parameter with these multiples, once for each."""
    return lambda _rank: dict.fromkeys(_ALL, multiples)


def branch(odd: int) -> MicroStep:
    """Parameter 1 is used by even ranks (or odd ones), 3 by rank 0 (or 1) alone, 6 by nobody."""

    def uses(rank: int) -> Uses:
        left_out = {6} | ({1} if rank % 2 != odd else set()) | ({3} if rank != odd else set())
        return {number: (1,) for number in _ALL if number not in left_out}

    return uses


def _float32(_rank: int) -> Uses:
    return {number: (1,) for number in _ALL if number != FLOAT64}


_TWO_STEPS = ((times(1),), (times(2),))
_VIEW = {"gradient_as_bucket_view": True}
_STATIC = {"static_graph": True}
_UNUSED = {"find_unused_parameters": True}
#: Multiples of micro-steps and of uses of one parameter: the missing amount shows which one was lost.
ACCUMULATED = (1, 2, 4)
USED = (1, 2)

WAYS = (
    Way("buckets", _TWO_STEPS, many_buckets=True),
    Way("bucket-view", _TWO_STEPS, _VIEW, level=Level.STANDARD),
    Way("accumulation", (tuple(times(multiple) for multiple in ACCUMULATED),), level=Level.STANDARD),
    Way("unused", ((branch(0),), (branch(1),)), _UNUSED, level=Level.STANDARD, branches=True),
    Way("twice", ((times(*USED),), (times(*USED),))),
    Way("static-graph", ((times(*USED),),) * 3, _STATIC),
    Way("checkpoint", _TWO_STEPS, segment=checkpointed),
    Way("checkpoint-static", ((times(*USED),),) * 2, _STATIC, segment=reentrant),
    Way("fp16-compress", _TWO_STEPS, hook=FP16, many_buckets=True),
    Way("bf16-compress", _TWO_STEPS, hook=BF16, many_buckets=True),
    # With gloo the callbacks of several buckets reduce in no fixed order, and ranks may cross (torch 2.13).
    Way("powersgd", ((_float32,),) * 4, hook=POWER_SGD, one_dtype=True),
)


def shares(step: tuple[MicroStep, ...], number: int, ranks: int) -> tuple[float, ...]:
    """How many times each group rank's code enters the gradient of a parameter in a step."""
    return tuple(float(sum(sum(micro(rank).get(number, ())) for micro in step)) for rank in range(ranks))
