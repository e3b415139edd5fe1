"""Conclusions about failures without a proven cause: which ranks died or waited, and what would show the cause."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import shorten

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.causes import starting
from ddp_doctor.features.jobs.causes.evidence import Output, ends_a_job, lines, ranks_of
from ddp_doctor.features.jobs.causes.exceptions import is_of_launcher
from ddp_doctor.features.jobs.causes.judged import Judged, place_of
from ddp_doctor.features.jobs.causes.time_outs import waited, worked_before
from ddp_doctor.features.jobs.causes.whose import failed_first, local_culprits, local_places, places, rank_culprit
from ddp_doctor.features.jobs.facts import LogLine, ProcessSeen, RankSeen, SignSeen
from ddp_doctor.features.jobs.reading.ends import UNUSUAL
from ddp_doctor.features.jobs.table import SIGNS, cause_named
from ddp_doctor.features.jobs.table.unproven import KEEP_OUTPUT, RECORD_GLOO, RECORD_NCCL, SHOW_WARNINGS, START_ALL
from ddp_doctor.features.jobs.views.job_waits import waits
from ddp_doctor.knowledge.network.addresses import is_own_host
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_list

#: Signals that end a rank because another one failed, or because the job was ended: consequences, not causes.
_ANSWERS = ("SIGTERM", "SIGABRT", "SIGINT")
#: Maximum number of ranks to assume below the lowest known one.
_MOST_RANKS = 10_000
#: Signs of timeouts before ranks have a process group.
_OF_THE_STORE = ("store-barrier", "store-clients", "store-timeout", "store-id-timeout", "rendezvous-timeout")
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
_OF_RAY = ("ray-worker-gone", "ray-rank-gone")
_OUTPUT_OF_RAY = "the dead worker's files, whose names end with its pid, in /tmp/ray/session_latest/logs on its host"
#: Signs of victims whose connection to another rank broke.
_PEER_GONE = (
    "peer-gone",
    "peer-refuses",
    "peer-unreached",
    "connect-refused",
    "rdma-flushed",
    "rendezvous-lost",
    "rendezvous-closed",
    "store-gone",
    *_OF_RAY,
)
_REFUSED = ("peer-refuses", "connect-refused")
#: The prefix of NCCL's messages.
_OF_NCCL = re.compile(r"^.*?NCCL (?:WARN|INFO) ")
_ADDRESS = re.compile(r"\b(?:to|peer) \[?(?P<host>[\w.:-]{1,200}?)\]?[<:](?P<port>\d{1,5})\b")
#: Signs that a process died, under any launcher.
_DEATHS = ("ray-worker-gone", "command-killed", "killed-by-code", "core-dumped", "received-signal", "exit-code")
_KILLED = re.compile(r"(?:^|[\s:])Killed\b")
#: Signals by the exit status of a shell.
_SIGNALS = {137: "SIGKILL", 139: "SIGSEGV", 135: "SIGBUS", 134: "SIGABRT", 143: "SIGTERM"}
#: A very long word, such as a path. The groups are its first and last characters.
_LONG_WORD = re.compile(r"(?<!\S)(\S{12})\S{40,}(\S{20})(?!\S)")
#: Maximum characters of the last line in a title.
_LONGEST_WORDS = 80
#: Maximum evidence lines from all kinds of signs together.
_MOST_LINES = 8
_MOST_STACKS = 4
NOT_PROVEN_NAME = "job-failed-cause-not-proven"


def judged(output: Output) -> tuple[Judged, ...]:
    """Return a guess with its next check, or otherwise the known facts."""
    for step in (_killed, _crashed, _no_server, _peer_died, _interrupted, _unknown):
        found = tuple(step(output))
        if found:
            return found
    return ()


def _killed(output: Output) -> Iterator[Judged]:
    killed = [rank for rank in output.died if _signal_of(rank) == "SIGKILL" and rank.rank not in output.stuck]
    local = [process for process in output.died_locally if _signal_of(process) == "SIGKILL"]
    is_known = output.died or output.died_locally or output.stuck
    of_no_rank = [] if is_known else [sign for sign in output.fact.signs if _tells_of_a_kill(sign)]
    kills = [sign for sign in of_no_rank if not output.got_over(sign)]
    kills += [sign for sign in output.last_complaints if not is_known and _KILLED.search(sign.where.text)]
    if not (killed or local or kills) or (len(killed) > 1 and len(killed) == len(output.world)):
        return
    left = ranks_of(output.signs(*_PEER_GONE))
    silent = output.world - left if left and not (killed or local) else ()
    if len(silent) == 1:
        killed = [output.rank(rank) for rank in silent]
    yield Judged(
        cause_named("host-oom-kill")._replace(domain="unknown"),
        Confidence.POSSIBLE,
        tuple(rank.last for rank in killed if rank.last is not None) or lines(kills) or _lines_of_launchers(output),
        (*(rank_culprit(output, rank.rank) for rank in killed), *local_culprits(local)),
        detail="The output does not show who sent SIGKILL. Host memory may have run out, or the scheduler or a person"
        " ended it.",
        values={"killed": capital(_named(output, killed, local)) or "A process of the job"},
    )


def _lines_of_launchers(output: Output) -> tuple[LogLine, ...]:
    ends = [sign for sign in output.fact.signs if sign.sign in _DEATHS or ends_a_job(SIGNS[sign.sign][0])]
    return lines(ends)[:_MOST_LINES]


def _tells_of_a_kill(sign: SignSeen) -> bool:
    """Return True if a launcher reports SIGKILL of a process of the job, without its rank."""
    values = sign.values
    by_number = values.get("exit") in ("-9", "137") or values.get("number") == "9"
    return by_number or values.get("signal") == "SIGKILL" or "killed" in values


def _crashed(output: Output) -> Iterator[Judged]:
    ranks = [rank for rank in output.died if _signal_of(rank) in _CRASHES]
    local = [process for process in output.died_locally if _signal_of(process) in _CRASHES]
    # Launchers that name no rank report the end of a command.
    commands = [sign for sign in output.signs("command-ended", "received-signal") if _command_signal(sign) in _CRASHES]
    signals = [*map(_signal_of, ranks), *map(_signal_of, local), *map(_command_signal, commands)]
    if not signals:
        return
    yield Judged(
        cause_named("bus-error" if "SIGBUS" in signals else "process-crashed"),
        Confidence.POSSIBLE,
        (*(rank.last for rank in ranks if rank.last is not None), *lines(commands)[:_MOST_LINES])
        or _lines_of_launchers(output),
        # If every rank crashes, the cause is something that they share, not a rank.
        ()
        if 1 < len(ranks) == len(output.world)
        else (*(rank_culprit(output, r.rank) for r in ranks), *local_culprits(local)),
        _named(output, ranks, local) or "a rank",
        values={"signal": signals[0] or ""},
    )


def _named(output: Output, ranks: Sequence[RankSeen], local: Sequence[ProcessSeen]) -> str:
    return " and ".join(filter(None, (places(output, [rank.rank for rank in ranks]), local_places(local))))


def _command_signal(sign: SignSeen) -> str | None:
    code = int(sign.values.get("exit") or 0)
    return sign.values.get("signal") or _SIGNALS.get(code if code > 0 else 128 - code)


def _no_server(output: Output) -> Iterator[Judged]:
    """Yield the cause if torch's store refused its clients (nothing listened) or was silent (packets were dropped)."""
    refused = [sign for sign in output.signs("store-refused") if sign.values.get("errno", "111") == "111"]
    unreached = [sign for sign in output.signs("store-unreached") if sign.values.get("errno", "111") == "111"]
    signs = refused or unreached
    if not signs:
        return
    at, port = signs[0].values.get("host", ""), signs[0].values.get("port", "")
    unresolved = any(sign.values.get("name") == at for sign in output.signs("name-not-resolved"))
    # An address of the host itself does not leave it: no firewall drops the packets, and it names no node.
    name = "rendezvous-host-mismatch" if refused or is_own_host(at) else "firewall-or-unreachable"
    yield Judged(
        cause_named("hostname-unresolvable" if unresolved else name),
        Confidence.LIKELY if unresolved or refused else Confidence.POSSIBLE,
        lines(signs)[:_MOST_LINES],
        (Culprit(kind="node", node=at),) if at and not is_own_host(at) else (),
        places(output, ranks_of(signs)) or "a node",
        values={
            "server": at,
            "peer": at or "the rendezvous",
            "name": at,
            "port": port,
            "reason": "it did not answer in time",
        },
    )


def _peer_died(output: Output) -> Iterator[Judged]:
    """Yield the cause if only the remaining ranks left messages, which do not show the rank that died first."""
    timed_out = {sign.where for sign in output.fact.signs if SIGNS[sign.sign][0].tier == "watchdog"}
    victims = [sign for sign in output.signs(*_PEER_GONE) if sign.where not in timed_out]
    gone = _went_first(output, victims)
    saw = ranks_of(victims)
    # If a rank is known to have gone first, a process without a rank is not named.
    local = () if gone else _went_first_locally(output)
    stopped = _stopped_by_launcher(output)
    others = output.world.difference(saw, (rank.rank for rank in output.fact.ranks if str(rank.pid) in stopped))
    of_ray = [sign for sign in victims if sign.sign in _OF_RAY]
    by_launcher, workers = _gone_in_ray(output, of_ray)
    named = gone or by_launcher or (others if saw and len(others) == 1 else ())
    if not victims or any(waits(output.fact).values()) or output.signs("child-ended"):
        return
    lost = "the driver" if len(of_ray) == len(victims) else "another rank"
    who = places(output, saw) or name_list(output.hosts_of(victims)) or lost
    refused = [_ADDRESS.search(sign.where.text) for sign in victims if sign.sign in _REFUSED]
    launchers = output.signs("rendezvous-lost", "rendezvous-closed")
    values = {"gone": capital(local_places(local) or places(output, named) or workers or "a rank")}
    if not named and not local and launchers and not saw:
        hosts = [sign.values["host"] for sign in launchers if "host" in sign.values]
        who = f"The launcher{f' on {name_list(hosts)}' if hosts else ''}"
        values = {"ended": "the launcher that serves it, or an earlier job with the same --rdzv-id, has ended"}
        victims = [*launchers, *victims]
    elif not named and not local and len(refused) == len(victims) and not output.shows_progress and refused[0]:
        values = {"peer": f"{refused[0]['host']}:{refused[0]['port']}"}
    yield Judged(
        cause_named("peer-died-secondary"),
        Confidence.POSSIBLE,
        lines(victims)[:_MOST_LINES],
        (*(rank_culprit(output, rank) for rank in gone), *local_culprits(local)),
        who=who,
        detail=capital(_ends(output)),
        values=values,
        next_check=_OUTPUT_OF_RAY if of_ray else "",
    )


def _gone_in_ray(output: Output, signs: Sequence[SignSeen]) -> tuple[set[int], str]:
    """Return the ranks whose death Ray reports, and its other dead workers: ``Ray's worker 42 on node1``."""
    ranks = {int(sign.values["rank"]) for sign in signs if "rank" in sign.values}
    hosts = {sign.values["pid"]: sign.values.get("host") for sign in signs if "pid" in sign.values}
    known = {str(rank.pid): rank.rank for rank in output.fact.ranks}
    workers = [f"{pid}{f' on {host}' if host else ''}" for pid, host in hosts.items() if pid not in known]
    name = f"Ray's worker{'s' if len(workers) > 1 else ''} {name_list(workers)}" if workers else ""
    return ranks | {known[pid] for pid in hosts if pid in known}, name


def _stopped_by_launcher(output: Output) -> set[str | None]:
    return {sign.values.get("pid") for sign in output.signs("closing-signal")}


def _went_first_locally(output: Output) -> list[ProcessSeen]:
    """Return the one process without a known rank that failed before the launcher stopped the others; [] for several.

    Processes that only noticed a closed connection exit with 1, as after any exception.
    """
    stopped = _stopped_by_launcher(output)
    first = [
        process
        for process in output.died_locally
        if str(process.pid) not in stopped and _signal_of(process) not in _ANSWERS and process.exit_code != 1
    ]
    return first if len(first) == 1 and not output.died else []


def _went_first(output: Output, victims: Sequence[SignSeen]) -> list[int]:
    """Return the one rank that failed without being stopped and printed no complaint; [] if unknown.

    Its output must be complete: in one file with the launcher's messages about exits.
    """
    complained = ranks_of(s for s in output.fact.signs if SIGNS[s.sign][0].role != "context")
    stopped = _stopped_by_launcher(output)
    gone = [
        rank.rank
        for rank in output.died
        if rank.rank not in complained and not (_signal_of(rank) in _ANSWERS and str(rank.pid) in stopped)
    ]
    files = {s.where.file for s in output.fact.signs if SIGNS[s.sign][0].tier == "launcher"}
    known = all(ranks_of([sign]) and sign.where.file in files for sign in victims)
    return gone if known and len(gone) == 1 else []


def _interrupted(output: Output) -> Iterator[Judged]:
    signs = output.signs("interrupted")
    late = any(_is_time_out(sign) for sign in output.fact.signs)
    if signs and not late and not output.died and not output.died_locally:
        yield Judged(cause_named("interrupted-by-user"), Confidence.LIKELY, lines(signs)[:_MOST_LINES])


def _unknown(output: Output) -> Iterator[Judged]:
    wait = starting.waited_for(output)
    waits_for, ended = waited(output) or (capital(wait.what) if wait else ""), _ends(output)
    late = [sign for sign in output.fact.signs if ends_a_job(SIGNS[sign.sign][0]) and _is_time_out(sign)]
    stuck = output.signs("watchdog-stuck")
    on = f" on {places(output, ranks_of(late))}" if ranks_of(late) else ""
    what = "the rendezvous" if late and all(sign.sign in _OF_THE_STORE for sign in late) else "a collective"
    timed_out = f"{what} timed out{on}" if late else ""
    if stuck:
        timed_out = f"torch's watchdog thread got stuck on {places(output, ranks_of(stuck)) or 'a rank'}"
    stated = output.signs("nccl-states", "nccl-last-error")  # the cause is unknown, or may be a peer
    shown = [sign for sign in output.fact.signs if SIGNS[sign.sign][0].role in ("pointer", "victim")]
    spoken = [sign for sign in shown if SIGNS[sign.sign][0].tier != "launcher" and not is_of_launcher(sign)]
    # The last line may be a shell's or a service's: “make: *** [train] Error 1”.
    last = [sign.where.text for sign in output.last_complaints if sign.sign == "ended-badly"]
    unusual = [file.unusual for file in output.fact.files if file.unusual is not None]
    if ended:  # an indented line is code in a traceback, not a message
        unusual = [line for line in unusual if not line.text.startswith(" ")]
    telling = [*stated, *(sign for sign in spoken if SIGNS[sign.sign][0].role == "pointer")][:1]
    texts = [stated[0].values["message"]] if stated else [line.text for line in (*lines(telling), *unusual)]
    who, how = places(output, ranks_of(telling)) if ranks_of(telling) else "the job", ended
    words = f"{who} failed"
    if last:
        words = f"the output ends with {_quoted(last[-1])}"
    elif texts:
        words += f" with {_quoted(texts[0])}"
        how = f"{ended.rstrip('.')} after {_quoted(texts[0])}" if ended else ""
    evidence = (spoken if telling else shown) or output.last_complaints or output.signs("launcher-summary")
    remedies, next_check = _advice(output, bool(waits_for or late or stuck), wait)
    before = next((sign.values["before"] for sign in late if "before" in sign.values), "")
    said = f"The last line before the timeout is {_quoted(before)}." if before else ""
    details = (said, capital(_silent(output, late)), capital(ended) if waits_for or late else "", worked_before(output))
    yield Judged(
        cause_named("job-failed-cause-not-proven"),
        Confidence.POSSIBLE,
        tuple(dict.fromkeys((*lines((*stated[:1], *evidence)), *unusual)))[:_MOST_LINES],
        detail=" ".join(filter(None, details)),
        values={"what": (waits_for or timed_out or how or words).rstrip(".")},
        next_check=next_check,
        remedies=remedies,
    )


def _quoted(text: str) -> str:
    return f"“{_short(_OF_NCCL.sub('', text))}”"


def _short(text: str) -> str:
    return shorten(_LONG_WORD.sub(r"\1…\2", text), _LONGEST_WORDS, placeholder=" …")


def _is_time_out(sign: SignSeen) -> bool:
    return SIGNS[sign.sign][0].tier == "watchdog" and sign.sign != "watchdog-stuck"


def _advice(output: Output, is_time_out: bool, wait: starting.Wait | None = None) -> tuple[tuple[Remedy, ...], str]:
    if wait is not None:
        return (wait.remedy,), wait.next_check
    if is_time_out:
        stacks = "py-spy dump --pid PID of the hanging ranks, and ddp-doctor logs with the output of all ranks"
        return (RECORD_GLOO if output.fact.backend == "gloo" else RECORD_NCCL,), stacks
    has_warnings = any(_OF_NCCL.search(sign.where.text) for sign in output.fact.signs)
    if not has_warnings and output.signs("nccl-error", "nccl-error-by-name"):
        return (SHOW_WARNINGS,), "ddp-doctor run on the same nodes, and ddp-doctor logs with the new output"
    return (KEEP_OUTPUT,), "ddp-doctor logs with the output of all ranks"


def finished(output: Output, failures: int, causes: Sequence[Judged]) -> Judged:
    """Return the cause of a job that failed, was started again and finished."""
    ends = [file.good_end for file in output.recorded.files if file.good_end is not None]
    names = dict.fromkeys(f"{judged.cause.name} ({place_of(judged.lines[0])})" for judged in causes if judged.lines)
    return Judged(
        cause_named("failed-then-finished"),
        Confidence.PROVED,
        tuple(dict.fromkeys((*ends, *(line for judged in causes for line in judged.lines))))[:_MOST_LINES],
        detail=f"Causes of the failures: {', '.join(names)}." if names else "",
        values={"times": "once" if failures == 1 else f"{failures} times"},
    )


def teardown(output: Output, found: Sequence[Judged]) -> Judged:
    """Return the cause of a job that failed after its training had finished."""
    ends = [file.good_end for file in output.fact.files if file.good_end is not None]
    signs = lines(output.signs("groups-not-destroyed"))[:1]
    return Judged(
        cause_named("failed-at-teardown"),
        Confidence.LIKELY,
        tuple(dict.fromkeys((*ends, *signs, *(line for judged in found for line in judged.lines))))[:_MOST_LINES],
        detail="Results that the job wrote before that line are complete.",
    )


def died_before(output: Output, broken: Judged) -> tuple[Judged, ...]:
    """Return the death of a process as the cause if it comes before a network fault, which may only follow from it."""
    first = {line.file: line.line for line in reversed(broken.lines)}
    deaths = [s for s in output.signs(*_DEATHS) if s.where.line < first.get(s.where.file, 0)]
    if broken.confidence is Confidence.PROVED or not deaths:
        return ()
    judged = Judged(
        cause_named("peer-died-secondary"),
        Confidence.POSSIBLE,
        tuple(dict.fromkeys((*lines(deaths), *broken.lines)))[:_MOST_LINES],
        who=broken.who,
        detail=f"{_quoted(deaths[0].where.text)} comes before the network error.",
        values={"gone": places(output, ranks_of(deaths)) or "A process"},
    )
    return (judged,)


def stalled(output: Output, limit: Judged) -> tuple[Judged, ...]:
    """Return the cause of a job that did not make progress before its time limit; empty if it did."""
    unusual = [file.unusual for file in output.fact.files if file.unusual and file.unusual not in limit.lines]
    if output.shows_progress or not unusual:
        return ()
    last = _short(unusual[0].text)
    judged = Judged(
        cause_named(NOT_PROVEN_NAME),
        Confidence.POSSIBLE,
        (*lines(output.signs("watchdog-timeout")), *unusual, *limit.lines)[:_MOST_LINES],
        detail="The scheduler ended the job at its time limit, but that is not the cause.",
        remedies=_advice(output, True)[0],
        values={"what": f"The job made no progress until its time limit (last line “{last}”)"},
    )
    return (judged,)


def not_shown(recording: Recording, output: Output) -> tuple[Judged, ...]:
    """Return what is unknown about a job without a known failure: its end is not shown, or its start is incomplete."""
    logs = [at.fact for at in recording.facts(NcclTransportFact)]
    begun, complete = sum(log.inits_begun for log in logs), sum(log.inits_complete for log in logs)
    # If one rank completed a communicator, all joined it, and only the other ranks' lines are missing.
    done = {init.comm_id for log in logs for init in log.inits if init.complete}
    complete += sum(not init.complete and init.comm_id in done for log in logs for init in log.inits)
    if why := output.unfinished or ("" if output.shows_progress else _no_output(output)):
        shown = lines(output.signs("package-not-built")[:1])
        return (Judged(cause_named("end-not-shown"), Confidence.POSSIBLE, shown, values={"why": why}),)
    if output.shows_progress:
        return _stops(output)
    if wait := starting.waited_for(output):
        return (starting.still_waiting(wait),)
    if found := _of_one_moment(output):
        return (found,)
    if begun <= complete:
        return _without_good_end(output, logs)
    what = f"NCCL began {begun} communicator{'s' if begun > 1 else ''}, and {complete} became complete"
    values = {"what": _not_come(logs) or what}
    return (Judged(cause_named("job-starting"), Confidence.POSSIBLE, (), values=values),)


def _no_output(output: Output) -> str:
    texts = [f"{file.name} is {file.document}" for file in output.fact.files if file.document]
    if output.signs("package-not-built"):
        texts = ["pip could not build a package"]
    elif len(texts) < len(output.fact.files):
        return ""
    return f"{texts[0]}, and this is not the output of a job" if texts else ""


def _stops(output: Output) -> tuple[Judged, ...]:
    steps = [file.last_step for file in output.fact.files if file.stops and file.last_step is not None]
    if not steps or any(file.good_end for file in output.fact.files):
        return ()
    last = _short(steps[0].text)
    values = {"why": f"the output stops at “{last}”, and the job may still run, hang or have been stopped"}
    return (Judged(cause_named("end-not-shown"), Confidence.POSSIBLE, (steps[0],), values=values),)


def _of_one_moment(output: Output) -> Judged | None:
    for sign in output.signs("ras-mismatch"):
        counts = "; ".join(line.strip() for line in sign.values.get("counts", "").strip().split("\n"))
        why = f"NCCL's RAS shows different {sign.values['what']} ({counts}), which may last a moment only"
        next_check = "ncclras again after 10 seconds, and ddp-doctor logs over both answers; ddp-doctor attach"
        judged = Judged(cause_named("end-not-shown"), Confidence.POSSIBLE, (sign.where,), values={"why": why})
        return replace(judged, next_check=next_check)
    if stacks := output.signs("stack-of-process"):
        places_of_stacks = "; ".join(sign.values["place"] for sign in stacks[:_MOST_STACKS])
        more = f"; and {len(stacks) - _MOST_STACKS} more" if len(stacks) > _MOST_STACKS else ""
        why = f"{places_of_stacks}{more}, by one py-spy dump each, which does not show whether they move"
        next_check = (
            "py-spy dump again after 10 seconds, for all ranks; ddp-doctor attach shows which rank holds up the others"
        )
        judged = Judged(cause_named("end-not-shown"), Confidence.POSSIBLE, lines(stacks), values={"why": why})
        return replace(judged, next_check=next_check)
    return None


def _without_good_end(output: Output, logs: Sequence[NcclTransportFact]) -> tuple[Judged, ...]:
    files = [file for file in output.fact.files if file.kind == "output" and file.lines]
    unusual = [file.unusual for file in files if file.unusual is not None]
    if not unusual and (files or all(file.kind == "empty" for file in output.fact.files)):
        values = {"why": "its output has no line of a rank, as if it waits for other nodes"}
        judged = Judged(cause_named("end-not-shown"), Confidence.POSSIBLE, (), values=values, remedies=(START_ALL,))
        return (replace(judged, next_check="ddp-doctor attach on a node of the job, which shows what it waits for"),)
    if not unusual:
        return ()
    is_complete = any(init.complete for log in logs for init in log.inits)
    phase = "NCCL completed its initialization and no step follows; " if is_complete else ""
    last = _short(unusual[-1].text)
    is_fault = UNUSUAL.search(unusual[-1].text)
    values = {"why": f"{phase}{'the most telling line is' if is_fault else 'the output stops at'} “{last}”"}
    return (Judged(cause_named("end-not-shown"), Confidence.POSSIBLE, tuple(unusual), values=values),)


def _not_come(logs: Sequence[NcclTransportFact]) -> str:
    for inits in grouped((init.comm_id, init) for log in logs for init in log.inits).values():
        came, sizes = {init.rank for init in inits}, {init.ranks for init in inits}
        size = max(sizes)
        if len(sizes) == 1 and len(came) < size < 2 * len(came) and not any(init.complete for init in inits):
            absent = rank_list(sorted(set(range(size)) - came))
            return f"NCCL began a communicator of {size} ranks, but {absent} may not have joined it"
    return ""


def _silent(output: Output, late: list[SignSeen]) -> str:
    """Return a hint to check the ranks without a timeout first, if they are few; otherwise ""."""
    waited_in_vain = ranks_of(late)
    before_the_first = range(min(*output.world, _MOST_RANKS)) if output.world else ()
    silent = output.world.union(before_the_first) - waited_in_vain
    if not silent or len(silent) >= len(waited_in_vain):
        return ""
    return f"{places(output, silent)} printed no timeout, so check there first."


def _ends(output: Output) -> str:
    ends = [(_signal_of(rank), rank) for rank in output.died]
    by_end = grouped((f"ended by {s}" if s else f"exited with {rank.exit_code}", rank.rank) for s, rank in ends)
    texts = [f"{places(output, ranks)} {how}" for how, ranks in by_end.items()]
    of_local = grouped(
        (f"ended by {s}" if (s := _signal_of(p)) else f"exited with {p.exit_code}", p) for p in output.died_locally
    )
    texts += [f"{local_places(processes)} {how}" for how, processes in of_local.items()]
    exits = [sign.values["exit"] for sign in output.signs("command-ended") if "exit" in sign.values]
    texts += [] if texts else [f"a process exited with {code}" for code in exits[:1]]
    texts += failed_first(output)
    return f"{'; '.join(texts)}." if texts else ""


def _signal_of(rank: ProcessSeen) -> str | None:
    return rank.signal or _SIGNALS.get(rank.exit_code or 0)
