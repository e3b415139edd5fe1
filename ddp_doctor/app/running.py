"""``ddp-doctor run``: this node's part of a run, alone or with others."""

import errno
import socket
import traceback
from collections.abc import Sequence

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.collect import plan_of, with_node_facts
from ddp_doctor.engine.node_run.node import NodeRun, OneNode
from ddp_doctor.engine.node_run.session import Session
from ddp_doctor.model.check import Check
from ddp_doctor.ranks.control_store import listen
from ddp_doctor.starters.interruption import Interrupted, interruptible
from ddp_doctor.starters.request import RunRequest


def run(request: RunRequest, checks: Sequence[Check] = CHECKS) -> Outcome:
    """Test this node, or with others its part of a run over several.

    Where the head is not lost, its outcome is every node's. Raises UsageError; Ctrl-C and SIGTERM give a
    partial outcome.
    """
    plan = plan_of(request.options, checks, request.nnodes)
    if request.nnodes == 1 and request.endpoint[1]:  # without a port nobody chose it
        _require_endpoint(*request.endpoint)
    part = _part_of(request.nnodes)  # imported before a signal can come in the middle of it
    with interruptible() as interruption, Session(request) as session:
        node_run = part(session, plan, blank(request.options, plan), {check.id: check for check in checks})
        try:
            if node_run.needs_torch():
                session.warm_up()
            node_run.recording = with_node_facts(node_run.recording, plan, request)
            node_run.run()
        except Interrupted:
            node_run.interrupted()
        except Exception as error:  # noqa: BLE001 - a failure of its own must not lose what was read
            why = f"the doctor failed itself: {type(error).__name__}: {error}"
            node_run.failed(why, traceback.format_exc())
        finally:
            interruption.disarm()
        outcome = _outcome(node_run, checks)
        node_run.close()
    return outcome


def _part_of(nnodes: int) -> type[NodeRun]:
    if nnodes == 1:
        return OneNode
    from ddp_doctor.engine.node_run.many_nodes import ManyNodes

    return ManyNodes


def _outcome(node_run: NodeRun, checks: Sequence[Check]) -> Outcome:
    if node_run.report is not None:
        return Outcome(node_run.recording, node_run.report, spoken_by=node_run.spoken_by)
    recording = node_run.finish()
    outcome = judge(recording, checks)
    node_run.dismiss(recording, outcome.report)
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
