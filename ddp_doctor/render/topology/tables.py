"""What a topology has besides its matrix, as plain text: tables of P2P and NVLinks, and AMD's tables.

P2P reads (r): OK between all GPUs
P2P reads (r): CNS between GPU0-GPU2, GPU1-GPU2; OK between 1 other pair
GPU0  NVIDIA RTX A6000: 4 of 4 NVLinks active, 14.1 GB/s each
"""

from collections import Counter
from collections.abc import Iterator

from ddp_doctor.facts.node.topology import GpuNvlinks, NvlinksFact, P2pStatusFact, RocmTopologyFact
from ddp_doctor.knowledge.gpu.p2p_statuses import CAPABILITIES, p2p_status

_MOST_PAIRS = 12


def p2p_text(fact: P2pStatusFact) -> str:
    """Which pairs have what, the exceptions first."""
    pairs: dict[str, list[str]] = {}
    for gpu, peer, words in fact.pairs():
        pairs.setdefault(" or ".join(words), []).append(f"{gpu}-{peer}")
    if list(pairs) in ([], ["OK"]):
        return "\n".join(
            [f"{_asked(fact)}: {'OK between all GPUs' if pairs else 'one GPU only'}", *_doubts(fact)]
        )
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


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_PAIRS else f"{len(names)} pairs of GPUs"


def nvlinks_text(fact: NvlinksFact) -> str:
    """One line a GPU."""
    return "\n".join(
        [*(f"{gpu.gpu:5} {gpu.name or 'GPU'}: {_links(gpu)}" for gpu in fact.gpus), *_doubts(fact)]
    )


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


def rocm_text(fact: RocmTopologyFact) -> str:
    """The types of links as a table, else what there is in a line."""
    lines = [f"{len(fact.gpus)} AMD GPUs (not supported yet)"]
    if fact.link_type:
        lines.append("      " + " ".join(f"{gpu:5}" for gpu in fact.gpus).rstrip())
        for gpu in fact.gpus:
            cells = [fact.link_type[gpu].get(peer, "X") for peer in fact.gpus]
            lines.append(f"{gpu:5} " + " ".join(f"{cell:5}" for cell in cells).rstrip())
    nodes = Counter(fact.numa_node.values())
    lines += [
        f"NUMA node {node}: {number} {'GPU' if number == 1 else 'GPUs'}"
        for node, number in sorted(nodes.items())
    ]
    return "\n".join([*lines, *_doubts(fact)])
