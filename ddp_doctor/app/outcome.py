"""The result of every use case, a recording and its report, even if nodes could not take part."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ddp_doctor import __version__
from ddp_doctor.engine.diagnose import checks_for, diagnose
from ddp_doctor.engine.plan import Plan
from ddp_doctor.engine.verdict import report as make_report
from ddp_doctor.facts.cluster import NotStarted, Present, RollCallFact
from ddp_doctor.features import recorded_by
from ddp_doctor.knowledge.launchers import job_of
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.recording import SCHEMA_VERSION, Options, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.starters.detect import Launcher

__all__ = ["Outcome", "Progress", "UsageError", "blank", "judge"]

Progress = Callable[[str], None]
_NO_CHECKS = Plan(())


@dataclass(frozen=True)
class Outcome:
    """A recording, its report, and the rules that crashed."""

    recording: Recording
    report: Report
    rule_failures: tuple[tuple[str, str], ...] = field(default=())
    spoken_by: str | None = None  # the head that made this report, on the other nodes


def judge(recording: Recording, checks: Sequence[Check] | None = None) -> Outcome:
    """Diagnose a recording, new or old; ``checks`` replace the checks of its command."""
    diagnosis = diagnose(recording)
    report = make_report(recording, diagnosis, checks or checks_for(recording))
    if (feature := recorded_by(recording.command)) is not None:
        report = feature.complete(report, recording, diagnosis)
    return Outcome(recording, report, diagnosis.failures)


def with_baseline(outcome: Outcome, comparison: Callable[[Recording, Report], Recording]) -> Outcome:
    """Return the outcome of a run with the comparison with a baseline."""
    return replace(judge(comparison(outcome.recording, outcome.report)), spoken_by=outcome.spoken_by)


def blank(options: Options, plan: Plan = _NO_CHECKS, env: Mapping[str, str] | None = None, **known: Any) -> Recording:
    """Return a recording of a run that begins now, with the environment ``env`` and the fields ``known``."""
    now = datetime.now(timezone.utc)
    return Recording(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        started_at=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        job=job_of(env or {}),
        options=options,
        not_run=plan.not_run,
        **known,
    )


def not_started(
    options: Options, hosts: Sequence[str], endpoint: tuple[str, int], launcher: Launcher, reasons: Mapping[int, str]
) -> Outcome:
    """Return the outcome of a run whose head could not be started; ``reasons`` by node rank."""
    fact = RollCallFact(
        role="head",
        outcome="missing",
        endpoint_host=endpoint[0],
        endpoint_port=endpoint[1],
        nnodes=len(hosts),
        hostname=hosts[0],
        present=tuple(
            Present(hostname=host, nnodes=len(hosts)) for rank, host in enumerate(hosts) if rank not in reasons
        ),
        missing=tuple(sorted(reasons)),
        not_started=tuple(NotStarted(hostname=hosts[rank], reason=why) for rank, why in sorted(reasons.items())),
    )
    world = World(nnodes=len(hosts), world_size=len(hosts), launcher=launcher, expected_hosts=tuple(hosts))
    return judge(blank(options, world=world, readings=(fact.collected("roll_call"),)))


def judge_with_absent(head: Recording, absent: Sequence[Recording]) -> Outcome:
    """Evaluate the head's recording, joined with recordings of nodes that could not check in and report why."""
    world = head.world or World()
    known = {node.hostname for node in world.nodes}
    nodes = [
        node for recording in absent if recording.world for node in recording.world.nodes if node.hostname not in known
    ]
    readings = [reading for recording in absent for reading in recording.readings if reading.check == "roll_call"]
    return judge(
        head.model_copy(
            update={
                "world": world.model_copy(update={"nodes": (*world.nodes, *nodes)}),
                "readings": (*head.readings, *readings),
            }
        )
    )
