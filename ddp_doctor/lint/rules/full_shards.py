"""Rules on FullyShardedDataParallel.

FSDP(model, auto_wrap_policy=policy, cpu_offload=CPUOffload(offload_params=True))      one unit for each layer
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_doctor.lint import names
from ddp_doctor.lint.rule import Spot, always, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, is_result
from ddp_doctor.model.choices import Severity

#: Other ways to make a unit of each layer.
_OFFLOAD_POLICY = "torch.distributed.fsdp.CPUOffloadPolicy"
_UNITS = (names.FSDP[1], *(f"torch.distributed.fsdp.wrap.{name}" for name in ("wrap", "enable_wrap")))


@lint_rule("DDL144", "whole-model-offloaded-in-one-unit", Severity.WARNING, concerns=always)
def one_unit(script: Script) -> Iterator[Spot]:
    """FSDP offloads parameters to the CPU, and the whole model is one unit.

    What it finds
        `FullyShardedDataParallel(..., cpu_offload=CPUOffload(offload_params=True))` without `auto_wrap_policy`, as the
        only use of FSDP in the script; or one `fully_shard(model, offload_policy=CPUOffloadPolicy())` and no other.

    Why it matters
        FSDP gathers one unit at a time. If all of the model is one unit, every forward copies all parameters to
        the GPU and gathers them there at once: the memory that offloading and sharding should save is needed
        after all, and nothing overlaps.

    Remedy
        Give an `auto_wrap_policy` that makes a unit of each layer, for instance `transformer_auto_wrap_policy`.

    References
        https://pytorch.org/docs/stable/fsdp.html
        https://pytorch.org/tutorials/intermediate/FSDP_tutorial.html
    """
    units = list(script.named(names.FSDP[1]))
    if (
        len({id(unit.node) for unit in units}) == 1
        and not units[0].loops
        and not any(True for _ in script.named(names.FSDP[0]))
    ):
        policy = units[0].argument(None, "offload_policy")
        if is_result(policy, lambda made: made.name == _OFFLOAD_POLICY):
            yield _one_unit(units[0], "Call fully_shard on each layer first, then on the model")
    calls = list(script.named(names.FSDP[0]))
    if len({id(call.node) for call in calls}) != 1 or any(True for _ in script.named(*_UNITS)):
        return
    call = calls[0]
    if not call.has_stars and call.given(4, "auto_wrap_policy") is None and _offloads(call):
        yield _one_unit(call, "Give an auto_wrap_policy that makes a unit of each layer")


def _one_unit(call: Call, remedy: str) -> Spot:
    title = "FSDP offloads the whole model as one unit: each forward brings all of it to the GPU at once"
    return Spot(call, title, remedy=remedy)


def _offloads(call: Call) -> bool:
    def offloads_parameters(made: Call) -> bool:
        offloads = made.argument(0, "offload_params")
        return (
            made.name == "torch.distributed.fsdp.CPUOffload"
            and offloads is not None
            and offloads.constant is True
        )

    return is_result(call.argument(3, "cpu_offload"), offloads_parameters)
