"""The order of reasoning over what is left of a job; pure.

1. Each cause that signs speak for is a suspect, and each different exception of ranks' own (evidence.py). Lines of
   victims, advice and the launcher's summary are none.
2. A job that goes on, or ends well, has not failed: a complaint of NCCL alone is no failure.
3. The word of the kernel counts before a rank's own exception, that before the wait graph of the flight recorder, RAS,
   NCCL's warnings and the watchdog (evidence.TIERS). A suspect that another one explains is left out: the later by the
   earlier, a rank's complaints by what happened to its host, a broken connection by the death of a peer. Where no
   clock tells an order, none is made up.
4. What is left are the causes, in the order of time: several where faults are independent.
5. Where nothing is left, time-outs and dumps say who waited where (time_outs.py, wait_graph.py), deaths who died; and
   a failure of which nothing shows the cause is called that (unproven.py).

What signs and rows must look like for it:

* Signs read by their id are ``exception``, ``watchdog-timeout`` and ``watchdog-last-work``. By a sign of tier
  ``launcher`` and role ``pointer`` the job failed, whatever is printed behind it; any other counts where its process
  does not go on.
* Values of signs that name a culprit: gpu, bus, device, peer, host, rank, peer_rank, variable, file (whose.py).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote

from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features.jobs.causes import networks, starting, time_outs, unproven, wait_graph
from ddp_doctor.features.jobs.causes.evidence import LEAST_LINES_OF_LIFE, TIERS, Output, Suspect, lines, suspects
from ddp_doctor.features.jobs.causes.judged import Judged, place_of
from ddp_doctor.features.jobs.causes.whose import culprits, places, rank_culprit, who
from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.features.jobs.table import FOUND_BY_LINT, SIGNS, cause_named
from ddp_doctor.features.jobs.table.launchers import LET_LAUNCHER_NUMBER
from ddp_doctor.features.jobs.table.signs import (
    CONFIGURATION_INVALID,
    FILE_NOT_ACCESSIBLE,
    LIBRARY_EXCEPTION,
    NCCL_STATES,
    Tier,
)
from ddp_doctor.knowledge.gpu.xids import XIDS
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.frames import is_of_the_job
from ddp_doctor.wording.findings import in_units
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_list, short


def causes(recording: Recording) -> tuple[Judged, ...]:
    """What made the job fail, in the order of time; () where it did not fail."""
    fact = recording.first(JobLogFact) or JobLogFact(files=())
    last = _last_attempt(fact)
    *earlier, output = (Output(fact, attempt) for attempt in range(last + 1))
    if failures := output.failures_before_the_end:
        first = [s for of in (*earlier, output) for s in unexplained(of, [*suspects(of, is_of_end=False)])[:1]]
        return (unproven.finished(output, failures, [_judged(output, suspect) for suspect in first]),)
    hangs = [Suspect(j.cause, "recorder", j.confidence, judged=j) for j in wait_graph.judged(recording)]
    by_signs = (_by_the_moment(recording, output, suspect) for suspect in suspects(output))
    spoken = (*by_signs, *networks.suspects(recording, output), *time_outs.suspects(output))
    is_open = output.failed or output.unfinished
    left = unexplained(output, [*hangs, *(spoken if is_open else ())])
    if left:
        found = tuple(_judged(output, suspect) for suspect in left)
    elif output.failed:
        found = networks.p2p_hang(recording, output) or unproven.judged(output)
    else:
        found = unproven.not_shown(recording, output)
    if output.failed_after_a_good_end and all(judged.cause.name in _OF_TEARDOWN for judged in found):
        found = (unproven.teardown(output, found),)
    elif found and all(judged.cause.name == "scheduler-time-limit" for judged in found):
        found = unproven.stalled(output, found[0]) or found
    elif found and all(judged.cause.name in _OF_A_BROKEN_LINK for judged in found):
        found = unproven.died_before(output, found[0]) or found
    elif found and all(map(_is_an_end, found)) and not output.shows_progress and (wait := starting.waited_for(output)):
        found = (starting.still_waiting(wait, found),)
    found = tuple(_of_own_port(output, _with_lint(recording, output, judged)) for judged in found)
    found = tuple(replace(judged, launcher=output.fact.launcher) for judged in found)
    if not found:
        return ()
    return replace(found[0], detail=" ".join(filter(None, (found[0].detail, *_before(fact, earlier))))), *found[1:]


def _of_own_port(output: Output, judged: Judged) -> Judged:
    """The cause of a clash at a port that this job's launcher chose because it was free."""
    if judged.cause.name != "port-in-use" or not output.signs("chooses-free-port"):
        return judged
    title = "Two processes of the job open the same port[ {port}], which its launcher had chosen as a free one"
    cause = judged.cause._replace(title=title, domain="code")
    numbers = "print(os.environ['RANK'], os.environ['MASTER_PORT']) in each process before init_process_group()"
    remedies = (LET_LAUNCHER_NUMBER,)
    return replace(judged, cause=cause, confidence=Confidence.LIKELY, remedies=remedies, next_check=numbers)


def _before(fact: JobLogFact, earlier: Sequence[Output]) -> Iterator[str]:
    """Yield why earlier attempts of torchrun failed, and the last of earlier runs in the same file."""
    runs = [sign for sign in fact.signs if sign.sign == "restarted" and "run" in sign.values]
    if runs:
        yield f"The output also has at least {len(runs)} earlier run{'s' if len(runs) > 1 else ''} of the job."
    for attempt, of_attempt in enumerate(earlier):
        for first in unexplained(of_attempt, list(suspects(of_attempt)))[:1]:
            what = f"{first.cause.name} ({place_of(first.signs[0].where)})"
            if not runs:
                yield f"Attempt {attempt} failed earlier: {what}."
            elif of_attempt is earlier[-1]:
                yield f"The run before failed: {what}."


#: Causes of a crash or hang while processes exit, if the output names no other.
_OF_TEARDOWN = (
    "job-failed-cause-not-proven",
    "process-crashed",
    "peer-died-secondary",
    "stuck-outside-collective",
    "scheduler-time-limit",
)
#: Faults that other ranks may report because a process has died.
_OF_A_BROKEN_LINK = ("ib-fabric-fault", "rank-unreachable", "firewall-or-unreachable")
#: Causes that say no more than that a process ended.
_THAT_IT_ENDED = (
    *("rank-exception", LIBRARY_EXCEPTION, FILE_NOT_ACCESSIBLE, CONFIGURATION_INVALID),
    *("process-crashed", "host-oom-kill", "peer-died-secondary"),
)


def cause_in(fact: JobLogFact) -> Judged | None:
    """The first cause that output names, likely at least; that a process ended is none."""
    output = Output(fact)
    for suspect in unexplained(output, list(suspects(output))):
        if suspect.confidence is not Confidence.POSSIBLE and suspect.cause.name not in _THAT_IT_ENDED:
            return _judged(output, suspect)
    return None


#: Directories of packages that a job uses, also from a checkout.
_FRAMEWORKS = re.compile(r"[/\\](?:site-packages|dist-packages|deepspeed|transformers|accelerate|\w*lightning)[/\\]")


def _with_lint(recording: Recording, output: Output, judged: Judged) -> Judged:
    """What reads the job's code comes first: the file of the culprits' stacks, else of any rank's."""
    if judged.cause.name not in FOUND_BY_LINT:
        return judged
    named = {culprit.rank for culprit in judged.culprits}
    stacks = [(sign.rank, sign.values.get("where", "")) for sign in output.signs("exception")]
    stacks += [(at.fact.rank, frame) for at in recording.facts(FlightDumpFact) for frame in at.fact.frames[-1:]]
    frames = [(rank in named, frame) for rank, frame in stacks if frame and is_of_the_job(frame)]
    frames = [(is_named, frame) for is_named, frame in frames if not _FRAMEWORKS.search(frame)]
    files = [frame.rpartition(" in ")[0].rpartition(":")[0] for _, frame in sorted(frames, key=lambda of: not of[0])]
    lint = f"ddp-doctor lint {quote(files[0] if files else 'SCRIPT')}"
    return replace(judged, next_check=f"{lint}; {judged.next_check or judged.cause.next_check}")


#: Faults of the network by what is set up wrongly: they show with the first transfers.
_SET_UP = ("ib-unusable", "roce-gid-index", "ib-rail-unroutable", "ib-mtu-mismatch")
_BUS_ERROR = re.compile(r"\bBus error\b|\bSIGBUS\b")
#: Lines of the job between NCCL's completion and its first transfers.
_FEW_LINES = 5


def _by_the_moment(recording: Recording, output: Output, suspect: Suspect) -> Suspect:
    """RDMA that fails in one of the first collectives is set up wrongly; after many, a part of it broke."""
    is_first, name = _is_first(output, suspect), suspect.cause.name
    if name == "ib-fabric-fault" and is_first:
        set_up = "roce-gid-index" if networks.is_over_roce(recording, suspect) else "ib-unusable"
        return replace(suspect, cause=cause_named(set_up))
    if name == "ib-fabric-fault" and is_first is False:
        return replace(suspect, confidence=Confidence.LIKELY)
    if name == "process-crashed" and _BUS_ERROR.search(" ".join(sign.where.text for sign in suspect.signs)):
        return replace(suspect, cause=cause_named("bus-error"), confidence=Confidence.POSSIBLE)
    if name in _SET_UP and is_first is False:
        return replace(suspect, confidence=Confidence.POSSIBLE)
    return suspect


def _is_first(output: Output, suspect: Suspect) -> bool | None:
    if number := time_outs.collective_reached(output):
        return time_outs.is_first(number)
    lines_between = suspect.values.get("since_complete")
    at_once = lines_between is not None and int(lines_between) <= _FEW_LINES
    return at_once or bool(output.signs("test-without-results")) or None


def _last_attempt(fact: JobLogFact) -> int:
    """torchrun's last one: of which something is said, or which followed and printed more than its beginning."""
    ends = {file.name: file.said or file.lines for file in fact.files}
    follow = (
        sign.attempt + 1
        for sign in fact.signs
        if sign.sign == "restarted" and ends.get(sign.where.file, 0) - sign.where.line > LEAST_LINES_OF_LIFE
    )
    return max((*follow, *(sign.attempt for sign in fact.signs)), default=0)


def _judged(output: Output, suspect: Suspect) -> Judged:
    if (judged := suspect.judged) is not None:
        if not suspect.ranks:
            return judged
        ranks = [culprit.rank for culprit in judged.culprits if culprit.rank is not None]
        return replace(judged, culprits=tuple(rank_culprit(output, rank) for rank in ranks), who=places(output, ranks))
    beside = output.signs(*(name for sign in suspect.signs for name in SIGNS[sign.sign][0].beside))[:1]
    when = time_outs.worked_before(output) if suspect.tier == "nccl" else ""
    xid = suspect.values.get("xid", "")
    known = XIDS.get(int(xid)) if xid.isdecimal() else None
    endpoint = _endpoint(output, suspect)
    return Judged(
        suspect.cause._replace(title=_NOT_A_STORE) if "program" in endpoint else suspect.cause,
        suspect.confidence,
        lines((*beside, *suspect.signs)),
        culprits(output, suspect),
        who(output, suspect),
        " ".join(filter(None, (capital(time_outs.waited(output)), when))),
        values={
            **suspect.values,
            **endpoint,
            **_of_all_gpus(suspect),
            **({"meaning": known.meaning} if known else {}),
            **({"size": in_units(int(suspect.values["bytes"]))} if "bytes" in suspect.values else {}),
            "raised_at": _raised_at(output, suspect),
            "ranks": _ranks_named(suspect),
        },
    )


#: The title for a program at the rendezvous' port that does not speak the store's protocol, and known programs.
_NOT_A_STORE = "{program} answers[ at {peer}:{port}], not the job's store"
_PROGRAMS = {"HTTP": "A web server", "SSH-": "An SSH server"}


def _endpoint(output: Output, suspect: Suspect) -> dict[str, str]:
    """Return the endpoint of a rendezvous by all its signs, and the program that answered at it.

    The number that torch got is the first four bytes of the answer: 1347703880 is "HTTP".
    """
    if suspect.cause.name == "rendezvous-host-mismatch":
        stores = [sign.values for sign in output.signs("store-refused", "store-unreached") if "host" in sign.values]
        return {"server": stores[0]["host"], "port": stores[0]["port"]} if stores else {}
    if suspect.cause.name != "rendezvous-port-conflict":
        return {}
    values = {key: value for sign in output.signs("foreign-store") for key, value in sign.values.items()}
    text = (int(values.get("got") or 0) & 0xFFFFFFFF).to_bytes(4, "little").decode("ascii", "replace")
    if text.isprintable() and text.isascii():
        values["program"] = _PROGRAMS.get(text, f"A server that says “{text}”")
    return values


def _of_all_gpus(suspect: Suspect) -> dict[str, str]:
    found = dict.fromkeys(bus for sign in suspect.signs if (bus := sign.values.get("bus")))
    return {"bus": name_list(list(found))} if len(found) > 1 and "peer_rank" not in suspect.values else {}


#: Values of signs that are equal for the ranks of one fault: the GPU that they share, how far they came.
_SAME = ("bus", "gpu", "launched", "most")


def _ranks_named(suspect: Suspect) -> str:
    by_values = grouped(((sign.host, *map(sign.values.get, _SAME)), sign) for sign in suspect.signs)
    first = next(iter(by_values.values()), [])
    numbers = {sign.values.get(name, "") for sign in first for name in ("rank", "peer_rank")}
    known = sorted(int(number) for number in numbers if number.isdecimal())
    return rank_list(known) if known else suspect.values.get("several", "several ranks")


def _raised_at(output: Output, suspect: Suspect) -> str:
    ends = {(sign.where.file, sign.where.line) for sign in suspect.signs}
    for sign in output.signs("exception"):
        if (sign.where.file, sign.where.line) in ends:
            return short(sign.values.get("where", "").partition(" in ")[0])
    return ""


#: What others see of a rank that failed.
_SEEN_BY_OTHERS: Sequence[Tier] = ("ras", "nccl", "watchdog")


def unexplained(output: Output, found: Sequence[Suspect]) -> list[Suspect]:
    """The suspects that no other explains, in their order."""
    kept: list[Suspect] = []
    for suspect in sorted(found, key=lambda s: (TIERS.index(s.tier), list(Confidence).index(s.confidence))):
        if not any(_is_explained(output, suspect, by) for by in kept):
            kept = [before for before in kept if not _is_explained(output, before, suspect)] + [suspect]
    return output.in_order(kept)


def _is_explained(output: Output, suspect: Suspect, by: Suspect) -> bool:
    if by.cause.name in suspect.cause.instead_of:  # the rows know better
        return False
    if by.cause.name == NCCL_STATES and suspect.tier not in ("watchdog", "launcher"):
        return False  # a message that no row knows explains no known cause
    return (
        _is_outweighed(output, suspect, by)
        or (output.is_later(suspect, by) and _follows(output, suspect, by))
        or (not output.is_later(by, suspect) and _may_follow(output, suspect, by))
    )


def _is_outweighed(output: Output, suspect: Suspect, by: Suspect) -> bool:
    name, is_hint = suspect.cause.name, suspect.confidence is Confidence.POSSIBLE
    return (
        # What the rows themselves say: a link that went down brings transfers without an answer.
        name in by.cause.instead_of
        # A possible cause counts only where nothing better is known.
        or (is_hint and by.confidence is not Confidence.POSSIBLE and not _is_an_end(by))
        # NCCL's own message counts only without a known cause.
        or (name == NCCL_STATES and not _is_an_end(by) and by.tier not in ("watchdog", "launcher"))
        # Signs of a cause beside what comparing all ranks, or their dumps, says of it.
        or (name == by.cause.name and suspect.judged is None and by.judged is not None)
        # A time-out beside a cause by better evidence.
        or (suspect.tier == "watchdog" and by.tier not in ("watchdog", "launcher"))
        # What the dumps of ranks say that have failed themselves.
        or (suspect.tier == "recorder" and by.tier == "exception" and suspect.ranks <= by.ranks)
        # A worker that was killed on a host whose memory ran out; Slurm and the cgroup say so at the end.
        or (
            name == "dataloader-worker-died"
            and suspect.values.get("signal") in (None, "Killed")
            and by.cause.name == "host-oom-kill"
            and output.same_host(suspect, by)
        )
    )


def _follows(output: Output, suspect: Suspect, by: Suspect) -> bool:
    is_of_host, tiers = output.same_host(suspect, by), (suspect.tier, by.tier)
    both_proved = suspect.confidence is by.confidence is Confidence.PROVED
    return (
        # Of one host's faults of a kind, such as Xid 79 and a time-out of the GSP, the earliest brought the others.
        (tiers == ("kernel", "kernel") and suspect.cause.domain == by.cause.domain and is_of_host)
        # A warning of NCCL brings others on other ranks; two proved ones on different hosts are two faults.
        or (tiers == ("nccl", "nccl") and (is_of_host or not both_proved))
        # A process's later complaints follow from its first; from a warning of NCCL only those of machines do.
        or (
            bool(suspect.speakers)
            and suspect.speakers <= by.speakers
            and suspect.tier != "kernel"
            and (tiers != ("exception", "nccl") or suspect.speaks_of_a_machine)
        )
        # What comes after the scheduler, a person or a signal ended the job is its answer; and the scheduler ends a
        # job that did nothing more after a complaint.
        or _is_an_end(by)
        or _is_an_end(suspect)
    )


def _may_follow(output: Output, suspect: Suspect, by: Suspect) -> bool:
    is_proved = suspect.confidence is Confidence.PROVED
    tier, domain, ends = suspect.tier, suspect.cause.domain, _is_an_end(by)
    return (
        # What the kernel did to a host explains what its ranks, and ranks that waited for them, say; an exception that
        # speaks of no machine (a ValueError) stays.
        (
            by.tier == "kernel"
            and tier != "kernel"
            and not ends
            and (tier != "exception" or (output.same_host(suspect, by) and suspect.speaks_of_a_machine))
        )
        # A rank's own exception explains what others saw of it: warnings of NCCL, time-outs, the launcher's end.
        or (by.tier == "exception" and (tier in _SEEN_BY_OTHERS or (tier == "launcher" and not is_proved)))
        or (by.tier == "exception" and _is_an_end(suspect))
        # A peer that cannot be reached may have died: an unproved fault of the network beside any other.
        or (domain == "network" and not is_proved and by.cause.domain != "network")
        # Of two causes in one domain and tier, the proved one.
        or ((tier, domain) == (by.tier, by.cause.domain) and not is_proved and by.confidence is Confidence.PROVED)
        # Whoever ended the job ended those who waited, too.
        or (ends and tier in ("watchdog", "launcher"))
    )


def _is_an_end(suspect: Suspect | Judged) -> bool:
    return suspect.cause.domain == "scheduler" and suspect.cause.restart == "on the same nodes"
