"""Multi-line texts that one process prints: a Python traceback, torchelastic's summary, a sign over several lines."""

import re

from ddp_doctor.features.jobs.reading.endings import Ending
from ddp_doctor.features.jobs.table.signs import Sign
from ddp_doctor.parse.frames import is_of_the_job, of_the_job

_MOST_FRAMES = 20
_FRAME = re.compile(r'\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})(?:, in (?P<name>.{1,200}))?')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: ?(?P<message>.*))?$")
_PARSER = re.compile(r"[/\\](?:json|simplejson|yaml|omegaconf|tomllib)[/\\]")
#: Lines of an exception group start with a bar. A line of code may also start with one.
_GROUP = re.compile(r"(?:  )*[|+][ -]?")
#: Maximum lines of code, written by several processes at once, between the place of a syntax error and its name.
_LINES_OF_SYNTAX = 12
#: The name of an exception that several processes wrote at once, and the repeated text in such a line.
_COPIED_NAME = re.compile(r"([A-Za-z_][\w.]{3,80}?)\1+\b")
_COPIES = re.compile(r"(.{2,200}?)\1+")
_LONGEST_COPIES = 2_000
#: Names of exceptions that end a traceback without its first line.
_SURELY = re.compile(r"(?:Error|Exception|Interrupt|Exit|Expired|Timeout|OutOfMemory\w*)$")
_FIELD = re.compile(r" *(time|host|rank|exitcode|error_file|traceback) *: (.*)")
RAS_WORD = "Job summary"
#: Lines of NCCL and srun between the lines of Python.
_NCCL = ("NCCL INFO ", "srun: ", "slurmstepd")
TRACEBACK = "Traceback (most recent call last)"
STACK = "Stack (most recent call last)"
FRAME_WORD = b'", line '


class Block:
    """Lines of one process. ``add`` returns True if more are wanted. ``first_line`` is a line number of the file."""

    #: Maximum number of its lines. Python itself truncates the traceback of a recursion.
    MOST_LINES = 400

    def __init__(self, first_line: int) -> None:
        self.first_line = self.last_line = first_line
        self.lines = 0

    def add(self, text: str, line: int) -> bool:
        """Take the next line of the process."""
        self.last_line = line
        self.lines += 1
        return self.lines < self.MOST_LINES and self._wants_more(text)

    def _wants_more(self, text: str) -> bool:
        raise NotImplementedError


def begins_within_a_traceback(text: str) -> bool:
    """Return True for a frame as Python's tracebacks have it; faulthandler's stacks have no comma before "in"."""
    frame = _FRAME.match(text)
    return frame is not None and (frame["name"] is not None or frame.end() == len(text.rstrip()))  # of a SyntaxError


def _once(text: str) -> str:
    """Return a line that several processes wrote over each other, piece by piece, as one of them wrote it."""
    return _COPIES.sub(r"\1", text[:_LONGEST_COPIES]) if _COPIED_NAME.match(text) else text


class Traceback(Block):
    """A traceback, from "Traceback (most recent call last):" or, if that is missing, a frame, to the exception."""

    def __init__(self, first_line: int, text: str, of: Ending | None = None) -> None:
        super().__init__(first_line)
        self.of = of  # the process that a launcher announced
        self.is_reported = STACK in text  # by a program that continues
        self._is_whole = TRACEBACK in text or self.is_reported
        frame = _FRAME.match(text)
        #: Python could not compile the script: the process did nothing before.
        self.is_of_script = frame is not None and frame["name"] is None
        self._is_group = _GROUP.match(text) is not None
        self.frames: list[str] = []
        self.type: str | None = None
        self.message = ""
        self.text = ""
        self.reader = ""  # the last frame that is not in a parser, with its code
        self._is_parser = False
        if not self._is_whole:
            self._wants_more(text)

    def _wants_more(self, text: str) -> bool:
        if text.startswith(_NCCL):
            return True
        if self._is_group:
            text = _GROUP.sub("", text, count=1)
        if frame := _FRAME.match(text):
            self.frames.append(f"{frame['file']}:{frame['line']} in {frame['name'] or '<module>'}")
            self._is_parser = _PARSER.search(frame["file"]) is not None
            self.reader = self.reader if self._is_parser else self.frames[-1]
            return True
        if not text.strip() or text[0] in " \t":
            self.reader += "" if self._is_parser else text
            return True
        text = _once(text)
        if self.is_of_script and not _SURELY.search(text.partition(":")[0]):
            return self.lines < _LINES_OF_SYNTAX
        exception = _EXCEPTION.match(text.rstrip())
        if exception and (self._is_whole or _SURELY.search(exception["type"])):
            self.type, self.message, self.text = exception["type"], exception["message"] or "", text
        return False

    def values(self) -> dict[str, str]:
        """Return the values to record."""
        own = [frame for frame in of_the_job(self.frames) if is_of_the_job(frame)]
        where = (own or self.frames or [""])[-1]
        return {
            "type": self.type or "",
            "message": self.message,
            "where": where,
            "frames": "\n".join(self.frames[-_MOST_FRAMES:]),
            "first_line": str(self.first_line),
            **({"reader": self.reader} if self._is_parser else {}),
        }


class Failure(Block):
    """A rank in torchelastic's summary: time, host, rank, exitcode, error_file, traceback."""

    def __init__(self, first_line: int, text: str) -> None:
        super().__init__(first_line)
        self.fields: dict[str, str] = {}
        self._wants_more(text)

    def _wants_more(self, text: str) -> bool:
        field = _FIELD.match(text)
        if field:
            self.fields[field[1]] = field[2].strip()
        return text.startswith(_NCCL) or (field is not None and field[1] != "traceback")


class Ras(Block):
    """An answer of NCCL's RAS in the output of a job: its lines with their numbers, and some lines after it."""

    MOST_LINES = 4_000  # one for each rank that it lists

    def __init__(self, first_line: int, text: str) -> None:
        super().__init__(first_line)
        self.numbered = [(first_line, text)]

    def add(self, text: str, line: int) -> bool:
        """Take the next line of the process, with its number."""
        self.numbered.append((line, text))
        return super().add(text, line)

    def _wants_more(self, text: str) -> bool:
        return text.strip() != RAS_WORD


class SignBlock(Block):
    """The lines that a sign's pattern may span, or the text of an exit if there is no sign."""

    def __init__(self, first_line: int, lines: int, text: str, sign: Sign | None = None) -> None:
        super().__init__(first_line)
        self.sign = sign
        self.wanted = lines - 1
        self.texts = [text]

    def _wants_more(self, text: str) -> bool:
        self.texts.append(text)
        return self.lines < self.wanted
