"""The order of reasoning over what is left of a job; pure.

1. Each cause that signs speak for is a suspect, and each different exception of ranks' own (evidence.py). Lines of
   victims, advice and the launcher's summary are none.
2. A job that goes on, or ends well, has not failed: a complaint of NCCL alone is no failure.
3. The word of the kernel counts before a rank's own exception, that before the wait graph of the flight recorder, RAS,
   NCCL's warnings and the watchdog (evidence.TIERS). A suspect that another one explains is left out (_EXPLAIN): the
   later by the earlier, a rank's complaints by what happened to its host, a broken connection by the death of a peer.
   Where no clock tells an order, none is made up.
4. What is left are the causes, in the order of time: several where faults are independent.
5. Where nothing is left, time-outs and dumps say who waited where (time_outs.py, wait_graph.py), deaths who died; and
   a failure of which nothing shows the cause is called that (unproven.py).

What signs and rows must look like for it:

* Signs read by their id are ``exception``, ``watchdog-timeout`` and ``watchdog-last-work``. By a sign of tier
  ``launcher`` and role ``pointer`` the job failed, whatever is printed behind it; any other counts where its process
  does not go on.
* Values of signs that name a culprit: gpu, bus, device, peer, host, rank, peer_rank, variable, file (whose.py).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from shlex import quote

from ddp_doctor.engine.causes import live, networks, time_outs, unproven, wait_graph
from ddp_doctor.engine.causes.evidence import LEAST_LINES_OF_LIFE, TIERS, Output, Suspect, lines, suspects
from ddp_doctor.engine.causes.exceptions import speaks_of_a_machine
from ddp_doctor.engine.causes.judged import Judged, place_of
from ddp_doctor.engine.causes.whose import culprits, places, rank_culprit, who
from ddp_doctor.facts.job_log import FlightDumpFact, JobLogFact, SignSeen
from ddp_doctor.knowledge.gpu.xids import XIDS
from ddp_doctor.knowledge.job_causes import FOUND_BY_LINT, SIGNS, cause_named
from ddp_doctor.model.choices import Command, Confidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.frames import is_of_the_job
from ddp_doctor.wording.ranks import capital, short


def causes(recording: Recording) -> tuple[Judged, ...]:
    """What made the job fail, in the order of time; () where it did not fail."""
    if recording.command is Command.ATTACH:
        return live.judged(recording)
    fact = recording.first(JobLogFact) or JobLogFact(files=())
    last = _last_attempt(fact)
    output = _of_attempt(fact, last)
    hangs = [Suspect(j.cause, "recorder", j.confidence, judged=j) for j in wait_graph.judged(recording)]
    by_signs = (_by_the_moment(recording, output, suspect) for suspect in suspects(output))
    spoken = (*by_signs, *networks.suspects(recording, output), *time_outs.suspects(output))
    is_open = output.failed or output.unfinished
    left = unexplained(output, [*hangs, *(spoken if is_open else ())])
    if left:
        found = tuple(_judged(output, suspect) for suspect in output.in_order(left))
    elif output.failed:
        found = networks.p2p_hang(recording, output) or unproven.judged(output)
    else:
        found = unproven.not_shown(recording, output)
    found = tuple(_with_lint(recording, output, judged) for judged in found)
    earlier = [said for attempt in range(last) if (said := _of_earlier(_of_attempt(fact, attempt), attempt))]
    if not earlier or not found:
        return found
    detail = " ".join(filter(None, (found[0].detail, *earlier)))
    return replace(found[0], detail=detail), *found[1:]


#: Causes that say no more than that a process ended.
_THAT_IT_ENDED = ("rank-exception", "process-crashed", "host-oom-kill", "peer-died-secondary")


def cause_in(fact: JobLogFact) -> Judged | None:
    """The first cause that output names, likely at least; that a process ended is none."""
    output = Output(fact)
    left = output.in_order(unexplained(output, list(suspects(output))))
    for suspect in left:
        if suspect.confidence is not Confidence.POSSIBLE and suspect.cause.name not in _THAT_IT_ENDED:
            return _judged(output, suspect)
    return None


def _with_lint(recording: Recording, output: Output, judged: Judged) -> Judged:
    """What reads the job's code comes first: the file of the culprits' stacks, else of any rank's."""
    if judged.cause.name not in FOUND_BY_LINT:
        return judged
    named = {culprit.rank for culprit in judged.culprits}
    stacks = [(sign.rank, sign.values.get("where", "")) for sign in output.fact.signs if sign.sign == "exception"]
    stacks += [(at.fact.rank, frame) for at in recording.facts(FlightDumpFact) for frame in at.fact.frames[-1:]]
    files = [(rank in named, _file_of(frame)) for rank, frame in stacks if frame and is_of_the_job(frame)]
    script = next((file for _, file in sorted(files, key=lambda of: not of[0])), "SCRIPT")
    lint = f"ddp-doctor lint {quote(script)}"
    return replace(judged, next_check=f"{lint}; {judged.next_check or judged.cause.next_check}")


def _file_of(frame: str) -> str:
    """``/home/me/net.py`` of ``/home/me/net.py:31 in forward``."""
    return frame.rpartition(" in ")[0].rpartition(":")[0]


#: Faults of the network by what is set up wrongly: they show with the first transfers.
_SET_UP = ("ib-unusable", "roce-gid-index", "ib-rail-unroutable", "ib-mtu-mismatch")


#: Lines of the job between NCCL's completion and its first transfers.
_FEW_LINES = 5


def _by_the_moment(recording: Recording, output: Output, suspect: Suspect) -> Suspect:
    """RDMA that fails in one of the first collectives is set up wrongly; after many, a part of it broke."""
    is_first, name = _is_first(output, suspect), suspect.cause.name
    if name == "ib-fabric-fault" and is_first:
        set_up = "roce-gid-index" if networks.is_over_roce(recording, suspect) else "ib-unusable"
        return replace(suspect, cause=cause_named(set_up) or suspect.cause)
    if name == "ib-fabric-fault" and is_first is False:
        return replace(suspect, confidence=Confidence.LIKELY)
    if name in _SET_UP and is_first is False:
        return replace(suspect, confidence=Confidence.POSSIBLE)
    return suspect


def _is_first(output: Output, suspect: Suspect) -> bool | None:
    """Whether it came with the first transfers; None where nothing tells."""
    if number := time_outs.collective_reached(output):
        return time_outs.is_first(number)
    lines_between = suspect.values.get("since_complete")
    at_once = lines_between is not None and int(lines_between) <= _FEW_LINES
    return at_once or any(sign.sign == "test-without-results" for sign in output.fact.signs) or None


def _last_attempt(fact: JobLogFact) -> int:
    """torchrun's last one: of which something is said, or which followed and printed more than its beginning."""
    ends = {file.name: file.said or file.lines for file in fact.files}
    follow = (
        sign.attempt + 1
        for sign in fact.signs
        if sign.sign == "restarted" and ends.get(sign.where.file, 0) - sign.where.line > LEAST_LINES_OF_LIFE
    )
    return max((*follow, *(sign.attempt for sign in fact.signs)), default=0)


def _of_attempt(fact: JobLogFact, attempt: int) -> Output:
    """The output of one of torchrun's attempts. How ranks ended is known of the last one alone."""
    return Output(fact.model_copy(update={"signs": tuple(sign for sign in fact.signs if sign.attempt == attempt)}))


def _of_earlier(output: Output, attempt: int) -> str:
    """``Attempt 0 had failed before: gpu-out-of-memory (job.out:12).``"""
    left = output.in_order(unexplained(output, list(suspects(output))))
    where = lines(left[0].signs)[:1] if left else ()
    return f"Attempt {attempt} had failed before: {left[0].cause.name} ({place_of(where[0])})." if where else ""


def _judged(output: Output, suspect: Suspect) -> Judged:
    if (judged := suspect.judged) is not None:
        ranks = [culprit.rank for culprit in judged.culprits if culprit.rank is not None]
        if not ranks:
            return judged
        known = tuple(rank_culprit(output, rank) for rank in ranks)
        return replace(judged, culprits=known, who=places(output, ranks))
    return Judged(
        suspect.cause,
        suspect.confidence,
        lines((*_beside(output, suspect), *suspect.signs)),
        culprits(output, suspect),
        who(output, suspect),
        " ".join(filter(None, (capital(time_outs.waited(output)), _when(output, suspect)))),
        values={**suspect.values, **_meaning(suspect.values.get("xid", "")), "raised_at": _raised_at(output, suspect)},
    )


def _beside(output: Output, suspect: Suspect) -> Iterator[SignSeen]:
    """The first of the signs without which its own would say nothing."""
    needed = {name for sign in suspect.signs for name in SIGNS[sign.sign][0].beside}
    yield from islice((sign for sign in output.fact.signs if sign.sign in needed), 1)


def _raised_at(output: Output, suspect: Suspect) -> str:
    """``train.py:31``, the line of the job's own code, where a sign is the last line of a traceback; else empty."""
    said = {(sign.where.file, sign.where.line) for sign in suspect.signs}
    raised = (sign for sign in output.fact.signs if sign.sign == "exception")
    at = next((one.values.get("where", "") for one in raised if (one.where.file, one.where.line) in said), "")
    return short(at.partition(" in ")[0])


def _meaning(xid: str) -> dict[str, str]:
    """What an Xid means, for a title."""
    known = XIDS.get(int(xid)) if xid.isdecimal() else None
    return {"meaning": known.meaning} if known is not None else {}


def _when(output: Output, suspect: Suspect) -> str:
    """Of a complaint of NCCL: whether it came with the first transfers or later."""
    return time_outs.worked_before(output) if suspect.tier == "nccl" else ""


def unexplained(output: Output, found: Sequence[Suspect]) -> list[Suspect]:
    """The suspects that no other explains."""
    kept: list[Suspect] = []
    for suspect in sorted(found, key=lambda s: (TIERS.index(s.tier), list(Confidence).index(s.confidence))):
        if not any(_is_explained(output, suspect, by) for by in kept):
            kept = [before for before in kept if not _is_explained(output, before, suspect)] + [suspect]
    return kept


def _is_explained(output: Output, one: Suspect, by: Suspect) -> bool:
    if by.cause.name in one.cause.instead_of:  # the rows know better
        return False
    return any(step(output, one, by) for step in _EXPLAIN)


# --- what explains what: each step looks at two suspects, of which `by` may be why `one` is there -----------


def _is_its_symptom(output: Output, one: Suspect, by: Suspect) -> bool:  # noqa: ARG001 - as all steps
    """What the rows themselves say: a link that went down brings transfers without an answer."""
    return one.cause.name in by.cause.instead_of


def _a_hint_beside_better(output: Output, one: Suspect, by: Suspect) -> bool:  # noqa: ARG001 - as all steps
    """A possible cause counts only where nothing better is known, whatever the order."""
    is_hint = one.confidence is Confidence.POSSIBLE and by.confidence is not Confidence.POSSIBLE
    return is_hint and not _is_an_end(by)


def _kernel_spoke(output: Output, one: Suspect, by: Suspect) -> bool:
    """What the kernel did to a host explains what its ranks, and ranks that waited for them, say after it.

    An exception that speaks of no machine (a ValueError) stays.
    """
    if by.tier != "kernel" or one.tier == "kernel" or _is_an_end(by) or output.is_later(by, one):
        return False
    if one.tier == "exception":
        return output.same_host(one, by) and any(map(speaks_of_a_machine, one.signs))
    return one.tier != "launcher" or not output.is_later(by, one)


def _killed_for_memory(output: Output, one: Suspect, by: Suspect) -> bool:
    """A worker that was killed on a host whose memory ran out; Slurm and the cgroup say so at the end."""
    is_worker = one.cause.name == "dataloader-worker-died" and one.values.get("signal") in (None, "Killed")
    return is_worker and by.cause.name == "host-oom-kill" and output.same_host(one, by)


def _earlier_word_of_the_kernel(output: Output, one: Suspect, by: Suspect) -> bool:
    """Of one host's faults of a kind, such as Xid 79 and a time-out of the GSP, the earliest brought the others."""
    same = one.tier == by.tier == "kernel" and one.cause.domain == by.cause.domain
    return same and output.same_host(one, by) and output.is_later(one, by)


def _a_rank_failed(output: Output, one: Suspect, by: Suspect) -> bool:
    """A rank's own exception explains what others saw of it: dumps, warnings of NCCL, time-outs, the launcher's end."""
    if by.tier != "exception":
        return False
    if _is_an_end(one):
        return not output.is_later(by, one)
    if TIERS.index(one.tier) <= TIERS.index("exception"):
        return False
    if one.tier == "recorder":
        return one.ranks <= by.ranks
    if one.tier == "launcher" and one.confidence is Confidence.PROVED:
        return False
    return not output.is_later(by, one)


def _broken_connection(output: Output, one: Suspect, by: Suspect) -> bool:
    """A peer that cannot be reached may have died: an unproved fault of the network beside any other."""
    unproved = one.cause.domain == "network" and one.confidence is not Confidence.PROVED
    return unproved and by.cause.domain != "network" and not output.is_later(by, one)


def _surer_of_its_kind(output: Output, one: Suspect, by: Suspect) -> bool:
    """Of two causes in one domain and tier, the proved one, where it is not known to be later."""
    same = one.cause.domain == by.cause.domain and one.tier == by.tier
    surer = by.confidence is Confidence.PROVED and one.confidence is not Confidence.PROVED
    return same and surer and not output.is_later(by, one)


def _said_before_by_the_same(output: Output, one: Suspect, by: Suspect) -> bool:
    """A process's later complaints follow from its first; from a warning of NCCL only those of machines do."""
    if not one.speakers or not one.speakers <= by.speakers:
        return False
    if by.tier == "nccl" and one.tier == "exception" and not any(map(speaks_of_a_machine, one.signs)):
        return False
    return one.tier != "kernel" and output.is_later(one, by)


def _earlier_warning(output: Output, one: Suspect, by: Suspect) -> bool:
    """A warning of NCCL brings others on other ranks; two proved ones on different hosts are two faults."""
    if not (one.tier == by.tier == "nccl") or not output.is_later(one, by):
        return False
    both_proved = one.confidence is by.confidence is Confidence.PROVED
    return not both_proved or output.same_host(one, by)


def _ended_from_outside(output: Output, one: Suspect, by: Suspect) -> bool:
    """Whatever comes after the scheduler, a person or a signal ended the job is its answer."""
    if not _is_an_end(by):
        return False
    return output.is_later(one, by) or (one.tier in ("watchdog", "launcher") and not output.is_later(by, one))


def _hung_until_the_end(output: Output, one: Suspect, by: Suspect) -> bool:
    """The scheduler ended a job that did nothing more after a complaint."""
    return _is_an_end(one) and not _is_an_end(by) and output.is_later(one, by)


def _is_an_end(suspect: Suspect) -> bool:
    """Whether somebody ended a job that did not fail."""
    return suspect.cause.domain == "scheduler" and suspect.cause.restart == "on the same nodes"


def _compared_over_ranks(output: Output, one: Suspect, by: Suspect) -> bool:  # noqa: ARG001 - as all steps
    """Signs of a cause beside what comparing all ranks, or their dumps, says of it."""
    return one.cause.name == by.cause.name and one.judged is None and by.judged is not None


def _only_waited(output: Output, one: Suspect, by: Suspect) -> bool:  # noqa: ARG001 - as all steps
    """A time-out beside a cause by better evidence."""
    return one.tier == "watchdog" and by.tier not in ("watchdog", "launcher")


_EXPLAIN: Sequence[Callable[[Output, Suspect, Suspect], bool]] = (
    _is_its_symptom,
    _a_hint_beside_better,
    _kernel_spoke,
    _killed_for_memory,
    _earlier_word_of_the_kernel,
    _a_rank_failed,
    _broken_connection,
    _surer_of_its_kind,
    _said_before_by_the_same,
    _earlier_warning,
    _ended_from_outside,
    _hung_until_the_end,
    _compared_over_ranks,
    _only_waited,
)
