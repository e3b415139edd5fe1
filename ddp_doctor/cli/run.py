"""``ddp-doctor run``: start the agents of all nodes, or be an agent, or wait for the agent of this node."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import ValidationError

from ddp_doctor import app
from ddp_doctor.app import Outcome, UsageError, folders, running
from ddp_doctor.app.run_plan import run_plan
from ddp_doctor.checks import checks_of
from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.cli.given import given_hosts
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.reporting import save, save_and_report
from ddp_doctor.engine.plan import make_plan
from ddp_doctor.knowledge.deadlines import longest_s
from ddp_doctor.model.baseline import Baseline
from ddp_doctor.model.choices import Backend, Command, ExitCode, as_usage_error
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
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.run_options import JOIN_TIMEOUT_S, line, typed

#: Longest that a rank which is not the agent waits beyond the budget: start, kill, report.
_WAIT_MARGIN_S = 150.0
#: For srun or ssh to start the agents of all nodes.
_START_S = 60.0
_MOST_RANKS = 1024


@dataclass(frozen=True)
class Launch:
    """The options of ``run`` about nodes and ranks, as typed."""

    asked: Asked = field(default_factory=Asked)
    hosts: str | None = None
    hostfile: str | None = None
    nproc_per_node: str = "auto"
    join_timeout_s: float = JOIN_TIMEOUT_S
    baseline: tuple[str, Baseline] | None = None  # the file as it was typed, and what is in it
    is_planned: bool = False  # whether only to say what would be tested

    def read(self) -> Asked:
        """What was asked, with the hosts of --hosts or --hostfile. Raises UsageError."""
        return replace(self.asked, hosts=given_hosts(self.hosts, self.hostfile))


def run(options: Options, launch: Launch, outputs: Outputs) -> int:
    """Decide what this process is: a starter of agents, an agent, or a rank that waits. Returns the exit code."""
    env = dict(os.environ)
    options = _for_gpus(options, launch.nproc_per_node)
    with as_usage_error():
        require_factory(options.model, options.only)
    if pipe := starter_channel.take(env):
        return _test_for_starter(options, launch, env, pipe)
    world = outer_world(env, os.getppid())
    asked = launch.read()
    if launch.is_planned:
        return _show_plan(options, replace(launch, asked=asked), env, world, outputs)
    arguments = typed(options, _ranks(launch.nproc_per_node), launch.join_timeout_s)
    with as_usage_error():
        here = start_all_nodes(asked, env, world, arguments)
    if isinstance(here, StartedNodes):
        _tell_of_topology(options, here.hosts)
        return _start_agents_and_report(here, options, launch, outputs, env)
    try:
        request = _request(options, launch, here, env)
        if request.place is not None and request.place.is_head:
            _tell_of_topology(options, request.place.expected_hosts)
    except NotNeeded as why:
        if world is None or world.is_agent:
            print_to_stderr(f"ddp-doctor: {why}")
        return ExitCode.HEALTHY.value
    return _test_or_wait(request, outputs)


def _show_plan(
    options: Options, launch: Launch, env: dict[str, str], world: OuterWorld | None, outputs: Outputs
) -> int:
    """Print what a run would do, and start nothing; of the processes of a launcher the first one speaks."""
    outputs.require_only("json", "a plan")
    asked, nproc = launch.asked, _ranks(launch.nproc_per_node)
    with as_usage_error():
        listed = hosts_to_start(asked, env, world)
    hosts: Sequence[str | None]
    if listed is not None:
        hosts, launcher = names(listed), "ssh" if asked.hosts else "slurm" if len(listed) > 1 else "plain"
    else:
        try:
            request = _request(options, launch, asked, env)
        except NotNeeded:
            return ExitCode.HEALTHY.value
        here = request.place
        if world is not None and not (world.is_agent and (here is None or here.is_head is not False)):
            return ExitCode.HEALTHY.value
        hosts, launcher = (socket.gethostname(),), "plain"
        if here is not None:
            hosts, launcher = here.expected_hosts or (None,) * here.nnodes, here.launcher
    _tell_of_topology(options, [host for host in hosts if host])
    alone_here = len(hosts) == 1 and (listed is None or is_here(listed[0]))
    options = options.model_copy(update={"baseline": launch.baseline[0] if launch.baseline else ""})
    plan = run_plan(options, hosts, launcher, nproc, is_here=alone_here)
    is_piped = world is not None and world.launcher == "mpi"  # Open MPI gives its ranks pseudo-terminals
    plan_table.show(plan, screen.console(outputs.words_to, is_piped=is_piped))
    if path := outputs.at_node(socket.gethostname(), 0).paths.get("json"):
        with as_usage_error(CannotWrite):
            write(path, plan.model_dump_json(indent=1) + "\n")
    return ExitCode.HEALTHY.value


def fit(options: Options, nproc_per_node: str, outputs: Outputs) -> int:
    """Estimate on one rank of this node or, to measure, on all that are there. Returns the exit code."""
    assert options.fit is not None
    ranks = _ranks(nproc_per_node)
    started = ranks if options.fit.measure else 1
    options = options.model_copy(update={"fit": options.fit.model_copy(update={"ranks_per_node": ranks})})
    return _test_and_report(RunRequest(options=options, env=dict(os.environ), nproc_per_node=started), outputs)


def _tell_of_topology(options: Options, hosts: Sequence[str]) -> None:
    """Tell which hosts the file of --topology does not name. Raises UsageError where it names none."""
    strange = [host for host, leaf in zip(hosts, options.leaves_of(hosts), strict=True) if not leaf]
    if not options.topology or not strange:
        return
    if len(strange) == len(hosts):
        raise UsageError(f"{options.topology} names none of these hosts: {name_list(strange)}")
    print_to_stderr(f"ddp-doctor: {options.topology} does not name {name_list(strange)}, taken to share no switch")


def _test_or_wait(request: RunRequest, outputs: Outputs) -> int:
    """One rank that an outer launcher started here tests for this node; the others wait for its exit code."""
    world = request.outer
    if world is None or world.local_size == 1:
        return _test_and_report(request, outputs)
    if not world.is_agent:
        meeting = request.join_timeout_s if request.nnodes > 1 else 0.0
        return _wait_for_agent(world, request.env, longest_s(request.options) + meeting)
    folder = folders.meeting_folder(request.env)
    lock = outer_launcher.AgentLock(world, folder) if folder else None
    code = ExitCode.UNSURE.value
    try:
        of_ranks = partial(outer_launcher.readings, world, folder, request.env)
        code = _test_and_report(replace(request, of_ranks=of_ranks), outputs)
    except UsageError:
        code = ExitCode.USAGE.value
        raise
    finally:
        if folder is not None:
            outer_launcher.forget(world, folder)
        if lock is not None:
            lock.hand_over(code)
    return code


def _test_and_report(request: RunRequest, outputs: Outputs) -> int:
    if request.outer is not None and request.outer.launcher == "mpi":
        outputs = replace(outputs, is_piped=True)  # Open MPI gives its ranks pseudo-terminals
    out, here = screen.console(sys.stderr, is_piped=outputs.is_piped), request.place

    def announce(command: str) -> None:
        others = f"{request.nnodes - 1} hosts" if request.nnodes > 2 else "host"
        options = typed(request.options, request.nproc_per_node, request.join_timeout_s)
        out.print(f"This host is the head. Type on the other {others}:")
        out.print(layout.command(line(command, options), layout.width_of(out), indent=4))

    speaks = here is None or not here.is_started_by_us or here.is_head is not False
    with progress(out, _planned(request.options, request.nnodes), quiet=outputs.quiet or not speaks) as tell:
        outcome = running.run(replace(request, announce=announce, progress=tell))
    return save_and_report(outcome, outputs, request.env, here)


def _planned(options: Options, nnodes: int) -> list[str]:
    return [check.id for check in make_plan(options, checks_of(Command(options.command)), nnodes).checks]


def _test_for_starter(options: Options, launch: Launch, env: dict[str, str], pipe: starter_channel.StarterPipe) -> int:
    """Be an agent that another ddp-doctor started: hand it the recording, and show nothing."""
    rank = launch.asked.node_rank
    starter = StarterChannel(number(env, "SLURM_NODEID", 0) if rank is None else rank)
    code = ExitCode.UNSURE.value
    try:
        request = _request(options, launch, launch.asked, env)
        pipe.met = partial(starter.send, "met")
        starter.send("hello")
        request = replace(request, starter=pipe, progress=lambda text: starter.send("progress", text))
        outcome = running.run(request)
        if outcome.spoken_by is None:
            starter.send_recording(outcome.recording.model_dump_json())
        save(outcome.recording, env, None if rank == 0 else socket.gethostname())
        code = outcome.report.exit_code
    except UsageError as error:
        starter.send("refused", str(error))
        code = ExitCode.USAGE.value
    finally:
        starter.send("done", str(code))
        pipe.wait_until_heard()
    return code


def _start_agents_and_report(
    here: StartedNodes, options: Options, launch: Launch, outputs: Outputs, env: Mapping[str, str]
) -> int:
    """Start all agents, wait for the head's recording, and report it here, where the user is."""
    timeout_s = _START_S + launch.join_timeout_s + longest_s(options) + _WAIT_MARGIN_S
    planned = _planned(options, len(here.hosts))
    with progress(screen.console(sys.stderr), planned, quiet=outputs.quiet) as tell:
        tell(f"start on {', '.join(here.hosts[:8])}{', ...' if here.hosts[8:] else ''}")
        with as_usage_error():
            fan_out = FanOut(here.starts, here.hosts, tell, timeout_s, launch.join_timeout_s)
        ended = fan_out.run()
    outcome = _outcome_of_agents(ended, here, options)
    for rank, why in ended.broken_off.items() if not ended.not_started else ():
        print_to_stderr(f"ddp-doctor: the agent of {here.hosts[rank]} broke off: {why}")
    if outcome is not None:
        if launch.baseline is not None:
            from ddp_doctor.app.baselines import with_baseline  # few runs need it

            outcome = with_baseline(outcome, *launch.baseline)
        return save_and_report(outcome, outputs, env)
    if ended.timed_out:
        print_to_stderr(f"ddp-doctor: no report came within {timeout_s:.0f} s, so the verdict is unsure")
    return ExitCode.INTERRUPTED.value if ended.interrupted else ExitCode.UNSURE.value


def _outcome_of_agents(ended: Ended, here: StartedNodes, options: Options) -> Outcome | None:
    """What the agents saw or, where the head's was lost before they met, who is missing and why; None for neither."""
    if ended.recording is not None and (ended.interrupted or not ended.is_headless):
        try:
            absent = [Recording.model_validate_json(text) for text in ended.recordings_of_absent]
            return app.judge_with_absent(Recording.model_validate_json(ended.recording), absent)
        except ValidationError:
            print_to_stderr("ddp-doctor: what the agents saw cannot be read here; are all hosts on one release?")
            return None
    if ended.refused is not None:
        raise UsageError(ended.refused)
    if ended.absent and not ended.interrupted:
        return app.not_started(options, here.hosts, here.endpoint, here.launcher, ended.absent)
    return None


def _ranks(text: str) -> int | None:
    """As torchrun takes it: ``auto``, ``gpu``, ``cpu`` or a number."""
    if text in ("auto", "gpu"):
        return None
    if text == "cpu":
        return min(os.cpu_count() or 1, _MOST_RANKS)
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_RANKS:
        return int(text)
    raise UsageError(f"--nproc-per-node takes auto, gpu, cpu or a number from 1 to {_MOST_RANKS}, not {text[:80]!r}")


def _for_gpus(options: Options, nproc_per_node: str) -> Options:
    """The options with NCCL, for a rank on each GPU. Raises UsageError where there is no GPU."""
    if nproc_per_node != "gpu":
        return options
    if options.backend is Backend.GLOO:
        raise UsageError(
            "--nproc-per-node gpu is a rank for each GPU, which --backend gloo leaves alone: give a number"
        )
    return options.model_copy(update={"backend": Backend.NCCL})


def _request(options: Options, launch: Launch, asked: Asked, env: dict[str, str]) -> RunRequest:
    """What this node's agent is to do. Raises UsageError and NotNeeded."""
    world = outer_world(env, os.getppid())
    with as_usage_error():
        here = place(asked, env, world)
        own = asked.typed(env) if world is not None and world.launcher == "torchrun" else asked
        alone = endpoint_alone(own, env, world) if here.nnodes == 1 else None
    if alone is None or (not own.rdzv_endpoint and not is_mine(resolve(alone[0])[0])):
        alone = ("127.0.0.1", 0)  # a master on another host belongs to another job
    env.pop(HOSTS_VARIABLE, None)
    return RunRequest(
        options=options,
        env=env,
        nproc_per_node=_ranks(launch.nproc_per_node),
        endpoint=("127.0.0.1", alone[1]) if alone[0] == "localhost" else alone,
        outer=world,
        place=here if here.nnodes > 1 else None,
        join_timeout_s=launch.join_timeout_s,
        baseline=launch.baseline,
    )


def _wait_for_agent(world: OuterWorld, env: Mapping[str, str], budget_s: float) -> int:
    folder = folders.meeting_folder(env)
    if folder is None:
        print_to_stderr(f"ddp-doctor: local rank {world.local_rank} has no folder of its own to meet the agent in")
        return ExitCode.UNSURE.value
    with outer_launcher.settings_shared(world, folder, env):
        code = outer_launcher.wait_for_agent(world, folder, budget_s + _WAIT_MARGIN_S)
    if code is None:
        print_to_stderr(f"ddp-doctor: local rank {world.local_rank} waited for the agent of this node, which is gone")
        return ExitCode.UNSURE.value
    return code
