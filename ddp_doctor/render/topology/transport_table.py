"""What NCCL should use between the GPUs of a node, in a few lines.

NCCL between GPUs, by its own rules and constants:
NV18  28 pairs of GPUs       P2P  371 GB/s  NVLink
PIX   GPU0-GPU1, GPU2-GPU3   P2P   24 GB/s  P2P goes up to PXB (NCCL's own limit)
SYS   4 pairs of GPUs        SHM?           …

The question mark says that something which decides is not known. A second table says whether the NIC next to
each GPU reaches its memory by itself.
"""

from collections.abc import Iterable

from ddp_doctor.views.network import ToNetwork
from ddp_doctor.views.transports import Expected, Place

#: More pairs of one kind than this are counted, not listed.
_MOST_PAIRS = 3


def transport_table(place: Place) -> str:
    """The table in plain text; nothing where there is one GPU."""
    groups: dict[tuple[str, ...], list[Expected]] = {}
    for pair in place.expected():
        rate = "" if pair.rate_gb_per_s is None else f"{pair.rate_gb_per_s:.0f} GB/s"
        kind = pair.choice.kind + ("" if pair.choice.sure else "?")
        groups.setdefault((pair.code, kind, rate, pair.choice.why), []).append(pair)
    if not groups:
        return ""
    rows = [(code, _pairs(group), kind, rate, why) for (code, kind, rate, why), group in groups.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    title = "NCCL between GPUs, by its own rules and constants (? where something that decides is not known):"
    return "\n".join((title, *(_line(row, widths) for row in rows)))


def _pairs(group: list[Expected]) -> str:
    names = ["-".join(pair.gpus) for pair in group]
    return ", ".join(names) if len(names) <= _MOST_PAIRS else f"{len(names)} pairs of GPUs"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
    rate = [row[3].rjust(widths[3])] if widths[3] else []
    return "  ".join((*cells, *rate, row[4])).rstrip()


def network_table(ways: Iterable[ToNetwork]) -> str:
    """From GPUs to their nearest NICs in plain text; nothing where no NIC is known."""
    words = {True: "GPUDirect RDMA", False: "host memory", None: "GPUDirect RDMA?"}
    groups: dict[tuple[str, ...], list[str]] = {}
    for way in ways:
        rate = "" if way.rate_gb_per_s is None else f"{way.rate_gb_per_s:.0f} GB/s"
        groups.setdefault((way.code, words[way.gpudirect], rate, way.why), []).append(way.gpu)
    if not groups:
        return ""
    rows = [
        (code, ", ".join(gpus) if len(gpus) <= _MOST_PAIRS else f"{len(gpus)} GPUs", *rest)
        for (code, *rest), gpus in groups.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    title = "NCCL from a GPU to its nearest NIC, where it goes between nodes by RDMA:"
    return "\n".join((title, *(_line(row, widths) for row in rows)))
