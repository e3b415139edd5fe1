"""The NIC legend of ``nvidia-smi topo -m``: which device stands behind each NIC column.

    NIC Legend:

      NIC0: mlx5_0
      NIC1: mlx5_bond_0

nvidia-smi itself garbles the legend where there are 40 NICs and more (``NIC1: MA ID``), and a pasted
text may hold anything. A name ends up in a suggested NCCL_IB_HCA, so only what looks like a device
name is taken; the rest is told and not used.
"""

import re
from collections import Counter
from collections.abc import Sequence

from ddp_doctor.checks.node.topology.formats.topo_rows import DEVICE
from ddp_doctor.knowledge.topology.link_codes import NUMBERED

_ENTRY = re.compile(r"(?<!\S)(NIC[0-9]{1,4}):\s*(.*?)\s*$")
_LONGEST_ENTRY = 500


def read_legend(lines: Sequence[str]) -> list[tuple[str, str]]:
    """The entries as printed, column and name; a line of another kind ends the legend."""
    entries: list[tuple[str, str]] = []
    inside = False
    for line in lines:
        if "NIC Legend" in line:
            inside = True
        elif inside and (found := _ENTRY.search(line[:_LONGEST_ENTRY])):
            entries.append((found[1], found[2]))
        elif inside and entries and line.strip():
            inside = False
    return entries


def nic_names(columns: Sequence[str], legend: Sequence[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """The device of each NIC column, or the column itself where none is known; what was wrong."""
    names = {column: column for column in columns}
    said: dict[str, set[str]] = {}
    for column, name in legend:
        said.setdefault(column, set()).add(name)
    warnings = []
    for column, texts in said.items():
        fault = _fault(column, texts, columns)
        if fault:
            warnings.append(fault)
        else:
            names[column] = min(texts)
    for name in [name for name, times in Counter(names.values()).items() if times > 1]:
        columns_of_it = [column for column in names if names[column] == name]
        warnings.append(f"the legend names {' and '.join(columns_of_it[:4])} alike: {name}")
        names.update({column: column for column in columns_of_it})
    unnamed = [column for column in columns if NUMBERED.fullmatch(column) and column not in said]
    if unnamed:
        warnings.append(f"no legend names {unnamed[0]}" + (" and others" if len(unnamed) > 1 else ""))
    return names, warnings


def _fault(column: str, texts: set[str], columns: Sequence[str]) -> str | None:
    if column not in columns:
        return f"the legend names {column}, which has no column"
    if len(texts) > 1:
        return f"the legend names {column} twice, as {' and '.join(map(_quoted, sorted(texts)))}"
    text = min(texts)
    if DEVICE.fullmatch(text):
        return None
    return f"the legend's name of {column} is no device name and is not used: {_quoted(text)}"


def _quoted(text: str) -> str:
    return ascii(text[:40])
