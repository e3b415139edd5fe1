"""What ``ddp-doctor topology`` shows and writes of what was read: matrices, tables, the report's own keys."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddp_doctor.facts.node.topology import NvlinksFact, P2pStatusFact, RocmTopologyFact, TopologyFact
from ddp_doctor.model.base import Json
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.report import Report, TopologyReport
from ddp_doctor.render.files import CannotWrite
from ddp_doctor.render.topology.matrix import matrix_text, styled_matrix, topology_json
from ddp_doctor.render.topology.picture import Picture, topology_svg
from ddp_doctor.render.topology.tables import (
    network_table,
    nvlinks_text,
    p2p_text,
    rocm_text,
    transport_table,
)
from ddp_doctor.views.nic_choice import to_network
from ddp_doctor.views.transports import places
from ddp_doctor.wording.nodes import F

if TYPE_CHECKING:
    from rich.console import Console


def matrices(recording: Recording) -> list[FactAt[TopologyFact]]:
    """The matrices in the order they were read."""
    return recording.facts(TopologyFact)


def with_topology(report: Report, recording: Recording) -> TopologyReport:
    """The report with the keys that ``topology --json`` adds to it."""
    keys: dict[str, Json] = topology_json([seen.fact for seen in matrices(recording)])
    keys["p2p"] = _views(recording.facts(P2pStatusFact))
    keys["nvlinks"] = _views(recording.facts(NvlinksFact))
    keys["rocm"] = _views(recording.facts(RocmTopologyFact))
    return TopologyReport(**dict(report), **keys)


def picture(report: Report, recording: Recording) -> str:
    """One picture of all hosts, as an <svg> element. Raises CannotWrite where there is no matrix to draw."""
    seen = matrices(recording)
    if not seen:
        raise CannotWrite("there is no matrix of GPUs to draw, so --svg writes nothing")
    return topology_svg(
        [
            Picture(_host_name(recording, matrix.node, len(seen)), matrix.fact, _about(report, matrix.node))
            for matrix in seen
        ]
    )


def _host_name(recording: Recording, node: int, hosts: int) -> str:
    if recording.world is not None and recording.world.nodes:
        return recording.world.hostname(node)
    return f"Host {node + 1} of the text" if hosts > 1 else "GPUs, NICs and the paths between them"


def _about(report: Report, node: int) -> tuple[Finding, ...]:
    """The findings that blame something of this node."""
    return tuple(
        finding
        for finding in report.findings
        if any((culprit.node_rank or 0) == node for culprit in finding.culprits)
    )


def _views(seen: Sequence[FactAt[F]]) -> tuple[Json, ...] | None:
    return tuple({"host": view.node, **view.fact.model_dump(mode="json")} for view in seen) or None


def show(recording: Recording, out: "Console") -> None:
    """Print everything that was read, host by host."""
    hosts = sorted({reading.node for reading in recording.readings if reading.fact is not None})
    expected = places(recording)
    for host in hosts:
        if len(hosts) > 1:
            out.print(f"Host {host + 1} of the text", style="bold")
        for seen, place in zip(matrices(recording), expected, strict=True):
            if seen.node == host:
                out.print(styled_matrix(matrix_text(seen.fact)), soft_wrap=True)
                for table in (transport_table(place), network_table(to_network(recording, place))):
                    if table:
                        out.print(table, soft_wrap=True)
        for text in _tables(recording, host):
            out.print(text, soft_wrap=True)
        if len(hosts) > 1:
            out.print()


def _tables(recording: Recording, host: int) -> Iterator[str]:
    yield from (p2p_text(seen.fact) for seen in recording.facts(P2pStatusFact) if seen.node == host)
    yield from (nvlinks_text(seen.fact) for seen in recording.facts(NvlinksFact) if seen.node == host)
    yield from (rocm_text(seen.fact) for seen in recording.facts(RocmTopologyFact) if seen.node == host)
