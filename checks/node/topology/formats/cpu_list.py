"""Lists of CPUs as the kernel writes them: "0-31,64-95"."""

import re
from collections import deque

_LIST = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")

#: Every other one of 8192 CPUs.
_LONGEST = 20_000


def cpu_ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """The first and last CPU of each part; None where the text is no such list."""
    if len(text) > _LONGEST or not _LIST.fullmatch(text):
        return None
    parts = [part.partition("-") for part in text.split(",")]
    return tuple((int(first), int(last or first)) for first, _, last in parts)


def share_a_cpu(one: str, two: str) -> bool | None:
    """Whether a CPU stands in both lists; None where one of them is no list."""
    here, there = cpu_ranges(one), cpu_ranges(two)
    if here is None or there is None:
        return None
    ours, theirs = deque(sorted(here)), deque(sorted(there))
    while ours and theirs:
        (first, last), (others_first, others_last) = ours[0], theirs[0]
        if first <= others_last and others_first <= last:
            return True
        (ours if last < others_last else theirs).popleft()  # the one that ends first meets nothing more
    return False
