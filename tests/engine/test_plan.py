"""The checks that run: by name, level, number of nodes and time."""

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.plan import TOO_DEAR, make_plan
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Fact
from ddp_doctor.model.recording import Options


def _nothing(_ctx: Context) -> Fact:
    raise Absent("nothing is looked at")


BEFORE, RANKS, AFTER = (
    Check("before", "Before", Where.NODE, _nothing, ()),
    Check("ranks", "Ranks", Where.RANK, _nothing, ()),
    Check("after", "After", Where.AFTERWARDS, _nothing, ()),
)


def _plan(only: tuple[str, ...] = ()):
    return make_plan(Options(only=only), (BEFORE, RANKS, AFTER))


def test_checks_after_the_ranks_run_with_them():
    assert _plan().at(Where.AFTERWARDS) == (AFTER,)


def test_check_after_the_ranks_is_skipped_with_a_reason_without_ranks():
    plan = _plan(("before", "after"))

    assert plan.checks == (BEFORE,)
    assert {one.check: one.reason for one in plan.not_run}["after"] == "no ranks run, after which it looks"


def test_check_that_can_measure_the_users_model_runs_at_a_lower_level_with_one():
    check = Check("steps", "Steps", Where.RANK, _nothing, (), level=Level.THOROUGH, level_with_model=Level.STANDARD)

    def chosen(level: Level, model: str) -> tuple[Check, ...]:
        return make_plan(Options(level=level, model=model), (check,)).checks

    assert chosen(Level.STANDARD, "net:make") == (check,)
    assert chosen(Level.STANDARD, "") == ()
    assert chosen(Level.QUICK, "net:make") == ()
    assert chosen(Level.THOROUGH, "") == (check,)


@pytest.mark.parametrize("level", Level)
def test_short_budget_skips_checks_that_decide_a_verdict_last(level: Level):
    heart = {"software", "gpus", "process_group", "allreduce", "gradient_sync", "p2p"}
    plan = make_plan(Options(level=level, budget_s=3.0), CHECKS)
    left_out = {left.check for left in plan.not_run if left.reason.startswith(TOO_DEAR)}

    assert heart <= {check.id for check in plan.checks}
    assert "topology" in left_out
    assert list(plan.checks) == [check for check in CHECKS if check in plan.checks]
