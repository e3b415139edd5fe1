"""The transports that NCCL used between the ranks of a run, compared with the predicted ones, for the report.

NCCL between ranks         predicted       used             expected rate
NV18  GPU0-GPU1 on wk3     P2P             SHM              22 GB/s        differs
between nodes, mlx5_0      GPUDirect RDMA  IB, host memory  48 GB/s        differs
NV18  56 pairs on 7 nodes  P2P             P2P              371 GB/s
NVLS multicast is offered; 2 connections through the NIC of another GPU (PXN)

Differing rows come first. The rate is the rate of the path that was used, by NCCL's constants.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Table, folded
from ddp_doctor.render.text import one_line
from ddp_doctor.views.network import crossings, hca_of, to_network
from ddp_doctor.views.transports import Place, log_of, places, used_within
from ddp_doctor.wording.nodes import host, name_list

#: Rows of the table, and nodes whose logs are read for it.
_MOST_ROWS = 8
_MOST_NODES = 16
_GPUDIRECT = {True: "GPUDirect RDMA", False: "host memory", None: "GPUDirect RDMA?"}


class _Kind(NamedTuple):
    """The values that two connections of one row have in common."""

    way: str
    predicted: str
    used: str
    rate_gb_per_s: float | None
    differs: bool


def used_table(recording: Recording, width: int | None = None) -> str:
    """Return the table in plain text; empty if no rank logged its transports."""
    used = used_transports(recording)
    if used is None:
        return ""
    notes = (folded(note, width, indent=1) for note in used.notes)
    return "\n".join((*replace(used, caption="", notes=()).lines(width), *notes))


def used_transports(recording: Recording) -> Table | None:
    """Return the table with its notes, or None if no rank logged its transports."""
    world = recording.world
    if world is None or world.backend != "nccl":
        return None
    known = places(recording)
    rows = grouped(
        (kind, (place.seen.node, pair))
        for place in known[:_MOST_NODES]
        for kind, pair in (*_within(recording, place), *_between(recording, place))
    )
    if not rows:
        return None
    ordered = sorted(rows.items(), key=lambda row: not row[0].differs)
    shown = ordered[:_MOST_ROWS]
    cells = [
        (
            _whom(recording, kind, those),
            kind.predicted,
            kind.used,
            "" if kind.rate_gb_per_s is None else f"{kind.rate_gb_per_s:.0f} GB/s",
            "differs" if kind.differs else "",
        )
        for kind, those in shown
    ]
    left = len(ordered) - len(shown)
    notes = [f"and {left} more kinds of connections"] if left else []
    notes += [f"Only the first {_MOST_NODES} of {len(known)} nodes were read."] if known[_MOST_NODES:] else []
    notes += _notes([log_of(recording, place.seen.node) for place in known[:_MOST_NODES]])
    titles = ("NCCL between ranks", "predicted", "used", "expected rate", "")
    return Table(titles, cells, caption="What NCCL used between the ranks", notes=tuple(notes))


def slowest_p2p(recording: Recording) -> float | None:
    """Return GB/s of the slowest pair of GPUs by NCCL's constants; None unless all use P2P on a single node."""
    if not recording.on_nccl or recording.several_nodes:
        return None
    kinds = [kind for place in places(recording) for kind, _ in _within(recording, place)]
    direct = [kind for kind in kinds if kind.used == kind.predicted == "P2P"]
    rates = [kind.rate_gb_per_s for kind in direct if kind.rate_gb_per_s is not None]
    return min(rates) if kinds and len(rates) == len(kinds) else None


def _within(recording: Recording, place: Place) -> Iterator[tuple[_Kind, str]]:
    expected = {pair.gpus: pair for pair in place.expected()}
    for used in used_within(recording, place):
        pair = expected.get(used.gpus)
        if pair is None:
            continue
        choice, kinds = pair.choice, used.kinds()
        rate = None
        if kinds in ({"P2P"}, {"SHM"}):
            rate = place.rate(pair.gpus, pair.code, "P2P" if kinds == {"P2P"} else "SHM")
        predicted = choice.kind + ("" if choice.sure else "?")
        differs = choice.sure and kinds != {choice.kind}
        yield _Kind(pair.code, predicted, " and ".join(sorted(kinds)), rate, differs), "-".join(used.gpus)


def _between(recording: Recording, place: Place) -> Iterator[tuple[_Kind, str]]:
    """Yield the connections that ranks of a node receive from other nodes: that end uses GPUDirect RDMA."""
    log, ways = log_of(recording, place.seen.node), {way.gpu: way for way in to_network(recording, place)}
    for crossing in crossings(recording, place.seen.node):
        network = crossing.transport.network
        if crossing.transport.end != "receive" or network is None:
            continue
        way = ways.get(f"GPU{crossing.gpu}") if crossing.gpu is not None else None
        nic = hca_of(log, crossing.transport)
        # A ring leaves a node by the NIC that it entered by, which may be nearer to another GPU (crossNic 0).
        is_known = way is not None and network[0] == "IB" and (nic is None or nic in way.nics)
        predicted = _GPUDIRECT[way.gpudirect] if way and is_known else "-"
        used = f"{network[0]}, {_GPUDIRECT[network[2]]}" if network[0] == "IB" else network[0]
        differs = bool(way and is_known and way.gpudirect is not None and way.gpudirect is not network[2])
        rate = way.rate_gb_per_s if way and is_known else None
        yield _Kind("between nodes", predicted, used, rate, differs), nic or "-"


def _whom(recording: Recording, kind: _Kind, those: list[tuple[int, str]]) -> str:
    """Return the first cell: "NV18  GPU0-GPU1 on wk3", "NV18  56 pairs on 7 nodes" or "between nodes, mlx5_0"."""
    names, nodes = list(dict.fromkeys(name for _, name in those)), sorted({node for node, _ in those})
    if kind.way == "between nodes":
        devices = [name for name in names if name != "-"]
        return f"{kind.way}, {name_list(devices)}" if devices and len(devices) <= 2 else kind.way
    where = one_line(host(recording, nodes[0])) if len(nodes) == 1 else f"{len(nodes)} nodes"
    pairs = ", ".join(names) if len(those) <= 2 else f"{len(those)} pairs"
    return f"{kind.way}  {pairs}" + (f" on {where}" if recording.several_nodes else "")


def _notes(logs: list[NcclTransportFact]) -> Iterator[str]:
    notes = []
    if any(log.nvls for log in logs) and all(log.nvls is not False for log in logs):
        notes.append("NVLS multicast is offered")
    proxied = sum(connection.proxy is not None for log in logs for connection in log.transports)
    if proxied:
        notes.append(f"{proxied} connections through the NIC of another GPU (PXN)")
    collnet = sorted({name.split("/")[1] for log in logs for name in log.collnet})
    if collnet:
        notes.append(f"CollNet by {name_list(collnet)}")
    if notes:
        yield "; ".join(notes)
