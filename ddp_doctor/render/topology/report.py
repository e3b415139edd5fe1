"""What ``ddp-doctor topology`` shows and writes of what was read: matrices, tables, the report's own keys.

     GPU0  GPU1  NIC0  CPUs           NUMA  GPU NUMA ID
GPU0  X    SYS   NODE  0-31,64-95     0     N/A
GPU1  SYS   X    SYS   32-63,96-127   1     N/A
NIC0  NODE  SYS   X

NIC0 is mlx5_bond_0
SYS   across the link between CPU sockets or NUMA nodes: GPU0-GPU1
GPU0  nearest NIC: mlx5_bond_0 (NODE)
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddp_doctor.facts.node.topology import NvlinksFact, P2pStatusFact, RocmTopologyFact, TopologyFact, TopologyMatrix
from ddp_doctor.knowledge.topology.link_codes import link_code, meaning_of
from ddp_doctor.model.base import Json, grouped
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.report import Report, TopologyReport
from ddp_doctor.render.files import CannotWrite
from ddp_doctor.render.layout import folded, matrix_lines, width_of
from ddp_doctor.render.text import plain
from ddp_doctor.render.topology.picture import Picture, topology_svg
from ddp_doctor.render.topology.tables import network_table, nvlinks_text, p2p_text, rocm_text, transport_table
from ddp_doctor.views.network import to_network
from ddp_doctor.views.transports import places
from ddp_doctor.wording.nodes import F

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


#: Near is green, far is red, and what NVLink joins stands out.
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
#: More pairs of one kind than this are counted, not listed.
_MOST_PAIRS = 12


def topology_json(matrices: Sequence[TopologyMatrix]) -> dict[str, Json]:
    """The keys that the report gets: ``topology`` (null without a matrix), ``topologies`` for several."""
    views = [matrix.model_dump(mode="json", include=set(TopologyMatrix.model_fields)) for matrix in matrices]
    report: dict[str, Json] = {"topology": views[0] if views else None}
    return {**report, "topologies": views} if len(views) > 1 else report


def matrix_rows(matrix: TopologyMatrix) -> list[list[str]]:
    """The table cell by cell: the first row is the header, the first cell of each row its name."""
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
    """The table and what it says, in plain ASCII."""
    notes = (folded(note, width, hang=6) for note in _notes(matrix))
    return "\n".join((*matrix_lines(matrix_rows(matrix), width), "", *notes))


def styled_matrix(text: str) -> "Text":
    """The same text with every code in the colour of its distance; a pipe or NO_COLOR takes it off again."""
    from rich.text import Text

    styled = Text(plain(text))
    for found in _CODE.finditer(styled.plain):
        styled.stylize(_STYLES[link_code(found[0]).code], found.start(), found.end())
    styled.highlight_regex(r"(?m)^Unclear:.*$", "yellow")
    return styled


def _notes(matrix: TopologyMatrix) -> Iterator[str]:
    for nic, device in matrix.nics.items():
        if nic != device:
            yield f"{nic} is {device}"
    by_code = grouped((code, f"{gpu}-{peer}") for gpu, peer, code in matrix.gpu_pairs())
    for code, pairs in sorted(by_code.items(), key=lambda item: (link_code(item[0]).distance, item[0])):
        listed = ", ".join(pairs) if len(pairs) <= _MOST_PAIRS else f"{len(pairs)} pairs of GPUs"
        yield f"{code:5} {meaning_of(code)}: {listed}"
    yield from matrix.nearest_in_words()
    for warning in matrix.warnings:
        yield f"Unclear: {warning}"


def matrices(recording: Recording) -> list[FactAt[TopologyFact]]:
    """The matrices in the order they were read."""
    return recording.facts(TopologyFact)


def with_topology(report: Report, recording: Recording) -> TopologyReport:
    """The report with the keys that ``topology --json`` adds to it."""
    keys: dict[str, Json] = topology_json([node.fact for node in matrices(recording)])
    keys["p2p"] = _views(recording.facts(P2pStatusFact))
    keys["nvlinks"] = _views(recording.facts(NvlinksFact))
    keys["rocm"] = _views(recording.facts(RocmTopologyFact))
    return TopologyReport(**dict(report), **keys)


def picture(report: Report, recording: Recording) -> str:
    """One picture of all hosts, as an <svg> element. Raises CannotWrite where there is no matrix to draw."""
    drawn = pictures(report, recording)
    if not drawn:
        raise CannotWrite("there is no matrix of GPUs to draw, so --svg writes nothing")
    return topology_svg(drawn)


def pictures(report: Report, recording: Recording) -> list[Picture]:
    """One picture of each host that has a matrix."""
    drawn = matrices(recording)
    return [
        Picture(_host_name(recording, matrix.node, len(drawn)), matrix.fact, _findings_of_node(report, matrix.node))
        for matrix in drawn
    ]


def _host_name(recording: Recording, node: int, hosts: int) -> str:
    if recording.world is not None and recording.world.nodes:
        return recording.world.hostname(node)
    return f"Host {node + 1} of the text" if hosts > 1 else "GPUs, NICs and the paths between them"


def _findings_of_node(report: Report, node: int) -> tuple[Finding, ...]:
    return tuple(
        finding for finding in report.findings if any((culprit.node_rank or 0) == node for culprit in finding.culprits)
    )


def _views(views: Sequence[FactAt[F]]) -> tuple[Json, ...] | None:
    return tuple({"host": view.node, **view.fact.model_dump(mode="json")} for view in views) or None


def show(recording: Recording, out: "Console") -> None:
    """Print everything that was read, host by host."""
    hosts = sorted({reading.node for reading in recording.readings if reading.fact is not None})
    expected, width = places(recording), width_of(out)
    for host in hosts:
        if len(hosts) > 1:
            out.print(f"Host {host + 1} of the text", style="bold")
        for node, place in zip(matrices(recording), expected, strict=True):
            if node.node == host:
                out.print(styled_matrix(matrix_text(node.fact, width)))
                for table in (transport_table(place, width), network_table(to_network(recording, place), width)):
                    if table:
                        out.print(table)
        for text in _tables(recording, host, width):
            out.print(text)
        if len(hosts) > 1:
            out.print()


def _tables(recording: Recording, host: int, width: int | None) -> Iterator[str]:
    texts = [p2p_text(node.fact) for node in recording.facts(P2pStatusFact) if node.node == host]
    texts += [nvlinks_text(node.fact) for node in recording.facts(NvlinksFact) if node.node == host]
    yield from (folded(line, width, hang=6) for text in texts for line in text.split("\n"))
    yield from (rocm_text(node.fact, width) for node in recording.facts(RocmTopologyFact) if node.node == host)
