"""The communication hooks of torch that are tested, and what each of them owes.

torch/distributed/algorithms/ddp_comm_hooks: the compressing hooks cast to half precision, divide by the
number of ranks, then reduce, so that only a single gradient beyond the format's range overflows. PowerSGD
averages as usual before ``start_powerSGD_iter`` (counted in steps) and then sends the factors of a matrix of
rank ``matrix_approximation_rank``: a mean of that rank or a lower one arrives whole. It imports numpy, and
where torch sees a GPU it waits for the device of the gradients, which a CPU is not: it raises ValueError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddp_doctor.model.context import RankContext

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
    state = powerSGD_hook.PowerSGDState(
        ctx.group, matrix_approximation_rank=1, start_powerSGD_iter=_PLAIN_STEPS
    )
    return state, powerSGD_hook.powerSGD_hook


FP16 = Hook(_fp16, "float16")
BF16 = Hook(_bf16, "bfloat16")
POWER_SGD = Hook(_power_sgd, "float32", _FACTORED)
