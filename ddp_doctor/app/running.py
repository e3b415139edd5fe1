"""``ddp-doctor run``: this node's part of a run, alone or with others."""

import errno
import socket
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddp_doctor.app.node_facts import look_here, plan_of, with_node_facts
from ddp_doctor.app.outcome import Outcome, Progress, UsageError, blank, judge
from ddp_doctor.app.request import RunRequest
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.node_run.session import Session
from ddp_doctor.engine.plan import Plan
from ddp_doctor.engine.prove import prove
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import NotRun, Recording
from ddp_doctor.ranks.control_store import listen
from ddp_doctor.ranks.interruption import Interrupted, interruptible

if TYPE_CHECKING:
    from ddp_doctor.engine.node_run.many_nodes import ManyNodes


def run(request: RunRequest, progress: Progress, checks: Sequence[Check] = CHECKS) -> Outcome:
    """Test this node, or with others its part of a run over several.

    Raises UsageError; Ctrl-C and SIGTERM give a partial outcome.
    """
    plan = plan_of(request.options, checks, request.nnodes)
    if request.nnodes > 1:
        return _run_with_others(request, plan, progress, checks)
    _require_endpoint(*request.endpoint)
    rank_checks = plan.at(Where.LAUNCHER, Where.RANK)
    started = time.monotonic()
    recording = blank(request.options, plan)
    with interruptible() as interruption, _session(request, progress) as session:
        try:
            if rank_checks:
                session.warm_up()
            recording = with_node_facts(recording, plan, request, progress)
            if rank_checks and recording.world is not None:
                options = request.options
                session.run_ranks(rank_checks, recording.world, options.level, options.budget_s)
                afterwards = plan.at(Where.AFTERWARDS)
                session.readings.extend(look_here(afterwards, recording.world, request, progress))
                _prove(_with_ranks(recording, session, 0.0), session, started + options.budget_s)
        except Interrupted:
            recording = recording.model_copy(update={"interrupted": True})
        except Exception as error:  # noqa: BLE001 - its own failure must not lose what it has seen
            why = f"the doctor failed itself: {type(error).__name__}: {error}"
            session.fail((*rank_checks, *plan.at(Where.AFTERWARDS)), why, traceback.format_exc())
        finally:
            interruption.disarm()
    session.readings.extend(_of_ranks(request, plan))
    recording = _with_ranks(recording, session, time.monotonic() - started)
    return judge(recording, checks)


def _session(request: RunRequest, progress: Progress) -> Session:
    return Session(request.env, request.endpoint, progress, request.options.model)


def _prove(recording: Recording, session: Session, until: float) -> None:
    """Try what the findings recommend, on this node's ranks."""
    assert recording.world is not None
    agent = session.agent_to_prove(recording.world, recording.options.level, until)
    prove(recording, diagnose(recording).findings, session.env, agent, until, session.experiments)


def _run_with_others(request: RunRequest, plan: Plan, progress: Progress, checks: Sequence[Check]) -> Outcome:
    """This node's part of a run; the head's outcome is every node's, as long as the head is heard."""
    from ddp_doctor.engine.node_run.many_nodes import ManyNodes

    assert request.place is not None
    started = time.monotonic()
    recording = blank(request.options, plan)
    with interruptible() as interruption, _session(request, progress) as session:
        session.warm_up()
        many = ManyNodes(
            session=session,
            place=request.place,
            plan=plan,
            recording=recording,
            judge=lambda so_far: judge(so_far, checks).report,
            join_timeout_s=request.join_timeout_s,
            asked_ranks=request.nproc_per_node,
            announce=request.announce,
            known={check.id: check for check in checks},
            of_ranks=lambda: _of_ranks(request, plan),
        )
        try:
            many.recording = with_node_facts(recording, plan, request, progress)
            many.run()
        except Interrupted:
            many.interrupted()
        except Exception as error:  # noqa: BLE001 - its own failure must not lose what it has seen
            why = f"the doctor failed itself: {type(error).__name__}: {error}"
            many.failed(why, traceback.format_exc())
        finally:
            interruption.disarm()
        outcome = _of_many(many, checks, time.monotonic() - started)
        many.close()
    return outcome


def _of_ranks(request: RunRequest, plan: Plan) -> Sequence[Reading]:
    """Asked as late as can be, so that nobody waits for ranks that start slowly."""
    return request.of_ranks() if any(check.id == "env_vars" for check in plan.checks) else ()


def _of_many(many: "ManyNodes", checks: Sequence[Check], duration_s: float) -> Outcome:
    if many.report is not None:
        return Outcome(many.recording, many.report, spoken_by=many.spoken_by)
    recording = many.so_far().model_copy(update={"duration_s": duration_s})
    outcome = judge(recording, checks)
    many.dismiss(recording, outcome.report)
    return outcome


def _require_endpoint(host: str, port: int) -> None:
    """Refuse an endpoint that is not this host's or is taken, before anything is started."""
    try:
        with listen(host, port):
            return
    except socket.gaierror as error:
        raise UsageError(f"--rdzv-endpoint: the name {host} does not resolve ({error.strerror})") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} of {host} is in use by another program"
        else:
            why = f"cannot listen on port {port} of {host} ({error.strerror})"
        raise UsageError(f"{why}; choose another with --rdzv-endpoint HOST:PORT") from error


def _with_ranks(recording: Recording, session: Session, duration_s: float) -> Recording:
    not_run = tuple(NotRun(check=check, reason=reason) for check, reason in session.left_out)
    return recording.model_copy(
        update={
            "readings": (*recording.readings, *session.readings),
            "trials": tuple(session.trials),
            "experiments": tuple(session.experiments),
            "not_run": (*recording.not_run, *not_run),
            "duration_s": duration_s,
        }
    )
