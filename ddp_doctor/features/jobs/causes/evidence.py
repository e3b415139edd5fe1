"""What a job's output amounts to before anybody is blamed: suspects, the order of what they say, how the job ended."""

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

#: Whose word counts first.
TIERS: Sequence[Tier] = ("kernel", "exception", "recorder", "ras", "nccl", "watchdog", "launcher")
#: A process that prints so many lines after a complaint has got over it; more where something says that the job failed,
#: for what ends a process is followed by the stacks of its threads and by what its launcher says.
_STILL_RUNS_LINES = 50
_STILL_RUNS_LINES_OF_A_FAILED = 300
#: What came so often is tried again and again; it has got over that where so many lines follow, or more.
_TRIES = 3
LEAST_LINES_OF_LIFE = 10
#: So many other lines behind the first try to connect say that a later one succeeded.
_LINES_OF_LIFE = 3
#: Moments of different files that are closer than this have no order: clocks of hosts differ, logs have whole seconds.
_SAME_MOMENT_S = 2.0
#: How NCCL begins a warning, and how many steps after one show that the job continued.
_NCCL_WARN, _LEAST_STEPS = "NCCL WARN ", 3
#: Signs that count where the output ends with them, and how many lines may follow: a shell's, after a command's end.
_LAST_WORDS = {"complaint": 0, "ended-badly": 3}
#: Lines of an exception's message, below its first one.
_MESSAGE_LINES = 40
#: A zone of clocks is a whole number of quarters of an hour from UTC.
_ZONE_S = 900.0
#: Words of exceptions that a fault of a machine brings.
_MACHINE = re.compile(
    r"CUDA|NCCL|cuDNN|cuBLAS|GPU|device|memory|killed|signal|Accelerator|bus error|gloo|OSError", re.IGNORECASE
)
#: How an exception of a DataLoader's worker begins in the rank.
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")


@dataclass(frozen=True)
class Suspect:
    """A cause that evidence speaks for; ``judged`` where that evidence says all by itself (dumps, time-outs)."""

    cause: JobCause
    tier: Tier
    confidence: Confidence
    signs: tuple[SignSeen, ...] = ()
    judged: Judged | None = None

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that said it."""
        if self.judged is not None:
            return frozenset(c.rank for c in self.judged.culprits if c.rank is not None)
        return ranks_of(self.signs)

    @property
    def speakers(self) -> frozenset[object]:
        """The processes that said it, as exactly as prefixes tell; else the files."""
        processes = (
            ranks_of([sign]) or {(sign.host, sign.pid) if sign.pid else sign.where.file} for sign in self.signs
        )
        return frozenset[object]().union(*processes)

    @property
    def values(self) -> dict[str, str]:
        """What its signs tell, the first of several values."""
        return {key: value for sign in reversed(self.signs) for key, value in sign.values.items()}

    @property
    def speaks_of_a_machine(self) -> bool:
        """Whether an exception may follow from a fault of a GPU, a host or NCCL, as no ValueError of a job does."""
        texts = (f"{sign.values.get('type', '')} {sign.values.get('message', '')}" for sign in self.signs)
        return any(map(_MACHINE.search, texts))


def ranks_of(signs: Iterable[SignSeen]) -> frozenset[int]:
    """All ranks that printed any of these."""
    return frozenset(rank for sign in signs for rank in (*sign.ranks, sign.rank) if rank is not None)


@dataclass(frozen=True)
class Output:
    """The output of a job, with what is asked of it again and again."""

    recorded: JobLogFact
    attempt: int | None = None  # torchrun's; how ranks ended is known of the last one alone

    @cached_property
    def fact(self) -> JobLogFact:
        """What is recorded; of the signs, the attempt's that this release knows: another release has others."""
        signs = [sign for sign in self.recorded.signs if self.attempt in (None, sign.attempt)]
        for number, sign in enumerate(signs):
            if sign.sign in RENAMED:
                signs[number] = sign.model_copy(update={"sign": RENAMED[sign.sign]})
            if sign.sign == "ras-behind" and sign.times > 1:  # in the answers of two files
                signs[number] = sign.model_copy(update={"sign": "ras-stands-still"})
        return self.recorded.model_copy(update={"signs": tuple(sign for sign in signs if sign.sign in SIGNS)})

    def signs(self, *ids: str) -> list[SignSeen]:
        """Those with these ids."""
        return [sign for sign in self.fact.signs if sign.sign in ids]

    # --- whose -------------------------------------------------------------------------------------

    @cached_property
    def ranks(self) -> Mapping[int, RankSeen]:
        """The ranks that the output shows."""
        return {rank.rank: rank for rank in self.fact.ranks}

    def rank(self, number: int) -> RankSeen:
        """What is known of a rank."""
        return self.ranks.get(number) or RankSeen(rank=number)

    def hosts_of(self, signs: Iterable[SignSeen]) -> list[str]:
        """The hosts on which they were printed, as far as prefixes tell."""
        hosts = (sign.host or (None if sign.rank is None else self.rank(sign.rank).host) for sign in signs)
        return list(dict.fromkeys(host for host in hosts if host))

    @cached_property
    def world(self) -> frozenset[int]:
        """All ranks that the job is known to have had."""
        return frozenset(range(self.fact.world_size or 0)) | frozenset(self.ranks)

    # --- when --------------------------------------------------------------------------------------

    @cached_property
    def _shift_s(self) -> dict[str, float]:
        """By file, what brings its clock to that of the first: whole zones, by time-outs of one collective.

        All ranks of a collective began to wait for it within moments, and their time-outs are equal.
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
        """When it was printed, by the clock of the first file; None where no time is."""
        return None if sign.at_s is None else sign.at_s + self._shift_s.get(sign.where.file, 0.0)

    def same_host(self, one: "Suspect", other: "Suspect") -> bool:
        """Whether both may be of one host: where that of either is not known, too."""
        hosts, others = self.hosts_of(one.signs), self.hosts_of(other.signs)
        return not hosts or not others or not {*hosts}.isdisjoint(others)

    def is_later(self, one: Suspect, other: Suspect) -> bool:
        """Whether the one is known to have begun later than the other: by lines of one file, or else by clocks."""
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
        """By time where every one has one, else by tier and as the output has them."""
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
        """The ranks that a launcher saw end badly."""
        return tuple(rank for rank in self.fact.ranks if rank.signal or rank.exit_code)

    @cached_property
    def first_failed(self) -> int | None:
        """The rank that torchelastic saw fail first, if no other one failed in the same second."""
        ended = sorted((rank.ended_at, rank.rank) for rank in self.died if rank.ended_at is not None)
        is_first = len(ended) == len(self.died) > 0 and (len(ended) == 1 or ended[0][0] < ended[1][0])
        return ended[0][1] if is_first else None

    @cached_property
    def died_locally(self) -> tuple[ProcessSeen, ...]:
        """The processes without a known rank that a launcher saw end badly."""
        return tuple(process for process in self.fact.local_ranks if process.signal or process.exit_code)

    @cached_property
    def stuck(self) -> tuple[int, ...]:
        """The ranks that a launcher's SIGTERM did not end, so that it sent SIGKILL."""
        pids = {sign.values.get("pid") for sign in self.signs("killed-by-launcher")}
        return tuple(rank.rank for rank in self.fact.ranks if rank.pid and str(rank.pid) in pids)

    @cached_property
    def _last_line(self) -> dict[str, int]:
        """With which line each file ends: the stacks that follow a failure are a part of it."""
        return {file.name: file.said or file.lines for file in self.fact.files}

    @cached_property
    def _ranks_in(self) -> Counter[str]:
        return Counter(rank.last.file for rank in self.fact.ranks if rank.last is not None)

    def got_over(self, sign: SignSeen) -> bool:
        """Whether the process that printed it went on for long after it."""
        if SIGNS[sign.sign][0].is_final:
            return False
        if sign.in_init or self._is_noise_at_a_good_end(sign) or self._steps_follow(sign):
            return True
        last = None if sign.rank is None else self.rank(sign.rank).last
        end = self._last_line.get(sign.where.file, 0)
        if last is not None and last.file == sign.where.file:
            end = min(end, last.line)
        elif last is not None:
            return False  # it went on in another file: no lines to count
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
        """Whether the job ended well after it, or it is what others say of a rank that has exited after a good end."""
        good_end, known = self._good_ends.get(sign.where.file, 0), SIGNS[sign.sign][0]
        is_before = _last(sign) < good_end and known.confidence is not Confidence.PROVED
        return not self._is_known_to_have_failed and (is_before or (good_end > 0 and known.role == "victim"))

    @cached_property
    def _good_ends(self) -> dict[str, int]:
        """Return the lines that show a finished run, by file; not a shell's below the traceback that ended it."""
        ends = [file.good_end for file in self.fact.files if file.good_end and file.is_finished]
        below = {(sign.where.file, sign.where.line + 1) for sign in self.recorded.signs if sign.sign == "exception"}
        return {line.file: line.line for line in ends if (line.file, line.line) not in below}

    @cached_property
    def failed_after_a_good_end(self) -> bool:
        """Whether everything that says that the job failed follows the line of a good end."""
        known = [sign for sign in self.fact.signs if not self._ends_nothing(sign) and not self.got_over(sign)]
        bad = [sign for sign in known if SIGNS[sign.sign][0].role not in ("advice", "context")]
        first = {sign.where.file: self._good_ends.get(sign.where.file, 0) for sign in bad}
        for sign in self.signs("groups-not-destroyed"):
            first[sign.where.file] = min(sign.where.line, first.get(sign.where.file) or sign.where.line)
        is_of_training = bool(self.signs("watchdog-timeout", "nccl2-timeout", "gloo-timeout"))
        return bool(bad) and not is_of_training and all(0 < first[sign.where.file] < sign.where.line for sign in bad)

    @cached_property
    def failures_before_the_end(self) -> int:
        """How many times the job failed before it finished; 0 if it did not fail, or its last attempt failed."""
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
        """Return True if steps follow this line, or a launcher restarts ranks: “done” may be the script's last line."""
        steps = (file.last_step.line for file in self.fact.files if file.last_step is not None)
        return any(step > line for step in steps) or any(sign.sign == "restarted" for sign in self.recorded.signs)

    @cached_property
    def shows_progress(self) -> bool:
        """Return True if an output shows a good end, or steps up to its end."""
        return any(file.good_end or file.last_step for file in self.fact.files)

    def _still_runs_lines(self, sign: SignSeen) -> int:
        """What tries again comes as far as before; what comes twice as far has got over it."""
        if self._is_known_to_have_failed:
            return _STILL_RUNS_LINES_OF_A_FAILED
        if sign.times < _TRIES:
            return _STILL_RUNS_LINES
        round_lines = (_last(sign) - sign.where.line) // (sign.times - 1)
        return min(max(2 * round_lines, LEAST_LINES_OF_LIFE), _STILL_RUNS_LINES)

    @cached_property
    def failed(self) -> bool:
        """Whether anything says that the job failed: an exit, a time-out, or a complaint with nothing behind it."""
        logs = {file.name for file in self.fact.files if file.kind == "kernel log"}
        beside_output = logs if len(logs) < len(self.fact.files) else ()
        return (
            self._is_known_to_have_failed
            or bool(self.last_complaints)
            or any(
                self._is_complaint(sign)
                # A kernel log may tell of something that need not have ended the job, whose output is there as well.
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
        """Complaints with which the output of a process ends."""
        return tuple(
            sign
            for sign in self.signs(*_LAST_WORDS)
            if not sign.in_init and not self._ends_nothing(sign)
            if self._last_line.get(sign.where.file, 0) - _last(sign) <= _LAST_WORDS[sign.sign]
        )

    def _was_tried_again(self, sign: SignSeen) -> bool:
        """Whether a store that refused a connection was reached later: torch warns at each try, and goes on."""
        refused = [other for other in self.signs("store-refused") if other.where.file == sign.where.file]
        if sign.where not in (other.where for other in refused):
            return False
        lines_since = self._last_line.get(sign.where.file, 0) - min(other.where.line for other in refused) + 1
        return lines_since - sum(other.times for other in refused) >= _LINES_OF_LIFE

    @cached_property
    def unfinished(self) -> str:
        """Why it is not known how a job ended of which nothing says that it failed; "" where that is known."""
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
        """The ranks' own exceptions: those that end a process, blame nobody else, and hold no better known cause."""
        return tuple(
            sign
            for sign in self.signs("exception")
            if is_own(sign) and not self._holds_a_cause(sign)
            if not self.got_over(sign) and not self._is_raised_again(sign) and not self._ends_nothing(sign)
        )

    def _ends_nothing(self, sign: SignSeen) -> bool:
        """Whether it stands in a traceback of which Python says that it is ignored."""
        return (sign.where.file, sign.where.line) in self._ignored

    @cached_property
    def _ignored(self) -> frozenset[tuple[str, int]]:
        below = {(sign.where.file, sign.where.line + 1) for sign in self.signs("exception-ignored")}
        first = {sign.where: int(sign.values.get("first_line", sign.where.line)) for sign in self.signs("exception")}
        ignored = {where for where, line in first.items() if (where.file, line) in below}
        # Processes whose output is mixed ignore the same exception.
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
        """The lines of exceptions about the text of a configuration: no damaged data."""
        of_configurations = [sign.where for sign in self.signs("exception") if reads_configuration(sign)]
        return frozenset((where.file, where.line) for where in of_configurations)

    def _is_raised_again(self, exception: SignSeen) -> bool:
        """Whether the traceback of a DataLoader's worker, which says more, follows at once (torch/_utils.py)."""
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
    """Whether a sign by itself says that the job failed, whatever is printed behind it."""
    return (sign.tier == "watchdog" and not sign.beside) or (sign.role == "pointer" and sign.tier == "launcher")


# --- suspects -----------------------------------------------------------------------------------


def suspects(output: Output, *, is_of_end: bool = True) -> Iterator[Suspect]:
    """One for each cause that signs speak for, and for each different exception of ranks.

    ``is_of_end``: not if the process went on after the sign.
    """
    spoken: list[tuple[tuple[str, ...], SignSeen]] = []  # by cause; exceptions also by what they say
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
    """Where they stand."""
    return tuple(dict.fromkeys(sign.where for sign in signs))


#: The end of a training run, not of a shell script, an upload or an epilog.
_OF_TRAINING = re.compile(r"^(?!\+ ).*\b(?:train|epoch|fit\b|max_steps)", re.IGNORECASE)


def _is_of_training(file: FileSeen) -> bool:
    return file.good_end is not None and _OF_TRAINING.search(file.good_end.text) is not None
