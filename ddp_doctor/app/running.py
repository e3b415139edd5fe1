"""``ddp-doctor run``: this node's part of a run, on a single node or with others."""

import importlib.util
import shlex
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge, with_baseline
from ddp_doctor.checks import checks_of
from ddp_doctor.engine.collect import with_node_facts
from ddp_doctor.engine.node_run.node import NodeRun, OneNode, Session
from ddp_doctor.engine.plan import Plan, make_plan
from ddp_doctor.engine.sizes import require_possible
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.features import is_loadable
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Command
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.parse.options import is_configuration
from ddp_doctor.ranks.control_store import ALL_ADDRESSES, listen
from ddp_doctor.ranks.helper import HelperLost
from ddp_doctor.sources import user_module
from ddp_doctor.starters.endpoint import holder_of, is_held_by_launcher
from ddp_doctor.starters.interruption import Interrupted, interruptible
from ddp_doctor.starters.request import RunRequest
from ddp_doctor.views.gpus import nccl_without_gpu


def run(request: RunRequest, checks: Sequence[Check] = ()) -> Outcome:
    """Test this node, or its part of a run over several nodes, by its command's checks or the given ones.

    All nodes get the head's outcome, unless it is lost. Raises UsageError. Ctrl-C and SIGTERM give a partial outcome.
    """
    # Another node may have a model.
    has_model = bool(request.options.model) or (request.nnodes > 1 and is_loadable("model"))
    checks = checks or checks_of(Command(request.options.command), has_model=has_model)
    plan = make_plan(request.options, checks, request.nnodes)
    if request.nnodes == 1:  # with several nodes, only some may lack it
        require_usable(request.options, plan)
    held = None
    if request.nnodes == 1 and request.endpoint[1]:  # without a port no user or launcher selected one
        request, held = _on_a_free_port(request)
    part: type[NodeRun] = OneNode
    if request.nnodes > 1:  # imported before a signal can come in the middle of it
        from ddp_doctor.engine.node_run.many_nodes import ManyNodes

        part = ManyNodes
    with interruptible() as interruption, Session(request) as session:
        node_run = part(session, plan, blank(request.options, plan, request.env), {check.id: check for check in checks})
        try:
            interruption.arm()
            if request.nnodes > 1 or node_run.rank_checks():  # the control store of several nodes is torch's
                session.warm_up(node_run.rank_checks())
            node_run.recording = with_node_facts(node_run.recording, plan, request, node_run.partial.readings)
            if request.nnodes == 1:
                _require_gpus_and_ranks(node_run.recording)
            require_possible(node_run.recording, request.nnodes)
            if held is not None and node_run.rank_checks():
                readings = (*node_run.recording.readings, held)
                node_run.recording = node_run.recording.model_copy(update={"readings": readings})
            node_run.run()
        except Interrupted:
            node_run.interrupted()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - a failure of its own must not lose what was read
            why = f"internal error: {type(error).__name__}: {error}"
            if isinstance(error, HelperLost):
                why = str(error)
            node_run.failed(why, traceback.format_exc())
        finally:
            interruption.disarm()
        outcome = _outcome(node_run, checks, request)
        node_run.close()
    return outcome


def _outcome(node_run: NodeRun, checks: Sequence[Check], request: RunRequest) -> Outcome:
    if node_run.report is not None:
        return Outcome(node_run.recording, node_run.report, spoken_by=node_run.spoken_by)
    outcome = judge(node_run.finish(), checks)
    if request.baseline is not None:
        outcome = with_baseline(outcome, request.baseline[1])
    node_run.dismiss(outcome.recording, outcome.report)
    return outcome


def require_usable(options: Options, plan: Plan) -> None:
    """Refuse a missing model, and ranks if Python has no torch; with several nodes, findings report these.

    Raises UsageError.
    """
    model = options.model
    if model and not is_configuration(model) and (why := user_module.problem(model)):
        raise UsageError(f"cannot use {options.typed_model}: {why}")
    if not any(check.where.needs_ranks for check in plan.checks) or importlib.util.find_spec("torch") is not None:
        return
    raise UsageError(
        f"ranks need torch, but it is not installed in {quoted(sys.executable)}; run ddp-doctor with your job's Python"
        f" (python -m ddp_doctor run), or install torch: {shlex.quote(sys.executable)} -m pip install torch"
    )


def _require_gpus_and_ranks(recording: Recording) -> None:
    """Raise UsageError for NCCL without a GPU, or for other ranks than the job of --collectives-of has."""
    if refused := nccl_without_gpu(recording):
        raise UsageError(refused)
    job, world = recording.options.replay, recording.world
    if job is not None and world is not None and len(job.ranks) != world.nproc_per_node:
        raise UsageError(
            f"the job of --collectives-of {quoted(job.path)} has {len(job.ranks)} ranks, but this run has"
            f" {world.nproc_per_node}; add --nproc-per-node {len(job.ranks)}"
        )


def _on_a_free_port(request: RunRequest) -> tuple[RunRequest, Reading | None]:
    """Return the request with a free port, and a reading about the program that holds the requested port, if any.

    A port of the launcher that started this run is the job's own. Raises UsageError for the endpoint of another host.
    """
    host, port = request.endpoint
    try:
        with listen(host, 0):
            pass
    except socket.gaierror as error:
        raise UsageError(f"cannot resolve the --rdzv-endpoint host {quoted(host)}: {error.strerror}") from error
    except OSError as error:
        raise UsageError(
            f"cannot listen on {quoted(host)}: {error.strerror}; name this host with --rdzv-endpoint HOST:PORT"
        ) from error
    try:
        with listen(ALL_ADDRESSES, port):  # as torch's store does
            return request, None
    except OSError as error:
        free = replace(request, endpoint=(host, 0))
        if is_held_by_launcher(port):
            return free, None
        fact = RollCallFact(
            role="head",
            outcome="held",
            endpoint_host=host,
            endpoint_port=port,
            error=error.strerror or str(error),
            held_by=holder_of(port),
            hostname=socket.gethostname(),
        )
        return free, fact.collected("roll_call")
