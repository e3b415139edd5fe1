"""Running the user's own code: what it raises is a value, with the innermost line of that code."""

import sysconfig
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ddp_doctor.facts.ddp.user_model import Phase, Trouble
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld

T = TypeVar("T")
_LONGEST_MESSAGE = 300
#: Frames of these are not the user's code: torch, the standard library, this check.
_NOT_THE_USERS = (
    "/torch/",
    "<frozen",
    "/checks/ddp/user_model/",
    "/probing/user_model/",
    sysconfig.get_path("stdlib") + "/",
)
_SITE = ("/site-packages/", "/dist-packages/")


class Misuse(Exception):
    """What --model names is not what it has to be; the message says so in a sentence."""


def attempt(phase: Phase, call: Callable[[], T]) -> tuple[T | None, Trouble | None]:
    """What the call returned, or how it failed. Even an exit of the program is a value."""
    try:
        return call(), None
    except Misuse as problem:
        return None, Trouble(phase=phase, message=str(problem), misuse=True)
    except BaseException as error:  # noqa: BLE001 - whatever the user's code does must end here
        return None, trouble(phase, error)


def trouble(phase: Phase, error: BaseException) -> Trouble:
    """An exception of the user's code, short and without credentials."""
    return Trouble(
        phase=phase,
        type=type(error).__name__,
        message=_message(error),
        where=_where(error),
        out_of_memory="OutOfMemoryError" in type(error).__name__,
    )


def _message(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of the user's may fail to say what it is
        return "(it cannot be put into words)"
    return KEPT_BACK if is_withheld("", message) else message[:_LONGEST_MESSAGE]


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_the_users(frame.filename)]
    near = [frame for frame in own if not any(site in frame.filename for site in _SITE)]
    shown = (near or own)[-1:]
    return f"{shown[0].filename}:{shown[0].lineno}" if shown else ""


def is_the_users(filename: str) -> bool:
    """Whether a line of this file is the user's or a library's of theirs."""
    if any(site in filename for site in _SITE):
        return "/torch/" not in filename
    return not any(part in filename for part in _NOT_THE_USERS)


def calling_line(frame: Any) -> str:
    """The user's line that led to this frame."""
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
