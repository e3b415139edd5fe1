"""The CPUs of a host: lists as the kernel writes them ("0-31,64-95"), and vendor and model from /proc/cpuinfo.

NCCL's limits and rates depend on vendor and model::

    vendor_id       : GenuineIntel
    cpu family      : 6
    model           : 143
"""

import re
from collections import deque

from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import text_of

_LIST = re.compile(r"[0-9]{1,12}(?:-[0-9]{1,12})?(?:,[0-9]{1,12}(?:-[0-9]{1,12})?)*")
#: The length of a list of every other CPU of 8192.
_LONGEST = 20_000


def cpu_ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return the first and last CPU of each part; None if the text is not a CPU list."""
    if len(text) > _LONGEST or not _LIST.fullmatch(text):
        return None
    parts = [part.partition("-") for part in text.split(",")]
    return tuple((int(first), int(last or first)) for first, _, last in parts)


def share_a_cpu(cpus: str, others: str) -> bool | None:
    """Return True if the lists have a CPU in common; None if one of them is not a CPU list."""
    here, there = cpu_ranges(cpus), cpu_ranges(others)
    if here is None or there is None:
        return None
    ours, theirs = deque(sorted(here)), deque(sorted(there))
    while ours and theirs:
        (first, last), (others_first, others_last) = ours[0], theirs[0]
        if first <= others_last and others_first <= last:
            return True
        (ours if last < others_last else theirs).popleft()  # the range that ends first overlaps no later range
    return False


def cpu_kind(ctx: Context) -> dict[str, str | int | None]:
    """Return vendor, family and model as the kernel prints them, by the fact's fields; None if unknown.

    The vendor is "ARM" for 64-bit Arm, which prints its implementer instead. The model is a number within Intel's
    family 6; None for other families.
    """
    lines = (text_of(ctx, "/proc/cpuinfo") or "").splitlines()
    # Merges the entries of all processors, which are of one kind.
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    family = _number(fields.get("cpu family", ""))
    return {
        "cpu_vendor": fields.get("vendor_id") or ("ARM" if "CPU implementer" in fields else None),
        "cpu_family": family,
        "cpu_model": _number(fields.get("model", "")) if family == 6 else None,
    }


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 4 else None
