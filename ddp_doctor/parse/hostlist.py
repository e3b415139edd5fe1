"""Lists of host names: SLURM's brackets without scontrol, Open MPI's daemon list, and host files.

A SLURM list (``SLURM_STEP_NODELIST``)::

    node[1-4,7],gpu-[01-03]-ib

The list that Open MPI 4 passes to its daemons (``OMPI_MCA_orte_node_regex``), the host of mpirun first. The number
before the colon is the minimum number of digits in a name. The text after ``@`` is not a name::

    node[2:3,1-2],login@0(4)

A host file, as Open MPI and MPICH read it::

    node1 slots=8   # comment
    admin@node2
    node3:8
"""

import re
from collections.abc import Iterator
from itertools import product
from math import prod

from ddp_doctor.model.error_text import quoted

#: More than any cluster has; a longer list is a mistake or an attack.
MOST_HOSTS = 65_536
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*", re.ASCII)
#: The settings after a host in a host file: ``slots=8 max_slots = 16``.
_SETTINGS = re.compile(r"(?:[\w-]+\s*=\s*\S+\s*)+", re.ASCII)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_PIECE = re.compile(r"\[([^\[\]]*)\]")
#: Brackets are neither nested nor unbalanced, and no comma follows the last item.
_ITEM = re.compile(r"([^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*)(,|\Z)")
#: Names usually have one or two brackets.
_MOST_BRACKETS = 16


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list in its order, including repeated ones.

    Raises ValueError with one sentence if the text is not a list or names more than ``MOST_HOSTS``.
    """
    hosts: list[str] = []
    for item in _split_outside_brackets(text):
        hosts += _expand_item(item, MOST_HOSTS - len(hosts))
    wrong = next((host for host in hosts if not _NAME.fullmatch(host)), None)
    if wrong is not None or not hosts:
        raise ValueError(f"{quoted(wrong or text)} is not a host name")
    return tuple(hosts)


def expand_open_mpi(text: str) -> tuple[str, ...]:
    """Return the hosts of Open MPI's daemons, mpirun's host first. Raises ValueError."""

    def padded(found: re.Match[str]) -> str:
        digits, colon, ranges = found[1].partition(":")
        if not colon or not digits.isdecimal() or int(digits) > 18:
            raise ValueError(f"{quoted(text)} is not an Open MPI host list")
        return f"[{re.sub(r'[0-9]+', lambda number: number[0].zfill(int(digits)), ranges)}]"

    return expand(_PIECE.sub(padded, text.partition("@")[0]))


def read_host_file(text: str) -> tuple[str, ...]:
    """Return the hosts of a host file. Raises ValueError with the first line that is not a host."""
    hosts: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        first, *settings = line.partition("#")[0].split(None, 1) or [""]
        if first:
            name, _, slots = first.rpartition(":")
            if not all(map(_SETTINGS.fullmatch, settings)):
                raise ValueError(f"{quoted(line.strip())} in line {number} is neither a host name nor HOST slots=N")
            try:
                hosts += expand(name if name and slots.isdecimal() and ":" not in name else first)
            except ValueError as error:
                raise ValueError(f"{error} (line {number})") from None
            if len(hosts) > MOST_HOSTS:
                raise ValueError(f"it exceeds the limit of {MOST_HOSTS} hosts (line {number})")
    return tuple(hosts)


def _split_outside_brackets(text: str) -> Iterator[str]:
    at = 0
    while text:
        found = _ITEM.match(text, at)
        if found is None or not found[1].strip():
            raise ValueError(f"{quoted(text)} is not a list of hosts; expected a list like node[1-4,7],login")
        yield found[1].strip()
        if not found[2]:
            return
        at = found.end()


def _expand_item(item: str, room: int) -> list[str]:
    if item.count("[") > _MOST_BRACKETS:
        raise ValueError(f"{quoted(item)} exceeds the limit of {_MOST_BRACKETS} pairs of brackets")
    parts = _PIECE.split(item)  # text, ranges, text, ranges, text
    spans = [list(_spans(ranges)) for ranges in parts[1::2]]
    if prod(sum(last - first + 1 for first, last, _width in span) for span in spans) > room:
        raise ValueError(f"with {quoted(item)}, the list exceeds the limit of {MOST_HOSTS} hosts")
    numbers = [
        [f"{number:0{width}d}" for first, last, width in span for number in range(first, last + 1)] for span in spans
    ]
    texts = parts[::2]
    return [
        "".join(text + number for text, number in zip(texts, (*chosen, ""), strict=True))
        for chosen in product(*numbers)
    ]


def _spans(ranges: str) -> Iterator[tuple[int, int, int]]:
    """Yield first, last and width of each range; the width is the first number's if that begins with 0."""
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{quoted(f'[{ranges}]')} is not a range; expected a range like [1-4,7]")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{quoted(f'[{ranges}]')} is not an ascending range")
        yield first, last, len(found[1]) if found[1].startswith("0") else 1
