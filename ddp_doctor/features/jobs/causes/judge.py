"""The judge of failed jobs: derives the causes from the output and dumps of a job, without side effects.

1. Suspects are the causes that signs point to, each different exception of a rank's own code (evidence.py), and the
   causes that timeouts and dumps show (time_outs.py, wait_graph.py). Messages of victims, advice and the launcher's
   summary are not suspects.
2. A job that continues or ends well has not failed, even if NCCL printed a complaint.
3. Evidence has an order: the kernel, a rank's own exception, the wait graph of the flight recorder, RAS, NCCL's
   warnings, the watchdog, the launcher (evidence.TIERS). A suspect that another one explains is dropped: a later one
   by an earlier one, a rank's complaints by a fault of its host, a broken connection by the death of a peer. If no
   clock shows an order, none is assumed.
4. The remaining suspects are the causes, in order of time. Several remain if faults are independent.
5. If no suspect remains, the ends of processes may show a cause. If they do not, the failure is reported as unproven
   (unproven.py).

Requirements for signs and rows:

* Some signs are read by their id, such as ``exception`` and ``watchdog-timeout``.
* A sign of tier ``launcher`` and role ``pointer``, or of tier ``watchdog`` without ``beside``, shows that the job
  failed, whatever follows it. Any other sign, except the kernel's, counts only if its process does not continue.
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
    """Return the causes of the job's failure, or of its unknown end, in order of time; empty if it ended well."""
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
    elif found and all(judged.cause.name in _OF_A_BROKEN_LINK for judged in found):
        found = unproven.died_before(output, found[0]) or found
    elif found and all(map(_is_an_end, found)) and not output.shows_progress and (wait := starting.waited_for(output)):
        found = (starting.still_waiting(wait, found),)
    elif found and all(judged.cause.name == "scheduler-time-limit" for judged in found):
        found = unproven.stalled(output, found[0]) or found
    found = tuple(_of_own_port(output, _with_lint(recording, output, judged)) for judged in found)
    found = tuple(replace(judged, launcher=output.fact.launcher) for judged in found)
    if not found:
        return ()
    return replace(found[0], detail=" ".join(filter(None, (found[0].detail, *_before(fact, earlier))))), *found[1:]


def _of_own_port(output: Output, judged: Judged) -> Judged:
    """Adapt the cause of a port conflict if this job's launcher had chosen the port because it was free."""
    if judged.cause.name != "port-in-use" or not output.signs("chooses-free-port"):
        return judged
    title = "Two processes of the job open the same port[ {port}], which its launcher had chosen as a free one"
    cause = judged.cause._replace(title=title, domain="code")
    numbers = "print(os.environ['RANK'], os.environ['MASTER_PORT']) in each process before init_process_group()"
    remedies = (LET_LAUNCHER_NUMBER,)
    return replace(judged, cause=cause, confidence=Confidence.LIKELY, remedies=remedies, next_check=numbers)


def _before(fact: JobLogFact, earlier: Sequence[Output]) -> Iterator[str]:
    """Yield sentences on why earlier attempts of torchrun, or the last earlier run in the output, failed."""
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
#: Causes that state only that a process ended.
_THAT_IT_ENDED = (
    *("rank-exception", LIBRARY_EXCEPTION, FILE_NOT_ACCESSIBLE, CONFIGURATION_INVALID),
    *("process-crashed", "host-oom-kill", "peer-died-secondary"),
)


def cause_in(fact: JobLogFact) -> Judged | None:
    """Return the first cause in an output that is at least likely and not only the end of a process, or None."""
    output = Output(fact)
    for suspect in unexplained(output, list(suspects(output))):
        if suspect.confidence is not Confidence.POSSIBLE and suspect.cause.name not in _THAT_IT_ENDED:
            return _judged(output, suspect)
    return None


#: Directories of packages that a job uses, installed or as a checkout.
_FRAMEWORKS = re.compile(r"[/\\](?:site-packages|dist-packages|deepspeed|transformers|accelerate|\w*lightning)[/\\]")


def _with_lint(recording: Recording, output: Output, judged: Judged) -> Judged:
    """Put lint first in the next check, for the file in the culprits' stacks, otherwise in any rank's stack."""
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


#: Network faults caused by a wrong setup, which appear with the first transfers.
_SET_UP = ("ib-unusable", "roce-gid-index", "ib-rail-unroutable", "ib-mtu-mismatch")
_BUS_ERROR = re.compile(r"\bBus error\b|\bSIGBUS\b")
#: Maximum lines of the job between NCCL's completed initialization and an error of the first transfers.
_FEW_LINES = 5


def _by_the_moment(recording: Recording, output: Output, suspect: Suspect) -> Suspect:
    """Refine a cause by its time: RDMA that fails in a first collective is set up wrongly, later a part broke."""
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
    """Return the number of torchrun's last attempt that printed a sign, or more than its first lines."""
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


#: The title if a program that is not a store answers at the rendezvous port, and the names of known programs.
_NOT_A_STORE = "{program} answers[ at {peer}:{port}], not the job's store"
_PROGRAMS = {"HTTP": "A web server", "SSH-": "An SSH server"}


def _endpoint(output: Output, suspect: Suspect) -> dict[str, str]:
    """Return the endpoint of a rendezvous, from all its signs, and the program that answered there.

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


#: Values of signs that are equal for the ranks of one fault: their shared GPU, their counts of collectives.
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


#: Tiers of the evidence that other ranks have of a failed rank.
_SEEN_BY_OTHERS: Sequence[Tier] = ("ras", "nccl", "watchdog")


def unexplained(output: Output, found: Sequence[Suspect]) -> list[Suspect]:
    """Return the suspects that no other suspect explains, in order."""
    kept: list[Suspect] = []
    for suspect in sorted(found, key=lambda s: (TIERS.index(s.tier), list(Confidence).index(s.confidence))):
        if not any(_is_explained(output, suspect, by) for by in kept):
            kept = [before for before in kept if not _is_explained(output, before, suspect)] + [suspect]
    return output.in_order(kept)


def _is_explained(output: Output, suspect: Suspect, by: Suspect) -> bool:
    if by.cause.name in suspect.cause.instead_of:  # ``by`` is a symptom of this cause
        return False
    if by.cause.name == NCCL_STATES and suspect.tier not in ("watchdog", "launcher"):
        return False  # a message without its own cause does not explain a known one
    return (
        _is_outweighed(output, suspect, by)
        or (output.is_later(suspect, by) and _follows(output, suspect, by))
        or (not output.is_later(by, suspect) and _may_follow(output, suspect, by))
    )


def _is_outweighed(output: Output, suspect: Suspect, by: Suspect) -> bool:
    name, is_hint = suspect.cause.name, suspect.confidence is Confidence.POSSIBLE
    return (
        # The table lists it as a symptom: a link that is down leaves transfers without an answer.
        name in by.cause.instead_of
        # A possible cause counts only if no better one is known.
        or (is_hint and by.confidence is not Confidence.POSSIBLE and not _is_an_end(by))
        # NCCL's own message counts only without a known cause.
        or (name == NCCL_STATES and not _is_an_end(by) and by.tier not in ("watchdog", "launcher"))
        # A comparison of all ranks, or their dumps, outweighs signs of the same cause.
        or (name == by.cause.name and suspect.judged is None and by.judged is not None)
        # Any better evidence outweighs a timeout.
        or (suspect.tier == "watchdog" and by.tier not in ("watchdog", "launcher"))
        # An exception outweighs the dumps if they name only ranks that raised it.
        or (suspect.tier == "recorder" and by.tier == "exception" and suspect.ranks <= by.ranks)
        # A worker was killed on a host that ran out of memory; Slurm and the cgroup report it only at the end.
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
        # The first of one host's kernel faults of a domain, such as Xid 79 and a GSP timeout, caused the others.
        (tiers == ("kernel", "kernel") and suspect.cause.domain == by.cause.domain and is_of_host)
        # A warning of NCCL causes others on other ranks; two proved ones on different hosts are two faults.
        or (tiers == ("nccl", "nccl") and (is_of_host or not both_proved))
        # A process's later complaints follow from its first one, but exceptions after a warning of NCCL only if they
        # are about a machine.
        or (
            bool(suspect.speakers)
            and suspect.speakers <= by.speakers
            and suspect.tier != "kernel"
            and (tiers != ("exception", "nccl") or suspect.speaks_of_a_machine)
        )
        # Errors after the scheduler, a person or a signal ended the job are consequences. The scheduler also ends a
        # job that did nothing more after a complaint.
        or _is_an_end(by)
        or _is_an_end(suspect)
    )


def _may_follow(output: Output, suspect: Suspect, by: Suspect) -> bool:
    is_proved = suspect.confidence is Confidence.PROVED
    tier, domain, ends = suspect.tier, suspect.cause.domain, _is_an_end(by)
    return (
        # A fault in the kernel log of a host explains messages of its ranks, and of ranks that waited for them, except
        # an exception unrelated to a machine (a ValueError).
        (
            by.tier == "kernel"
            and tier != "kernel"
            and not ends
            and (tier != "exception" or (output.same_host(suspect, by) and suspect.speaks_of_a_machine))
        )
        # A rank's own exception explains what others saw: warnings of NCCL, timeouts, the launcher's end.
        or (by.tier == "exception" and (tier in _SEEN_BY_OTHERS or (tier == "launcher" and not is_proved)))
        or (by.tier == "exception" and _is_an_end(suspect))
        # A peer that cannot be reached may have died, so any other fault explains an unproved network fault.
        or (domain == "network" and not is_proved and by.cause.domain != "network")
        # A proved cause explains an unproved one of the same domain and tier.
        or ((tier, domain) == (by.tier, by.cause.domain) and not is_proved and by.confidence is Confidence.PROVED)
        # The end of the job also ended the waiting ranks.
        or (ends and tier in ("watchdog", "launcher"))
    )


def _is_an_end(suspect: Suspect | Judged) -> bool:
    return suspect.cause.domain == "scheduler" and suspect.cause.restart == "on the same nodes"
