"""Expected speed of a collective: from NCCL's own plan for the machine, or a bare socket between its hosts."""

from ddp_doctor.facts.cluster import ConnectivityFact
from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.collectives import ALL_REDUCE
from ddp_doctor.knowledge.network import expected_speed
from ddp_doctor.knowledge.network.path_quality import JUDGED_BYTES_PER_S, SLOW_PATH_RATIO
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.views.gpus import each_has_a_whole_gpu
from ddp_doctor.views.network import rdma_of
from ddp_doctor.views.transports import log_of, places

#: Minimum share of a bare socket's rate, as for a path compared with others: hosts in the lab, three on two busy cores,
#: came down to 0.41 of it at 1 Gbit/s, and to 0.98 at 100 Mbit/s (docs/explanation/expected-bandwidth.md).
_OF_A_SOCKET = 1 / SLOW_PATH_RATIO
#: Smaller messages are bound by latency. All-reduce is the only collective whose ring was compared with sockets.
_LEAST_BYTES = 4 << 20


def expected(recording: Recording, collective: str, size_bytes: int) -> expected_speed.Band | None:
    """Return the expected band, or None if neither a table nor a socket gives one."""
    machine = _machine(recording)
    band = expected_speed.band(machine, collective, size_bytes) if machine is not None else None
    if band is not None:
        return band
    socket = _slowest_socket(recording)
    if socket is None or collective != ALL_REDUCE or size_bytes < _LEAST_BYTES:
        return None
    source = f"a bare TCP connection between the same hosts carries {socket:.3g} GB/s"
    return expected_speed.Band(_OF_A_SOCKET * socket, None, source)


@once_a_recording
def _machine(recording: Recording) -> expected_speed.Machine | None:
    """Return the machine of equal nodes with a rank on each of their whole GPUs and one kind of links, or None."""
    world = recording.world
    if world is None or not recording.on_nccl or not each_has_a_whole_gpu(recording):
        return None
    if any(node.fact.confidential_compute for node in recording.facts(GpusFact)):
        return None  # what crosses the bus is encrypted
    names = {rank.fact.gpu_name for rank in recording.facts(ProcessGroupFact)}
    nodes = range(world.nnodes)
    logs = [log_of(recording, node) for node in nodes]
    links = {code for place in places(recording) for _, _, code in place.fact.gpu_pairs()}
    per_node = {len(world.ranks_of(node)) for node in nodes}
    nics = {tuple(sorted(_nics_mbps(recording, node))) for node in nodes}
    networks = {log.network for log in logs}
    releases = {log.version for log in logs}
    if any(len(each) != 1 for each in (names, per_node, nics, networks, releases)) or len(links) > 1:
        return None
    [name], [ranks], [rates], [network], [nccl] = names, per_node, nics, networks, releases
    if name is None or nccl is None:
        return None
    return expected_speed.Machine(
        gpu=name,
        link=next(iter(links), ""),
        ranks=ranks,
        nccl=nccl,
        nodes=world.nnodes,
        nics_mbps=rates,
        network=network or "",
        nvls=all(log.nvls is True and log.settings.get("NCCL_NVLS_ENABLE") != "0" for log in logs),
    )


def _nics_mbps(recording: Recording, node: int) -> list[int]:
    """Return the speeds of the adapters that NCCL uses on the node; 0 if unknown."""
    log = log_of(recording, node)
    used = log.used_hcas()
    speeds = {hca.name: hca.speed_mbps for hca in log.hcas if hca.speed_mbps}
    fact = rdma_of(recording).get(node)
    for hca in fact.hcas if fact else ():
        rates = [port.rate_gbit_per_s for port in hca.ports if port.rate_gbit_per_s]
        if rates:
            speeds.setdefault(hca.name, round(1000 * max(rates)))
    return [speeds.get(name, 0) or 0 for name in used]


@once_a_recording
def _slowest_socket(recording: Recording) -> float | None:
    """Return GB/s of the slowest path of a ring over the nodes, from TCP's best samples, or None if it proves little.

    Only if ranks use TCP, and no faster than one connection can be measured. Ranks on CPUs share them and the host's
    memory: with several ranks on a node, gloo itself may be slow.
    """
    world = recording.world
    if world is None or world.nnodes < 2 or (world.backend == "gloo" and world.nproc_per_node > 1):
        return None
    over_tcp = world.backend == "gloo" or all(
        log_of(recording, node).network == "Socket" for node in range(world.nnodes)
    )
    best: dict[tuple[int, int], float] = {}
    for node in recording.facts(ConnectivityFact):
        for peer in node.fact.peers:
            ends = (min(node.node, peer.node), max(node.node, peer.node))
            best[ends] = max([best.get(ends, 0.0), *peer.throughput_bytes_per_s])
    ring = [(min(one, other), max(one, other)) for one in range(world.nnodes) for other in [(one + 1) % world.nnodes]]
    rates = [best.get(ends, 0.0) for ends in ring]
    slowest = min(rates)
    return slowest / 1e9 if over_tcp and 0 < slowest < JUDGED_BYTES_PER_S else None
