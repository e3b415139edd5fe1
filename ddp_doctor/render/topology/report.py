"""The output of ``ddp-doctor topology``: matrices, tables, and the additional keys of its report.

     GPU0  GPU1  NIC0  CPUs           NUMA  GPU NUMA ID
GPU0  X    SYS   NODE  0-31,64-95     0     N/A
GPU1  SYS   X    SYS   32-63,96-127   1     N/A
NIC0  NODE  SYS   X

NIC0 is mlx5_bond_0
SYS   across the link between CPU sockets or NUMA nodes: GPU0-GPU1
GPU0  nearest NIC: mlx5_bond_0 (NODE)

P2P reads (r): CNS between GPU0-GPU2, GPU1-GPU2; OK between 1 other pair
GPU0  NVIDIA RTX A6000: 4 of 4 NVLinks active, 14.1 GB/s each

What NCCL will use between GPUs (? = depends on something unknown):
 path  GPUs                  by    rate      because
 NV18  28 pairs of GPUs      P2P   371 GB/s  NVLink
 PIX   GPU0-GPU1, GPU2-GPU3  P2P    24 GB/s  P2P goes up to PXB (NCCL's own limit)
 SYS   4 pairs of GPUs       SHM?            P2P goes up to PXB (NCCL's own limit)

A second table shows whether the NIC next to each GPU reaches its memory by GPUDirect RDMA.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ddp_doctor.facts.node.topology import NvlinksFact, P2pStatusFact, RocmTopologyFact, TopologyFact, TopologyMatrix
from ddp_doctor.knowledge.topology.link_codes import CAPABILITIES, link_code, meaning_of, p2p_status
from ddp_doctor.model.base import Json, grouped
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.report import Report, TopologyReport
from ddp_doctor.render.files import CannotWrite
from ddp_doctor.render.layout import Table, folded, matrix_lines, width_of
from ddp_doctor.render.screen import Console
from ddp_doctor.render.text import plain
from ddp_doctor.render.topology.picture import Picture, topology_svg
from ddp_doctor.views.network import to_network
from ddp_doctor.views.transports import Place, ToNetwork, places
from ddp_doctor.wording.nodes import F

if TYPE_CHECKING:
    from rich.text import Text


#: Near paths are green, far ones red, and NVLink is bold.
_STYLES = {
    "X": "dim",
    "NV#": "bold green",
    "PIX": "green",
    "PXB": "cyan",
    "PHB": "yellow",
    "NODE": "dark_orange",
    "SYS": "red",
    "SOC": "red",
}
_CODE = re.compile(r"(?<!\S)(?:X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC)(?![^\s)])")

_TITLES = ("CPUs", "NUMA", "GPU NUMA ID")
#: Maximum number of pairs of one kind to list; more are counted.
_MOST_PAIRS = 12
#: Maximum number of names to list of the paths that NCCL will use.
_MOST_NAMES = 3
#: The code of a path, how NCCL goes, the rate in GB/s, the reason.
_Way = tuple[str, str, float | None, str]


def topology_json(matrices: Sequence[TopologyMatrix]) -> dict[str, Json]:
    """Return the additional keys: ``topology`` (null without a matrix), ``topologies`` for several."""
    views = [matrix.model_dump(mode="json", include=set(TopologyMatrix.model_fields)) for matrix in matrices]
    report: dict[str, Json] = {"topology": views[0] if views else None}
    return {**report, "topologies": views} if len(views) > 1 else report


def matrix_rows(matrix: TopologyMatrix) -> list[list[str]]:
    """Return the table cell by cell: the first row is the header, the first cell of each row its name."""
    columns = list(matrix.links)
    affinities = (matrix.cpu_affinity, matrix.numa_affinity, matrix.gpu_numa_id)
    shown = [
        (title, cells)
        for title, cells in zip(_TITLES, affinities, strict=True)
        if any(text is not None for text in cells.values())
    ]
    rows = [["", *columns, *(title for title, _ in shown)]]
    for name in columns:
        links = [" X" if name == column else matrix.links[name].get(column, "?") for column in columns]
        rows.append([name, *links, *(cells.get(name) or "" for _, cells in shown)])
    return rows


def matrix_text(matrix: TopologyMatrix, width: int | None = None) -> str:
    """Return the table and its explanation, in plain ASCII."""
    notes = [f"{nic} is {device}" for nic, device in matrix.nics.items() if nic != device]
    by_code = grouped((code, f"{gpu}-{peer}") for gpu, peer, code in matrix.gpu_pairs())
    for code, pairs in sorted(by_code.items(), key=lambda item: (link_code(item[0]).distance, item[0])):
        notes.append(f"{code:5} {meaning_of(code)}: {_listed(pairs)}")
    notes += [*matrix.nearest_in_words(), *_doubts(matrix)]
    folded_notes = (folded(note, width, hang=6) for note in notes)
    return "\n".join((*matrix_lines(matrix_rows(matrix), width), "", *folded_notes))


def styled_matrix(text: str) -> "Text":
    """Return the text with every code in the color of its distance; a pipe or NO_COLOR removes it."""
    from rich.text import Text

    styled = Text(plain(text))
    for found in _CODE.finditer(styled.plain):
        styled.stylize(_STYLES[link_code(found[0]).code], found.start(), found.end())
    styled.highlight_regex(r"(?m)^Unclear:.*$", "yellow")
    return styled


def with_topology(report: Report, recording: Recording) -> TopologyReport:
    """Return the report with the keys that ``topology --json`` adds to it."""
    keys: dict[str, Json] = topology_json([node.fact for node in recording.facts(TopologyFact)])
    keys["p2p"] = _views(recording.facts(P2pStatusFact))
    keys["nvlinks"] = _views(recording.facts(NvlinksFact))
    keys["rocm"] = _views(recording.facts(RocmTopologyFact))
    return TopologyReport(**dict(report), **keys)


def picture(report: Report, recording: Recording) -> str:
    """Return one picture of all hosts, as an <svg> element. Raises CannotWrite if there is no matrix to draw."""
    drawn = pictures(report, recording)
    if not drawn:
        raise CannotWrite("cannot write --svg: there is no GPU matrix to draw")
    return topology_svg(drawn)


def pictures(report: Report, recording: Recording) -> list[Picture]:
    """Return one picture of each host that has a matrix."""
    matrices, drawn = recording.facts(TopologyFact), []
    for matrix in matrices:
        title = "GPUs, NICs and the paths between them"
        if recording.world is not None and recording.world.nodes:
            title = recording.world.hostname(matrix.node)
        elif len(matrices) > 1:
            title = f"Host {matrix.node + 1} of the text"
        findings = [
            finding
            for finding in report.findings
            if any((culprit.node_rank or 0) == matrix.node for culprit in finding.culprits)
        ]
        drawn.append(Picture(title, matrix.fact, tuple(findings)))
    return drawn


def _views(views: Sequence[FactAt[F]]) -> tuple[Json, ...] | None:
    return tuple({"host": view.node, **view.fact.model_dump(mode="json")} for view in views) or None


def show(recording: Recording, out: Console) -> None:
    """Print everything that was read, host by host."""
    hosts = sorted({reading.node for reading in recording.readings if reading.fact is not None})
    expected, width = places(recording), width_of(out)
    for host in hosts:
        if len(hosts) > 1:
            out.print(f"Host {host + 1} of the text", style="bold")
        for node, place in zip(recording.facts(TopologyFact), expected, strict=True):
            if node.node == host:
                out.print(styled_matrix(matrix_text(node.fact, width)))
                for table in (transport_table(place, width), network_table(to_network(recording, place), width)):
                    if table:
                        out.print(table)
        texts = [p2p_text(node.fact) for node in recording.facts(P2pStatusFact) if node.node == host]
        texts += [nvlinks_text(node.fact) for node in recording.facts(NvlinksFact) if node.node == host]
        for text in texts:
            for line in text.split("\n"):
                out.print(folded(line, width, hang=6))
        for rocm in recording.facts(RocmTopologyFact):
            if rocm.node == host:
                out.print(rocm_text(rocm.fact, width))
        if len(hosts) > 1:
            out.print()


# --- what there is besides the matrix -------------------------------------------------------------


def p2p_text(fact: P2pStatusFact) -> str:
    """Return the P2P status of the pairs, exceptions first."""
    pairs = grouped((" or ".join(words), f"{gpu}-{peer}") for gpu, peer, words in fact.pairs())
    asked = "P2P (capability not stated)"
    if fact.capability is not None:
        names = [CAPABILITIES[letter] for letter in dict.fromkeys(fact.capability)]
        asked = f"P2P {' and '.join(names)} ({fact.capability})"
    if list(pairs) in ([], ["OK"]):
        return "\n".join([f"{asked}: {'OK between all GPUs' if pairs else 'one GPU only'}", *_doubts(fact)])
    parts = [f"{words} between {_listed(names)}" for words, names in pairs.items() if words != "OK"]
    if "OK" in pairs:
        parts.append(f"OK between {_listed(pairs['OK'])}")
    meanings = [
        f"{word:5} {p2p_status(word).meaning}"
        for word in dict.fromkeys(word for _, _, words in fact.pairs() for word in words)
        if word != "OK"
    ]
    return "\n".join([f"{asked}: {'; '.join(parts)}", *meanings, *_doubts(fact)])


def _doubts(fact: TopologyMatrix | P2pStatusFact | NvlinksFact | RocmTopologyFact) -> Iterator[str]:
    for warning in fact.warnings:
        yield f"Unclear: {warning}"


def _listed(names: Sequence[str], most: int = _MOST_PAIRS, noun: str = "pairs of GPUs") -> str:
    return ", ".join(names) if len(names) <= most else f"{len(names)} {noun}"


def nvlinks_text(fact: NvlinksFact) -> str:
    """Return one line per GPU."""
    lines = []
    for gpu in fact.gpus:
        rates = sorted({link.gb_per_s for link in gpu.links if link.gb_per_s is not None})
        speeds = " and ".join(f"{rate:.1f}" for rate in rates)
        down = ", ".join(map(str, gpu.inactive()))
        links = f"{gpu.active()} of {len(gpu.links)} NVLinks active" if gpu.links else "no active NVLink"
        links += f", {speeds} GB/s each" if speeds else ""
        links += f"; inactive: {down}" if down else ""
        lines.append(f"{gpu.gpu:5} {gpu.name or 'GPU'}: {links}")
    return "\n".join([*lines, *_doubts(fact)])


def rocm_text(fact: RocmTopologyFact, width: int | None = None) -> str:
    """Return the types of links as a table if known, and the GPUs by NUMA node."""
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
    """Return what NCCL should use between the GPUs of a host, in plain text; empty for one GPU."""
    rows = [
        (pair.code, pair.choice.kind + ("" if pair.choice.sure else "?"), pair.rate_gb_per_s, pair.choice.why)
        for pair in place.expected()
    ]
    names = ["-".join(pair.gpus) for pair in place.expected()]
    title = "What NCCL will use between GPUs (? = depends on something unknown):"
    return _expected(title, "GPUs", "pairs of GPUs", zip(rows, names, strict=True), width)


def network_table(ways: Iterable[ToNetwork], width: int | None = None) -> str:
    """Return the paths from GPUs to their nearest NICs in plain text; empty if no NIC is known."""
    words = {True: "GPUDirect RDMA", False: "host memory", None: "GPUDirect RDMA?"}
    rows = (((way.code, words[way.gpudirect], way.rate_gb_per_s, way.why), way.gpu) for way in ways)
    title = "What NCCL will use between a GPU and its nearest NIC for RDMA between nodes:"
    return _expected(title, "GPU", "GPUs", rows, width)


def _expected(title: str, whom: str, noun: str, ways: Iterable[tuple[_Way, str]], width: int | None) -> str:
    """Return equal paths in one row, below the title; without the column of rates if they are unknown."""
    groups = grouped(
        ((code, by, "" if rate is None else f"{rate:.0f} GB/s", why), name) for (code, by, rate, why), name in ways
    )
    if not groups:
        return ""
    rows = [(code, _listed(names, _MOST_NAMES, noun), *cells) for (code, *cells), names in groups.items()]
    titles: tuple[str, ...] = ("path", whom, "by", "rate", "because")
    if not any(row[3] for row in rows):
        titles, rows = (*titles[:3], titles[4]), [(*row[:3], row[4]) for row in rows]
    table = Table(titles, rows, right={3} if len(titles) == 5 else ())
    return "\n".join((folded(title, width), *table.lines(width)))
