"""Ranks that ended, by a signal, an exit or an exception."""

import re
import signal
from collections.abc import Iterator, Sequence

from ddp_doctor.engine.hang.judgment import STEPS_OF_A_JOB, Judgment
from ddp_doctor.engine.hang.rules.common import MOST_LINES, OUTCOMES, Case, cases, place, stands, step_words
from ddp_doctor.engine.hang.rules.failed_starts import pointing_at_settings, sharing_a_gpu
from ddp_doctor.engine.hang.rules.last_words import NamedCause, named_cause
from ddp_doctor.engine.hang.rules.settings import proved_settings, read_by_library, repeating, with_values, without
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.parse.frames import FATAL, YOURS, called, of_the_job
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views.failed_trials import explains, words_of
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import host
from ddp_doctor.wording.ranks import capital, ended, line_in_the_job, ranks_at, short


@rule("DD612", "rank-died", Consequence.FAILS)
def died(recording: Recording) -> Iterator[Draft]:
    """The process of a rank, or of every rank, ended before its work was done.

    Finds: Reports the first rank that exited or was killed, with its exit code or signal, its current line, and whether
        the memory cgroup counted an OOM kill at that time. If all ranks exited independently, no rank is named. A
        setting is named if the ranks succeeded without it. Processes that ddp-doctor itself ended do not count.
    Why: The other ranks report "connection closed by peer", and torchrun on each node reports its own first failure as
        the root cause. The cause is in the rank that ended first.
    Remedy: After SIGKILL with an OOM count, use more memory, or fewer or smaller ranks. After SIGSEGV or SIGBUS, check
        for a library conflict or a full /dev/shm. After an exit code, read the rank's own output.
    See: signal(7); torch.distributed.elastic.multiprocessing.errors
    """
    for case in cases(recording, "died"):
        first, step, yours = case.first, case.judgment.step, ""
        if step is not None and step.name == OUTCOMES:  # the step where ranks exchange the outcome of the user's code
            yours = YOURS.get(re.split(r"[( ]", step.detail)[0], "")
        where = f"{yours}{line_in_the_job(first)}" if yours else f"check {case.check}: {stands(first)}"
        named = _cause(recording, first, case.check)
        yield proved(
            case.culprits,
            f"{_deaths(case, case.judgment.suspects)} in {where}",
            (*case.evidence, *named.evidence),
            *named.remedies,
            detail=f"{case.who_waits}Errors of other ranks are consequences.{case.proof_words}{named.sentence}",
        )
    trials = [case.trial for case in cases(recording, "died-everywhere")]
    for group in grouped((frozenset(map(ended, _dead(trial))), trial) for trial in trials).values():
        yield _all_died(recording, group)


def _dead(trial: TrialRecord) -> list[RankEvidence]:
    return [rank for rank in trial.evidence if rank.exited_at is not None]


def _all_died(recording: Recording, trials: Sequence[TrialRecord]) -> Draft:
    """Return the draft for ``trials`` that all ended this way; the first one has the most evidence."""
    trial, dead = trials[0], _dead(trials[0])
    first = dead[0]
    yours = called(first.stack) or ("your code" if of_the_job(first.stack) else "")
    settings = () if yours else read_by_library(recording, trial.backend)
    to_blame = proved_settings(recording, "DD612", settings)
    line = [Culprit(kind="file", name=frame) for frame in [place(first)] if yours and frame]
    where = f"{yours}{line_in_the_job(first)}" if yours else _where(trial, first)
    elsewhere = (
        Evidence(check=other.judged_check or "", text=f"the same in {_where(other, _dead(other)[0])}")
        for other in trials[1:MOST_LINES]
    )
    module, _, factory = recording.options.model.partition(":")
    alone = remedy(
        "Run that line alone, without DDP, to find the library that crashes or ends the process",
        f"python -X faulthandler -c 'import {module}; {module}.{factory}()'",
        scope="code",
    )
    case = Case(recording, trial, Judgment("died-everywhere"))
    named = _cause(recording, first, case.check)
    return proved(
        [Culprit(kind="setting", name=name) for name in to_blame] or line,
        f"{_deaths(case, [rank.rank for rank in dead])} in {where}{with_values(recording, to_blame)}",
        (*map(case.rank_evidence, dead[:MOST_LINES]), *elsewhere, *named.evidence),
        *without(recording, to_blame or settings),
        *([alone] if yours else named.remedies),
        detail="No rank exited because of another rank. They share the cause: the code, a library, a setting or"
        f" the machine.{named.sentence}",
        reproduced_by=repeating(trial, first.steps[-1] if first.steps else None) if settings else None,
    )


def _where(trial: TrialRecord, rank: RankEvidence) -> str:
    """Return the step and check, such as ``all_reduce #29 of check allreduce``."""
    check = trial.judged_check or rank.check or trial.checks[0]
    return f"{step_words(rank.open_step)} of check {check}" if rank.open_step else f"check {check}"


def _deaths(case: Case, ranks: Sequence[int]) -> str:
    """Return how these ranks ended, grouped by the way they ended."""
    deaths = {rank: ended(case.of_rank(rank)) for rank in ranks}
    if case.trial.launcher == "torchrun":  # torchrun reports 0 if it does not know the code
        deaths |= {rank: "exited early" for rank in ranks if not case.of_rank(rank).exit_code}
    alike = grouped((death, rank) for rank, death in deaths.items())
    ends = [f"{ranks_at(case.recording, alike_ranks)} {death}" for death, alike_ranks in alike.items()]
    return capital(", ".join(ends))


def _cause(recording: Recording, rank: RankEvidence, check: str) -> NamedCause:
    """Return the cause that the rank's output names; otherwise its last line, and a fix for how it ended."""
    if not rank.out_of_memory and (known := named_cause(rank, check)):
        return known
    lines = [line for line in rank.output_tail.partition(FATAL)[0].splitlines() if line.strip()]  # a stack follows
    last = f" Its last output: {lines[-1][:200]}" if lines else ""
    return NamedCause(last, (), (_after_death(recording, rank),))


def _after_death(recording: Recording, rank: RankEvidence) -> Remedy:
    code = rank.exit_code or 0
    killed = "sudo dmesg -T | grep -i 'killed process'"
    killed += f"   # on {host(recording, rank.node)}" if recording.several_nodes else ""
    if rank.out_of_memory:
        return remedy("Give the job more memory (cgroup or --mem), or run fewer ranks per node", killed, scope="job")
    if code >= 0:
        return remedy("Read the rank's last output; it exited without a signal", scope="code")
    if code == -signal.SIGKILL:
        return remedy(f"{_WHO_SENT}: the out-of-memory killer, a time limit, an epilog, an administrator", killed)
    return next(
        (cure for signals, cure in _CURES if -code in signals),
        remedy(f"{_WHO_SENT}: a time limit, an epilog, an administrator"),
    )


_WHO_SENT = "Find out what sent the signal"
_CURES = (
    (
        (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL),
        remedy(
            "Look for conflicting native libraries (LD_LIBRARY_PATH, LD_PRELOAD) or a full /dev/shm",
            "ldconfig -p | grep -e nccl -e cuda",
            "df -h /dev/shm",
        ),
    ),
    (
        (signal.SIGXCPU, signal.SIGXFSZ),
        remedy("Raise the limit of CPU time (SIGXCPU) or file size (SIGXFSZ)", "ulimit -a"),
    ),
    (
        (signal.SIGABRT, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS),
        remedy("Read its last line of code and its last output; the process ended itself", scope="code"),
    ),
)


@rule("DD613", "rank-raised-an-exception", Consequence.FAILS)
def raised(recording: Recording) -> Iterator[Draft]:
    """A rank failed with its own exception.

    Finds: Reports a rank whose probe raised an exception that does not concern a peer, while others did not.
    Why: The peers wait for it or report a broken connection. Only this rank's message shows the cause.
    Remedy: Read the exception's text and line.
    See: torch.distributed.elastic.multiprocessing.errors, which reports the earliest failure
    """
    for case in cases(recording, "raised"):
        trial = case.trial
        lacking = {rank.rank for rank in pointing_at_settings(recording, trial)} | _beyond(recording, trial)
        if sharing_a_gpu(trial) or explains(recording, trial) or lacking.issuperset(case.judgment.suspects):
            continue  # process-group-cannot-start, or a rule of the cause, names who is concerned
        first = case.first
        assert first.raised is not None
        where = f"{first.raised.type} at {short(first.raised.where)} in check {case.check}"
        if first.raised.type == "StepFailed" and first.steps:
            name = first.steps[-1].name
            model = "your model" if name in STEPS_OF_A_JOB else "your model in DDP"
            where = f"{first.raised.message.partition(': ')[0]} in the {name.replace('_', ' ')} of {model}"
        named = named_cause(first, case.check)
        words = " ".join(words_of(first)[:400].split()) or "nothing"
        end = "" if words[-1] in ".!?" else "."
        correct = remedy("Fix the cause that the exception reports; the other ranks only wait")
        yield finding(
            case.culprits,
            f"{case.names} raised {where}",
            (*case.evidence, *(named.evidence if named else ())),
            *(named.remedies if named else [correct]),
            confidence=case.confidence,
            detail=f"Its message: {words}{end} {case.who_waits}".rstrip()
            + f"{named.sentence if named else ''}{case.proof_words}",
        )


def _beyond(recording: Recording, trial: TrialRecord) -> set[int]:
    """Return the ranks whose node shows too few GPUs (reported by job-sees-too-few-gpus)."""
    shown = {node.node: len(node.fact.visible) for node in recording.facts(GpusFact)}
    world = recording.world
    return {
        rank.rank
        for rank in trial.evidence
        if world is not None and "invalid device ordinal" in words_of(rank)
        if 0 < shown.get(rank.node, 0) <= world.local_rank(rank.rank)
    }
