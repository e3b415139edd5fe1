"""The arguments of DistributedDataParallel that change the duration of a step but not the result.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ddp_doctor.model.recording import TraceAdvice

#: The possible cost of changing each argument.
COST = MappingProxyType(
    {
        "bucket_cap_mb": "retuning when the model or the network changes",
        "gradient_as_bucket_view": "detach_() on gradients raises an error",
        "static_graph": "each step must use the same parameters in the same way",
        "find_unused_parameters": "an error if a parameter gets no gradient in a step",
        "broadcast_buffers": "buffers such as BatchNorm's running statistics differ between ranks",
    }
)


def as_the_job_has_them(options: Mapping[str, Any], advice: Sequence[TraceAdvice]) -> dict[str, Any]:
    """Return the arguments from the user's factory, overridden by what the trace shows."""
    return {**options, **{each.setting: had(each) for each in advice if had(each) is not None}}


def had(advice: TraceAdvice) -> bool | float | None:
    """Return the job's value, or None if the trace does not show it."""
    return not advice.value if isinstance(advice.value, bool) else advice.had


def changed(options: Mapping[str, Any], advice: TraceAdvice) -> dict[str, Any]:
    """Return the options with one argument changed as advised."""
    others = {name: value for name, value in options.items() if name != advice.setting}
    return others if advice.value is None else {**others, advice.setting: advice.value}


def copes_with_unused(options: Mapping[str, Any]) -> bool:
    """Return True if DDP does not wait for gradients of unused parameters."""
    return bool(options.get("find_unused_parameters") or options.get("static_graph"))
