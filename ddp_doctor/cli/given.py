"""Texts that the user names on the command line: read, and refused where they are another command's."""

from ddp_doctor.model.choices import UsageError
from ddp_doctor.parse.file_kinds import READ_BY, file_kind
from ddp_doctor.sources.given import MOST_BYTES, CannotRead, read_given


def given_text(path: str, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that the user names, ``-`` for stdin. Raises UsageError."""
    try:
        return read_given(path, most_bytes=most_bytes).decode("utf-8", errors="replace")
    except CannotRead as error:
        raise UsageError(str(error)) from error


def require_kind(path: str, text: str, wanted: str, *fine: str) -> None:
    """Refuse a text of a known kind that is none of ``fine``: it would pass for empty or healthy. Raises UsageError."""
    kind = file_kind(text)
    if kind is not None and kind not in fine:
        reads = f"; `ddp-doctor {READ_BY[kind]} {path}` reads it" if kind in READ_BY else ""
        raise UsageError(f"{path} is {kind}, and {wanted} is wanted{reads}")
