r"""Words for bash, dash and zsh in which text from outside is only a value.

    export NCCL_SOCKET_IFNAME='=eth1'      quoted: zsh takes a bare =eth1 for the path of a command
    case "$(uname -n)" in
      node0|node0.*) export NCCL_SOCKET_IFNAME=eth0 ;;
      node1|node1.*) export NCCL_SOCKET_IFNAME=eth1 ;;
    esac

Which names and values come here at all, remedies/values_by_host.py decides.
"""

import re
from collections.abc import Iterable, Sequence

from ddp_doctor.render.text import plain

_BARE = re.compile(r"[A-Za-z0-9_./:,+-]+")
_PROSE = re.compile(r"[\w .,:/+%@-]*")
_PATTERNS_IN_A_LINE = 8


def quoted(value: str) -> str:
    """``value`` as one word of a shell."""
    return value if _BARE.fullmatch(value) else "'" + value.replace("'", "'\"'\"'") + "'"


def assignment(name: str, value: str | None) -> str:
    """The line that sets a variable, or unsets it."""
    return f"unset {name}" if value is None else f"export {name}={quoted(value)}"


def case(branches: Iterable[tuple[Sequence[str], str]]) -> str:
    """One of several commands, by the host's name; ``branches`` are patterns of names with their command."""
    lines = ['case "$(uname -n)" in']
    for patterns, command in branches:
        rows = (
            "|".join(patterns[at : at + _PATTERNS_IN_A_LINE]) for at in range(0, len(patterns), _PATTERNS_IN_A_LINE)
        )
        lines.append("  " + "|\\\n    ".join(rows) + f") {command} ;;")
    return "\n".join([*lines, "esac"])


def comment(statement: str, note: str = "") -> str:
    """A line that does nothing until somebody takes the # off: a statement made here, and perhaps a remark on it."""
    line = "# " + plain(" ".join(part.strip() for part in statement.splitlines()))
    return f"{line}   {remark(note)}" if note else line


def remark(text: str) -> str:
    """A comment in words that may come from outside.

    An interactive zsh knows no comments (INTERACTIVE_COMMENTS is off): of a pasted ``# a; b`` it runs ``b``. So
    anything but plain words is quoted.
    """
    words = plain(" ".join(line.strip() for line in text.splitlines()))
    return f"# {words}" if _PROSE.fullmatch(words) else f"# {quoted(words)}"
