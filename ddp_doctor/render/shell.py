r"""Text for bash, dash and zsh where foreign text is only a value.

    export NCCL_SOCKET_IFNAME='=eth1'      quoted: zsh takes a bare =eth1 for the path of a command
    case "$(uname -n)" in
      node0|node0.*) export NCCL_SOCKET_IFNAME=eth0 ;;
      node1|node1.*) export NCCL_SOCKET_IFNAME=eth1 ;;
    esac

remedies/values_by_host.py decides which names and values are allowed.
"""

import re
from collections.abc import Iterable, Sequence

from ddp_doctor.render.text import plain

_BARE = re.compile(r"[A-Za-z0-9_./:,+-]+")
_PROSE = re.compile(r"[\w .,:/+%@-]*")
_PATTERNS_IN_A_LINE = 8


def quoted(value: str) -> str:
    """Return ``value`` as one word of a shell."""
    return value if _BARE.fullmatch(value) else "'" + value.replace("'", "'\"'\"'") + "'"


def assignment(name: str, value: str | None) -> str:
    """Return the line that sets a variable, or unsets it."""
    return f"unset {name}" if value is None else f"export {name}={quoted(value)}"


def case(branches: Iterable[tuple[Sequence[str], str]]) -> str:
    """Return a ``case`` that selects a command by the host's name; ``branches`` are name patterns and commands."""
    lines = ['case "$(uname -n)" in']
    for patterns, command in branches:
        rows = (
            "|".join(patterns[at : at + _PATTERNS_IN_A_LINE]) for at in range(0, len(patterns), _PATTERNS_IN_A_LINE)
        )
        lines.append("  " + "|\\\n    ".join(rows) + f") {command} ;;")
    return "\n".join([*lines, "esac"])


def comment(statement: str, note: str = "") -> str:
    """Return a statement as a comment, for users to uncomment, with an optional remark."""
    line = "# " + plain(" ".join(part.strip() for part in statement.splitlines()))
    return f"{line}   {remark(note)}" if note else line


def remark(text: str) -> str:
    """Return a comment with text that may be foreign.

    An interactive zsh does not accept comments by default (INTERACTIVE_COMMENTS is off): for a pasted ``# a; b`` it
    runs ``b``. So anything but plain words is quoted.
    """
    words = plain(" ".join(line.strip() for line in text.splitlines()))
    return f"# {words}" if _PROSE.fullmatch(words) else f"# {quoted(words)}"
