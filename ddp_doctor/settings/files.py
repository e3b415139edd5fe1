"""Files that a script names: who reads its text passes a function that returns theirs."""

from collections.abc import Callable

#: The text of a file by the name that a script gives it; None if there is none or it may not be read.
ReadFile = Callable[[str], str | None]


def read_none(_name: str) -> None:
    """Read no file: the text did not come from a folder."""
