"""A rank's GPU: what it tells its peers of it, its type, its clock; and the settings of a rank or node."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddp_doctor.facts.cluster import Settings
from ddp_doctor.model.context import RankContext
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.settings.agreement import is_compared
from ddp_doctor.settings.names import is_recorded

if TYPE_CHECKING:
    import torch


def gpu_identity(device: str) -> tuple[str | None, str | None]:
    """UUID and name of a CUDA device; the UUID is None on torch older than 2.4."""
    if not device.startswith("cuda"):
        return None, None
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return (f"GPU-{uuid}" if uuid is not None else None), properties.name


def training_dtype(device: str) -> "torch.dtype":
    """The type that a training would use there: bf16 from Ampere on, fp16 on Volta and Turing."""
    import torch

    if not device.startswith("cuda"):
        return torch.float32
    major, _ = torch.cuda.get_device_capability(device)
    return torch.bfloat16 if major >= 8 else torch.float16 if major >= 7 else torch.float32


def finish(device: str) -> None:
    """Wait for the GPU: calls return before their work is done. The end of a step waits by itself."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def moment(ctx: RankContext) -> Any:
    """This moment of the device: on a GPU a mark in its queue, for calls return before their work is done."""
    if not ctx.device.startswith("cuda"):
        return ctx.clock()
    import torch

    new_mark: Any = torch.cuda.Event  # untyped in torch's stubs
    mark = new_mark(enable_timing=True)
    mark.record()
    return mark


def seconds_between(start: Any, end: Any) -> float:
    """Between two moments of a device that has come to the second one."""
    return end - start if isinstance(start, float) else float(start.elapsed_time(end)) / 1e3


def settings_of(env: Mapping[str, str]) -> Settings:
    """What one process has to tell its peers."""
    compared = {name: value for name, value in env.items() if is_recorded(name) and is_compared(name)}
    variables, withheld = open_and_withheld(compared)
    return Settings(variables=variables, withheld=withheld)
