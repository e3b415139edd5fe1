"""The use cases that start no ranks: the prolog, and topologies pasted or live."""

import time
from collections.abc import Mapping

from ddp_doctor.app.outcome import Outcome, Progress, blank, judge
from ddp_doctor.checks import CHECKS, read_pasted
from ddp_doctor.engine.collect import plan_of, with_node_facts
from ddp_doctor.engine.plan import Plan
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import NotRun, Options
from ddp_doctor.starters.request import RunRequest

#: A dead name server would cost each job its two seconds.
_NOT_IN_PROLOG = ("interfaces",)


def prolog(env: Mapping[str, str], options: Options, progress: Progress) -> Outcome:
    """Test what needs no other node and no torch, in about a second."""
    plan = _in_prolog(plan_of(options, [check for check in CHECKS if check.where is Where.NODE]))
    started = time.monotonic()
    # A prolog does not run as the job's user, and a home folder on a network may hang.
    mine = {name: value for name, value in env.items() if name != "HOME"}
    recording = with_node_facts(blank(options, plan, env), plan, RunRequest(options, mine, progress=progress))
    return judge(recording.model_copy(update={"duration_s": time.monotonic() - started}))


def _in_prolog(plan: Plan) -> Plan:
    checks = tuple(check for check in plan.checks if check.id not in _NOT_IN_PROLOG)
    left_out = [check.id for check in plan.checks if check.id in _NOT_IN_PROLOG]
    not_run = [NotRun(check=name, reason="needs two nodes") for name in left_out]
    return Plan(checks, (*plan.not_run, *not_run))


def read_topology(text: str, ignore: tuple[str, ...] = ()) -> Outcome:
    """Judge a pasted topology; one that is not understood is a finding and unsure."""
    options = Options(command="topology", ignore=ignore)
    recording = blank(options, Plan(()))
    return judge(recording.model_copy(update={"readings": read_pasted(text)}))


def live_topology(env: Mapping[str, str], progress: Progress, ignore: tuple[str, ...] = ()) -> Outcome:
    """The topology of this machine, with what decides about P2P on it."""
    options = Options(command="topology", only=("topology",), ignore=ignore)
    plan = plan_of(options, [check for check in CHECKS if check.id == "topology"])
    return judge(
        with_node_facts(blank(options, plan, env), plan, RunRequest(options, env, progress=progress))
    )
