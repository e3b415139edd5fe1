"""How paths between nodes are measured: the pairs to test, and the figures that make a path bad.

The measurements behind the figures, and their machines, are in docs/explanation/connectivity.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median_high

from ddp_doctor.model.base import grouped

# --- Measuring ------------------------------------------------------------------------------------------

#: The kernel sends a request immediately and after 1 s (RFC 6298). Three dials send six requests in 3.3 s: on a path
#: that loses 10% of all round trips, a single dial of that length fails once in a hundred, these never.
DIAL_S, DIALS = 1.1, 3
#: From the connection to the end of the burst, including a second connection.
MEETING_S = 4.0
#: Round trips, for a median and for counting losses: as many as fit the time, but at least the minimum.
ROUND_TRIPS, LEAST_ROUND_TRIPS, ROUND_TRIPS_S = 100, 10, 0.4
#: One round trip. A lost packet is sent again after 0.2, 0.6 and 1.4 s (TCP_RTO_MIN, doubled).
ROUND_TRIP_S = 1.5
#: More than two packets of the largest MTU in use (65520 of IPoIB in connected mode, RFC 4755), to detect a path that
#: drops large packets, and little enough for 64 nodes that send at once.
BURST_BYTES = 128 * 1024
BURST_S = 1.5
#: Messages of one packet, to find the largest that passes: under any tunnel, under tunnels over an MTU
#: of 1500 (VXLAN 1450, RFC 7348), just under 1500 itself, and under jumbo frames of 9000.
SIZES_BYTES = (500, 1300, 1440, 4000, 8000)
SIZE_S = 0.7
#: A throughput sample lasts about this long, within these sizes; all peers together about TRANSFERS_S.
SAMPLES, SAMPLE_S, TRANSFERS_S = 3, 0.05, 2.0
#: A peer's remaining samples are skipped if its samples last this many times longer than intended.
PATIENCE = 3
SAMPLE_BYTES, LARGEST_SAMPLE_BYTES = 256 * 1024, 16 * 1024 * 1024
#: Maximum time of one transfer. A rate too low for the smallest sample in this time is recorded as that bound.
TRANSFER_S = 2.5
#: A peer this many times slower than the row's fastest is measured again, and so is a peer with a loss.
DOUBTFUL_RATIO = 2.0
AGAIN_ROUND_TRIPS, AGAIN_S = 200, 1.0

#: The same peer in other networks that all nodes share: at most this many, each measured briefly, all at once. An
#: unreachable network costs two short dials. The samples run one after the other and end with their common time.
OTHER_NETWORKS = 3
OTHER_DIAL_S, OTHER_DIALS = 0.5, 2
OTHER_ROUND_TRIPS, OTHER_ROUND_TRIPS_S = 20, 0.1
OTHER_BURST_S, OTHER_SAMPLES_S = 0.5, 1.0
#: Small enough for a short measurement: 30 ms at 1 Gbit/s.
LARGEST_OTHER_SAMPLE_BYTES = 4 * 1024 * 1024

#: Worlds of more ranks have a matrix of nodes: every pair within a node, and the first ranks of all nodes.
MATRIX_OF_RANKS = 64
#: A pair whose first exchange takes longer is not repeated, and its two directions are measured with a quarter of the
#: message.
LONG_EXCHANGE_S = 0.2
#: Slow pairs are measured again: up to this many times until they are no longer slow, each time in this many rounds of
#: disjoint pairs, within this share of the check's remaining time. On two cores shared by thirty processes, a healthy
#: pair was nine times slower than the median pair in all of six samples within a second, and not later.
AGAIN_TIMES, AGAIN_ROUNDS, AGAIN_SHARE = 3, 8, 0.2
#: Each pair alone, at level thorough: at most this long, and at most this share of the check's remaining time.
ALONE_S, ALONE_SHARE = 6.0, 0.4

#: A pair is not called slow if one of its ranks had no processor for this share of the time or more. At loads of 11 to
#: 19 on two cores, slow paths had 0.004 to 0.2 and healthy ones up to 1.4 (the sum of several threads). Healthy pairs
#: without a processor were up to 9 times slower; a pair that is STARVED_RATIO times slower is slow for another reason.
STARVED_SHARE, STARVED_RATIO = 0.3, 30.0

# --- Judging --------------------------------------------------------------------------------------------

#: A node is faulty if this share of its tested paths is bad, and at least two paths: one good path of 63 may be luck.
BLAMED_SHARE = 0.8

#: Losses among the round trips of a pair, both directions together. Healthy hosts, including busy ones, had none in
#: some 250 runs. A loss of 1% each way was seen as 1.6 to 2.2%.
LOST_SHARE, LOST_PACKETS = 0.01, 3
#: This many round trips without a loss make a path good; fewer are inconclusive.
LOSSLESS_ROUND_TRIPS = 80
#: Cost of a lost small packet: Linux sends it again after TCP_RTO_MIN.
RETRANSMIT_S = 0.2

#: A round trip is slow if it takes this many times as long as the other paths, and this much longer. Hosts of one
#: network answer within 0.4 ms, including busy ones (minimum of 10 or more); a region of a cloud spans 1 to 2 ms.
SLOW_ANSWER_RATIO, SLOW_ANSWER_S = 5.0, 0.005
#: At this time or more, training is at least three times slower: 50 ms made an all-reduce of 4 MiB 8 times slower.
VERY_SLOW_ANSWER_S = 0.020

#: An error is "at least three times slower than its peers" (docs/explanation/verdicts.md); a single path needs
#: more, because it may be chance.
SLOW_NODE_RATIO, SLOW_PATH_RATIO = 3.0, 4.0
#: With three nodes there is one pair for comparison, which may share a host, so only this ratio is an error. It also
#: applies to single paths, and to one direction between two nodes: healthy ones on the busiest hosts differed by up to
#: 3.7 times.
VERY_SLOW_RATIO = 10.0
#: If more than a quarter of all paths is slow, the network is built that way, unless one end explains them.
FEW_PATHS_SHARE = 0.25
#: Above 5 Gbit/s one stream measures the hosts instead of the network: healthy paths between busy hosts were measured
#: with 195 to 3700 MB/s in the same minute. Expectations are not higher than this.
JUDGED_BYTES_PER_S = 625e6
#: Another network of the nodes is this many times faster for a job. The median of the best samples in the network in
#: use is compared with the median of single samples in the other one, so chance favors the network in use. An error
#: requires the usual "at least three times"; 1 against 2.5 Gbit/s is worth a warning.
FASTER_ELSEWHERE_RATIO = 2.0

#: A smaller message measures latency, and ranks that share a processor.
JUDGED_MESSAGE_BYTES = 256 * 1024

#: At this speed or above, one TCP connection, which one core feeds, may not fill an interface (judgment; NCCL's guide
#: mentions 100 Gbit/s).
FAST_ETHERNET_MBPS = 25_000
#: Below this share of the interface's speed, more sockets are worth a measurement (judgment).
SOCKETS_SHARE = 0.5
#: Threads, and sockets per thread, in NCCL's user guide for generic networks of 100 Gbit/s.
SOCKETS = (4, 4)


#: Up to this many nodes every pair is tested.
ALL_PAIRS = 64


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs: every pair meets once, and no rank is in two pairs of a round.

    This is the circle method of round-robin tournaments: n-1 rounds for even n, n for odd. In an odd world, one rank
    rests in each round.
    """
    seats = list(range(ranks if ranks % 2 == 0 else ranks + 1))
    count = len(seats)
    schedule = []
    for _ in range(count - 1):
        pairs = [(seats[i], seats[count - 1 - i]) for i in range(count // 2)]
        schedule.append([(min(a, b), max(a, b)) for a, b in pairs if max(a, b) < ranks])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def is_judged(backend: str, size_bytes: int, *, across: bool) -> bool:
    """Return True if rates of pairs are evaluated. Over gloo, processes of one node share cores."""
    return backend == "nccl" or (backend == "gloo" and across and size_bytes >= JUDGED_MESSAGE_BYTES)


def best_of_ends(rates: Mapping[tuple[int, int], float], end_of: Callable[[int], int]) -> list[float]:
    """Return the best way of each end. A way is the median rate of all paths between two ends.

    One slow end of three makes most ways slow.
    """
    ways = grouped(((end_of(sender), end_of(receiver)), rate) for (sender, receiver), rate in rates.items())
    by_end = grouped((end, median_high(of_paths)) for way, of_paths in ways.items() for end in way)
    return [max(of_ways) for of_ways in by_end.values()]


def typical_rate(rates: Sequence[float], backend: str) -> float:
    """Return the median in GB/s, for gloo at most JUDGED_BYTES_PER_S, the limit of one stream."""
    typical = median_high(rates) if rates else 0.0
    return typical if backend == "nccl" else min(typical, JUDGED_BYTES_PER_S / 1e9)


def rounds_of_ranks(nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds for ranks on these nodes: all pairs, or for many ranks all within nodes, then one rank per node."""
    if len(nodes) <= MATRIX_OF_RANKS or len(set(nodes)) == 1:
        return rounds(len(nodes))
    ranks_of = grouped((node, rank) for rank, node in enumerate(nodes))
    within = [rounds_among(ranks) for ranks in ranks_of.values()]
    at_once = [[pair for pairs in of_nodes for pair in pairs] for of_nodes in zip_longest(*within, fillvalue=[])]
    return at_once + rounds_among([ranks[0] for ranks in ranks_of.values()])


def rounds_among(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return the rounds of some ranks, in order."""
    return [[(ranks[low], ranks[high]) for low, high in pairs] for pairs in rounds(len(ranks))]


def disjoint(pairs: Iterable[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Return some pairs in at most this many rounds of disjoint pairs; pairs that do not fit are omitted."""
    made: list[list[tuple[int, int]]] = [[] for _ in range(most)]
    for pair in pairs:
        free = (those for those in made if not any(set(pair) & set(other) for other in those))
        next(free, []).append(pair)
    return [those for those in made if those]


def neighbors(node: int, nnodes: int) -> list[int]:
    """Return the nodes that ``node`` dials, in order.

    Up to 64 nodes: all other nodes, in the rounds of a tournament, so every node has one partner at a time. Beyond: the
    nodes 1, 2, 4, ... places ahead and behind on a ring of all, 2 log2 N of them. Every node is then also dialed by as
    many, and the nodes stay connected if some are bad.
    """
    if nnodes <= ALL_PAIRS:
        pairs = (pair for pairs_of_round in rounds(nnodes) for pair in pairs_of_round if node in pair)
        return [low + high - node for low, high in pairs]
    steps = [1 << power for power in range((nnodes - 1).bit_length())]
    ring = ((node + sign * step) % nnodes for step in steps for sign in (1, -1))
    return [neighbor for neighbor in dict.fromkeys(ring) if neighbor != node]
