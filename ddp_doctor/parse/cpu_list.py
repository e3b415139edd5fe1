"""Lists of CPUs as the kernel writes them: "0-31,64-95"."""

import re

_LIST = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")


def cpu_ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """The first and last CPU of each part; None where the text is no such list."""
    if not _LIST.fullmatch(text):
        return None
    parts = [part.partition("-") for part in text.split(",")]
    return tuple((int(first), int(last or first)) for first, _, last in parts)


def share_a_cpu(one: str, two: str) -> bool | None:
    """Whether a CPU stands in both lists; None where one of them is no list."""
    here, there = cpu_ranges(one), cpu_ranges(two)
    if here is None or there is None:
        return None
    return any(a <= d and c <= b for a, b in here for c, d in there)
