"""What a topology has besides its matrix, as plain text: P2P, NVLinks, AMD's tables, what NCCL should use.

P2P reads (r): OK between all GPUs
P2P reads (r): CNS between GPU0-GPU2, GPU1-GPU2; OK between 1 other pair
GPU0  NVIDIA RTX A6000: 4 of 4 NVLinks active, 14.1 GB/s each

What NCCL will use between GPUs (? = depends on something that is not known here):
 path  GPUs                  by    rate      because
 NV18  28 pairs of GPUs      P2P   371 GB/s  NVLink
 PIX   GPU0-GPU1, GPU2-GPU3  P2P    24 GB/s  P2P goes up to PXB (NCCL's own limit)
 SYS   4 pairs of GPUs       SHM?            P2P goes up to PXB (NCCL's own limit)

A second table says whether the NIC next to each GPU reaches its memory by itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ddp_doctor.facts.node.topology import GpuNvlinks, NvlinksFact, P2pStatusFact, RocmTopologyFact
from ddp_doctor.knowledge.topology.link_codes import CAPABILITIES, p2p_status
from ddp_doctor.model.base import grouped
from ddp_doctor.render.layout import Table, folded, matrix_lines
from ddp_doctor.views.transports import Expected, Place, ToNetwork

#: More pairs of one kind than these are counted, not listed.
_MOST_P2P_PAIRS = 12
_MOST_NAMES = 3


def p2p_text(fact: P2pStatusFact) -> str:
    """Which pairs have what, the exceptions first."""
    pairs = grouped((" or ".join(words), f"{gpu}-{peer}") for gpu, peer, words in fact.pairs())
    if list(pairs) in ([], ["OK"]):
        return "\n".join([f"{_asked(fact)}: {'OK between all GPUs' if pairs else 'one GPU only'}", *_doubts(fact)])
    parts = [f"{words} between {_listed(names)}" for words, names in pairs.items() if words != "OK"]
    if "OK" in pairs:
        parts.append(f"OK between {_listed(pairs['OK'])}")
    meanings = [
        f"{word:5} {p2p_status(word).meaning}"
        for word in dict.fromkeys(word for _, _, words in fact.pairs() for word in words)
        if word != "OK"
    ]
    return "\n".join([f"{_asked(fact)}: {'; '.join(parts)}", *meanings, *_doubts(fact)])


def _asked(fact: P2pStatusFact) -> str:
    if fact.capability is None:
        return "P2P (of what, the text does not say)"
    names = [CAPABILITIES[letter] for letter in dict.fromkeys(fact.capability)]
    return f"P2P {' and '.join(names)} ({fact.capability})"


def _doubts(fact: P2pStatusFact | NvlinksFact | RocmTopologyFact) -> Iterator[str]:
    for warning in fact.warnings:
        yield f"Unclear: {warning}"


def _listed(names: Sequence[str], most: int = _MOST_P2P_PAIRS, noun: str = "pairs of GPUs") -> str:
    return ", ".join(names) if len(names) <= most else f"{len(names)} {noun}"


def nvlinks_text(fact: NvlinksFact) -> str:
    """One line a GPU."""
    return "\n".join([*(f"{gpu.gpu:5} {gpu.name or 'GPU'}: {_links(gpu)}" for gpu in fact.gpus), *_doubts(fact)])


def _links(gpu: GpuNvlinks) -> str:
    if not gpu.links:
        return "no active NVLink"
    rates = sorted({link.gb_per_s for link in gpu.links if link.gb_per_s is not None})
    speeds = " and ".join(f"{rate:.1f}" for rate in rates)
    down = ", ".join(str(link.index) for link in gpu.links if link.active is False)
    return (
        f"{gpu.active()} of {len(gpu.links)} NVLinks active"
        + (f", {speeds} GB/s each" if speeds else "")
        + (f"; inactive: {down}" if down else "")
    )


def rocm_text(fact: RocmTopologyFact, width: int | None = None) -> str:
    """The types of links as a table, else what there is in a line."""
    lines = [f"{len(fact.gpus)} AMD GPUs (not supported yet)"]
    if fact.link_type:
        rows = [[gpu, *(fact.link_type[gpu].get(peer, "X") for peer in fact.gpus)] for gpu in fact.gpus]
        lines += matrix_lines([["", *fact.gpus], *rows], width)
    nodes = Counter(fact.numa_node.values())
    lines += [
        f"NUMA node {node}: {number} {'GPU' if number == 1 else 'GPUs'}" for node, number in sorted(nodes.items())
    ]
    return "\n".join([*lines, *_doubts(fact)])


def transport_table(place: Place, width: int | None = None) -> str:
    """The table in plain text; nothing where there is one GPU."""
    groups: dict[tuple[str, ...], list[Expected]] = {}
    for pair in place.expected():
        rate = "" if pair.rate_gb_per_s is None else f"{pair.rate_gb_per_s:.0f} GB/s"
        kind = pair.choice.kind + ("" if pair.choice.sure else "?")
        groups.setdefault((pair.code, kind, rate, pair.choice.why), []).append(pair)
    if not groups:
        return ""
    rows = [
        (code, _listed(["-".join(pair.gpus) for pair in group], _MOST_NAMES), kind, rate, why)
        for (code, kind, rate, why), group in groups.items()
    ]
    title = "What NCCL will use between GPUs (? = depends on something that is not known here):"
    return _titled(title, "GPUs", rows, width)


def _titled(title: str, whom: str, rows: Sequence[tuple[str, ...]], width: int | None) -> str:
    """The table below its title; without rates where none is known."""
    titles: tuple[str, ...] = ("path", whom, "by", "rate", "because")
    if not any(row[3] for row in rows):
        titles, rows = (*titles[:3], titles[4]), [(*row[:3], row[4]) for row in rows]
    table = Table(titles, rows, right={3} if len(titles) == 5 else ())
    return "\n".join((folded(title, width), *table.lines(width)))


def network_table(ways: Iterable[ToNetwork], width: int | None = None) -> str:
    """The ways from GPUs to their nearest NICs in plain text; nothing where no NIC is known."""
    words = {True: "GPUDirect RDMA", False: "host memory", None: "GPUDirect RDMA?"}
    groups: dict[tuple[str, ...], list[str]] = {}
    for way in ways:
        rate = "" if way.rate_gb_per_s is None else f"{way.rate_gb_per_s:.0f} GB/s"
        groups.setdefault((way.code, words[way.gpudirect], rate, way.why), []).append(way.gpu)
    if not groups:
        return ""
    rows = [(code, _listed(gpus, _MOST_NAMES, "GPUs"), *cells) for (code, *cells), gpus in groups.items()]
    title = "What NCCL will use from a GPU to its nearest NIC, where it goes between nodes by RDMA:"
    return _titled(title, "GPU", rows, width)
