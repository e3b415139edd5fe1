"""A look at the node after the ranks: real ranks, and probes that note when they ran."""

import os
import time
from typing import ClassVar

import pytest

from ddp_doctor.app.running import run
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Backend, Level, Status, Where
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options
from ddp_doctor.starters.request import RunRequest

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("own_forkserver")]


class Noted(Fact):
    KIND: ClassVar[str] = "noted/1"

    at: float


def note(_ctx) -> Noted:
    return Noted(at=time.monotonic())


def checks() -> tuple[Check, ...]:
    places = {"before": Where.NODE, "ranks": Where.RANK, "after": Where.AFTERWARDS}
    return tuple(Check(name, name, where, note, (Noted,)) for name, where in places.items())


def test_probe_after_the_ranks_runs_when_they_have_exited():
    options = Options(command="run", level=Level.QUICK, backend=Backend.GLOO)
    request = RunRequest(options, dict(os.environ), nproc_per_node=2)

    recording = run(request, checks()).recording

    at = {
        name: [Noted.model_validate(one.fact).at for one in recording.of_check(name) if one.fact]
        for name in ("before", "ranks", "after")
    }
    assert [one.status for one in recording.of_check("after")] == [Status.COLLECTED]
    assert len(at["ranks"]) == 2
    assert max(at["before"]) < min(at["ranks"]) <= max(at["ranks"]) < min(at["after"])
