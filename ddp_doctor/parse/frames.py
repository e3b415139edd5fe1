"""Frames of a rank's stack, ``/home/me/net.py:31 in forward``: which belong to the job's own code, and its callers."""

import re
from collections.abc import Sequence

#: Not the job's: torch, the standard library, ddp-doctor, commands that packages install, and frames without a file.
_LIBRARY = re.compile(
    r"[/\\]torch[/\\]|/ddp_doctor/(checks|features|model|probing|ranks)/"
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
#: The functions of ddp-doctor that call the user's code (features/model/user_model), and the code that they call.
_CALLER = re.compile(r"/ddp_doctor/\S*user_model/(?:probing/)?\w+\.py:\d+ in (find|made|make|forward|loss|step)$")
_CALLED = {
    "find": YOURS["import"],
    "made": YOURS["factory"],
    "make": YOURS["make_batch"],
    "forward": "your forward",
    "loss": "your loss",
    "step": "your step",
}


#: The start of faulthandler's output about a process that a signal ends (Modules/faulthandler.c).
FATAL = "Fatal Python error: "
_CURRENT = re.compile(
    r"^Current thread [^\n]*\(most recent call first\):\n(?P<frames>(?:  \S[^\n]*\n?)*)", re.MULTILINE
)
_LISTED = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)


def fatal_stack(output: str) -> tuple[str, ...]:
    """Return the stack of the thread whose fault ended the process, outermost first; () if it has no Python frames.

    Fatal Python error: Segmentation fault

    Current thread 0x00007f4e3905cb80 [python] (most recent call first):
      File "/home/me/net.py", line 7 in make
    """
    current = _CURRENT.search(output.rpartition(FATAL)[2]) if FATAL in output else None
    return listed(current["frames"]) if current else ()


def listed(text: str) -> tuple[str, ...]:
    """Return the frames that faulthandler printed innermost first, outermost first."""
    frames = _LISTED.finditer(text)
    return tuple(f"{frame['file']}:{frame['line']} in {frame['name']}" for frame in frames)[::-1]


def is_of_the_job(frame: str) -> bool:
    """Return True if a frame or file belongs to the job's own code, or to packages other than torch."""
    return not _LIBRARY.search(frame)


def is_of_the_users_files(file: str) -> bool:
    """Return True for a Python file that no package has installed."""
    return file.endswith(".py") and is_of_the_job(file) and not _INSTALLED.search(file)


def of_the_job(stack: Sequence[str]) -> list[str]:
    """Return the frames of the job's own code, outermost first, or of its installed packages if there are none."""
    own = [frame for frame in stack if is_of_the_job(frame)]
    return [frame for frame in own if not _INSTALLED.search(frame)] or own


def called(stack: Sequence[str]) -> str:
    """Return the running part of the user's model, such as ``your forward``, or "" if none of its code runs."""
    if not of_the_job(stack):
        return ""
    for frame in reversed(stack):
        if caller := _CALLER.search(frame):
            return _CALLED[caller[1]]
        if "/torch/" in frame and frame.endswith(" in backward"):
            return "your backward"
    return ""
