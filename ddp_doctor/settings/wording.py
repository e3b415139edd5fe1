"""Text forms of settings for sentences."""

import shlex
from collections.abc import Mapping

#: A longer value is shortened in a sentence; the recording contains it in full.
LONGEST_VALUE = 80


def printable(value: str) -> str:
    """Return a value for a sentence, with control characters escaped and long values cut."""
    text = value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + "…"
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def shown(name: str, value: str) -> str:
    """Format ``NAME=value`` the way a user types it."""
    return f"{name}={shlex.quote(printable(value))}"


def listed(pairs: Mapping[str, str]) -> str:
    """Format settings as ``A=1, B=2``."""
    return ", ".join(shown(name, value) for name, value in pairs.items())
