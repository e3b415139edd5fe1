"""Checks that run in separate trials after all others: NCCL's own diagnostics, which may hang.

The result of such a trial does not affect the rest of the run, and no rank is judged by it.
"""

import time
from collections.abc import Iterable

from ddp_doctor.agents.framing import RunIsOver
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.engine.prove.experiments import first_message, why_nothing_follows
from ddp_doctor.facts.collectives import NcclDiagnosticsFact
from ddp_doctor.knowledge.versions import NCCL_DIAGNOSTICS, release
from ddp_doctor.model.check import Check
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics
from ddp_doctor.parse.nccl_log import version_in
from ddp_doctor.ranks.node_ranks import Run


def run_alone(
    checks: Iterable[Check], recording: Recording, run: Run, agent: Agent | None, partial: PartialRecording
) -> None:
    """Run the checks that have their own environment, or record why not; fills ``partial``."""
    settled = {reading.check for reading in recording.readings} | {left_out.check for left_out in recording.not_run}
    for check in (check for check in checks if check.environment and check.id not in settled):
        if not recording.on_nccl:
            reason = "the ranks of this run do not use NCCL"
        elif agent is None or agent.node_ranks.lost_helper() is not None:
            reason = "this run could start no more ranks"
        elif agent.world.world_size < check.min_ranks:
            reason = f"needs {check.min_ranks} ranks, 1 is all this run has"
        elif time.monotonic() >= run.until:
            reason = "the time budget was used up"
        else:
            run.progress(check.id)
            reason = _too_old(recording.trials) or _run(check, agent, partial)
        if reason:
            partial.leave_out((check,), reason)


def _too_old(trials: Iterable[TrialRecord]) -> str:
    """Return why ranks have no diagnostics, by the release that NCCL logged; empty if unknown or new enough."""
    logged = {version_in(rank.output_tail) for trial in trials for rank in trial.evidence}
    old = sorted(text for text in logged if text is not None and release(text) < NCCL_DIAGNOSTICS)
    return f"NCCL {old[0]} has no diagnostics: they came with {'.'.join(map(str, NCCL_DIAGNOSTICS))}" if old else ""


def _run(check: Check, agent: Agent, partial: PartialRecording) -> str:
    """Run one check and keep what its ranks read; return why results are missing, or an empty string."""
    try:
        result = agent.run_alone(check)
    except RunIsOver:
        raise
    except Exception as error:  # noqa: BLE001 - the report does not depend on it
        return f"internal error in its trial: {type(error).__name__}: {error}"
    record = result.record
    if why := result.cut_short or _too_old((record,)):
        return why
    if record.outcome == "finished":
        partial.readings.extend(result.readings)
        has_results = any(reading.fact and reading.fact.get("results") for reading in result.readings)
        return "" if has_results else "NCCL printed nothing of its diagnostics"
    if why := why_nothing_follows(record, 0):
        return why
    hung = record.outcome in ("stuck", "slow")
    why = f"they were stopped after {record.duration_s:.0f} s" if hung else first_message(record)
    printed = dict.fromkeys(line for rank in record.evidence for line in parse_nccl_diagnostics(rank.output_tail))
    if printed:
        partial.readings.append(NcclDiagnosticsFact(results=tuple(printed)).collected(check.id))
    return f"NCCL's diagnostics did not end: {why}"
