"""``ddp-doctor run``: start the agents of all nodes, or be an agent, or wait for the agent of this node."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pydantic import ValidationError

from ddp_doctor import app
from ddp_doctor.app import Outcome, UsageError, folders, running
from ddp_doctor.app.outcome import with_baseline
from ddp_doctor.app.run_plan import run_plan
from ddp_doctor.checks import checks_of
from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.cli.given import given_hosts, of_run
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.reporting import save, save_and_report
from ddp_doctor.cli.run_options import RunOptions
from ddp_doctor.engine.plan import make_plan
from ddp_doctor.features import load
from ddp_doctor.knowledge.deadlines import longest_s
from ddp_doctor.model.choices import Command, ExitCode, as_usage_error
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.parse.options import require_factory
from ddp_doctor.render import layout, plan_table, screen
from ddp_doctor.render.files import CannotWrite, write
from ddp_doctor.render.progress import progress
from ddp_doctor.starters import outer_launcher, starter_channel
from ddp_doctor.starters.detect import HOSTS_VARIABLE, OuterWorld, number, outer_world
from ddp_doctor.starters.endpoint import is_mine, resolve
from ddp_doctor.starters.fanout import Ended, FanOut
from ddp_doctor.starters.place import Asked, NotNeeded, endpoint_alone, place
from ddp_doctor.starters.request import RunRequest
from ddp_doctor.starters.start_all_nodes import StartedNodes, hosts_to_start, is_here, names, start_all_nodes
from ddp_doctor.starters.starter_channel import StarterChannel
from ddp_doctor.wording import run_options
from ddp_doctor.wording.nodes import name_list

#: Maximum time beyond the budget that a rank waits for its agent: start, kill, report.
_WAIT_MARGIN_S = 150.0
#: For srun or ssh to start the agents of all nodes.
_START_S = 60.0
_MOST_RANKS = 1024


def run(typed: RunOptions, outputs: Outputs) -> int:
    """Decide whether this process starts agents, is an agent, or is a rank that waits. Return the exit code."""
    env = dict(os.environ)
    options = of_run(typed, is_reproducer_written="reproducer" in outputs.paths)
    asked = Asked(typed.nnodes, typed.node_rank, typed.rdzv_endpoint, typed.master_addr, typed.master_port)
    request = RunRequest(
        options,
        env,
        nproc_per_node=rank_count(typed.nproc_per_node),
        join_timeout_s=typed.join_timeout,
        baseline=None if (path := typed.baseline) is None else (path, load("fleet").comparison(path)),
    )
    with as_usage_error():
        require_factory(options.model, options.only)
    if pipe := starter_channel.take(env):
        return _test_for_starter(asked, request, pipe)
    world = outer_world(env, os.getppid())
    asked = replace(asked, hosts=given_hosts(typed.hosts, typed.hostfile))
    if typed.plan:
        return _show_plan(asked, request, world, outputs)
    with as_usage_error():
        here = start_all_nodes(asked, env, world, _arguments(request))
    if isinstance(here, StartedNodes):
        _tell_of_topology(options, here.hosts)
        return _start_agents_and_report(here, request, outputs)
    try:
        request = _placed(asked, request)
        if request.place is not None and request.place.is_head:
            _tell_of_topology(options, request.place.expected_hosts)
    except NotNeeded as why:
        if world is None or world.is_agent:
            print_to_stderr(f"ddp-doctor: {why}")
        return ExitCode.HEALTHY.value
    return _test_or_wait(request, outputs)


def _show_plan(asked: Asked, request: RunRequest, world: OuterWorld | None, outputs: Outputs) -> int:
    """Print what a run would do, without starting it; only the first process of a launcher prints."""
    outputs.require_only("json", "a plan")
    with as_usage_error():
        listed = hosts_to_start(asked, request.env, world)
    hosts: Sequence[str | None]
    if listed is not None:
        hosts, launcher = names(listed), "ssh" if asked.hosts else "slurm" if len(listed) > 1 else "plain"
    else:
        try:
            here = _placed(asked, request).place
        except NotNeeded:
            return ExitCode.HEALTHY.value
        if world is not None and not (world.is_agent and (here is None or here.is_head is not False)):
            return ExitCode.HEALTHY.value
        hosts, launcher = (socket.gethostname(),), "plain"
        if here is not None:
            hosts, launcher = here.expected_hosts or (None,) * here.nnodes, here.launcher
    _tell_of_topology(request.options, [host for host in hosts if host])
    alone_here = len(hosts) == 1 and (listed is None or is_here(listed[0]))
    options = request.options.model_copy(update={"baseline": request.baseline[0] if request.baseline else ""})
    plan = run_plan(options, hosts, launcher, request.nproc_per_node, is_here=alone_here)
    is_piped = world is not None and world.launcher == "mpi"  # Open MPI gives its ranks pseudo-terminals
    plan_table.show(plan, screen.console(outputs.words_to, is_piped=is_piped))
    if path := outputs.at_node(socket.gethostname(), 0).paths.get("json"):
        with as_usage_error(CannotWrite):
            write(path, plan.model_dump_json(indent=1) + "\n")
    return ExitCode.HEALTHY.value


def _tell_of_topology(options: Options, hosts: Sequence[str]) -> None:
    """Report the hosts that the file of --topology does not list. Raises UsageError if it lists no host."""
    strange = [host for host, leaf in zip(hosts, options.leaves_of(hosts), strict=True) if not leaf]
    if not options.topology or not strange:
        return
    if len(strange) == len(hosts):
        raise UsageError(
            f"{quoted(options.topology)} does not list any of these hosts: {name_list(strange)}; add them, or omit"
            " --topology"
        )
    print_to_stderr(
        f"ddp-doctor: {quoted(options.topology)} does not list {name_list(strange)}; assuming they share no switch"
        " with other hosts"
    )


def _test_or_wait(request: RunRequest, outputs: Outputs) -> int:
    """Test this node as its agent; other ranks that a launcher started on it wait for the agent's exit code."""
    world = request.outer
    if world is None or world.local_size == 1:
        return test_and_report(request, outputs)
    if not world.is_agent:
        meeting = request.join_timeout_s if request.nnodes > 1 else 0.0
        return _wait_for_agent(world, request.env, longest_s(request.options) + meeting)
    folder = folders.meeting_folder(request.env)
    lock = outer_launcher.AgentLock(world, folder) if folder else None
    code = ExitCode.UNSURE.value
    try:
        of_ranks = partial(outer_launcher.readings, world, folder, request.env)
        code = test_and_report(replace(request, of_ranks=of_ranks), outputs)
    except UsageError:
        code = ExitCode.USAGE.value
        raise
    finally:
        if folder is not None:
            outer_launcher.forget(world, folder)
        if lock is not None:
            lock.hand_over(code)
    return code


def test_and_report(request: RunRequest, outputs: Outputs) -> int:
    """Test this node, keep the recording and show the report. Returns the exit code."""
    if request.outer is not None and request.outer.launcher == "mpi":
        outputs = replace(outputs, is_piped=True)  # Open MPI gives its ranks pseudo-terminals
    out, here = screen.console(sys.stderr, is_piped=outputs.is_piped), request.place

    def announce(command: str) -> None:
        others = f"{request.nnodes - 1} hosts" if request.nnodes > 2 else "host"
        out.print(f"This host is the head node. Run this command on the other {others}:")
        out.print(layout.command(run_options.line(command, _arguments(request)), layout.width_of(out), indent=4))

    speaks = here is None or not here.is_started_by_us or here.is_head is not False
    with progress(out, _planned(request.options, request.nnodes), quiet=outputs.quiet or not speaks) as tell:
        outcome = running.run(replace(request, announce=announce, progress=tell))
    return save_and_report(outcome, outputs, request.env, here)


def _planned(options: Options, nnodes: int) -> list[str]:
    checks = checks_of(Command(options.command), has_model=bool(options.model))
    return [check.id for check in make_plan(options, checks, nnodes).checks]


def _arguments(request: RunRequest) -> tuple[str, ...]:
    """Return the options for another node."""
    return run_options.typed(request.options, request.nproc_per_node, request.join_timeout_s)


def _test_for_starter(asked: Asked, request: RunRequest, pipe: starter_channel.StarterPipe) -> int:
    """Run as an agent that another ddp-doctor started: send it the recording, and print nothing."""
    rank = asked.node_rank
    starter = StarterChannel(number(request.env, "SLURM_NODEID", 0) if rank is None else rank)
    code = ExitCode.UNSURE.value
    try:
        request = _placed(asked, request)
        pipe.met = partial(starter.send, "met")
        starter.send("hello")
        request = replace(request, starter=pipe, progress=lambda text: starter.send("progress", text))
        outcome = running.run(request)
        if outcome.spoken_by is None:
            starter.send_recording(outcome.recording.model_dump_json())
        code = outcome.report.exit_code
        if code != ExitCode.USAGE.value:
            save(outcome.recording, request.env, None if rank == 0 else socket.gethostname())
    except UsageError as error:
        starter.send("refused", str(error))
        code = ExitCode.USAGE.value
    finally:
        starter.send("done", str(code))
        pipe.wait_until_heard()
    return code


def _start_agents_and_report(here: StartedNodes, request: RunRequest, outputs: Outputs) -> int:
    """Start all agents, wait for the head's recording, and report it on this host."""
    timeout_s = _START_S + request.join_timeout_s + longest_s(request.options) + _WAIT_MARGIN_S
    planned = _planned(request.options, len(here.hosts))
    with progress(screen.console(sys.stderr), planned, quiet=outputs.quiet) as tell:
        tell(f"starting on {', '.join(here.hosts[:8])}{', ...' if here.hosts[8:] else ''}")
        with as_usage_error():
            fan_out = FanOut(here.starts, here.hosts, tell, timeout_s, request.join_timeout_s)
        ended = fan_out.run()
    outcome = _outcome_of_agents(ended, here, request.options)
    for rank, why in ended.broken_off.items() if not ended.not_started else ():
        print_to_stderr(f"ddp-doctor: the agent on {here.hosts[rank]} stopped: {why}")
    if outcome is not None:
        if request.baseline is not None:
            outcome = with_baseline(outcome, request.baseline[1])
        return save_and_report(outcome, outputs, request.env)
    if ended.timed_out:
        print_to_stderr(f"ddp-doctor: the agents sent no report within {timeout_s:.0f} s, so the verdict is unsure")
    return ExitCode.INTERRUPTED.value if ended.interrupted else ExitCode.UNSURE.value


def _outcome_of_agents(ended: Ended, here: StartedNodes, options: Options) -> Outcome | None:
    """Return the agents' outcome, or the missing nodes if the head was lost early; None without either."""
    if ended.recording is not None and (ended.interrupted or not ended.is_headless):
        try:
            absent = [Recording.model_validate_json(text) for text in ended.recordings_of_absent]
            return app.judge_with_absent(Recording.model_validate_json(ended.recording), absent)
        except ValidationError:
            print_to_stderr(
                "ddp-doctor: cannot read the agents' recordings; install the same release of ddp-doctor on all hosts"
            )
            return None
    if ended.refused is not None:
        raise UsageError(ended.refused)
    if ended.absent and not ended.interrupted:
        return app.not_started(options, here.hosts, here.endpoint, here.launcher, ended.absent)
    return None


def rank_count(text: str) -> int | None:
    """Return the number of ranks, given as for torchrun: ``auto``, ``gpu``, ``cpu`` or a number. Raises UsageError."""
    if text in ("auto", "gpu"):
        return None
    if text == "cpu":
        return min(os.cpu_count() or 1, _MOST_RANKS)
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_RANKS:
        return int(text)
    raise UsageError(f"invalid --nproc-per-node {quoted(text)}: expected auto, gpu, cpu or 1 to {_MOST_RANKS}")


def _placed(asked: Asked, request: RunRequest) -> RunRequest:
    """Return the request with the place of this node. Raises UsageError and NotNeeded."""
    env = request.env
    world = outer_world(env, os.getppid())
    with as_usage_error():
        here = place(asked, env, world)
        own = asked.typed(env) if world is not None and world.launcher == "torchrun" else asked
        alone = endpoint_alone(own, env, world) if here.nnodes == 1 else None
    if alone is None or (not own.rdzv_endpoint and not is_mine(resolve(alone[0])[0])):
        alone = ("127.0.0.1", 0)  # a master on another host belongs to another job
    return replace(
        request,
        env={name: value for name, value in env.items() if name != HOSTS_VARIABLE},
        endpoint=("127.0.0.1", alone[1]) if alone[0] == "localhost" else alone,
        outer=world,
        place=here if here.nnodes > 1 else None,
    )


def _wait_for_agent(world: OuterWorld, env: Mapping[str, str], budget_s: float) -> int:
    folder = folders.meeting_folder(env)
    if folder is None:
        print_to_stderr(
            f"ddp-doctor: local rank {world.local_rank} cannot create a private directory to reach this node's"
            " agent; set TMPDIR to another writable directory"
        )
        return ExitCode.UNSURE.value
    with outer_launcher.settings_shared(world, folder, env):
        code = outer_launcher.wait_for_agent(world, folder, budget_s + _WAIT_MARGIN_S)
    if code is None:
        print_to_stderr(
            f"ddp-doctor: local rank {world.local_rank} got no result from this node's agent, so the verdict is unsure"
        )
        return ExitCode.UNSURE.value
    return code
