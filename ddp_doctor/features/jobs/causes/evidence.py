"""The evidence in a job's output, before causes are chosen: suspects, their order, and how the job ended."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ddp_doctor.features.jobs.causes.exceptions import cause_of, is_own, reads_configuration
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.facts import FileSeen, JobLogFact, LogLine, ProcessSeen, RankSeen, SignSeen
from ddp_doctor.features.jobs.table import RENAMED, SIGNS, cause_named
from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.features.jobs.table.signs import NCCL_STATES, Sign, Tier
from ddp_doctor.knowledge.victims import blames_peer
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence

#: Kinds of evidence, the strongest first.
TIERS: Sequence[Tier] = ("kernel", "exception", "recorder", "ras", "nccl", "watchdog", "launcher")
#: A process that prints more lines than this after a complaint has recovered from it. The limit is higher if the job
#: failed, because the stacks of threads and the launcher's messages follow the end of a process.
_STILL_RUNS_LINES = 50
_STILL_RUNS_LINES_OF_A_FAILED = 300
#: A complaint that is repeated this many times comes from a retry loop.
_TRIES = 3
#: More lines than this show that a retry loop, or a restarted attempt, continued.
LEAST_LINES_OF_LIFE = 10
#: This many other lines after the first attempt to connect show that a later one succeeded.
_LINES_OF_LIFE = 3
#: Times in different files that are closer than this have no order: hosts' clocks differ, logs have whole seconds.
_SAME_MOMENT_S = 2.0
#: The start of an NCCL warning. If the last step is this many lines or more below a warning, the job continued.
_NCCL_WARN, _LEAST_STEPS = "NCCL WARN ", 3
#: Signs that count if the output ends with them, by the lines that may follow, such as a shell's after a command.
_LAST_WORDS = {"complaint": 0, "ended-badly": 3}
#: Maximum lines of an exception's message below its first line.
_MESSAGE_LINES = 40
#: Time zones differ by multiples of 15 minutes.
_ZONE_S = 900.0
#: Words of exceptions that a fault of a machine may cause.
_MACHINE = re.compile(
    r"CUDA|NCCL|cuDNN|cuBLAS|GPU|device|memory|killed|signal|Accelerator|bus error|gloo|OSError", re.IGNORECASE
)
#: The start of a DataLoader worker's exception, as the rank raises it again.
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")


@dataclass(frozen=True)
class Suspect:
    """A cause that evidence points to. ``judged``: its conclusion, if already drawn (dumps, timeouts)."""

    cause: JobCause
    tier: Tier
    confidence: Confidence
    signs: tuple[SignSeen, ...] = ()
    judged: Judged | None = None

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that printed the signs, or the culprits of ``judged``."""
        if self.judged is not None:
            return frozenset(c.rank for c in self.judged.culprits if c.rank is not None)
        return ranks_of(self.signs)

    @property
    def speakers(self) -> frozenset[object]:
        """The processes that printed the signs: by rank, otherwise by host and pid, otherwise by file."""
        processes = (
            ranks_of([sign]) or {(sign.host, sign.pid) if sign.pid else sign.where.file} for sign in self.signs
        )
        return frozenset[object]().union(*processes)

    @property
    def values(self) -> dict[str, str]:
        """The values of its signs; the first sign wins."""
        return {key: value for sign in reversed(self.signs) for key, value in sign.values.items()}

    @property
    def speaks_of_a_machine(self) -> bool:
        """Return True if the exception may be caused by a GPU, a host or NCCL, unlike a ValueError of the job."""
        texts = (f"{sign.values.get('type', '')} {sign.values.get('message', '')}" for sign in self.signs)
        return any(map(_MACHINE.search, texts))


def ranks_of(signs: Iterable[SignSeen]) -> frozenset[int]:
    """Return the ranks that printed any of these signs."""
    return frozenset(rank for sign in signs for rank in (*sign.ranks, sign.rank) if rank is not None)


@dataclass(frozen=True)
class Output:
    """The output of a job, with cached properties of it."""

    recorded: JobLogFact
    attempt: int | None = None  # torchrun's; how ranks ended is known only for the last one

    @cached_property
    def fact(self) -> JobLogFact:
        """The recorded fact, with only the signs of this attempt that this release knows."""
        signs = [sign for sign in self.recorded.signs if self.attempt in (None, sign.attempt)]
        for number, sign in enumerate(signs):
            if sign.sign in RENAMED:
                signs[number] = sign.model_copy(update={"sign": RENAMED[sign.sign]})
            if sign.sign == "ras-behind" and sign.times > 1:  # in RAS's answers in two files
                signs[number] = sign.model_copy(update={"sign": "ras-stands-still"})
        return self.recorded.model_copy(update={"signs": tuple(sign for sign in signs if sign.sign in SIGNS)})

    def signs(self, *ids: str) -> list[SignSeen]:
        """Return the signs with any of these ids."""
        return [sign for sign in self.fact.signs if sign.sign in ids]

    # --- whose -------------------------------------------------------------------------------------

    @cached_property
    def ranks(self) -> Mapping[int, RankSeen]:
        """The ranks that the output shows, by number."""
        return {rank.rank: rank for rank in self.fact.ranks}

    def rank(self, number: int) -> RankSeen:
        """Return the facts about a rank, empty if the output has none."""
        return self.ranks.get(number) or RankSeen(rank=number)

    def hosts_of(self, signs: Iterable[SignSeen]) -> list[str]:
        """Return the known hosts of the processes that printed these signs."""
        hosts = (sign.host or (None if sign.rank is None else self.rank(sign.rank).host) for sign in signs)
        return list(dict.fromkeys(host for host in hosts if host))

    @cached_property
    def world(self) -> frozenset[int]:
        """The known ranks of the job."""
        return frozenset(range(self.fact.world_size or 0)) | frozenset(self.ranks)

    # --- when --------------------------------------------------------------------------------------

    @cached_property
    def _shift_s(self) -> dict[str, float]:
        """The seconds to add to each file's clock to match the first file's, in steps of time zones.

        The ranks of a collective start to wait at about the same time, and have equal timeouts.
        """
        met: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        for sign in self.signs("watchdog-timeout"):
            if sign.at_s is not None and "seq" in sign.values:
                key = (sign.values.get("group", ""), sign.values["seq"])
                met[key].setdefault(sign.where.file, sign.at_s)
        shifts: dict[str, float] = {}
        for by_file in met.values():
            first = next(iter(by_file.values()))
            for file, at_s in by_file.items():
                shifts.setdefault(file, round((first - at_s) / _ZONE_S) * _ZONE_S)
        return shifts

    def at_s(self, sign: SignSeen) -> float | None:
        """Return when the sign was printed, by the clock of the first file, or None if its line has no time."""
        return None if sign.at_s is None else sign.at_s + self._shift_s.get(sign.where.file, 0.0)

    def same_host(self, one: "Suspect", other: "Suspect") -> bool:
        """Return True if both may be on one host, which includes an unknown host."""
        hosts, others = self.hosts_of(one.signs), self.hosts_of(other.signs)
        return not hosts or not others or not {*hosts}.isdisjoint(others)

    def is_later(self, one: Suspect, other: Suspect) -> bool:
        """Return True if ``one`` is known to have begun after ``other``, by lines in one file, otherwise by clocks."""
        first: dict[str, int] = {}
        for sign in other.signs:
            first[sign.where.file] = min(sign.where.line, first.get(sign.where.file, sign.where.line))
        times = [at_s for sign in other.signs if (at_s := self.at_s(sign)) is not None]
        since_s = min(times, default=float("inf")) + _SAME_MOMENT_S
        return bool(one.signs and other.signs) and all(
            first[sign.where.file] < sign.where.line if sign.where.file in first else (self.at_s(sign) or 0.0) > since_s
            for sign in one.signs
        )

    def in_order(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """Return the suspects by time if each has one, otherwise by line in one file, otherwise by tier."""
        listed = sorted(suspects, key=lambda suspect: TIERS.index(suspect.tier))
        times = [min((self.at_s(s) or 0.0 for s in suspect.signs), default=0.0) for suspect in listed]
        if all(times):
            return [suspect for _, suspect in sorted(zip(times, listed, strict=True), key=lambda p: p[0])]
        if len({sign.where.file for suspect in listed for sign in suspect.signs}) == 1:
            return sorted(listed, key=lambda s: min((sign.where.line for sign in s.signs), default=0))
        return listed

    # --- how it ended ------------------------------------------------------------------------------

    @cached_property
    def died(self) -> tuple[RankSeen, ...]:
        """The ranks that failed, as a launcher reports."""
        return tuple(rank for rank in self.fact.ranks if rank.signal or rank.exit_code)

    @cached_property
    def first_failed(self) -> int | None:
        """The first rank that torchelastic saw fail, or None if unknown or if another failed in the same second."""
        ended = sorted((rank.ended_at, rank.rank) for rank in self.died if rank.ended_at is not None)
        is_first = len(ended) == len(self.died) > 0 and (len(ended) == 1 or ended[0][0] < ended[1][0])
        return ended[0][1] if is_first else None

    @cached_property
    def died_locally(self) -> tuple[ProcessSeen, ...]:
        """The processes without a known rank that failed, as a launcher reports."""
        return tuple(process for process in self.fact.local_ranks if process.signal or process.exit_code)

    @cached_property
    def stuck(self) -> tuple[int, ...]:
        """The ranks that did not exit on SIGTERM, and that the launcher ended with SIGKILL."""
        pids = {sign.values.get("pid") for sign in self.signs("killed-by-launcher")}
        return tuple(rank.rank for rank in self.fact.ranks if rank.pid and str(rank.pid) in pids)

    @cached_property
    def _last_line(self) -> dict[str, int]:
        """The last line of each file, without stacks at its end, which belong to the failure."""
        return {file.name: file.said or file.lines for file in self.fact.files}

    @cached_property
    def _ranks_in(self) -> Counter[str]:
        return Counter(rank.last.file for rank in self.fact.ranks if rank.last is not None)

    def got_over(self, sign: SignSeen) -> bool:
        """Return True if the process that printed the sign continued long after it."""
        if SIGNS[sign.sign][0].is_final:
            return False
        if sign.in_init or self._is_noise_at_a_good_end(sign) or self._steps_follow(sign):
            return True
        last = None if sign.rank is None else self.rank(sign.rank).last
        end = self._last_line.get(sign.where.file, 0)
        if last is not None and last.file == sign.where.file:
            end = min(end, last.line)
        elif last is not None:
            return False  # it continued in another file, so its lines cannot be counted
        in_file = self._ranks_in[sign.where.file]
        return end - _last(sign) > self._still_runs_lines(sign) * max(in_file, 1)

    def _steps_follow(self, sign: SignSeen) -> bool:
        if _NCCL_WARN not in sign.where.text or self._is_known_to_have_failed:
            return False
        return any(
            file.last_step.line - _last(sign) >= _LEAST_STEPS
            for file in self.fact.files
            if file.name == sign.where.file and file.last_step is not None
        )

    def _is_noise_at_a_good_end(self, sign: SignSeen) -> bool:
        """Return True if the run finished after the sign, or a rank only reports that a finished rank exited."""
        good_end, known = self._good_ends.get(sign.where.file, 0), SIGNS[sign.sign][0]
        is_before = _last(sign) < good_end and known.confidence is not Confidence.PROVED
        return not self._is_known_to_have_failed and (is_before or (good_end > 0 and known.role == "victim"))

    @cached_property
    def _good_ends(self) -> dict[str, int]:
        """The line that shows a finished run, by file; a line right below a traceback is a shell's and is skipped."""
        ends = [file.good_end for file in self.fact.files if file.good_end and file.is_finished]
        below = {(sign.where.file, sign.where.line + 1) for sign in self.recorded.signs if sign.sign == "exception"}
        return {line.file: line.line for line in ends if (line.file, line.line) not in below}

    @cached_property
    def failed_after_a_good_end(self) -> bool:
        """Return True if all signs of a failure follow the line that shows a finished run."""
        known = [sign for sign in self.fact.signs if not self._ends_nothing(sign) and not self.got_over(sign)]
        bad = [sign for sign in known if SIGNS[sign.sign][0].role not in ("advice", "context")]
        first = {sign.where.file: self._good_ends.get(sign.where.file, 0) for sign in bad}
        for sign in self.signs("groups-not-destroyed"):
            first[sign.where.file] = min(sign.where.line, first.get(sign.where.file) or sign.where.line)
        is_of_training = bool(self.signs("watchdog-timeout", "nccl2-timeout", "gloo-timeout"))
        return bool(bad) and not is_of_training and all(0 < first[sign.where.file] < sign.where.line for sign in bad)

    @cached_property
    def failures_before_the_end(self) -> int:
        """The number of failures before the job finished; 0 if it did not fail, or its last attempt failed."""
        known = [s for s in self.recorded.signs if s.sign in SIGNS and not self._ends_nothing(s)]
        bad = [sign for sign in known if SIGNS[sign.sign][0].role not in ("advice", "context")]
        has_ended = any(sign.sign == "exception" or ends_a_job(SIGNS[sign.sign][0]) for sign in bad)
        if not has_ended or not all(_last(sign) < self._good_ends.get(sign.where.file, 0) for sign in bad):
            return 0
        if not self._began_again(max(map(_last, bad))) and not any(map(_is_of_training, self.fact.files)):
            return 0
        exits = sum(sign.times for sign in bad if sign.sign == "exit-code")
        return max(exits, *(sign.attempt for sign in bad), *(sign.times for sign in bad if sign.sign == "exception"), 1)

    def _began_again(self, line: int) -> bool:
        """Return True if steps follow this line, or a launcher restarts ranks; a final “done” may be a script's."""
        steps = (file.last_step.line for file in self.fact.files if file.last_step is not None)
        return any(step > line for step in steps) or any(sign.sign == "restarted" for sign in self.recorded.signs)

    @cached_property
    def shows_progress(self) -> bool:
        """Return True if a file shows a good end, or steps up to its end."""
        return any(file.good_end or file.last_step for file in self.fact.files)

    def _still_runs_lines(self, sign: SignSeen) -> int:
        """Return the number of lines that show a recovery: in a retry loop, twice the lines of one attempt."""
        if self._is_known_to_have_failed:
            return _STILL_RUNS_LINES_OF_A_FAILED
        if sign.times < _TRIES:
            return _STILL_RUNS_LINES
        round_lines = (_last(sign) - sign.where.line) // (sign.times - 1)
        return min(max(2 * round_lines, LEAST_LINES_OF_LIFE), _STILL_RUNS_LINES)

    @cached_property
    def failed(self) -> bool:
        """Return True if a sign shows that the job failed: an exit, a timeout, or a complaint that nothing follows."""
        logs = {file.name for file in self.fact.files if file.kind == "kernel log"}
        beside_output = logs if len(logs) < len(self.fact.files) else ()
        return (
            self._is_known_to_have_failed
            or bool(self.last_complaints)
            or any(
                self._is_complaint(sign)
                # A kernel log that comes with the job's output may report events that did not end the job.
                and not (sign.where.file in beside_output and SIGNS[sign.sign][0].confidence is Confidence.POSSIBLE)
                for sign in self.fact.signs
            )
        )

    def _is_complaint(self, sign: SignSeen) -> bool:
        known = SIGNS[sign.sign][0]
        is_one = known.role not in ("advice", "context") and not known.beside and not self._ends_nothing(sign)
        return is_one and not self.got_over(sign) and not self._was_tried_again(sign)

    @cached_property
    def last_complaints(self) -> tuple[SignSeen, ...]:
        """The complaints at the end of a file."""
        return tuple(
            sign
            for sign in self.signs(*_LAST_WORDS)
            if not sign.in_init and not self._ends_nothing(sign)
            if self._last_line.get(sign.where.file, 0) - _last(sign) <= _LAST_WORDS[sign.sign]
        )

    def _was_tried_again(self, sign: SignSeen) -> bool:
        """Return True if a store that refused a connection was reached later: torch warns at each attempt."""
        refused = [other for other in self.signs("store-refused") if other.where.file == sign.where.file]
        if sign.where not in (other.where for other in refused):
            return False
        lines_since = self._last_line.get(sign.where.file, 0) - min(other.where.line for other in refused) + 1
        return lines_since - sum(other.times for other in refused) >= _LINES_OF_LIFE

    @cached_property
    def unfinished(self) -> str:
        """The reason why the end of a job without signs of a failure is unknown, or ""."""
        for sign in self.signs("test-without-end"):
            return f"nccl-tests did not end in {sign.where.file}"
        cut = next((file for file in self.fact.files if file.unread and file.size_bytes), None)
        return f"{cut.name} was read in part: {cut.unread}" if cut is not None else ""

    @cached_property
    def _is_known_to_have_failed(self) -> bool:
        ends = any(ends_a_job(SIGNS[sign.sign][0]) for sign in self.fact.signs)
        return (
            bool(self.died or self.died_locally)
            or ends
            or any(sign.sign == "ended-badly" for sign in self.last_complaints)
        )

    # --- exceptions --------------------------------------------------------------------------------

    @cached_property
    def exceptions(self) -> tuple[SignSeen, ...]:
        """The exceptions that end a process, without those caused by another process or with a better known cause."""
        return tuple(
            sign
            for sign in self.signs("exception")
            if is_own(sign) and not self._holds_a_cause(sign)
            if not self.got_over(sign) and not self._is_raised_again(sign) and not self._ends_nothing(sign)
        )

    def _ends_nothing(self, sign: SignSeen) -> bool:
        """Return True if the sign is in a traceback that Python reports as ignored."""
        return (sign.where.file, sign.where.line) in self._ignored

    @cached_property
    def _ignored(self) -> frozenset[tuple[str, int]]:
        below = {(sign.where.file, sign.where.line + 1) for sign in self.signs("exception-ignored")}
        first = {sign.where: int(sign.values.get("first_line", sign.where.line)) for sign in self.signs("exception")}
        ignored = {where for where, line in first.items() if (where.file, line) in below}
        # If the output of processes is mixed, others ignore the same exception elsewhere.
        kinds = {
            (sign.values.get("type"), sign.values["where"])
            for sign in self.signs("exception")
            if sign.where in ignored and sign.values.get("where")
        }
        return frozenset(
            (sign.where.file, line)
            for sign in self.signs("exception")
            if sign.where in ignored or (sign.values.get("type"), sign.values.get("where")) in kinds
            for line in range(first[sign.where], sign.where.line + 1)
        )

    @cached_property
    def of_configurations(self) -> frozenset[tuple[str, int]]:
        """The lines of exceptions about the text of a configuration, as opposed to damaged data."""
        of_configurations = [sign.where for sign in self.signs("exception") if reads_configuration(sign)]
        return frozenset((where.file, where.line) for where in of_configurations)

    def _is_raised_again(self, exception: SignSeen) -> bool:
        """Return True if the DataLoader worker's traceback, which has more details, follows (torch/_utils.py)."""
        below = {str(exception.where.line + lines) for lines in (1, 2, 3)}
        is_of_worker = _IN_WORKER.match(exception.values.get("message", "")) is not None
        return is_of_worker and any(
            sign.where.file == exception.where.file and sign.values.get("first_line") in below
            for sign in self.signs("exception")
        )

    def _holds_a_cause(self, exception: SignSeen) -> bool:
        first = int(exception.values.get("first_line", exception.where.line))
        lines = self._lines_of_causes[exception.where.file, exception.rank]
        return any(first <= line <= exception.where.line + _MESSAGE_LINES for line in lines)

    @cached_property
    def _lines_of_causes(self) -> Mapping[tuple[str, int | None], list[int]]:
        lines: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        for sign in self.fact.signs:
            is_of_configuration = (sign.where.file, sign.where.line) in self.of_configurations
            if SIGNS[sign.sign][1] is not None and not is_of_configuration:
                lines[sign.where.file, sign.rank].append(sign.where.line)
        return lines


def _last(sign: SignSeen) -> int:
    return sign.where.line if sign.last_line is None else sign.last_line


def ends_a_job(sign: Sign) -> bool:
    """Return True if the sign shows that the job failed, whatever follows it."""
    return (sign.tier == "watchdog" and not sign.beside) or (sign.role == "pointer" and sign.tier == "launcher")


# --- suspects -----------------------------------------------------------------------------------


def suspects(output: Output, *, is_of_end: bool = True) -> Iterator[Suspect]:
    """Yield a suspect for each cause that signs point to, and for each different exception of ranks.

    ``is_of_end``: skip signs that their process continued after.
    """
    spoken: list[tuple[tuple[str, ...], SignSeen]] = []  # by cause; exceptions also by their values
    ids = {sign.sign for sign in output.fact.signs}
    for sign in output.fact.signs:
        known, cause = SIGNS[sign.sign]
        beside = not known.beside or not ids.isdisjoint(known.beside)
        ended = known.tier == "kernel" or not is_of_end or not output.got_over(sign)
        is_victims = cause is not None and cause.name == NCCL_STATES and blames_peer(sign.values.get("message", ""))
        is_other = is_victims or (sign.where.file, sign.where.line) in output.of_configurations
        if cause is not None and known.role == "cause" and beside and ended and not is_other:
            spoken.append(((cause.name,), sign))
    spoken += [(cause_of(sign), sign) for sign in output.exceptions]
    died = {rank.rank for rank in output.died}
    died_locally = {process.local_rank for process in output.died_locally}
    for (name, *_), signs in grouped(spoken).items():
        known_signs = [SIGNS[sign.sign][0] for sign in signs]
        sure = min((known.confidence for known in known_signs), key=list(Confidence).index)
        if any(
            sign.sign == "exception"
            and (sign.local_rank in died_locally if sign.rank is None else not died.isdisjoint(ranks_of([sign])))
            for sign in signs
        ):
            sure = Confidence.PROVED  # the launcher saw that rank end
        tier = min((known.tier for known in known_signs), key=TIERS.index)
        yield Suspect(cause_named(name), tier, sure, tuple(signs))


def lines(signs: Iterable[SignSeen]) -> tuple[LogLine, ...]:
    """Return the lines of the signs, each once."""
    return tuple(dict.fromkeys(sign.where for sign in signs))


#: The end of a training run, not of a shell script, an upload or an epilog.
_OF_TRAINING = re.compile(r"^(?!\+ ).*\b(?:train|epoch|fit\b|max_steps)", re.IGNORECASE)


def _is_of_training(file: FileSeen) -> bool:
    return file.good_end is not None and _OF_TRAINING.search(file.good_end.text) is not None
