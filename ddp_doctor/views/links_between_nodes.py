"""What NCCL's log says of the connections between the ranks of different nodes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.facts.node.nccl_log import NcclTransportFact, Transport
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.transports import first_trial, log_of, numbers_of_gpus, texts


@dataclass(frozen=True)
class Crossing:
    """One connection that a rank of ``node`` has with one of another node, as its own log says."""

    node: int
    other: int
    ranks: tuple[int, int]  # original, of ``node`` first
    transport: Transport
    gpu: int | None  # NVML's index of the GPU of the rank of ``node``


def crossings(recording: Recording, node: int) -> Iterator[Crossing]:
    """The connections of one node with others, in the order of the log."""
    trial, log = first_trial(recording), log_of(recording, node)
    world = recording.world
    if trial is None or world is None or not set(log.comm_sizes) <= {len(trial.ranks)}:
        return
    gpus = numbers_of_gpus(recording, trial, log, node)
    for transport in log.transports:
        if transport.kind != "NET" or max(transport.from_rank, transport.to_rank) >= len(trial.ranks):
            continue
        sender, receiver = trial.ranks[transport.from_rank], trial.ranks[transport.to_rank]
        own_rank, peer = (receiver, sender) if transport.end == "receive" else (sender, receiver)
        if world.node_of(own_rank) == node != world.node_of(peer):
            yield Crossing(node, world.node_of(peer), (own_rank, peer), transport, gpus.get(own_rank))


def nodes_that_say(recording: Recording, pattern: re.Pattern[str]) -> list[int]:
    """The nodes whose log holds the pattern; found without parsing the logs, for thousands of nodes."""
    return [node for node, text in texts(recording).items() if pattern.search(text)]


def rdma_of(recording: Recording) -> Mapping[int, RdmaFact]:
    """What is recorded of the RDMA devices of each node."""
    return recording.once(
        "RDMA by node", lambda: {rdma.node: rdma.fact for rdma in recording.facts(RdmaFact)}
    )


def hca_of(log: NcclTransportFact, transport: Transport) -> str | None:
    """The RDMA device that carries a connection, where the log tells which one its number means."""
    network = transport.network
    names = {hca.name for hca in log.hcas if network and network[0] == "IB" and hca.index == network[1]}
    return names.pop() if len(names) == 1 else None
