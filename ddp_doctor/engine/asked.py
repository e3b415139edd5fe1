"""The checks and results that options of a run or prolog request. If any is missing, the run cannot be healthy::

    --only p2p,rdma       a reading of each of these checks, on all nodes and ranks that have it
    --model net:make      a forward and backward of that model, alone and in DDP
    --compile             the graphs of several steps of that model
    --from-trace FILE     steps with each change that can be tried
    --collectives-of DUMP         all that was recorded of the job's collectives, on all its ranks
    --require-gpus 8      a count of the GPUs on every node
    --backend nccl        a rank over NCCL
    --collective NAMES    a result of each, of all --sizes; --min-busbw NAME:SIZE=RATE the same of its size
    --data PATH           reads of it on every rank that has it
    --mesh dp=2,shard=4   the collectives of its axes, on all ranks
    --repeat 40           so many repeats of all ranks; --soak as long
    --isolate             tests of groups of nodes, until it is settled who is to blame
    --baseline FILE       a measurement that the file knows
    --nnodes 2            a reading of every node

Anything that no option requests may be absent, skipped or too slow: the summary lists what was tested. A feature
reports which of its own options were not met. Contradicting options are refused before anything starts
(engine/plan.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.checks import checks_of
from ddp_doctor.facts.cluster import BaselineFact
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.features import recorded_by, run_feature
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import (
    BASELINE,
    COLLECTIVES,
    COMPILE,
    GPUS,
    ISOLATION,
    JOB_COLLECTIVES,
    MESH,
    REPEATS,
    STEP_TIME,
    STRAGGLERS,
    USER_MODEL,
)
from ddp_doctor.model.choices import Backend, CheckStatus, Command
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording, mesh_typed
from ddp_doctor.model.report import CheckResult
from ddp_doctor.wording.nodes import first_names, hosts
from ddp_doctor.wording.ranks import rank_list, rank_of

#: Maximum number of unmet requests listed in a sentence.
_MOST_NAMED = 8
_RAN = (CheckStatus.PASSED, CheckStatus.FOUND)


@dataclass(frozen=True)
class NotAsAsked:
    """A requested option as typed, its check, and the reason why it was not run, with what to do."""

    option: str
    check: str
    why: str


def listed(unmet: Sequence[NotAsAsked]) -> str:
    """Return the unmet requests as a clause of the verdict's sentence."""
    return f"requested but not run: {'; '.join(f'{each.option} ({each.why})' for each in unmet)}"


def not_run(recording: Recording, results: Sequence[CheckResult]) -> tuple[NotAsAsked, ...]:
    """Return the requests that were not run; empty for commands without such options."""
    by_id = {result.id: result for result in results}
    if recording.command.is_of_root:
        return tuple(_gpus(recording, by_id))
    if (feature := recorded_by(recording.command)) is not None:
        return tuple(NotAsAsked(option, check, _why(by_id.get(check))) for option, check in feature.unmet(recording))
    if not recording.command.has_ranks:
        return ()
    options = recording.options
    no_ranks = NotAsAsked("--backend nccl", "", "no rank ran over NCCL; select a check of ranks, such as allreduce")
    return (
        *(
            unmet
            for name in dict.fromkeys(options.only)
            for unmet in _check(f"--only {name}", name, by_id, whole=name != COLLECTIVES)
        ),
        *_model(recording, by_id),
        *(_check("--compile", COMPILE, by_id, whole=False) if options.compile else ()),
        *_from_trace(recording, by_id),
        *_replay(recording, by_id),
        *_gpus(recording, by_id),
        # ``--backend gloo`` may only describe the planned job, so it does not request ranks.
        *((no_ranks,) if options.backend is Backend.NCCL and not had_ranks(recording.collected()) else ()),
        *_collectives(recording),
        *(_check(f"--mesh {mesh_typed(options.mesh)}", MESH, by_id, whole=True) if options.mesh else ()),
        *_groups(recording, by_id),
        *_data(recording, by_id),
        *_baseline(recording, by_id),
        *_nodes(recording),
    )


def had_ranks(readings: Iterable[Reading]) -> bool:
    """Return True if the readings show that ranks ran."""
    return any(reading.rank is not None or reading.check in (ISOLATION, REPEATS) for reading in readings)


def _why(result: CheckResult | None) -> str:
    return (result.reason or "it gave no result" if result else "it was not reached").removesuffix(".")


def _check(option: str, check: str, by_id: Mapping[str, CheckResult], *, whole: bool) -> Iterator[NotAsAsked]:
    """Yield a request if its check has no result, or, with ``whole``, only a partial one."""
    result = by_id.get(check)
    if result is None or result.status not in _RAN or (whole and result.reason):
        yield NotAsAsked(option, check, _why(result))


def _model(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    model = recording.options.model
    if not model:
        return
    why = run_feature("model").unmet(recording)
    others = [check.id for check in checks_of(Command.RUN) if check.runs_model(model) and check.id != USER_MODEL]
    if why is None and not any(by_id[name].status in _RAN for name in others if name in by_id):
        why = _why(by_id.get(USER_MODEL))
    if why:
        yield NotAsAsked(f"--model {model}", USER_MODEL, why)


def _from_trace(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    if not recording.options.advice:
        return
    from ddp_doctor.facts.ddp.step_time import StepTimeFact

    ranks = recording.facts(StepTimeFact)
    trials = [trial for rank in ranks for trial in rank.fact.arguments]
    untried = [f"{trial.advice.setting}: {trial.not_tried}" for trial in trials if trial.not_tried]
    why = "; ".join(dict.fromkeys(untried)) if trials else _why(by_id.get(STEP_TIME))
    if untried or not trials:
        yield NotAsAsked(f"--from-trace {recording.options.from_trace}", STEP_TIME, why)


def _replay(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    job = recording.options.replay
    if job is None:
        return
    from ddp_doctor.facts.job_collectives import JobCollectivesFact

    facts = {at.rank or 0: at.fact for at in recording.facts(JobCollectivesFact)}
    silent = [rank for rank in range(len(job.ranks)) if rank not in facts]
    stops = {rank: fact for rank, fact in facts.items() if fact.stopped in ("raised", "time")}
    why = ""
    if silent:
        why = f"nothing came back from {rank_list(silent)}" if facts else _why(by_id.get(JOB_COLLECTIVES))
    elif stops:
        rank, fact = min(stops.items())
        why = f"rank {rank} stopped after {fact.issued} calls: {fact.error or 'its time was up'}"
    elif job.left_out:
        names = [f"{name} ({count})" for name, count in sorted(job.left_out.items())]
        why = f"not run: {first_names(names, _MOST_NAMED)}"
    elif job.unknown:
        why = f"{job.source} do not show the calls of {rank_list(job.unknown)}, so they were assumed"
    if why:
        yield NotAsAsked(f"--collectives-of {job.path}", JOB_COLLECTIVES, why)


def _collectives(recording: Recording) -> Iterator[NotAsAsked]:
    options = recording.options
    if not (options.collectives or options.min_busbw or COLLECTIVES in options.only):
        return
    from ddp_doctor.facts.collectives import CollectiveFact
    from ddp_doctor.knowledge.collectives import TABLE, measured_sizes

    read = grouped((rank.fact.part, rank.fact) for rank in recording.facts(CollectiveFact))
    absent = {reading.reason for reading in recording.of_check(COLLECTIVES) if reading.reason}
    why_none = next(iter(sorted(absent)), "it was not reached")
    if COLLECTIVES in options.only and not any(TABLE[name].is_timed for name in read):
        yield NotAsAsked(f"--only {COLLECTIVES}", COLLECTIVES, why_none)
    for name in options.collectives:
        if name not in read:
            yield NotAsAsked(f"--collective {name}", COLLECTIVES, why_none)
        elif options.sizes and TABLE[name].is_timed and (stopped := read[name][0].stopped_at_bytes):
            left = sum(size >= stopped for size in measured_sizes(options.sizes))
            why = f"not enough {read[name][0].short_of}; sizes not measured: {left}"
            yield NotAsAsked(f"--collective {name}", COLLECTIVES, why)
    for least in options.min_busbw:
        facts = read.get(least.collective, [])
        moved = TABLE[least.collective].moved(least.size_bytes, facts[0].ranks) if facts else 0
        if not any(size.size_bytes == moved for fact in facts for size in fact.sizes):
            why = f"not enough {facts[0].short_of or 'time'}" if facts else why_none
            yield NotAsAsked(f"--min-busbw {least.typed}", COLLECTIVES, why)


def _groups(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    """Yield the unmet --isolate, and the unmet --repeat or --soak of all ranks."""
    from ddp_doctor.facts.collectives import IsolationFact, RepeatsFact

    options = recording.options
    repeats = f"--repeat {options.repeat}" if options.soak_s is None else f"--soak {options.soak_s / 60:g}"
    asked: tuple[tuple[bool, str, str, RepeatsFact | IsolationFact | None], ...] = (
        (options.repeats_all, repeats, REPEATS, recording.first(RepeatsFact)),
        (options.isolate, "--isolate", ISOLATION, recording.first(IsolationFact)),
    )
    for is_asked, typed, check, fact in asked:
        why = _why(by_id.get(check)) if fact is None else fact.stopped
        # If smaller groups pass, the largest one may still fail.
        largest = max((test.nodes for test in fact.tests), key=len, default=()) if fact is not None else ()
        of_most = [test for test in fact.tests if test.nodes == largest] if fact is not None else []
        if fact is not None and all(test.outcome == "unknown" for test in of_most):
            why = why or next((test.reason for test in of_most if test.reason), "nothing was tested")
        if is_asked and why:
            yield NotAsAsked(typed, check, why)


def _data(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    """Yield --data unless every rank read some of it. A rank that could not read it has a finding if others could."""
    if not recording.options.data:
        return
    from ddp_doctor.facts.collectives import StragglersFact

    ranks = recording.facts(StragglersFact)
    unread = [rank for rank in ranks if not any(sample.read_bytes_per_s for sample in rank.fact.samples)]
    unknown = [rank_of(rank) for rank in unread if not rank.fact.data_problem]
    why = ""
    if len(unread) == len(ranks):
        problems = [rank.fact.data_problem for rank in ranks if rank.fact.data_problem]
        why = problems[0] if problems else _why(by_id.get(STRAGGLERS))
    elif unknown:
        why = f"{rank_list(unknown)} finished no read in time"
    if why:
        yield NotAsAsked(f"--data {recording.options.data}", STRAGGLERS, why)


def _gpus(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    """Yield --require-gpus if too few GPUs were counted (DD303 also reports it, unless it is ignored)."""
    required, world = recording.options.require_gpus, recording.world
    if not required:
        return
    of_node = recording.command.is_of_root
    counts = {
        node.node: len(node.fact.gpus if of_node else node.fact.visible)
        for node in recording.facts(GpusFact)
        if node.fact.nvml_error is None
    }
    if len(counts) < (world.nnodes if world else 1):
        result = by_id.get(GPUS)
        reason = result.reason if result else None
        yield NotAsAsked(f"--require-gpus {required}", GPUS, reason or "the GPUs could not be counted")
    elif min(counts.values()) < required:
        yield NotAsAsked(f"--require-gpus {required}", GPUS, f"{min(counts.values())} were counted")


def _baseline(recording: Recording, by_id: Mapping[str, CheckResult]) -> Iterator[NotAsAsked]:
    if recording.options.baseline and recording.first(BaselineFact) is None:
        reasons = [reading.reason for reading in recording.of_check(BASELINE) if reading.reason]
        why = reasons[0] if reasons else _why(by_id.get(BASELINE))
        yield NotAsAsked(f"--baseline {recording.options.baseline}", BASELINE, why)


def _nodes(recording: Recording) -> Iterator[NotAsAsked]:
    world = recording.world
    if world is None or world.nnodes == 1:
        return
    seen = {reading.node for reading in recording.readings} | {node.node_rank for node in world.nodes}
    if unseen := [node for node in range(world.nnodes) if node not in seen]:
        yield NotAsAsked(f"--nnodes {world.nnodes}", "", f"nothing was read on {hosts(recording, unseen)}")
