"""The use cases behind the commands. They return values, print nothing, and parse no options."""

import errno
import json
import math
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ddp_doctor import __version__
from ddp_doctor.checks import CHECKS, topology
from ddp_doctor.checks.gpus import GpusFact
from ddp_doctor.checks.roll_call.facts import NotStarted, Present, RollCallFact
from ddp_doctor.checks.software import Software
from ddp_doctor.engine.collect import collect
from ddp_doctor.engine.diagnose import all_rules, diagnose
from ddp_doctor.engine.plan import Plan, make_plan
from ddp_doctor.engine.policy import report as make_report
from ddp_doctor.engine.world import choose_world
from ddp_doctor.launch.control import listen
from ddp_doctor.launch.detect import ForeignWorld, Launcher
from ddp_doctor.launch.interruption import Interrupted, interruptible
from ddp_doctor.launch.place import Place
from ddp_doctor.launch.session import Session, addresses
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import SCHEMA_VERSION, NotRun, Options, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.model.rule import Rule
from ddp_doctor.parse.visible_devices import visible_gpus

if TYPE_CHECKING:
    from ddp_doctor.engine.many_nodes import ManyNodes

Progress = Callable[[str], None]


#: A dead name server would cost each job its two seconds.
_NOT_IN_PROLOG = ("interfaces",)


def _unheard(_text: str) -> None:
    """For those whom nobody hears."""


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one sentence with what to do."""


@dataclass(frozen=True)
class RunRequest:
    """What ``ddp-doctor run`` was asked to do. ``env`` is the job's environment."""

    options: Options
    env: Mapping[str, str]
    nproc_per_node: int | None = None  # None is auto
    endpoint: tuple[str, int] = ("127.0.0.1", 0)
    foreign: ForeignWorld | None = None
    place: Place | None = None  # None, or one of one node: this node alone
    join_timeout_s: float = 60.0
    announce: Progress = _unheard  # told what to type on the other hosts, where this one is the head
    of_ranks: Callable[[], Sequence[Reading]] = tuple  # what the launcher's other ranks here have told by now

    @property
    def nnodes(self) -> int:
        """How many nodes the run has."""
        return self.place.nnodes if self.place else 1


@dataclass(frozen=True)
class Outcome:
    """A recording, what the doctor says of it, and the rules that failed themselves."""

    recording: Recording
    report: Report
    rule_failures: tuple[tuple[str, str], ...] = field(default=())
    spoken_by: str | None = None  # the head whose report this is, on the other nodes


def run(request: RunRequest, progress: Progress, checks: Sequence[Check] = CHECKS) -> Outcome:
    """Test this node, or with others its part of a run over several.

    Raises UsageError; Ctrl-C and SIGTERM give a partial outcome.
    """
    plan = _plan(request.options, checks, request.nnodes)
    if request.nnodes > 1:
        return _run_with_others(request, plan, progress, checks)
    _require_endpoint(*request.endpoint)
    rank_checks = [check for check in plan.checks if check.where is not Where.NODE]
    started = time.monotonic()
    recording = _blank(request.options, plan)
    with interruptible() as interruption, Session(request.env, request.endpoint, progress) as session:
        try:
            if rank_checks:
                session.warm_up()
            recording = _with_node_facts(recording, plan, request, progress)
            if rank_checks and recording.world is not None:
                options = request.options
                session.run_ranks(rank_checks, recording.world, options.level, options.budget_s)
        except Interrupted:
            recording = recording.model_copy(update={"interrupted": True})
        except Exception as error:  # noqa: BLE001 - its own failure must not lose what it has seen
            why = f"the doctor failed itself: {type(error).__name__}: {error}"
            session.fail(rank_checks, why, traceback.format_exc())
        finally:
            interruption.disarm()
    session.readings.extend(_of_ranks(request, plan))
    recording = _with_ranks(recording, session, time.monotonic() - started)
    return judge(recording, checks)


def _run_with_others(request: RunRequest, plan: Plan, progress: Progress, checks: Sequence[Check]) -> Outcome:
    """This node's part of a run; the head's outcome is every node's, as long as the head is heard."""
    from ddp_doctor.engine.many_nodes import ManyNodes

    assert request.place is not None
    started = time.monotonic()
    recording = _blank(request.options, plan)
    with interruptible() as interruption, Session(request.env, request.endpoint, progress) as session:
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
            many.recording = _with_node_facts(recording, plan, request, progress)
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


def not_started(
    options: Options,
    hosts: Sequence[str],
    endpoint: tuple[str, int],
    launcher: Launcher,
    reasons: Mapping[int, str],
) -> Outcome:
    """A run whose head could not be started, seen from where it was typed; ``reasons`` by node rank."""
    fact = RollCallFact(
        role="head",
        outcome="missing",
        endpoint_host=endpoint[0],
        endpoint_port=endpoint[1],
        nnodes=len(hosts),
        hostname=hosts[0],
        present=tuple(
            Present(hostname=host, nnodes=len(hosts))
            for rank, host in enumerate(hosts)
            if rank not in reasons
        ),
        missing=tuple(sorted(reasons)),
        not_started=tuple(
            NotStarted(hostname=hosts[rank], reason=why) for rank, why in sorted(reasons.items())
        ),
    )
    world = World(nnodes=len(hosts), world_size=len(hosts), launcher=launcher, expected_hosts=tuple(hosts))
    reading = Reading(check="roll_call", status=Status.COLLECTED, fact=fact.recorded())
    recording = _blank(options, Plan(()))
    return judge(recording.model_copy(update={"world": world, "readings": (reading,)}))


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


def prolog(env: Mapping[str, str], options: Options, progress: Progress) -> Outcome:
    """What needs no other node and no torch, in about a second."""
    plan = _in_prolog(_plan(options, [check for check in CHECKS if check.where is Where.NODE]))
    started = time.monotonic()
    request = RunRequest(options, env)
    recording = _with_node_facts(_blank(options, plan), plan, request, progress)
    return judge(recording.model_copy(update={"duration_s": time.monotonic() - started}))


def _in_prolog(plan: Plan) -> Plan:
    checks = tuple(check for check in plan.checks if check.id not in _NOT_IN_PROLOG)
    left_out = [check.id for check in plan.checks if check.id in _NOT_IN_PROLOG]
    not_run = [NotRun(check=name, reason="says nothing of one node alone") for name in left_out]
    return Plan(checks, (*plan.not_run, *not_run))


def read_topology(text: str) -> Outcome:
    """Judge a pasted ``nvidia-smi topo -m``; one that is not understood is a finding and unsure."""
    options = Options(command="topology")
    recording = _blank(options, Plan(()))
    return judge(recording.model_copy(update={"readings": topology.read_pasted(text)}))


def live_topology(env: Mapping[str, str], progress: Progress) -> Outcome:
    """The topology of this machine, with what decides about P2P on it."""
    options = Options(command="topology", only=("topology",))
    plan = _plan(options, CHECKS)
    return judge(_with_node_facts(_blank(options, plan), plan, RunRequest(options, env), progress))


def replay(path: Path) -> Outcome:
    """The findings of an old recording, by today's rules. Raises UsageError for a foreign file."""
    return judge(load_recording(path))


def load_recording(path: Path) -> Recording:
    """Read a recording. Raises UsageError with one sentence for every kind of wrong file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a recording: it is not a text file") from error
    version = _schema_version(path, text)
    if _major(version) > _major(SCHEMA_VERSION):
        raise UsageError(
            f"{path} was written by a newer ddp-doctor (schema {version}, this one reads"
            f" {SCHEMA_VERSION}); upgrade ddp-doctor to replay it"
        )
    try:
        recording = Recording.model_validate_json(text)
        for kind in (kind for check in CHECKS for kind in check.facts):
            recording.facts(kind)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{path} is not a recording of ddp-doctor ({where}: {first['msg']})") from error
    if not version or not recording.run_id:
        raise UsageError(f"{path} is not a recording of ddp-doctor (it has no schema_version or run_id)")
    return recording


def _schema_version(path: Path, text: str) -> str:
    """The version that the file names, looked at first: a newer schema may have any shape."""

    def finite(number: str) -> float:
        if not math.isfinite(float(number)):
            raise ValueError(f"{number[:20]} is not a finite number")
        return float(number)

    try:
        data = json.loads(text, parse_int=finite, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a recording of ddp-doctor ({error})") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    return version if isinstance(version, str) else ""


def judge(recording: Recording, checks: Sequence[Check] = CHECKS) -> Outcome:
    """Diagnose a recording, fresh or old."""
    diagnosis = diagnose(recording)
    return Outcome(recording, make_report(recording, diagnosis, checks), diagnosis.failures)


def judge_with_absent(head: Recording, absent: Sequence[Recording]) -> Outcome:
    """What the head saw, and what those saw who could not come to its roll call and say themselves why."""
    world = head.world or World()
    known = {node.hostname for node in world.nodes}
    nodes = [node for one in absent if one.world for node in one.world.nodes if node.hostname not in known]
    readings = [reading for one in absent for reading in one.readings if reading.check == "roll_call"]
    return judge(
        head.model_copy(
            update={
                "world": world.model_copy(update={"nodes": (*world.nodes, *nodes)}),
                "readings": (*head.readings, *readings),
            }
        )
    )


def find_rule(code: str) -> Rule:
    """The rule with this code or name. Raises UsageError."""
    for rule in all_rules():
        if code.upper() == rule.code or code == rule.name:
            return rule
    raise UsageError(
        f"there is no rule {code!r}; the codes stand in every finding and in `ddp-doctor checks`"
    )


def _plan(options: Options, checks: Sequence[Check], nnodes: int = 1) -> Plan:
    try:
        return make_plan(checks, options.level, options.only, options.skip, options.budget_s, nnodes)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def _blank(options: Options, plan: Plan) -> Recording:
    now = datetime.now(timezone.utc)
    return Recording(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        started_at=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        options=options,
        not_run=plan.not_run,
    )


def _with_node_facts(recording: Recording, plan: Plan, request: RunRequest, progress: Progress) -> Recording:
    from ddp_doctor.sources.machine import LiveContext

    world = World()

    def context(deadline: float) -> LiveContext:
        return LiveContext(request.env, deadline, world=world, level=request.options.level)

    readings = collect(plan.at(Where.NODE), context, progress)
    recording = recording.model_copy(update={"readings": tuple(readings)})
    return recording.model_copy(update={"world": _world(recording, request)})


def _world(recording: Recording, request: RunRequest) -> World:
    gpus, software = recording.first(GpusFact), recording.first(Software)
    return choose_world(
        gpus=len(visible_gpus(gpus, request.env)) if gpus else 0,
        cuda_torch=software is not None and software.torch_cuda is not None,
        asked_ranks=request.nproc_per_node,
        backend=request.options.backend,
        foreign=request.foreign,
        addresses=addresses(),
        nnodes=request.nnodes,
    )


def _with_ranks(recording: Recording, session: Session, duration_s: float) -> Recording:
    not_run = tuple(NotRun(check=check, reason=reason) for check, reason in session.left_out)
    return recording.model_copy(
        update={
            "readings": (*recording.readings, *session.readings),
            "trials": tuple(session.trials),
            "not_run": (*recording.not_run, *not_run),
            "duration_s": duration_s,
        }
    )


def state_folder(env: Mapping[str, str]) -> Path | None:
    """Where recordings are kept: ``$XDG_STATE_HOME/ddp-doctor``; None where there is no home."""
    base = env.get("XDG_STATE_HOME") or (f"{env['HOME']}/.local/state" if env.get("HOME") else "")
    return Path(base) / "ddp-doctor" if Path(base).is_absolute() else None
