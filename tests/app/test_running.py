"""Runs that are refused before any rank starts."""

import re
import shlex
import sys
from dataclasses import replace
from typing import Any

import pytest

from ddp_doctor.app import UsageError
from ddp_doctor.app.running import _require_gpus_and_ranks, require_usable
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.collect import with_node_facts
from ddp_doctor.engine.plan import make_plan
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.model.choices import Backend
from ddp_doctor.model.fact import Absent, Failed
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.starters.request import RunRequest


def _ask(answer: GpusFact | Exception) -> None:
    """Request NCCL with a plan that does not include GPUs; the GPU probe then returns or raises the answer."""

    def probe(_: Any) -> GpusFact:
        if isinstance(answer, Exception):
            raise answer
        return answer

    gpus, allreduce = (next(check for check in CHECKS if check.id == name) for name in ("gpus", "allreduce"))
    options = Options(backend=Backend.NCCL, only=("allreduce",))
    request = RunRequest(options, {})
    plan = make_plan(options, [replace(gpus, probe=probe), allreduce])
    _require_gpus_and_ranks(with_node_facts(Recording(options=options), plan, request))


def test_nccl_without_a_gpu_is_refused_even_if_no_check_of_the_plan_needs_gpus():
    with pytest.raises(
        UsageError, match=r"--backend nccl .*require GPUs: no driver; omit the option, or use --backend gloo"
    ):
        _ask(Absent("no driver"))


def test_nccl_is_not_refused_if_a_gpu_exists_or_is_unreadable():
    _ask(GpusFact())
    _ask(Failed("NVML gave no answer"))


def test_ranks_of_one_node_without_torch_are_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    plan = make_plan(Options(), CHECKS)
    require_usable(Options(), plan)

    monkeypatch.setitem(sys.modules, "torch", None)  # find_spec finds none then
    with pytest.raises(
        UsageError, match=rf"ranks need torch, but .*{re.escape(shlex.quote(sys.executable))} -m pip install torch$"
    ):
        require_usable(Options(), plan)
    require_usable(Options(), make_plan(Options(only=("host",)), CHECKS))  # this plan does not start ranks
