"""A rank's GPU (identity, training type, clock), and the settings of a rank or node."""

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
    """Return the UUID and name of a CUDA device; the UUID is None with torch older than 2.4."""
    if not device.startswith("cuda"):
        return None, None
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return (f"GPU-{uuid}" if uuid is not None else None), properties.name


def training_dtype(device: str) -> "torch.dtype":
    """Return the type that training would use there: bf16 on Ampere or newer, fp16 on Volta and Turing."""
    import torch

    if not device.startswith("cuda"):
        return torch.float32
    major, _ = torch.cuda.get_device_capability(device)
    return torch.bfloat16 if major >= 8 else torch.float16 if major >= 7 else torch.float32


def finish(device: str) -> None:
    """Wait for the GPU, because calls return before their work is done. The end of a step also waits."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def moment(ctx: RankContext) -> Any:
    """Return the device's current time: on a GPU an event in its queue, because calls return before work is done."""
    if not ctx.device.startswith("cuda"):
        return ctx.clock()
    import torch

    new_mark: Any = torch.cuda.Event  # untyped in torch's stubs
    mark = new_mark(enable_timing=True)
    mark.record()
    return mark


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two moments, after the device has passed the second."""
    return end - start if isinstance(start, float) else float(start.elapsed_time(end)) / 1e3


def settings_of(env: Mapping[str, str]) -> Settings:
    """Return the settings of one process that are compared with its peers'."""
    compared = {name: value for name, value in env.items() if is_recorded(name) and is_compared(name)}
    variables, withheld = open_and_withheld(compared)
    return Settings(variables=variables, withheld=withheld)
