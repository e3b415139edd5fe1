"""The rules over trials: a rank that died, stopped, never came, raised, or called something else.

They apply to every rank check alike, so they live here and not with one check. Each asks the judge
(launch/hang.py), which is pure, so a replayed recording gives the same answer or a better one.
"""

import signal
from collections.abc import Iterator

from ddp_doctor.engine import words
from ddp_doctor.knowledge.deadlines import LATE_RANK_S
from ddp_doctor.launch.hang import Judgement, Kind, judge
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord


def _judged(recording: Recording, *kinds: Kind) -> Iterator[tuple[TrialRecord, Judgement]]:
    for trial in recording.trials:
        if trial.outcome in ("stuck", "broken", "slow"):
            judgement = judge(trial)
            if judgement.kind in kinds:
                yield trial, judgement


def _of(trial: TrialRecord, rank: int) -> RankEvidence:
    return next(one for one in trial.evidence if one.rank == rank)


def _check(trial: TrialRecord, judgement: Judgement) -> str:
    return judgement.step.check if judgement.step else trial.judged_check or trial.checks[0]


def _step(step: Step | None) -> str:
    """``all_reduce 17``, as the evidence counts the steps of a check."""
    return f"{step.name} {step.seq}" if step else "its next step"


def _wait(judgement: Judgement) -> str:
    if not judgement.waiting:
        return ""
    verb = "wait" if len(judgement.waiting) > 1 else "waits"
    return f"; {words.ranks(judgement.waiting)} {verb}"


def _culprits(recording: Recording, numbers: tuple[int, ...]) -> tuple[Culprit, ...]:
    return tuple(_culprit(recording, rank) for rank in numbers)


def _culprit(recording: Recording, rank: int) -> Culprit:
    world = recording.world
    node_rank = world.node_of(rank) if world else 0
    gpu = rank % world.nproc_per_node if world and world.backend == "nccl" else None
    host = world.hostname(node_rank) if world else None
    return Culprit(kind="rank", rank=rank, node_rank=node_rank, node=host, gpu=gpu)


def _names(recording: Recording, numbers: tuple[int, ...]) -> str:
    return " and ".join(words.rank_at(recording, rank) for rank in numbers)


def _stands(one: RankEvidence) -> str:
    """Where the rank stands, as well as the process could still say."""
    if one.stack:
        own = [frame for frame in one.stack if "/torch/" not in frame and "/ddp_doctor/launch/" not in frame]
        return f"it stands in {words.short((own or list(one.stack))[-1])}"
    if one.steps:
        return f"its last step was {_step(one.steps[-1])} at {words.short(one.steps[-1].where)}"
    return "it never said where it stands"


def _rank_evidence(trial: TrialRecord, judgement: Judgement, one: RankEvidence) -> Evidence:
    parts = [f"rank {one.rank} (pid {one.pid}): {_process(one)}", _stands(one)]
    if one.cpu_s_per_s is not None and one.exited_at is None:
        parts.append(f"{one.cpu_s_per_s:.0%} of a core in the last second")
    return Evidence(check=_check(trial, judgement), text="; ".join(parts))


def _process(one: RankEvidence) -> str:
    if one.exited_at is not None:
        return f"gone {one.exited_at:.1f} s after the start"
    states = {
        "R": "running",
        "S": "sleeping",
        "D": "uninterruptible",
        "T": "stopped",
        "t": "traced",
        "Z": "dead",
    }
    wait = f" in {one.wait_channel}" if one.wait_channel and one.wait_channel != "0" else ""
    return f"process {states.get(one.state or '', 'state unknown')}{wait}"


def _waiting_evidence(trial: TrialRecord, judgement: Judgement) -> tuple[Evidence, ...]:
    if not judgement.waiting or judgement.step is None:
        return ()
    step = judgement.step
    text = f"{words.ranks(judgement.waiting)} entered {_step(step)} at {words.short(step.where)} and did not leave it"
    return (Evidence(check=step.check, text=text, value=round(trial.waited_s, 1), unit="s"),)


def _evidence(trial: TrialRecord, judgement: Judgement) -> tuple[Evidence, ...]:
    guilty = [_rank_evidence(trial, judgement, _of(trial, rank)) for rank in judgement.suspects]
    return (*guilty, *_waiting_evidence(trial, judgement))


def _all_well_without(recording: Recording, trial: TrialRecord, judgement: Judgement) -> bool:
    """Whether a later trial ran the same check to its end without the suspects: a second proof."""
    later = recording.trials[recording.trials.index(trial) + 1 :]
    return any(
        again.outcome == "finished" and not set(again.ranks) & set(judgement.suspects) for again in later
    )


def _confidence(recording: Recording, trial: TrialRecord, judgement: Judgement) -> Confidence:
    proved = _all_well_without(recording, trial, judgement)
    return Confidence.PROVED if proved else Confidence.LIKELY


def _proof_words(recording: Recording, trial: TrialRecord, judgement: Judgement) -> str:
    if _all_well_without(recording, trial, judgement):
        return " The same checks passed in a second trial without it."
    return ""


@rule("DD610", "rank-never-entered-a-collective", Severity.ERROR)
def never_entered(recording: Recording) -> Iterator[Draft]:
    """A rank that its peers wait for.

    What it finds
        A rank that is alive and never entered the collective, send or receive in which the other
        ranks stand; the process state and the Python stack tell what it does instead.

    Why it matters
        Every collective waits for its last rank. In a job the others would print a time-out after
        10 (NCCL) or 30 (gloo) minutes and name themselves.

    Remedy
        Look at the line the rank stands on: a data loader, a lock, a file system, a branch that
        only this rank takes. Collectives must be called by all ranks in the same order.

    References
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    for trial, judgement in _judged(recording, "never-entered"):
        first = _of(trial, judgement.suspects[0])
        doing = "it is busy, not waiting" if (first.cpu_s_per_s or 0.0) > 0.5 else _process(first)
        yield Draft(
            title=f"{_names(recording, judgement.suspects)} never entered {_step(judgement.step)} of"
            f" {_check(trial, judgement)}; {_stands(first)}{_wait(judgement)}",
            detail=f"{doing.capitalize()}.{_proof_words(recording, trial, judgement)}",
            confidence=_confidence(recording, trial, judgement),
            culprits=_culprits(recording, judgement.suspects),
            evidence=_evidence(trial, judgement),
            remedies=(
                Remedy(
                    summary=f"Find out what keeps it: {_stands(first)}",
                    commands=("py-spy dump --pid PID  # in the job, on that rank",),
                    scope="node",
                ),
            ),
        )


@rule("DD611", "rank-stopped-or-uninterruptible", Severity.ERROR)
def not_running(recording: Recording) -> Iterator[Draft]:
    """A rank whose process the kernel does not run.

    What it finds
        A rank in process state T (stopped by a signal or a debugger) or D (uninterruptible: waiting
        for a device or a file system that does not answer) while its peers wait.

    Why it matters
        No time-out and no SIGTERM ends such a process; its peers wait for theirs.

    Remedy
        T: find who sent SIGSTOP (a debugger, a suspended shell, a freezing cgroup) and send SIGCONT.
        D: the wait channel names the driver or file system; the node needs repair.

    References
        proc(5), signal(7)
    """
    for trial, judgement in _judged(recording, "stopped", "uninterruptible"):
        stopped = judgement.kind == "stopped"
        first = _of(trial, judgement.suspects[0])
        what = (
            "is stopped (state T)" if stopped else f"hangs in the kernel ({first.wait_channel or 'state D'})"
        )
        cure = (
            Remedy(
                summary="Find out who stopped it; SIGCONT lets it go on",
                commands=(f"kill -CONT PID  # the doctor's own was {first.pid}",),
                scope="node",
            )
            if stopped
            else Remedy(summary="Repair or reboot the node: no signal ends such a process", scope="node")
        )
        yield Draft(
            title=f"{_names(recording, judgement.suspects)} {what} in {_check(trial, judgement)};"
            f" {_stands(first)}{_wait(judgement)}",
            detail=f"Its peers cannot tell this from a slow network.{_proof_words(recording, trial, judgement)}",
            confidence=Confidence.PROVED,
            culprits=_culprits(recording, judgement.suspects),
            evidence=_evidence(trial, judgement),
            remedies=(cure,),
        )


@rule("DD612", "rank-died", Severity.ERROR)
def died(recording: Recording) -> Iterator[Draft]:
    """A rank whose process ended before its work was done.

    What it finds
        The first rank that exited or was killed; its exit code or signal, and whether the memory
        cgroup counted an OOM kill at that time.

    Why it matters
        The other ranks report "connection closed by peer", and torchrun on each node calls its own
        first failure the root cause. The rank that went first is the one to look at.

    Remedy
        SIGKILL with an OOM count: more memory, or fewer or smaller ranks. SIGSEGV or SIGBUS: a
        library clash or a full /dev/shm. An exit code: the rank's own output says why.

    References
        signal(7); torch.distributed.elastic.multiprocessing.errors
    """
    for trial, judgement in _judged(recording, "died"):
        first = _of(trial, judgement.suspects[0])
        yield Draft(
            title=f"{_names(recording, judgement.suspects)} {_death(trial, first)} in"
            f" {_check(trial, judgement)}; {_stands(first)}{_wait(judgement)}",
            detail="The errors of the other ranks are its echo."
            f"{_proof_words(recording, trial, judgement)}{_last_words(first)}",
            confidence=Confidence.PROVED,
            culprits=_culprits(recording, judgement.suspects),
            evidence=_evidence(trial, judgement),
            remedies=(_after_death(first),),
        )


def _death(trial: TrialRecord, one: RankEvidence) -> str:
    code = one.exit_code
    if one.out_of_memory and code == -signal.SIGKILL:
        return "was killed by the kernel for lack of memory (OOM, SIGKILL)"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if trial.launcher == "torchrun":
        return "ended before its work was done"
    return f"exited with code {code} before its work was done"


def _last_words(one: RankEvidence) -> str:
    lines = [line for line in one.output_tail.splitlines() if line.strip()]
    return f" Its last output: {lines[-1][:200]}" if lines else ""


def _after_death(one: RankEvidence) -> Remedy:
    code = one.exit_code
    if one.out_of_memory:
        return Remedy(
            summary="Give the job more memory (cgroup or --mem), or run fewer ranks per node",
            commands=("dmesg | grep -i 'killed process'",),
            scope="job",
        )
    if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL):
        return Remedy(
            summary="Look for clashing native libraries (LD_LIBRARY_PATH, LD_PRELOAD) or a full /dev/shm",
            commands=("ldconfig -p | grep -e nccl -e cuda", "df -h /dev/shm"),
            scope="node",
        )
    if code is not None and code < 0:
        return Remedy(
            summary="Find out who sent the signal: a time limit, an epilog, an administrator", scope="node"
        )
    return Remedy(summary="Read the rank's last output: it left by itself", scope="code")


@rule("DD613", "rank-raised-an-exception", Severity.ERROR)
def raised(recording: Recording) -> Iterator[Draft]:
    """A rank that failed with an exception of its own.

    What it finds
        A rank whose probe raised an exception that does not speak of a peer, while others did not.

    Why it matters
        The peers wait for it, or report a broken connection; only this rank's words are a cause.

    Remedy
        The exception's text and line.

    References
        torch.distributed.elastic.multiprocessing.errors, which reports the earliest failure
    """
    for trial, judgement in _judged(recording, "raised"):
        first = _of(trial, judgement.suspects[0])
        assert first.raised is not None
        yield Draft(
            title=f"{_names(recording, judgement.suspects)} raised {first.raised.type} in"
            f" {_check(trial, judgement)} at {words.short(first.raised.where)}{_wait(judgement)}",
            detail=f"{first.raised.message[:400]}{_proof_words(recording, trial, judgement)}",
            confidence=_confidence(recording, trial, judgement),
            culprits=_culprits(recording, judgement.suspects),
            evidence=_evidence(trial, judgement),
            remedies=(
                Remedy(
                    summary="Mend what the exception says; the other ranks only wait for it", scope="node"
                ),
            ),
        )


@rule("DD614", "ranks-call-different-collectives", Severity.ERROR)
def mismatch(recording: Recording) -> Iterator[Draft]:
    """Ranks that met in one place with different operations, shapes or types.

    What it finds
        At one sequence number the ranks called different operations, or one operation with
        different shapes or types; torch's flight recorder tells what each really enqueued.

    Why it matters
        The result is a hang, a broken connection or a wrong sum, and no message names the rank.

    Remedy
        Make the ranks agree: usually a branch, a data-dependent shape or an uneven last batch.

    References
        TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective at a price
    """
    for trial, judgement in _judged(recording, "mismatch"):
        calls = {rank: f"{entry.op}{_sizes(entry.sizes)}" for rank, entry in judgement.flights}
        theirs = sorted({calls[rank] for rank in judgement.waiting if rank in calls})
        mine = sorted({calls[rank] for rank in judgement.suspects if rank in calls})
        if judgement.suspects and mine:
            title = (
                f"{_names(recording, judgement.suspects)} called {', '.join(mine)} where"
                f" {words.ranks(judgement.waiting)} called {', '.join(theirs)} in {_check(trial, judgement)}"
            )
        else:
            every = "; ".join(f"rank {rank} called {call}" for rank, call in calls.items())
            title = f"The ranks call different collectives in {_check(trial, judgement)}: {every}"
        yield Draft(
            title=title,
            detail="Collectives must be called by all ranks in the same order with the same shape and type."
            f"{_proof_words(recording, trial, judgement)}",
            confidence=_confidence(recording, trial, judgement)
            if judgement.suspects
            else Confidence.POSSIBLE,
            culprits=_culprits(recording, judgement.suspects),
            evidence=(*_flight_evidence(trial, judgement), *_waiting_evidence(trial, judgement)),
            remedies=(Remedy(summary="Make that rank take the same path as the others", scope="code"),),
        )


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    return " ".join(str(list(size)) for size in sizes)


def _flight_evidence(trial: TrialRecord, judgement: Judgement) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            check=_check(trial, judgement),
            text=f"rank {rank}: collective {entry.seq} is {entry.op} {_sizes(entry.sizes)}"
            f" {' '.join(entry.dtypes)} (flight recorder)",
        )
        for rank, entry in judgement.flights
    )


@rule("DD615", "link-between-two-ranks-hangs", Severity.ERROR)
def pair(recording: Recording) -> Iterator[Draft]:
    """A pair of ranks that both entered a transfer which never ended.

    What it finds
        Two ranks that run, that both entered the same send and receive, and that never left it.

    Why it matters
        Neither process is to blame: what connects them is. One such pair hangs every collective.

    Remedy
        GPUs: test with NCCL_P2P_DISABLE=1, and repair ACS, the IOMMU or the link. CPU: look at the
        firewall and the interface between the two.

    References
        NCCL user guide, Troubleshooting: GPU Direct and PCI Access Control Services
    """
    seen: dict[tuple[int, int], tuple[TrialRecord, Judgement]] = {}
    for trial, judgement in _judged(recording, "pair"):
        seen.update({pair: (trial, judgement) for pair in judgement.pairs})
    common = _common_rank(set(seen))
    if common is not None:
        yield _many_pairs(recording, common, seen)
        return
    for (one, other), (trial, judgement) in seen.items():
        yield Draft(
            title=f"The link between {words.rank_at(recording, one)} and {words.rank_at(recording, other)}"
            f" hangs: both entered {_step(judgement.step)} of {_check(trial, judgement)} and neither left it",
            detail="Both processes run, so what connects them is to blame. All other pairs were tested without it.",
            confidence=Confidence.LIKELY,
            culprits=(_pair_culprit(recording, one, other),),
            evidence=tuple(_rank_evidence(trial, judgement, _of(trial, rank)) for rank in (one, other)),
            remedies=(_try_without_p2p(recording),),
        )


def _common_rank(pairs: set[tuple[int, int]]) -> int | None:
    """The one rank that is an end of all of at least two stuck pairs: two observers name it."""
    if len(pairs) < 2:
        return None
    shared = set.intersection(*(set(pair) for pair in pairs))
    return shared.pop() if len(shared) == 1 else None


def _many_pairs(
    recording: Recording, common: int, seen: dict[tuple[int, int], tuple[TrialRecord, Judgement]]
) -> Draft:
    others = sorted(rank for pair in seen for rank in pair if rank != common)
    evidence = [
        _rank_evidence(trial, judgement, _of(trial, common)) for trial, judgement in list(seen.values())[:1]
    ]
    return Draft(
        title=f"{words.rank_at(recording, common)} exchanges nothing with {words.ranks(others)}: each of these"
        " links hangs with both ends inside the transfer",
        detail=f"{len(seen)} stuck pairs share this rank, and pairs without it work.",
        confidence=Confidence.LIKELY,
        culprits=(_culprit(recording, common),),
        evidence=tuple(evidence),
        remedies=(_try_without_p2p(recording),),
    )


def _pair_culprit(recording: Recording, one: int, other: int) -> Culprit:
    end = _culprit(recording, one)
    peer = _culprit(recording, other)
    return end.model_copy(update={"kind": "pair", "peer_rank": other, "peer_node": peer.node})


def _try_without_p2p(recording: Recording) -> Remedy:
    from ddp_doctor.model.finding import Proof, Setting

    if recording.world is None or recording.world.backend != "nccl":
        return Remedy(
            summary="Look at what connects the two: firewall rules, the interface, the name each resolves to",
            commands=("ss -tnp", "nft list ruleset"),
            scope="node",
        )
    return Remedy(
        summary="Turn GPU peer-to-peer off to prove the cause; then repair ACS, the IOMMU or the link",
        settings=(
            Setting(name="NCCL_P2P_DISABLE", value="1", why="the pair then goes through shared memory"),
        ),
        cost="all GPU pairs lose direct transfers, NVLink included; a stop-gap, not a cure",
        undo="unset NCCL_P2P_DISABLE",
        proof=Proof(reason="this version does not try settings"),
        references=("NCCL user guide: NCCL_P2P_DISABLE",),
    )


@rule("DD616", "collective-never-ends", Severity.ERROR)
def nobody_left(recording: Recording) -> Iterator[Draft]:
    """A collective that all ranks entered and none left.

    What it finds
        All ranks run and stand in the same collective until the deadline. Some link between them is
        to blame; the pairwise check that follows says which, where it can.

    Why it matters
        The job hangs at its first collective with all GPUs at 100 % and no message.

    Remedy
        The finding on the pair, where there is one. Else NCCL_DEBUG=INFO and the transports it chose.

    References
        docs/explanation/hangs.md
    """
    explained = any(True for _ in _judged(recording, "pair"))
    for trial, judgement in _judged(recording, "all-entered"):
        if explained:
            continue
        yield Draft(
            title=f"All {len(judgement.waiting)} ranks entered {_step(judgement.step)} of"
            f" {_check(trial, judgement)} and none left it within {trial.waited_s:.0f} s",
            detail="All processes run, so a link between them is to blame; no single pair could be named.",
            confidence=Confidence.POSSIBLE,
            evidence=_waiting_evidence(trial, judgement),
            remedies=(_try_without_p2p(recording),),
        )


@rule("DD617", "process-group-cannot-start", Severity.ERROR)
def everywhere(recording: Recording) -> Iterator[Draft]:
    """An exception that all ranks raise in the same place.

    What it finds
        The same exception on all ranks, mostly while the process group is set up: an interface that
        does not exist, a library that is missing.

    Why it matters
        The job will not start, on any rank; no rank is to blame.

    Remedy
        What the exception names. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME must name interfaces of
        this host.

    References
        gloo transport/tcp/device.cc ("Unable to find address for")
    """
    for trial, judgement in _judged(recording, "raised-everywhere"):
        first = _of(trial, judgement.waiting[0])
        step = first.steps[-1] if first.steps else None
        if first.raised is None or step is None or step.name != "init_process_group":
            continue  # a probe of the doctor's own that fails everywhere is unsure, not a fault
        setting = "GLOO_SOCKET_IFNAME" if "find address for" in first.raised.message else None
        yield Draft(
            title=f"The {trial.backend} process group cannot start: {first.raised.message.splitlines()[0][:160]}",
            detail=f"All {len(judgement.waiting)} ranks raised {first.raised.type} in init_process_group.",
            confidence=Confidence.PROVED,
            culprits=(Culprit(kind="setting", name=setting),) if setting else (),
            evidence=(Evidence(check="process_group", text=first.raised.message[:400]),),
            remedies=(
                Remedy(
                    summary=f"Set {setting} to an interface of this host, or unset it"
                    if setting
                    else "Mend what the exception names",
                    commands=("ip -br address",),
                ),
            ),
        )


@rule("DD618", "rank-never-started", Severity.ERROR)
def never_began(recording: Recording) -> Iterator[Draft]:
    """A rank whose process was started and never reported in.

    What it finds
        Under torchrun or the doctor's own launcher, a rank that wrote nothing at all while others did.

    Why it matters
        The rendezvous waits for it: by default 10 minutes, without a word about who is missing.

    Remedy
        Look at the process: a slow import from a shared file system, or no memory or pids left.

    References
        torch.distributed.run, --rdzv-conf join_timeout
    """
    for trial, judgement in _judged(recording, "never-began"):
        yield Draft(
            title=f"{_names(recording, judgement.suspects)} was started by {trial.launcher} and never reported in"
            f"{_wait(judgement)}",
            detail="; ".join(trial.notes[:1]),
            culprits=_culprits(recording, judgement.suspects),
            evidence=_evidence(trial, judgement),
            remedies=(
                Remedy(
                    summary="Look at what the process does", commands=("py-spy dump --pid PID",), scope="node"
                ),
            ),
        )


@rule("DD619", "rank-comes-late", Severity.WARNING)
def late(recording: Recording) -> Iterator[Draft]:
    """A rank that makes the others wait, though not for ever.

    What it finds
        A rank that needed much longer than its peers between two collectives; all ranks run the
        same code, so the time is lost on that rank alone.

    Why it matters
        DDP runs at the speed of its slowest rank.

    Remedy
        Compare that rank's core, GPU clock and neighbours with its peers'.

    References
        docs/explanation/hangs.md
    """
    for trial in recording.trials:
        if trial.outcome == "finished":
            yield from _late_in(recording, trial)


def _late_in(recording: Recording, trial: TrialRecord) -> Iterator[Draft]:
    delays: dict[int, tuple[float, Step]] = {}
    keys = {(step.check, step.seq) for one in trial.evidence for step in one.steps}
    for key in keys:
        entered = {o.rank: s for o in trial.evidence for s in o.steps if (s.check, s.seq) == key}
        times = sorted(step.entered_at for step in entered.values())
        typical = times[(len(times) - 1) // 2]
        for rank, step in entered.items():
            delay = step.entered_at - typical
            if delay >= LATE_RANK_S and delay > delays.get(rank, (0.0, step))[0]:
                delays[rank] = (delay, step)
    if not delays or len(delays) * 2 > len(trial.ranks):
        return  # a slow machine, not a slow rank
    for rank, (delay, step) in delays.items():
        yield Draft(
            title=f"{words.rank_at(recording, rank)} entered {_step(step)} of {step.check} {delay:.1f} s after"
            " the others",
            detail="All ranks run the same code, so this rank alone lost the time.",
            culprits=(_culprit(recording, rank),),
            evidence=(
                Evidence(
                    check=step.check,
                    text=f"rank {rank} came last to {_step(step)}",
                    value=round(delay, 2),
                    unit="s",
                    expected=LATE_RANK_S,
                    expected_from="ranks that run the same code enter within this time of each other",
                ),
            ),
            remedies=(
                Remedy(
                    summary="Compare this rank's core, clocks and neighbours with its peers'", scope="node"
                ),
            ),
        )


@rule("DD620", "check-moves-too-slowly", Severity.WARNING)
def slow(recording: Recording) -> Iterator[Draft]:
    """A check that still moved when its extended deadline had passed.

    What it finds
        Ranks that went on from step to step, too slowly to end in time; nobody hangs.

    Why it matters
        The job would run, far slower than it should.

    Remedy
        Look at the load of the machine first; then at the measured bandwidths.

    References
        docs/explanation/hangs.md
    """
    for trial, judgement in _judged(recording, "slow"):
        yield Draft(
            title=f"{trial.judged_check} still moved after {trial.waited_s:.0f} s: slow, not hung",
            detail=f"{words.ranks(judgement.waiting).capitalize()} went on from step to step until the end.",
            evidence=_waiting_evidence(trial, judgement)
            or (Evidence(check=trial.judged_check or "", text="steps were still being entered"),),
            remedies=(Remedy(summary="Run again on an idle machine, or with --budget and fewer checks"),),
        )


TRIAL_RULES = (
    never_entered,
    not_running,
    died,
    raised,
    mismatch,
    pair,
    nobody_left,
    everywhere,
    never_began,
    late,
    slow,
)
