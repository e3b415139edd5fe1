"""``ddp-doctor attach`` on several nodes: each node reads its own processes, and this one diagnoses all readings."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.features.jobs.attach.use_case import SECONDS, Watching, attach
from ddp_doctor.features.jobs.sources.slurm import slurm_job_of
from ddp_doctor.model.choices import Command, Status, as_usage_error
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.parse.hostlist import expand
from ddp_doctor.starters.detect import number
from ddp_doctor.starters.fanout import Ended, Readers
from ddp_doctor.starters.place import Asked
from ddp_doctor.starters.start_all_nodes import by_srun, chosen, doctor, is_here, names, over_ssh
from ddp_doctor.starters.started_process import Start
from ddp_doctor.starters.starter_channel import StarterChannel, StarterPipe
from ddp_doctor.wording.nodes import name_list

#: Maximum time for a node to answer. ssh gives up after ten seconds.
_ANSWER_S = 15.0
#: Added to the observation time: six seconds for a node to finish, and two to transfer its readings.
_READ_S = 8.0
#: The variable with an agent's node rank, the same as torchrun's.
_NUMBER = "PET_NODE_RANK"


def attach_to_hosts(hosts: Sequence[str], how: Watching) -> Outcome:
    """Observe the jobs on these hosts over ssh. Raises UsageError if no host has a job or ssh is missing."""
    command = (*doctor(), "attach", *_seconds_option(how.seconds))
    with as_usage_error():
        hosts = chosen(Asked(hosts=tuple(hosts)))
    commands = [("env", f"{_NUMBER}={rank}", *command) for rank in range(len(hosts))]
    try:
        starts = over_ssh(hosts, commands, how.env, str(Path.cwd()))
    except FileNotFoundError:
        raise UsageError("--hosts requires ssh, which is not on PATH; run this command on each host instead") from None
    return _read(starts, names(hosts), "ssh", how)


def attach_to_slurm_job(job_id: str, how: Watching) -> Outcome:
    """Observe a SLURM job on all its nodes, or only on this node without srun. Raises UsageError."""
    with as_usage_error():
        job = slurm_job_of(job_id, how.env)
    if job is None or (len(job.hosts) == 1 and is_here(job.hosts[0])):
        number_of_job = job_id if job is None else job.number
        return attach(None, number_of_job, how, from_start=True)
    try:
        command = (*doctor(), "attach", "--slurm-job", job.number, *_seconds_option(how.seconds))
        start = by_srun(job.hosts, command, how.env, job.number)
    except FileNotFoundError:
        return attach(None, job.number, how, from_start=True)
    return _read([start], job.hosts, "slurm", how)


def attach_to_step(env: Mapping[str, str]) -> Outcome:
    """Observe the SLURM step of this process on all its nodes. Raises UsageError."""
    job = env["SLURM_JOB_ID"]
    command = (*doctor(), "attach", "--slurm-job", f"{job}.{env['SLURM_STEP_ID']}")
    with as_usage_error():
        hosts = expand(env["SLURM_STEP_NODELIST"])
    try:
        start = by_srun(hosts, command, env, job)
    except FileNotFoundError:
        raise UsageError(f"cannot reach the nodes of SLURM job {job}: srun is not on PATH") from None
    return _read([start], hosts, "slurm", Watching(env=env))


def _seconds_option(seconds: float) -> tuple[str, ...]:
    """Return the option that sets the observation time on other hosts; empty for the default time."""
    return () if seconds == SECONDS else ("--seconds", f"{seconds:g}")


def be_agent(pipe: StarterPipe, pid: int | None, slurm_job: str | None, how: Watching) -> int:
    """Observe this node, send the readings to the command that started this agent, and return the exit code."""
    channel = StarterChannel(number(how.env, _NUMBER, number(how.env, "SLURM_NODEID", 0)))
    channel.send("hello")
    code = 0
    try:
        pids = None if pid is None else [pid]
        outcome = attach(pids, slurm_job, how, from_start=True)
        channel.send_recording(outcome.recording.model_dump_json())
    except UsageError as error:
        channel.send("refused", str(error))
        code = 2
    finally:
        channel.send("done", str(code))
        pipe.wait_until_heard()
    return code


def _read(starts: Sequence[Start], hosts: Sequence[str], launcher: str, how: Watching) -> Outcome:
    """Observe all hosts at the same time and diagnose the readings. Raises UsageError if no host has a job."""
    started = time.monotonic()
    recording = blank(Options(command=Command.ATTACH, ignore=how.ignore), env=how.env)
    with as_usage_error():
        ended = Readers(starts, hosts, how.progress, _ANSWER_S + how.seconds + _READ_S, _ANSWER_S).run()
    if ended.interrupted:
        raise KeyboardInterrupt
    readings = [reading for rank in range(len(hosts)) for reading in _readings_of_node(rank, ended)]
    if all(reading.status is Status.ABSENT for reading in readings):
        raise UsageError(ended.refused or f"found no running torch job on {name_list(hosts)}")
    facts = [(reading.node, reading.fact) for reading in reversed(readings) if reading.fact]
    names_seen = {node: str(fact["host"]) for node, fact in facts if "host" in fact}
    world = World(
        nnodes=len(hosts),
        launcher=launcher,
        nodes=tuple(Node(node_rank=rank, hostname=names_seen.get(rank, host)) for rank, host in enumerate(hosts)),
        expected_hosts=tuple(hosts),
    )
    fields = {"world": world, "readings": tuple(readings), "duration_s": time.monotonic() - started}
    return judge(recording.model_copy(update=fields))


def _readings_of_node(rank: int, ended: Ended) -> list[Reading]:
    agent = ended.agents[rank]
    if agent.refused is not None:
        return [Reading(check="attach", status=Status.ABSENT, node=rank, reason=agent.refused)]
    why = ended.not_started.get(rank) or ended.broken_off.get(rank) or f"it ended with exit code {agent.code}"
    if agent.recording is not None:
        try:
            read = Recording.model_validate_json(agent.recording).readings
            return [reading.model_copy(update={"node": rank}) for reading in read]
        except ValidationError:
            why = "its answer cannot be parsed here; is ddp-doctor the same release on both nodes?"
    return [Reading(check="attach", status=Status.FAILED, node=rank, reason=why)]
