"""The small model of all modes: its loss is linear in every parameter, however it gets there."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.context import RankContext

#: Where there are to be many: one of the parameters is larger than a bucket.
BUCKET_CAP_BYTES = 4 * 1024
#: The number of the one parameter of another dtype.
FLOAT64 = 5
#: Parameter number -> the multiples of its code with which the loss uses it, once for each.
Uses = Mapping[int, Sequence[int]]


def coded_model(ctx: RankContext) -> Any:
    """A torch module of parameters of mixed sizes, shapes, strides and dtypes.

    The rows of the one matrix that PowerSGD compresses hold 8 codes each, so that the mean of its gradient is
    of rank 1 (all rows are equal): it is owed exactly. Two rows are too few to be compressed.
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
    inputs = [_input(ctx, number, one) for number, one in enumerate(tensors)]
    model = Coded()
    for number, one in enumerate(tensors):
        model.register_parameter(f"weight{number}", torch.nn.Parameter(one))
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
    return checkpoint.checkpoint(lambda one: plain(parameter, one), given, use_reentrant=False)


def reentrant(parameter: Any, given: Any) -> Any:
    """As ``checkpointed``, in torch's older way: a backward within the backward."""
    import torch
    from torch.utils import checkpoint

    gate = torch.ones((), device=given.device, dtype=given.dtype, requires_grad=True)  # an input must
    return checkpoint.checkpoint(
        lambda one, opened: plain(parameter, one) * opened, given, gate, use_reentrant=True
    )
