"""What each command does around its use case: options that belong together, outputs, exit codes."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from ddp_doctor import app
from ddp_doctor.app import Outcome, UsageError
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.guard import kept, say
from ddp_doctor.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.choices import ExitCode, Verdict, Where
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import EnvReport
from ddp_doctor.parse.factory_name import require_factory
from ddp_doctor.parse.hostlist import expand, read_host_file
from ddp_doctor.parse.torchrun_options import endpoint
from ddp_doctor.phrases.run_options import JOIN_TIMEOUT_S, line, typed
from ddp_doctor.render import settings_table, state, terminal
from ddp_doctor.render import topology as topology_render
from ddp_doctor.render.outputs import Outputs
from ddp_doctor.render.progress import progress
from ddp_doctor.render.used_transports import used_table
from ddp_doctor.sources.given import MOST_BYTES, CannotRead, read_given
from ddp_doctor.starters import local_ranks, outer_launcher, starter_pipe
from ddp_doctor.starters.detect import HOSTS_VARIABLE, ForeignWorld, foreign_world, number
from ddp_doctor.starters.fanout import Ended, FanOut
from ddp_doctor.starters.place import Asked, NotNeeded, Place, place
from ddp_doctor.starters.start_all_nodes import StartedNodes, start_all_nodes
from ddp_doctor.starters.starter_channel import StarterChannel

#: Longest that a rank which is not the agent waits beyond the budget: start, kill, report.
_WAIT_MARGIN_S = 150.0
#: An environment has two megabytes at most, a job script a few kilobytes.
_LONGEST_SCRIPT_BYTES = 8 * 1024 * 1024
#: For srun or ssh to start the agents of all nodes.
_START_S = 60.0


@dataclass(frozen=True)
class Launch:
    """The options of ``run`` about nodes and ranks, as typed."""

    asked: Asked = field(default_factory=Asked)
    hosts: str | None = None
    hostfile: str | None = None
    nproc_per_node: str = "auto"
    join_timeout_s: float = JOIN_TIMEOUT_S

    def read(self) -> Asked:
        """With the hosts of --hosts or --hostfile. Raises UsageError."""
        if self.hosts is not None and self.hostfile is not None:
            raise UsageError("--hosts and --hostfile are two ways to say the same: give one")
        hosts: tuple[str, ...] = ()
        with _one_sentence():
            if self.hostfile is not None:
                hosts = read_host_file(_text(self.hostfile))
            elif self.hosts is not None:
                hosts = expand(self.hosts)
        if self.hostfile is not None and not hosts:
            raise UsageError(f"{self.hostfile} names no host; write one on each line")
        return replace(self.asked, hosts=hosts)


def run(options: Options, launch: Launch, outputs: Outputs) -> int:
    """``ddp-doctor run``: start the agents of all nodes, or be one, or wait for that of this node."""
    env = dict(os.environ)
    with _one_sentence():
        require_factory(options.model, options.only)
    if starter_pipe.take(env):
        return _run_for_starter(options, launch, env)
    world = foreign_world(env, os.getppid())
    asked = launch.read()
    arguments = typed(options, _ranks(launch.nproc_per_node), launch.join_timeout_s)
    with _one_sentence():
        here = start_all_nodes(asked, env, world, arguments)
    if isinstance(here, StartedNodes):
        return _run_everywhere(here, options, launch, outputs, env)
    try:
        request = _request(options, launch, here, env)
    except NotNeeded as why:
        if world is None or world.is_agent:
            say(f"ddp-doctor: {why}")
        return ExitCode.HEALTHY.value
    return _run_as_rank(request, outputs)


def _run_as_rank(request: app.RunRequest, outputs: Outputs) -> int:
    """One process of a node tests; the others of a foreign world wait for its code."""
    world = request.foreign
    if world is None or world.local_size == 1:
        return _run_and_report(request, outputs)
    if not world.is_agent:
        meeting = request.join_timeout_s if request.nnodes > 1 else 0.0
        return _wait_for(world, request.env, request.options.budget_s + meeting)
    folder = state.meeting_folder(request.env)
    lock = outer_launcher.AgentLock(world, folder) if folder else None
    code = ExitCode.UNSURE.value
    try:
        told = partial(local_ranks.readings, world, folder, request.env)
        code = _run_and_report(replace(request, of_ranks=told), outputs)
    except UsageError:
        code = ExitCode.USAGE.value
        raise
    finally:
        if folder is not None:
            local_ranks.forget(world, folder)
        if lock is not None:
            lock.tell(code)
    return code


def _run_and_report(request: app.RunRequest, outputs: Outputs) -> int:
    if request.foreign is not None and request.foreign.launcher == "mpi":
        outputs = replace(outputs, is_piped=True)  # Open MPI gives its ranks pseudo-terminals
    out, here = terminal.console(outputs.words_to, is_piped=outputs.is_piped), request.place

    def announce(command: str) -> None:
        others = f"{request.nnodes - 1} hosts" if request.nnodes > 2 else "host"
        options = typed(request.options, request.nproc_per_node, request.join_timeout_s)
        out.print(f"This host is the head. Type on the other {others}:\n    {line(command, options)}")

    speaks = here is None or not here.is_started_by_us or here.is_head is not False
    with progress(out, quiet=outputs.quiet or not speaks) as tell:
        outcome = app.run(replace(request, announce=announce), tell)
    return _finish(outcome, outputs, request.env, here)


def _run_for_starter(options: Options, launch: Launch, env: dict[str, str]) -> int:
    """An agent that another ddp-doctor started, to which it hands what it saw; it shows nothing itself."""
    rank = launch.asked.node_rank
    starter = StarterChannel(number(env, "SLURM_NODEID", 0) if rank is None else rank)
    code = ExitCode.UNSURE.value
    try:
        request = _request(options, launch, launch.asked, env)
        starter_pipe.when_met(lambda: starter.tell("met"))
        starter.tell("hello")
        outcome = app.run(request, lambda text: starter.tell("progress", text))
        if outcome.spoken_by is None:
            starter.tell_recording(outcome.recording.model_dump_json())
        _save(outcome.recording, env, None if rank == 0 else socket.gethostname())
        code = outcome.report.exit_code
    except UsageError as error:
        starter.tell("refused", str(error))
        code = ExitCode.USAGE.value
    finally:
        starter.tell("done", str(code))
    return code


def _run_everywhere(
    here: StartedNodes, options: Options, launch: Launch, outputs: Outputs, env: Mapping[str, str]
) -> int:
    """Start all agents, wait for the head's recording, and report it here, where the user is."""
    timeout_s = _START_S + launch.join_timeout_s + options.budget_s + _WAIT_MARGIN_S
    with progress(terminal.console(outputs.words_to), quiet=outputs.quiet) as tell:
        tell(f"start on {', '.join(here.hosts[:8])}{', ...' if here.hosts[8:] else ''}")
        with _one_sentence():
            fan_out = FanOut(here.starts, here.hosts, tell, timeout_s, launch.join_timeout_s)
        ended = fan_out.run()
    outcome = _heard(ended, here, options)
    for rank, why in ended.broken_off.items() if not ended.not_started else ():
        say(f"ddp-doctor: the agent of {here.hosts[rank]} broke off: {why}")
    if outcome is not None:
        return _finish(outcome, outputs, env)
    if ended.timed_out:
        say(f"ddp-doctor: no report came within {timeout_s:.0f} s, so the verdict is unsure")
    return ExitCode.INTERRUPTED.value if ended.interrupted else ExitCode.UNSURE.value


def _heard(ended: Ended, here: StartedNodes, options: Options) -> Outcome | None:
    """What the agents saw; where the head's was lost before they met, who is missing and why."""
    if ended.recording is not None and (ended.interrupted or not ended.is_headless):
        try:
            absent = [Recording.model_validate_json(text) for text in ended.recordings_of_absent]
            return app.judge_with_absent(Recording.model_validate_json(ended.recording), absent)
        except ValidationError:
            say("ddp-doctor: what the agents saw cannot be read here; are all hosts on one release?")
            return None
    if ended.refused is not None:
        raise UsageError(ended.refused)
    if ended.absent and not ended.interrupted:
        return app.not_started(options, here.hosts, here.endpoint, here.launcher, ended.absent)
    return None


def prolog(options: Options, *, unsure: str, outputs: Outputs) -> int:
    """``ddp-doctor prolog``: exits 1 only when sick, so that no healthy node is drained."""
    if unsure not in ("pass", "fail"):
        raise UsageError(f"--unsure takes pass or fail, not {unsure!r}")
    outcome = app.prolog(dict(os.environ), options, lambda _text: None)
    code = _finish(outcome, outputs, os.environ)
    if outcome.report.verdict is Verdict.UNSURE and unsure == "pass" and code == ExitCode.UNSURE.value:
        return ExitCode.HEALTHY.value
    return code


def replay(path: Path, outputs: Outputs) -> int:
    """``ddp-doctor replay``: the same findings from the file alone."""
    outcome = app.replay(path)
    if outcome.recording.options.command == "env":
        return _show_settings(app.judge_settings(outcome.recording), outputs)
    return _show_and_write(outcome, outputs, saved_as=None)


def topology(file: str | None, outputs: Outputs) -> int:
    """``ddp-doctor topology``: the matrix, what it means, and the advice; exit 2 for what is refused."""
    if file is None:
        outcome = app.live_topology(dict(os.environ), lambda _text: None)
    else:
        outcome = app.read_topology(_text(file))
    report = topology_render.with_topology(outcome.report, outcome.recording)
    topology_render.show(outcome.recording, terminal.console(outputs.words_to))
    if file is not None and not any(reading.fact for reading in outcome.recording.readings):
        report = report.model_copy(update={"exit_code": ExitCode.USAGE.value})
    return _show_and_write(replace(outcome, report=report), outputs, saved_as=None)


def env(file: str | None, outputs: Outputs) -> int:
    """``ddp-doctor env``: the settings in force here or in a text, and what is wrong with them."""
    if file is None:
        outcome = app.live_settings(dict(os.environ))
    else:
        outcome = app.read_settings(_text(file, most_bytes=_LONGEST_SCRIPT_BYTES))
    return _show_settings(outcome, outputs)


def _show_settings(outcome: Outcome, outputs: Outputs) -> int:
    if isinstance(outcome.report, EnvReport):
        settings_table.show(outcome.report, terminal.console(outputs.words_to))
    return _show_and_write(outcome, outputs, saved_as=None)


def _text(path: str, most_bytes: int = MOST_BYTES) -> str:
    try:
        return read_given(path, most_bytes=most_bytes).decode("utf-8", errors="replace")
    except CannotRead as error:
        raise UsageError(str(error)) from error


def list_checks() -> str:
    """The checks in order, each with its rules."""
    places = {
        Where.NODE: "node",
        Where.NODES: "between nodes",
        Where.LAUNCHER: "torchrun ranks",
        Where.RANK: "ranks",
        Where.AFTERWARDS: "node, after the ranks",
    }
    lines = []
    for check in CHECKS:
        where = places[check.where]
        lines.append(f"{check.id:<15} {check.title} ({where}, from level {check.level.value})")
        lines += [f"    {rule.code} {rule.name} ({rule.severity.value})" for rule in check.rules]
    lines.append("any rank check  What happens to ranks while they run any of these")
    lines += [f"    {rule.code} {rule.name} ({rule.severity.value})" for rule in TRIAL_RULES]
    lines.append("lint           Training scripts, by `ddp-doctor lint`")
    lines += [f"    {rule.code} {rule.name} ({rule.severity.value})" for rule in LINT_RULES]
    return "\n".join(lines) + "\n"


def explain(code: str) -> str:
    """One rule's page."""
    rule = app.find_rule(code)
    words = rule.doc.replace("``", "`")  # a terminal knows no markup
    return f"{rule.code} {rule.name} ({rule.severity.value})\n\n{words}\n"


def template(name: str | None) -> str:
    """A template's text, or the names of all."""
    from ddp_doctor import templates

    if name is None:
        return "\n".join(templates.names()) + "\n"
    if name not in templates.names():
        raise UsageError(f"there is no template {name!r}; there is {', '.join(templates.names())}")
    return templates.text(name)


# --- parts ----------------------------------------------------------------------------------------


def _ranks(text: str) -> int | None:
    if text in ("auto", "gpu"):
        return None
    if text.isdigit() and 1 <= int(text) <= 1024:
        return int(text)
    raise UsageError(f"--nproc-per-node takes auto or a number from 1 to 1024, not {text!r}")


def _request(options: Options, launch: Launch, asked: Asked, env: dict[str, str]) -> app.RunRequest:
    """What this node's agent is to do. Raises UsageError, and NotNeeded."""
    world = foreign_world(env, os.getppid())
    with _one_sentence():
        here = place(asked, env, world)
        own = asked.typed(env) if world is not None and world.launcher == "torchrun" else asked
        alone = endpoint(own.rdzv_endpoint) if own.rdzv_endpoint and here.nnodes == 1 else ("127.0.0.1", 0)
    env.pop(HOSTS_VARIABLE, None)
    return app.RunRequest(
        options=options,
        env=env,
        nproc_per_node=_ranks(launch.nproc_per_node),
        endpoint=("127.0.0.1", alone[1]) if alone[0] == "localhost" else alone,
        foreign=world,
        place=here if here.nnodes > 1 else None,
        join_timeout_s=launch.join_timeout_s,
    )


@contextmanager
def _one_sentence() -> Iterator[None]:
    """A ValueError says what is wrong with what was asked, and what to do."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def _wait_for(world: ForeignWorld, env: Mapping[str, str], budget_s: float) -> int:
    folder = state.meeting_folder(env)
    if folder is None:
        say(f"ddp-doctor: local rank {world.local_rank} has no folder of its own to meet the agent in")
        return ExitCode.UNSURE.value
    with local_ranks.told(world, folder, env):
        code = outer_launcher.wait_for_agent(world, folder, budget_s + _WAIT_MARGIN_S)
    if code is None:
        say(f"ddp-doctor: local rank {world.local_rank} waited for the agent of this node, which is gone")
        return ExitCode.UNSURE.value
    return code


def _finish(outcome: Outcome, outputs: Outputs, env: Mapping[str, str], here: Place | None = None) -> int:
    """Save the recording before anything else can fail, then report."""
    host = socket.gethostname()
    follows = outcome.spoken_by is not None or (here is not None and here.is_head is False)
    saved_as = _save(outcome.recording, env, host if follows else None)
    if follows and here is not None and here.is_started_by_us:
        outputs = outputs.without_files()  # the head writes them: one command started all
        if outcome.spoken_by is not None:
            return outcome.report.exit_code
    return _show_and_write(outcome, outputs.at_node(host, _node_rank(outcome, here, host)), saved_as)


def _node_rank(outcome: Outcome, here: Place | None, host: str) -> int:
    """This node's, by the launcher or, where nodes are numbered as they come, by what the run made of it."""
    if here is not None and here.node_rank is not None:
        return here.node_rank
    nodes = outcome.recording.world.nodes if outcome.recording.world else ()
    return next((node.node_rank for node in nodes if node.hostname == host), 0)


def _show_and_write(outcome: Outcome, outputs: Outputs, saved_as: str | None) -> int:
    problems = outputs.write(outcome.recording, outcome.report)
    out = terminal.console(outputs.words_to, is_piped=outputs.is_piped)
    if outcome.spoken_by is None:
        terminal.show(outcome.report, out, saved_as, used_table(outcome.recording))
    else:
        terminal.show_short(outcome.report, out, outcome.spoken_by, saved_as)
    for code, trace in outcome.rule_failures:
        say(f"ddp-doctor: rule {code} failed itself; {kept(trace)}")
    for problem in problems:
        say(
            f"ddp-doctor: {problem}; the recording is in {saved_as}" if saved_as else f"ddp-doctor: {problem}"
        )
    return ExitCode.USAGE.value if problems else outcome.report.exit_code


def _save(recording: Recording, env: Mapping[str, str], copy_of: str | None = None) -> str | None:
    saved_as = state.save(recording, app.state_folder(env), copy_of)
    if saved_as is None:
        say("ddp-doctor: the recording could not be saved; use --record PATH")
    return saved_as
