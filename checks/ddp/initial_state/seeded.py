"""A model with every sort of state that DDP has to broadcast, its values made from a seed."""

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

from ddp_doctor.model.context import RankContext

#: 64 random bits: that two ranks begin with the same ones by chance is out of the question.
_MOST = 2**62


def seeded_model(ctx: RankContext, seed: int) -> Any:
    """A torch module on the rank's device; torch's own random numbers are left as they are."""
    import torch

    made = torch.Generator().manual_seed(seed)
    model: Any = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.randn(48, 32, generator=made))
    model.low = torch.nn.Parameter(torch.randn(256, generator=made).bfloat16())
    model.frozen = torch.nn.Parameter(torch.randn(64, generator=made), requires_grad=False)
    # As of a convolution in channels_last: not contiguous.
    model.strided = torch.nn.Parameter(torch.randn(16, 8, generator=made).t())
    model.head = torch.nn.Linear(32, 48, bias=False)
    model.head.weight = model.weight
    model.register_buffer("running", torch.randn(64, generator=made))
    model.register_buffer("counts", torch.randint(_MOST, (8,), generator=made))
    model.register_buffer("step", torch.randint(_MOST, (), generator=made))
    model.register_buffer("scale", torch.randn(32, generator=made).half())
    model.register_buffer("mask", torch.randint(2, (128,), generator=made).bool(), persistent=False)
    return model.to(ctx.device)


def fingerprints(module: Any) -> dict[str, str]:
    """Name -> what tells a parameter's or buffer's bits from others'; a tied name has its own entry."""
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return {name: _fingerprint(tensor) for name, tensor in named}


def whole(prints: Mapping[str, str]) -> str:
    """One fingerprint of a whole model."""
    return _shortened(repr(sorted(prints.items())).encode())


def _fingerprint(tensor: Any) -> str:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return _shortened(bytes(flat.view(torch.uint8).tolist()))


def _shortened(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def wrapped(ctx: RankContext, module: Any, *, sync: bool) -> float | None:
    """Seconds to wrap the module in DDP; None where this torch cannot leave the broadcast out."""
    from torch.nn.parallel import DistributedDataParallel

    options: dict[str, Any] = {} if sync else {"init_sync": False}
    if not options.keys() <= inspect.signature(DistributedDataParallel.__init__).parameters.keys():
        return None
    with ctx.step("ddp_construct", "with rank 0's values" if sync else "with the rank's own values"):
        started = ctx.clock()
        DistributedDataParallel(module, process_group=ctx.group, **options)
        if ctx.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(ctx.device)
    return ctx.clock() - started
