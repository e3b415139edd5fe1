"""Ranks that are alive and hold up the other ranks."""

from collections.abc import Iterator

from ddp_doctor.engine.hang.judgment import Judgment
from ddp_doctor.engine.hang.rules.common import cases, connects, link_remedies, names, process_words, stands
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Draft, Evidence, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import INIT, TrialRecord
from ddp_doctor.parse.frames import called
from ddp_doctor.parse.nccl_log import parse_nccl_log
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.nccl import WITHOUT_NVLS
from ddp_doctor.remedies.torch_calls import HUNG_CODE
from ddp_doctor.views import failed_trials
from ddp_doctor.wording.findings import NOBODY, finding, likely
from ddp_doctor.wording.ranks import capital, cause, line_in_the_job, rank_list, stack_in_the_job

#: Number of ranks whose log is read: all ranks of a node report the same about NVLS, so the first node is enough.
_RANKS_READ = 8


@rule("DD610", "rank-never-entered-a-collective", Consequence.HANGS)
def never_entered(recording: Recording) -> Iterator[Draft]:
    """A rank's peers wait for it in a collective that it never entered.

    Finds: Reports a rank that is alive but never entered the collective, send or receive that the other ranks are in.
        The process state and the Python stack show its activity.
    Why: Every collective waits for its last rank. In a job, the others would print a timeout after 10 (NCCL) or 30
        (gloo) minutes and name themselves.
    Remedy: Check the line where the rank is stuck: a data loader, a lock, a file system, a branch that only this rank
        takes. All ranks must call collectives in the same order.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    for case in cases(recording, "never-entered"):
        first, waiting, evidence = case.first, case.judgment.waiting, case.evidence
        is_busy = (first.cpu_s_per_s or 0.0) > 0.5 or (first.state == "R" and first.cpu_granted is not None)
        if yours := called(first.stack):
            hangs = "hangs" if len(case.culprits) == 1 else "hang"
            title = f"{hangs} in {yours}{line_in_the_job(first)}"
            has = f"{capital(rank_list(waiting))} {'has' if len(waiting) == 1 else 'have'}"
            waits = f"{has} waited {case.trial.waited_s:.0f} s. "
            evidence = (Evidence(check=case.check, text=stack_in_the_job(first)),)
        else:
            state = "" if not first.stack else "busy " if is_busy else "stuck "
            title = f"never entered {case.step_words}: {state}{stands(first)}"
            waits = case.who_waits
        doing = "process is busy, not waiting" if is_busy else process_words(first)
        yield finding(
            case.culprits,
            f"{case.names} {title}",
            evidence,
            HUNG_CODE if yours else remedy(f"Find out what keeps it{' ' if first.stack else ': '}{stands(first)}"),
            confidence=case.confidence,
            detail=f"{waits}Its {doing}.{case.proof_words}",
        )


@rule("DD611", "rank-stopped-or-uninterruptible", Consequence.HANGS)
def not_running(recording: Recording) -> Iterator[Draft]:
    """The kernel does not run the process of a rank.

    Finds: Reports a rank in process state T (stopped by a signal or a debugger) or D (uninterruptible: waiting for a
        device or a file system that does not respond) while its peers wait.
    Why: No timeout and no SIGTERM ends this process, and its peers wait until their timeout.
    Remedy: In state T, find out what sent SIGSTOP (a debugger, a suspended shell, a freezing cgroup) and send SIGCONT.
        In state D, the wait channel names the driver or file system, and the node needs repair.
    See: proc(5), signal(7)
    """
    for case in cases(recording, "stopped", "uninterruptible"):
        stopped, first = case.judgment.kind == "stopped", case.first
        what = "is stopped (state T)" if stopped else f"is stuck in the kernel ({first.wait_channel or 'state D'})"
        cure = remedy("Repair or reboot the node; no signal ends such a process")
        if stopped:
            on = f"kill -CONT PID  # in this test: {first.pid}"
            cure = remedy("Find out what stopped it, and continue it with SIGCONT", on)
        yield finding(
            case.culprits,
            f"{case.names} {what} in check {case.check}: {stands(first)}",
            case.evidence,
            cure,
            confidence=Confidence.PROVED if stopped else Confidence.LIKELY,  # state D may pass
            detail=f"{case.who_waits}For its peers it looks like a slow network.{case.proof_words}",
        )


@rule("DD618", "rank-never-started", Consequence.FAILS)
def never_began(recording: Recording) -> Iterator[Draft]:
    """A rank's process was started but never checked in.

    Finds: Under torchrun or ddp-doctor's own launcher, reports a rank that wrote no output while others did.
    Why: The rendezvous waits for it, by default 10 minutes, without showing which rank is missing.
    Remedy: Check the process for a slow import from a shared file system, or for a lack of memory or pids.
    See: torch.distributed.run, --rdzv-conf join_timeout
    """
    for case in cases(recording, "never-began"):
        were = "was" if len(case.culprits) == 1 else "were"
        by = " by torchrun" if case.trial.launcher == "torchrun" else ""
        yield likely(
            case.culprits,
            f"{case.names} {were} started{by} but never checked in",
            case.evidence,
            remedy("Show what this rank's process does in the job", "py-spy dump --pid PID"),
            detail=f"{case.who_waits}{'; '.join(case.trial.notes[:1])}".strip(),
        )


@rule("DD616", "collective-never-ends", Consequence.HANGS)
def nobody_left(recording: Recording) -> Iterator[Draft]:
    """All ranks entered a collective, but some or all of them never left it.

    Finds: Reports ranks that all run and stay in the same collective, or in init_process_group, until the deadline.
        Also reports a few ranks that stay in a collective that the others left: the others' data did not arrive. Some
        link between them is at fault. The pairwise check that follows identifies it if possible.
    Why: The job hangs without a message. NCCL connects the ranks in init_process_group if it has a device_id, and
        always in torch 2.15. Otherwise it connects them in the first collective, with all GPUs at 100%.
    Remedy: Follow the finding on the pair, if there is one. Otherwise, test NCCL without NVLink SHARP (if it uses that)
        and without P2P, to prove the cause. Between nodes, or in init_process_group, check the network that connects
        them. The table of the report shows the transports that NCCL chose.
    See: docs/explanation/hangs.md
    """
    explained = {pair for case in cases(recording, "pair") for pair in case.judgment.pairs}
    explained |= {stall.ranks for stall in failed_trials.stalls(recording)}
    for case in cases(recording, "all-entered", "left-behind"):
        trial, judgment = case.trial, case.judgment
        # If both ranks of such a pair took part, their link may explain the trial.
        if any({*pair} <= {*trial.ranks} for pair in explained) or failed_trials.explains(recording, trial):
            continue
        where = f" on {recording.nnodes} nodes" if recording.several_nodes else ""
        # NVSwitches reduce for these ranks, by NCCL's log; setting that up hangs on some.
        takes_nvls = trial.backend == "nccl" and any(
            parse_nccl_log(rank.output_tail).nvls for rank in trial.evidence[:_RANKS_READ]
        )
        within = f"within {trial.waited_s:.0f} s"
        ended = _none_left(trial) or f"none left it {within}"
        several = judgment.step is None or not judgment.step.members
        who = f"All {len(trial.ranks)} ranks{where}" if several else capital(rank_list(judgment.waiting))
        title = f"{who} entered {case.step_words} of check {case.check} and {ended}"
        if judgment.kind == "left-behind":
            left = rank_list(sorted({*trial.ranks} - {*judgment.waiting}))
            step = f"{case.step_words} of check {case.check}"
            title = f"{names(recording, judgment.waiting)} did not leave {step} {within}; {left} did"
        yield likely(
            NOBODY,
            title,
            case.waiting_evidence,
            *([WITHOUT_NVLS] if takes_nvls else []),
            *link_remedies(recording, step=judgment.step),
            detail=_link_words(trial, judgment),
            reproduced_by=Reproducer(kind="meet", ranks=trial.ranks),
        )


def _none_left(trial: TrialRecord) -> str:
    """Return which ranks lost a peer, such as ``rank 0 lost a peer in it (Connection reset by peer)``."""
    lost = [rank for rank in trial.evidence if rank.raised is not None]
    if not lost:
        return ""
    what = f"lost a peer in it ({cause(failed_trials.words_of(lost[0]))[:160]})"
    who = "all" if len(lost) == len(trial.evidence) else rank_list([rank.rank for rank in lost])
    return f"{who} {what}"


def _link_words(trial: TrialRecord, judgment: Judgment) -> str:
    found = "All processes run, so a link between them is faulty. Which one is unknown."
    if not connects(judgment.step):
        return found
    how = "NCCL connects them over sockets, then between GPUs"
    how = how if trial.backend == "nccl" else f"{trial.backend} connects them over sockets"
    return f"{found} In {INIT} the ranks meet at the store, and {how}."
