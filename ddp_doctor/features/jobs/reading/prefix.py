"""The prefixes of a line of output, which show who printed it and when.

    [default3]:[rank11]: Traceback (most recent call last):          torchrun --tee, and torch's own rank
    [rank3]:[E1122 03:04:05.678901234 ProcessGroupNCCL.cpp:616] …    c10d since 2.4
    [TC][rank=3][name=default_pg] Operation timed out …              nccl2 (the rank is that of the group)
    11: step 400                                                     srun -l
    [1,11]<stderr>:step 400                                          mpirun --tag-output
    [pod/train-worker-1/pytorch] step 400                            kubectl logs --prefix
    (TrainWorker pid=812, ip=10.0.0.2) step 400                      Ray
    node1:8811:8840 [3] NCCL INFO …                                  NCCL; the bracket is CUDA's number of the GPU
    {"log":"step 400\\n","stream":"stdout","time":"2026-…"}           Docker's files

A line may have several. Templates of torchrun's prefix: torch/distributed/run.py --log-line-prefix-template.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from ddp_doctor.parse.json_value import json_object
from ddp_doctor.parse.text import plain

#: Characters at the start of a line that hold all prefixes. The rest is read without them.
LONGEST_PREFIX = 600
_MOST_PREFIXES = 8
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ISO = rf"(?P<date>\d{{4}}-\d\d-\d\d)[T _]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?"
_CTIME = rf"[A-Z][a-z]{{2}} (?P<month_name>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>\d{{4}})"
_NCCL_NEXT = (
    r"(?=(?:(?:[a-z_]\w{0,60}\*? )?\S{1,300}:\d+ (?:\([^)]{0,200}\) )?|\d[\d.]* \S{1,200} )?"
    r"NCCL (?:WARN|INFO|TRACE|CALL|DIAG) )"
)
_HOST = r"(?P<host>[A-Za-z0-9][\w.-]{0,254})"


def _compiled(*rows: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(pattern)) for kind, pattern in rows)


#: Kind and pattern, by the first character. Kinds of launchers are in _LAUNCHERS. Kinds in _ONCE are not repeated on
#: each line of a multi-line text.
_BRACKETS = _compiled(
    ("rank", r"\[rank(?P<rank>\d{1,7})\]:[ ]?"),
    ("nccl2", r"\[TC\]\[rank=(?P<group_rank>\d{1,7})\]\[name=(?P<group>[^\]]{0,200})\][ ]?"),
    ("glog", rf"\[[IWEF](?P<month>\d\d)(?P<day>\d\d) {_CLOCK} \S{{1,200}}:\d+\] ?"),
    ("glog", r"\[[IWEF] \S{1,200}:\d+\] ?"),
    ("time", rf"\[{_CTIME}\] ?"),
    ("kubernetes", r"\[pod/(?P<host>[\w.-]{1,255})/[\w.-]{1,255}\] ?"),
    ("mpirun", r"\[[\w.@-]{1,200}@\d+,(?P<rank>\d{1,7})\]<(?:stdout|stderr|stddiag)>: ?"),
    ("torchrun", r"\[[A-Za-z_][\w.]{0,60}?-?(?P<local>\d{1,7}):(?P<rank>\d{1,7})(?:\|[^\]]{0,80})?\]:[ ]?"),
    ("torchrun", r"\[(?!epoch|step|iter|batch)[A-Za-z_][\w.]{0,60}?-?(?P<local>\d{1,7})(?:\|[^\]]{0,80})?\]:[ ]?"),
)
_BRACKETS_OF_DIGITS = _compiled(
    ("time", rf"\[{_ISO}\] ?"),
    ("uptime", r"\[ {0,6}\d{1,9}\.\d{6}\](?: ?\[ *[TC]\d+\])? ?"),
    ("mpirun", r"\[\d+,(?P<rank>\d{1,7})\]<(?:stdout|stderr|stddiag)>: ?"),
    # not the numbers in torchelastic's summary
    ("torchrun", r"\[(?P<rank>\d{1,7})(?:\|[^\]]{0,80})?\]:(?=.) ?"),
    ("mpirun", r"\[(?P<task>\d{1,3})\] (?!NCCL|frame #|\[rank\d)"),
)
_LETTERS = _compiled(
    (
        "nccl",
        rf"(?P<host>[^\s:\[\]]{{1,255}}):(?P<pid>\d{{1,10}}):\d{{1,10}} (?:\[(?P<gpu>-?\d{{1,3}})\] )?{_NCCL_NEXT}",
    ),
    ("glog", rf"[IWEF](?P<month>\d\d)(?P<day>\d\d) {_CLOCK} +(?P<pid>\d{{1,16}}) (?:\S{{1,200}}:\d+\])? ?"),
    (
        "syslog",
        rf"(?P<month_name>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}}) {_CLOCK} {_HOST} [\w./()-]{{1,60}}(?:\[\d+\])?: ?",
    ),
    ("time", rf"{_CTIME}(?=\[\d+,)"),  # mpirun --timestamp-output
    (  # for exceptions of an engine's workers, on each line
        "logger",
        rf"(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} \[?\S{{1,200}}:\d+\] ?",
    ),
)
_DIGITS = _compiled(
    ("time", rf"{_ISO}(?: (?:stdout|stderr) [FP] )?(?: ?[|-] | ?: | )?"),
    ("srun", r" {0,6}(?P<task>\d{1,7}): (?!\[(?:grad\.|allreduce\.|horovod_|DistributedOptimizer))"),  # Horovod's lists
    *((kind, pattern.pattern) for kind, pattern in _LETTERS[:1]),  # a host may be an address
)
_RAY = _compiled(("ray", r"\([\w.:<>\[\]-]{1,100} pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[\w.:-]{1,255}))?\) ?"))
_QUOTE = _compiled(("quote", "> ?"))  # of Markdown
#: By the first character of a prefix, and the second after a bracket. "a" and "0" stand for letters and digits.
_ROWS = {"a": _LETTERS, "0": _DIGITS, "(": _RAY, ">": _QUOTE, "[a": _BRACKETS, "[0": _BRACKETS_OF_DIGITS}
#: First characters of lines whose prefixes are learned.
_OPEN = frozenset(("a", "0", "+"))
#: After a time, as journald and rsyslog write it.
_PROGRAM = re.compile(rf"{_HOST} (?P<program>kernel|systemd[\w-]*|slurm[\w-]*|nvidia[\w-]*|dmesg)(?:\[\d+\])?: ?")
_STERN_POD = re.compile("\\+ ([\\w.-]{1,255}) \u203a ([\\w.-]{1,255})")
_STERN = re.compile(r"(?P<host>[\w.-]{1,255}) ([\w.-]{1,255}) ")
#: pdsh, DeepSpeed's launcher. A host is accepted if a line of a rank certainly follows.
_PDSH = re.compile(rf"{_HOST}: (?P<surely>(?=\[rank\d|Traceback \(|[^\s:]{{1,255}}:\d+:\d+ \[\d))?")
_SYSLOG_TIME = re.compile(rf"[A-Z][a-z]{{2}} +\d{{1,2}} {_CLOCK} ")
#: The driver prints a time only on the first line of a message, however the kernel log was written.
_OF_DRIVER = "NVRM: "
_REPEATED = re.compile(r" ?\[repeated (\d{1,7})x across cluster\](?: \(.{0,400}\))?$")
_ONCE = frozenset(("quote", "time", "uptime", "glog", "logger", "nccl", "nccl2"))
_NUMBERS = (("rank", "rank"), ("local", "local_rank"), ("task", "task"), ("pid", "pid"), ("gpu", "gpu"))
#: Keys of JSON entries whose values are lines of output.
_WRAPPERS = ("log", "data", "message", "msg")
_LAUNCHERS = frozenset(("torchrun", "srun", "mpirun", "kubernetes", "ray"))

#: The start of another process's text in the middle of a line, if writes of several processes were mixed.
_INNER = re.compile(rf"\[rank\d{{1,7}}\]:|[A-Za-z0-9][\w.-]{{0,100}}:\d+:\d+ \[-?\d{{1,3}}\] {_NCCL_NEXT}")


class Origin(NamedTuple):
    """The process that printed a line, from its prefixes. ``stream`` is the same for all lines of a multi-line text."""

    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None  # srun's number: a rank, or a node if a launcher runs in the task
    host: str | None = None
    pid: int | None = None
    gpu: int | None = None
    at_s: float | None = None
    launcher: str | None = None
    kernel: bool = False  # whether the kernel wrote the line
    stream: str = ""
    times: int = 1


def clean(raw: bytes) -> str:
    """Return the bytes of a line as text without colors, control characters and marks that turn its direction."""
    return plain(raw.decode("utf-8", "replace"))


class Prefixes:
    """A reader of the prefixes in one file. It learns prefixes that only some lines show.

    ``year`` is for clocks that do not print one.
    """

    def __init__(self, year: int) -> None:
        self._year = year
        self._pdsh: set[str] = set()  # hosts
        self._stern: set[tuple[str, str]] = set()  # pod and container
        self._driver: Origin | None = None  # of the last line of NVIDIA's driver that had a prefix

    def split(self, line: str, word: str = "") -> tuple[Origin, str]:
        """Return who printed a clean line, and its text.

        If the writes of several processes were mixed in it, return those of the process that wrote ``word``.
        """
        fields: dict[str, Any] = {}
        stream: list[str] = []
        if line.startswith('{"'):
            line = self._unwrapped(line, fields)
        text = self._stripped(line, fields, stream)
        if word and (before := text.find(word)) > 0 and (inner := list(_INNER.finditer(text, 0, before))):
            text = self._stripped(text[inner[-1].start() :], fields, stream)
        if fields.get("launcher") == "ray" and (repeated := _REPEATED.search(text[-500:])):
            fields["times"] = int(repeated[1])
            text = text.removesuffix(repeated[0])
        origin = Origin(**fields, stream="".join(stream))
        if (message := text.lstrip()).startswith(_OF_DRIVER):
            if origin == Origin() and self._driver is not None:
                return self._driver, message  # a further line of its message
            self._driver = origin
        return origin, text

    def _stripped(self, line: str, fields: dict[str, Any], stream: list[str]) -> str:
        at = 0
        for _ in range(_MOST_PREFIXES):
            found = self._next(line, at)
            if found is None:
                break
            kind, match = found
            if kind == "srun" and "launcher" in fields:
                break  # a number that the program printed after a launcher's prefix
            self._take(kind, match, fields, stream)
            at = match.end()
        return line[at:]

    def _next(self, line: str, at: int) -> "tuple[str, re.Match[str]] | None":
        first = line[at : at + 1]
        kind = "[" if first == "[" else ""
        of = line[at + 1 : at + 2] if kind else first
        kind += "a" if of.isalpha() else "0" if of.isdecimal() or of == " " else of
        for name, pattern in _ROWS.get(kind, ()):
            if match := pattern.match(line, at, at + LONGEST_PREFIX):
                return name, match
        return self._learned(line, at) if kind in _OPEN else None

    def _learned(self, line: str, at: int) -> "tuple[str, re.Match[str]] | None":
        if match := _STERN_POD.match(line, at):
            self._stern.add((match[1], match[2]))
        elif match := _PROGRAM.match(line, at, at + LONGEST_PREFIX):
            return "syslog", match
        elif at == 0 and (match := _PDSH.match(line, 0, LONGEST_PREFIX)):
            if match["surely"] is not None:
                self._pdsh.add(match["host"])
            return ("pdsh", match) if match["host"] in self._pdsh else None
        elif self._stern and (match := _STERN.match(line, at)) and (match[1], match[2]) in self._stern:
            return "kubernetes", match
        return None

    def _take(self, kind: str, match: "re.Match[str]", fields: dict[str, Any], stream: list[str]) -> None:
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        if kind == "nccl2" and groups["group"] in ("0", "default_pg"):
            fields.setdefault("rank", int(groups["group_rank"]))
        for name, field in _NUMBERS:
            # torch's own rank takes precedence over a launcher's number
            if name in groups and (kind == "rank" or field not in fields):
                fields[field] = int(groups[name])
        if "host" in groups and (kind != "kubernetes" or "host" not in fields):
            fields["host"] = groups["host"]
        if "clock" in groups and (at_s := _seconds(groups, self._year)) is not None:
            fields["at_s"] = at_s
        fields["kernel"] = fields.get("kernel", False) or kind == "uptime" or " kernel" in match[0]
        if kind in _LAUNCHERS:
            fields.setdefault("launcher", kind)
        _extend(stream, kind, match[0])

    def _unwrapped(self, line: str, fields: dict[str, Any]) -> str:
        try:
            entry = json_object(line)
        except ValueError:
            return line
        text = next((entry[key] for key in _WRAPPERS if key in entry), None)
        when = re.match(_ISO, str(entry.get("time", "")))
        if when and (at_s := _seconds(when.groupdict(), self._year)) is not None:
            fields["at_s"] = at_s
        return plain(text.rstrip()) if isinstance(text, str) else line


def _extend(stream: list[str], kind: str, prefix: str) -> None:
    if kind == "glog" and stream and stream[-1].startswith("[rank"):
        stream.pop()  # further lines of such a message do not have torch's prefix
    elif kind == "syslog":
        stream.append(_SYSLOG_TIME.sub("", prefix))
    elif kind not in _ONCE:
        stream.append(prefix)
    elif kind == "time" and not stream:
        stream.append("time ")  # if one line has the time, so does the next line of the same text


def _seconds(groups: Mapping[str, str | None], year: int) -> float | None:
    """Return seconds since the epoch, as UTC if the clock has no time zone, or None if there is no such time."""
    month = groups.get("month_name")
    date = groups.get("date") or f"{groups.get('year') or year}-{month or groups.get('month')}-{groups.get('day')}"
    midnight_s = _midnight_s(date)
    if midnight_s is None:
        return None
    hours, minutes, seconds = map(int, (groups["clock"] or "").split(":"))
    fraction = float(f"0.{groups.get('fraction') or 0}")
    zone = groups.get("zone") or "Z"
    offset_s = 0
    if zone != "Z":
        digits = zone[1:].replace(":", "")
        offset_s = (int(digits[:2]) * 60 + int(digits[2:])) * 60 * (-1 if zone[0] == "-" else 1)
    return midnight_s + (hours * 60 + minutes) * 60 + seconds + fraction - offset_s


@lru_cache(maxsize=1024)
def _midnight_s(date: str) -> int | None:
    year, month, day = date.split("-")
    try:
        number = _MONTHS.index(month) + 1 if month.isalpha() else int(month)
        return int(datetime(int(year), number, int(day), tzinfo=timezone.utc).timestamp())
    except ValueError:
        return None


def attempt_of_path(name: str) -> int | None:
    """Return the number of torchrun's attempt from the directory of a file, or None."""
    found = re.search(r"(?:^|/)attempt_(\d{1,6})/", name)
    return int(found[1]) if found else None


def of_path(name: str) -> Origin:
    """Return what a file's path shows about the process that wrote it.

    torchrun writes …/attempt_0/LOCAL_RANK/stderr.log. Other programs write rank_3.log, rank-3.err or log.rank3.txt.
    """
    if found := re.search(r"(?:^|/)attempt_\d+/(?P<local>\d{1,7})/[^/]*$", name):
        return Origin(local_rank=int(found["local"]), launcher="torchrun")
    if found := re.search(r"(?:^|[/_.:-])rank[_.=-]?(?P<rank>\d{1,7})(?=[_./-]|$)[^/]*$", name):
        return Origin(rank=int(found["rank"]))
    return Origin()
