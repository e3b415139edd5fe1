"""Frames of a rank's stack, ``/home/me/net.py:31 in forward``: which are of the job's own code, and who called it."""

import re
from collections.abc import Sequence

#: Not the job's: torch, the standard library, the doctor, commands that packages install, and what has no file.
_LIBRARY = re.compile(
    r"[/\\]torch[/\\]|/ddp_doctor/(checks|model|probing|ranks)/"
    r"|/lib(64)?/python3[^/]*/(?!site-packages|dist-packages)|^<|[/\\](?:bin|Scripts)[/\\][\w-]+:\d"
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
#: The user's code by the phase of the check user_model that runs it.
YOURS = {
    "import": "the import of your module",
    "factory": "the function that builds your model",
    "make_batch": "your make_batch",
    "pass": "your forward, loss or backward",
}
#: The doctor's functions that call the user's code (probing/user_model), and what of it they call.
_CALLER = re.compile(r"/ddp_doctor/\S*user_model/\w+\.py:\d+ in (find|made|make|forward|loss|step)$")
_CALLED = {
    "find": YOURS["import"],
    "made": YOURS["factory"],
    "make": YOURS["make_batch"],
    "forward": "your forward",
    "loss": "your loss",
    "step": "your step",
}


#: How Python's faulthandler begins what it prints of a process that a signal ends (Modules/faulthandler.c).
FATAL = "Fatal Python error: "
_CURRENT = re.compile(
    r"^Current thread [^\n]*\(most recent call first\):\n(?P<frames>(?:  \S[^\n]*\n?)*)", re.MULTILINE
)
_LISTED = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)


def fatal_stack(output: str) -> tuple[str, ...]:
    """Where the thread stood whose fault ended the process, outermost first; () where none of Python's did.

    Fatal Python error: Segmentation fault

    Current thread 0x00007f4e3905cb80 [python] (most recent call first):
      File "/home/me/net.py", line 7 in make
    """
    current = _CURRENT.search(output.rpartition(FATAL)[2]) if FATAL in output else None
    return listed(current["frames"]) if current else ()


def listed(text: str) -> tuple[str, ...]:
    """The frames that faulthandler prints, the innermost first, outermost first."""
    frames = _LISTED.finditer(text)
    return tuple(f"{frame['file']}:{frame['line']} in {frame['name']}" for frame in frames)[::-1]


def is_of_the_job(frame: str) -> bool:
    """Whether a frame, or a file, is of the job's own code or of what it has installed beside torch."""
    return not _LIBRARY.search(frame)


def is_of_the_users_files(file: str) -> bool:
    """Return True for a Python file that no package has installed."""
    return file.endswith(".py") and is_of_the_job(file) and not _INSTALLED.search(file)


def of_the_job(stack: Sequence[str]) -> list[str]:
    """The frames of the job's own code, outermost first; where there are none, those of what it has installed."""
    own = [frame for frame in stack if is_of_the_job(frame)]
    return [frame for frame in own if not _INSTALLED.search(frame)] or own


def called(stack: Sequence[str]) -> str:
    """What of the user's model runs, ``your forward``; empty where none of its code does."""
    if not of_the_job(stack):
        return ""
    for frame in reversed(stack):
        if caller := _CALLER.search(frame):
            return _CALLED[caller[1]]
        if "/torch/" in frame and frame.endswith(" in backward"):
            return "your backward"
    return ""
