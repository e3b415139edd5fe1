"""Operators on tensors of simulated GPUs: PyTorch's CPU kernels compute them in the same memory.

They replace the kernels for CUDA, so that autograd, DDP's reducer and every thread use them. The host first waits for
the current stream, although with a GPU it would continue: this is our rule, not PyTorch's.
"""

import ctypes
import warnings
from typing import Any

import torch  # noqa: TID253  - it is there already
from torch.utils._pytree import tree_flatten, tree_map  # noqa: TID253

#: They make memory, look at it, or copy what NVIDIA's runtime copies: the real ones work.
KEPT = {
    *("empty.memory_format", "empty_strided", "resize_", "record_stream", "_local_scalar_dense"),
    *("set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor", "is_set_to"),
    *("as_strided", "view", "_reshape_alias", "view_as_real", "view_as_complex", "unfold", "_pin_memory"),
    "is_pinned",
}
CPU = torch.device("cpu")
#: They take tensors of several devices.
MIXED = {"aten::copy_", "aten::index", "aten::_index_put_impl_", "aten::_foreach_copy_"}


def register() -> object:
    """Replace all computing kernels for CUDA while the result is kept."""
    ours: Any = torch.library.Library("aten", "IMPL", "CUDA")  # type: ignore[no-untyped-call]
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each replaces another
        for whole in [*names, "aten::copy_"]:
            space, _, name = whole.partition("::")
            if space == "aten" and name not in KEPT:
                ours.m.impl(name, "CUDA", Operator(name), False)
    return ours


class Operator:
    """One overload of one operator, looked up at its first call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Any = REPLACED.get(name)
        self.tensors: list[bool] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.found is None:
            packet, _, overload = self.name.partition(".")
            self.any = getattr(torch.ops.aten, packet)
            self.found = getattr(self.any, overload or "default")
            self.tensors = [str(one.type) == "Tensor" for one in self.found._schema.arguments]
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{self.name}", "CPU") and not (
                torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{self.name}", "CPU")
            ):
                raise NotImplementedError(f"planted: aten::{self.name} is not planted")
        # A number in the place of a tensor comes as a number, which another overload takes.
        number = any(
            its and isinstance(one, (int, float, complex)) for its, one in zip(self.tensors, args, strict=False)
        )
        return computed(self.any if number else self.found, args, kwargs)


def computed(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a call with CPU tensors in place of GPU tensors."""
    flat = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor) and one.is_cuda]
    all_devices = {one.device for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor) and one.dim()}
    if len(all_devices) > 1 and call.name().partition(".")[0] not in MIXED:
        first, second = sorted(map(str, all_devices))[:2]
        said = f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
        raise RuntimeError(said)
    wanted = kwargs.get("device")
    device = torch.device(wanted) if wanted is not None else flat[0].device
    if wanted is not None:
        kwargs = {**kwargs, "device": CPU}
    torch.cuda.current_stream(device).synchronize()
    beside = {id(one): on_cpu(one) for one in flat}
    before = {key: one.data_ptr() for key, one in beside.items()}

    def down(one: Any) -> Any:
        if isinstance(one, torch.Generator) and one.device.type == "cuda":
            return drawn_from(one)
        return beside.get(id(one), one) if isinstance(one, torch.Tensor) else one

    result = call(*tree_map(down, args), **tree_map(down, kwargs))
    back = {id(beside[id(one)]): one for one in flat}
    for one in flat:
        if beside[id(one)].data_ptr() != before[id(one)]:  # an output that was made larger
            one.resize_(beside[id(one)].size())
            move(beside[id(one)], one)

    def up(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or id(one) in back:
            return back.get(id(one), one)
        made = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=device)
        move(one, made)
        return made

    return tree_map(up, result)


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU over the memory of one of a planted GPU."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    same = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), CPU, storage.nbytes())
    alias = torch.empty(0, dtype=tensor.dtype)
    return alias.set_(same, tensor.storage_offset(), tensor.size(), tensor.stride())


def move(one: torch.Tensor, other: torch.Tensor) -> None:
    if one.numel():
        size = one.untyped_storage().nbytes() - int(one.storage_offset()) * one.element_size()
        ctypes.memmove(other.data_ptr(), one.data_ptr(), min(size, other.untyped_storage().nbytes()))


def drawn_from(generator: torch.Generator) -> torch.Generator:
    """A generator of the CPU in the state of one of a GPU, which goes on as if it had been drawn from."""
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    return torch.Generator().manual_seed((generator.initial_seed() + offset * 0x9E3779B97F4A7C15) % 2**63)


# --- those that the CPU has not ------------------------------------------------------------------------


def _wide(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(at for at in range(tensor.dim()) if at != 1)


def _along(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return values.reshape([-1 if at == 1 else 1 for at in range(tensor.dim())])


def batch_norm_stats(data: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    over = _wide(data)
    return data.mean(over), (data.var(over, unbiased=False) + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    data: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    parts = counts.reshape(-1, 1) / counts.sum()
    whole = (mean * parts).sum(0)
    variance = ((invstd**-2 - eps + mean**2) * parts).sum(0) - whole**2
    if running_mean is not None and running_var is not None:
        n = counts.sum()
        running_mean.mul_(1 - momentum).add_(whole, alpha=momentum)
        running_var.mul_(1 - momentum).add_(variance * n / (n - 1), alpha=momentum)
    return whole, (variance + eps).rsqrt()


def batch_norm_elemt(
    data: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    result = (data - _along(mean, data)) * _along(invstd, data)
    if weight is not None:
        result = result * _along(weight, data)
    return result if bias is None else result + _along(bias, data)


def batch_norm_backward_reduce(
    grad_out: torch.Tensor,
    data: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums of the gradient, and of the gradient times the centered data."""
    over = _wide(data)
    sum_dy = grad_out.sum(over)
    sum_dy_xmu = (grad_out * (data - _along(mean, data))).sum(over)
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy


def batch_norm_backward_elemt(
    grad_out: torch.Tensor,
    data: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    n = count.sum()
    centered = (data - _along(mean, data)) * _along(invstd**2 * sum_dy_xmu / n, data)
    result = (grad_out - _along(sum_dy / n, data) - centered) * _along(invstd, data)
    return result if weight is None else result * _along(weight, data)


def _fused_sdp_choice(*args: Any, **kwargs: Any) -> int:
    return 0


REPLACED = {
    "batch_norm_stats": batch_norm_stats,
    "batch_norm_gather_stats_with_counts": batch_norm_gather_stats_with_counts,
    "batch_norm_elemt": batch_norm_elemt,
    "batch_norm_backward_reduce": batch_norm_backward_reduce,
    "batch_norm_backward_elemt": batch_norm_backward_elemt,
    "_fused_sdp_choice": _fused_sdp_choice,
}

torch.backends.cudnn.enabled = False  # its convolutions are separate kernels
torch._planted_operators = register()  # type: ignore[attr-defined]
