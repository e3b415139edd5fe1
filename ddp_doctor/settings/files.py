"""The files that a script names: the caller passes a function that returns their text."""

from collections.abc import Callable

#: Returns the text of a file by the name in the script, or None if it is missing or may not be read.
ReadFile = Callable[[str], str | None]


def read_none(_name: str) -> None:
    """Return None: the text did not come from a file, so it has no other files next to it."""
