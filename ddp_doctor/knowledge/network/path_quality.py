"""How paths between nodes are measured: which pairs are tested, and which figures make a path bad.

What was measured, on which machine, stands in docs/explanation/connectivity.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median_high

from ddp_doctor.model.base import grouped

# --- Measuring ------------------------------------------------------------------------------------------

#: The kernel asks for a connection at once and after 1 s (RFC 6298). Three dials ask six times in 3.3 s: on a
#: path that loses 10 % of all round trips a single dial of that length fails once in a hundred, these never.
DIAL_S, DIALS = 1.1, 3
#: From the connection to the end of the burst, a second connection included.
MEETING_S = 4.0
#: Round trips, for a median and for counting losses: as many as fit, but never fewer than the least.
ROUND_TRIPS, LEAST_ROUND_TRIPS, ROUND_TRIPS_S = 100, 10, 0.4
#: One round trip. A lost packet is sent again after 0.2, 0.6 and 1.4 s (TCP_RTO_MIN, doubled).
ROUND_TRIP_S = 1.5
#: More than two packets of the largest MTU in use (65520 of IPoIB in connected mode, RFC 4755), so that
#: a path that swallows large packets shows, and little enough for 64 nodes that send at once.
BURST_BYTES = 128 * 1024
BURST_S = 1.5
#: Messages of one packet, to find the largest that passes: under any tunnel, under tunnels over an MTU
#: of 1500 (VXLAN 1450, RFC 7348), just under 1500 itself, and under jumbo frames of 9000.
SIZES_BYTES = (500, 1300, 1440, 4000, 8000)
SIZE_S = 0.7
#: A throughput sample lasts about this long, within these sizes; all peers together about TRANSFERS_S.
SAMPLES, SAMPLE_S, TRANSFERS_S = 3, 0.05, 2.0
#: A peer's samples may last so many times longer than meant before the rest of them is left out.
PATIENCE = 3
SAMPLE_BYTES, LARGEST_SAMPLE_BYTES = 256 * 1024, 16 * 1024 * 1024
#: One transfer. What is slower than the least sample in this time is recorded as the bound that this is.
TRANSFER_S = 2.5
#: A peer slower than this share of the row's fastest is measured again; one with a loss as well.
DOUBTFUL_RATIO = 2.0
AGAIN_ROUND_TRIPS, AGAIN_S = 200, 1.0

#: The same peer in other networks that all nodes share: so many of them, each measured briefly, all at
#: once. A dead one costs two short dials; the samples, one after the other, end with their common time.
OTHER_NETWORKS = 3
OTHER_DIAL_S, OTHER_DIALS = 0.5, 2
OTHER_ROUND_TRIPS, OTHER_ROUND_TRIPS_S = 20, 0.1
OTHER_BURST_S, OTHER_SAMPLES_S = 0.5, 1.0
#: Little enough for a short measurement: 30 ms at 1 Gbit/s.
LARGEST_OTHER_SAMPLE_BYTES = 4 * 1024 * 1024

#: Worlds of more ranks have a matrix of nodes: every pair within a node, and the first ranks of all nodes.
MATRIX_OF_RANKS = 64
#: A pair whose first exchange takes longer is not repeated, and a quarter of the message tells its two directions.
LONG_EXCHANGE_S = 0.2
#: Pairs that are measured again because they are slow: so often until they are not, each time so many rounds of
#: disjoint ones, within this share of the check's time that is left. On two cores that thirty processes wanted, a
#: healthy pair was nine times slower than the median pair in all of six samples within a second, and not later on.
AGAIN_TIMES, AGAIN_ROUNDS, AGAIN_SHARE = 3, 8, 0.2
#: Each pair alone, level thorough: so long, and no more than this share of the check's time that is left.
ALONE_S, ALONE_SHARE = 6.0, 0.4

#: A pair is not called slow if one of its ranks had no processor for this share of the time or more. At loads of 11 to
#: 19 on two cores, slow paths had 0.004 to 0.2 and healthy ones up to 1.4 (the sum of several threads). Healthy pairs
#: without a processor were up to 9 times slower; a pair that is STARVED_RATIO times slower is slow for another reason.
STARVED_SHARE, STARVED_RATIO = 0.3, 30.0

# --- Judging --------------------------------------------------------------------------------------------

#: A node is to blame when this share of its tested paths is bad, and at least two: one of 63 may be lucky.
BLAMED_SHARE = 0.8

#: Losses among the round trips of a pair, both directions together. Healthy hosts had none at all in
#: some 250 runs, busy ones included; of 1 % loss each way 1.6 to 2.2 % was seen.
LOST_SHARE, LOST_PACKETS = 0.01, 3
#: So many round trips without a loss make a path good; fewer say nothing.
LOSSLESS_ROUND_TRIPS = 80
#: What a lost small packet costs: Linux sends it again after TCP_RTO_MIN.
RETRANSMIT_S = 0.2

#: A round trip this many times that of the other paths, and so much longer, is slow. Hosts of one network
#: answer within 0.4 ms, busy ones too (least of 10 or more); a region of a cloud spans 1 to 2 ms.
SLOW_ANSWER_RATIO, SLOW_ANSWER_S = 5.0, 0.005
#: From here on training is at least three times slower: 50 ms made an all-reduce of 4 MiB 8 times slower.
VERY_SLOW_ANSWER_S = 0.020

#: An error is "at least three times slower than its peers" (docs/explanation/verdicts.md); a single path needs
#: more, because it may be chance.
SLOW_NODE_RATIO, SLOW_PATH_RATIO = 3.0, 4.0
#: Three nodes are one pair for comparison, which may share a host: only this is an error there. Of single paths, and of
#: one direction between two nodes, too: healthy ones on the busiest hosts were 3.7 times apart at most.
VERY_SLOW_RATIO = 10.0
#: More than a quarter of all paths slow is how the network is built, not a fault, unless an end explains them.
FEW_PATHS_SHARE = 0.25
#: Above 5 Gbit/s one stream measures the hosts and not the network: healthy paths between busy hosts were
#: measured with 195 to 3700 MB/s in the same minute. Expectations are not higher than this.
JUDGED_BYTES_PER_S = 625e6
#: A job could be so many times faster over another network of its nodes. The median of the best samples here
#: against the median of single ones there: chance speaks for the network in use. An error is the "at least
#: three times" of all others; 1 against 2.5 Gbit/s is worth a warning.
FASTER_ELSEWHERE_RATIO = 2.0

#: A message that is smaller measures latency, and ranks that share a processor.
JUDGED_MESSAGE_BYTES = 256 * 1024

#: From here on one TCP connection, which one core feeds, may not fill an interface (judgment; NCCL's guide speaks of
#: 100 Gbit/s).
FAST_ETHERNET_MBPS = 25_000
#: Less of the interface than this makes more sockets worth a measurement (judgment).
SOCKETS_SHARE = 0.5
#: Threads, and sockets of each, that NCCL's user guide names for generic networks of 100 Gbit/s.
SOCKETS = (4, 4)


#: Up to this many nodes every pair is tested.
ALL_PAIRS = 64


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs: every pair meets once, and no rank is in two pairs of a round.

    This is the circle method of round-robin tournaments: n-1 rounds for even n, n for odd. In an odd world one
    rank rests in each round.
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
    """Whether rates of pairs of ranks are judged. Over gloo, processes of one node share cores and differ by chance."""
    return backend == "nccl" or (backend == "gloo" and across and size_bytes >= JUDGED_MESSAGE_BYTES)


def best_of_ends(rates: Mapping[tuple[int, int], float], end_of: Callable[[int], int]) -> list[float]:
    """Each end's best way, a way being all paths between two: one of three ends that is slow makes most ways slow."""
    ways = grouped(((end_of(sender), end_of(receiver)), rate) for (sender, receiver), rate in rates.items())
    by_end = grouped((end, median_high(of_paths)) for way, of_paths in ways.items() for end in way)
    return [max(of_ways) for of_ways in by_end.values()]


def typical_rate(rates: Sequence[float], backend: str) -> float:
    """The median, in GB/s; one stream of gloo is expected to be no faster than what the network decides."""
    typical = median_high(rates) if rates else 0.0
    return typical if backend == "nccl" else min(typical, JUDGED_BYTES_PER_S / 1e9)


def rounds_of_ranks(nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Rounds for ranks on these nodes: all pairs, or of many ranks all within nodes, then one rank of each node."""
    if len(nodes) <= MATRIX_OF_RANKS or len(set(nodes)) == 1:
        return rounds(len(nodes))
    ranks_of = grouped((node, rank) for rank, node in enumerate(nodes))
    within = [rounds_among(ranks) for ranks in ranks_of.values()]
    at_once = [[pair for pairs in of_nodes for pair in pairs] for of_nodes in zip_longest(*within, fillvalue=[])]
    return at_once + rounds_among([ranks[0] for ranks in ranks_of.values()])


def rounds_among(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The same for some ranks, in order."""
    return [[(ranks[low], ranks[high]) for low, high in pairs] for pairs in rounds(len(ranks))]


def disjoint(pairs: Iterable[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Some pairs in at most so many rounds of disjoint ones; what does not fit is left out."""
    made: list[list[tuple[int, int]]] = [[] for _ in range(most)]
    for pair in pairs:
        free = (those for those in made if not any(set(pair) & set(other) for other in those))
        next(free, []).append(pair)
    return [those for those in made if those]


def neighbors(node: int, nnodes: int) -> list[int]:
    """The nodes that ``node`` dials, in order.

    Up to 64 nodes: all others, in the rounds of a tournament, so that at each moment every node has one
    partner. Beyond: those 1, 2, 4, ... places ahead and behind on a ring of all, 2 log2 N of them, so
    that every node is also dialled by as many, and the nodes stay connected when some are bad.
    """
    if nnodes <= ALL_PAIRS:
        pairs = (pair for pairs_of_round in rounds(nnodes) for pair in pairs_of_round if node in pair)
        return [low + high - node for low, high in pairs]
    steps = [1 << power for power in range((nnodes - 1).bit_length())]
    ring = ((node + sign * step) % nnodes for step in steps for sign in (1, -1))
    return [neighbor for neighbor in dict.fromkeys(ring) if neighbor != node]
