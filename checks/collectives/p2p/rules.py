"""DD606, DD607, DD630, DD631: bytes that change on the way, pairs that are slower than others, and what they share."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.knowledge.thresholds import SLOW_PAIR_RATIO
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Reproducer
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.remedies.nccl import DISABLE_P2P, REPAIR_PATH, keep_near_p2p
from ddp_doctor.views.path_blame import Blame, Path, blame
from ddp_doctor.views.reproducers import between, is_across
from ddp_doctor.views.transports import log_of, places, used_within
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, finding, proved
from ddp_doctor.wording.nodes import host, node_culprit, node_pair
from ddp_doctor.wording.ranks import capital, pair_culprit, rank_at, rank_culprit, ranks_at


@rule("DD606", "pair-of-ranks-corrupts-data", Consequence.WRONG, P2pFact)
def pair_of_ranks_corrupts_data(recording: Recording) -> Iterator[Draft]:
    """Bytes change on the way between a pair of ranks.

    Finds: Reports bytes that differ from the pattern that the peer is known to send, pair by pair.
    Why: Gradients sent over this link are silently wrong.
    Remedy: On GPUs, set NCCL_P2P_DISABLE=1 to send the data through the host and prove the cause; it is usually forced
        peer-to-peer on consumer GPUs. Otherwise, look for memory errors.
    See: NVIDIA/nccl-tests#117
    """
    wrong = {
        (pair.peer, rank.rank or 0): pair
        for rank in recording.facts(P2pFact)
        for pair in rank.fact.pairs
        if pair.wrong_bytes
    }
    each = {frozenset(path) for path in wrong}
    common = next(iter(frozenset.intersection(*each)), None) if len(each) > 1 else None
    pairs = [(min(path), max(path)) for path in wrong]
    if common is not None:
        peers = {rank for path in wrong for rank in path} - {common}
        yield proved(
            (rank_culprit(recording, common),),
            f"Data between {rank_at(recording, common)} and {ranks_at(recording, peers)} arrives corrupted",
            (_wrong_bytes(*ends, pair) for ends, pair in list(wrong.items())[:LINES_OF_EVIDENCE]),
            *_without_p2p(recording, wrong),
            detail="Pairs without this rank passed the same test.",
            reproduced_by=between(recording, next(iter(wrong)), pairs),
        )
        return
    for (sender, receiver), pair in list(wrong.items())[:LINES_OF_EVIDENCE]:
        yield proved(
            (pair_culprit(recording, receiver, sender),),
            f"Data from {rank_at(recording, sender)} arrives corrupted on"
            f" {rank_at(recording, receiver)}: {pair.wrong_bytes} of {pair.size_bytes} bytes",
            _wrong_bytes(sender, receiver, pair),
            *_without_p2p(recording, [(sender, receiver)]),
            detail=f"All pairs got the same test, and {len(wrong)} of their directions are wrong.",
            reproduced_by=between(recording, (sender, receiver), pairs),
        )


def _wrong_bytes(sender: int, receiver: int, pair: PairResult) -> Evidence:
    return Evidence(
        text=f"wrong bytes from rank {sender} on rank {receiver}",
        value=pair.wrong_bytes,
        unit="B",
        expected=0,
        expected_from="pattern of the sender's rank",
    )


def _without_p2p(recording: Recording, pairs: Iterable[Path]) -> tuple[Remedy, ...]:
    """Return the test without P2P for GPUs of one node; between nodes there is no P2P."""
    if all(is_across(recording, pair) for pair in pairs):
        return (
            remedy(
                "Check NIC and memory errors on both nodes, then try another NIC",
                "ethtool -S IFACE | grep -i -e err -e crc",
                "nvidia-smi -q -d ECC",
            ),
        )
    if not recording.on_nccl:
        return (_LOOK_AT_MEMORY,)
    return (
        DISABLE_P2P.model_copy(update={"summary": "Disable P2P to see whether direct copies are the cause"}),
        REPAIR_PATH,
        _LOOK_AT_MEMORY,
    )


_LOOK_AT_MEMORY = by_administrator(
    "Check for memory errors of the GPUs and of the host",
    "nvidia-smi -q -d ECC",
    "sudo dmesg | grep -i -e xid -e edac -e mce",
)


#: Findings of connectivity that explain slow data between nodes.
_CAUSES = ("DD532", "DD533", "DD534", "DD536")


_COMPARE_LINKS = remedy(
    "Compare link type, PCIe width and NUMA node with the faster pairs",
    "nvidia-smi topo -m",
    "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv",
)


_REPEAT = remedy("Repeat the test while no other program uses the processors", "uptime")
#: Both RDMA devices and interfaces are files of the kernel, whatever tools a node has.
_COMPARE_NICS = remedy(
    "Compare speed and errors of the NICs on these nodes with other nodes",
    "grep -s . /sys/class/infiniband/*/ports/*/rate /sys/class/net/*/speed",
    "rdma statistic show",
    "ip -s link",
)


@dataclass(frozen=True)
class _Rates:
    """The rates from rank to rank in GB/s, for pairs within nodes or pairs across nodes."""

    across: bool
    of: Mapping[Path, float]
    typical: float  # median of each node's (within a node: rank's) best path to another, because most paths may be slow
    sure: float  # the median of the worst values of pairs that are not slow: the rate of a healthy path under noise
    confirmed: frozenset[Path]  # measured again if necessary to rule out chance, or in an older recording
    least_ratio: float  # higher with two pairs, because each has only the other as a reference
    starved: frozenset[Path]  # a rank at one end had no processor long enough to explain slow rates

    def ratio(self, usual: float) -> float:
        """Return the minimum slowdown of a slow path."""
        return max(usual, self.least_ratio)

    def slower(self, ratio: float) -> set[Path]:
        """Return the slow paths, without slow paths of starved ranks."""
        return self._slow(ratio) - self.starved

    def known(self, ratio: float) -> set[Path]:
        """Return the paths that are slow or fast for certain, without slow paths of starved ranks."""
        return {*self.of} - self.left_out(ratio)

    def left_out(self, ratio: float) -> set[Path]:
        """Return the slow paths of starved ranks."""
        return self._slow(ratio) & self.starved

    def _slow(self, ratio: float) -> set[Path]:
        return {path for path, rate in self.of.items() if rate * self.ratio(ratio) < self.sure}

    @property
    def kind(self) -> str:
        """The kind of pairs as text."""
        return "across nodes" if self.across else "within a node"


@dataclass(frozen=True)
class _Slow:
    """Paths that are slow for one reason: the node or the rank at one end of them all, or the path itself."""

    paths: Sequence[Path]
    does: str
    culprits: tuple[Culprit, ...]
    nodes: tuple[int, ...] = ()  # nodes that an explaining finding must name


@once_a_recording
def _rates(recording: Recording, across: bool) -> _Rates | None:
    """Return the rates, or None if nothing is evaluated: too few pairs, or is_judged() excludes all of them."""
    rates, least = dict[Path, float](), dict[Path, float]()
    confirmed, queued = set(), dict[Path, float]()
    for rank in recording.facts(P2pFact):
        for pair in rank.fact.pairs:
            path = (pair.peer, rank.rank or 0)
            queued[path] = pair.queued_share
            if is_across(recording, path) is across and path_quality.is_judged(
                recording.backend, pair.size_bytes, across=across
            ):
                rates[path] = pair.bandwidth_gb_per_s if pair.received_gb_per_s is None else pair.received_gb_per_s
                least[path] = rates[path] if pair.least_gb_per_s is None else pair.least_gb_per_s
                if pair.measured_again or pair.received_gb_per_s is None:
                    confirmed.add(path)
    few = len({frozenset(path) for path in rates}) < 3
    if not rates or (few and not across):
        return None
    best = path_quality.best_of_ends(rates, partial(_node, recording) if across else int)
    typical = path_quality.typical_rate(best, recording.backend)
    usual = [least[path] for path, rate in rates.items() if rate * path_quality.DOUBTFUL_RATIO >= typical]
    sure = min(typical, path_quality.typical_rate(usual, recording.backend))
    starved = set()
    for (sender, receiver), rate in rates.items():
        share = max(queued[sender, receiver], queued.get((receiver, sender), 0.0))
        if share >= path_quality.STARVED_SHARE and typical / rate < path_quality.STARVED_RATIO:
            starved.add((sender, receiver))
    least_ratio = path_quality.VERY_SLOW_RATIO if few else 0.0
    return _Rates(across, rates, typical, sure, frozenset(confirmed), least_ratio, frozenset(starved))


@rule("DD607", "pair-of-ranks-is-slow", Consequence.SLOWER, P2pFact)
def pair_of_ranks_is_slow(recording: Recording) -> Iterator[Draft]:
    """A pair of GPUs on one node is several times slower than a typical pair within a node.

    Finds: Reports directions between ranks that reach less than a quarter of the median rank's best within nodes. If a
        rank is slow with (nearly) all others, it is named, otherwise the pair. Only with NCCL, which uses hardware
        links; pairs of processes share cores and differ by chance. If more than a quarter of all pairs, or half of few
        pairs, are slow, severity is info, because the machine is built that way. Slow pairs are measured again, and the
        better value counts.
    Why: A ring is as fast as its slowest link.
    Remedy: If the slow pairs copy directly over a longer path than all others, set an NCCL_P2P_LEVEL that excludes
        them. Compare the link types in `nvidia-smi topo -m` and the PCIe width under load.
    See: docs/explanation/measurements.md
    """
    rates = _rates(recording, False)
    if rates is None:
        return
    bad = rates.slower(SLOW_PAIR_RATIO)
    ends, left = _of_ranks(recording, bad, rates.known(SLOW_PAIR_RATIO) - bad)
    for slow in (*ends, *_of_pairs(recording, rates, left)):
        # NVLink is never slower than host memory; a broken NVLink must be repaired.
        pairs = sorted({(min(path), max(path)) for path in slow.paths})
        limit = _limit_below(recording, pairs)
        summary = f"Limit P2P to near GPUs, up to {limit}, so that slow pairs use host memory"
        around = [] if limit is None else [keep_near_p2p(limit).model_copy(update={"summary": summary})]
        reproducer = between(recording, pairs[0], pairs)
        yield _draft(rates, SLOW_PAIR_RATIO, slow, *around, _COMPARE_LINKS, reproduced_by=reproducer)


@rule("DD630", "node-exchanges-slowly-with-all", Consequence.SLOWER, P2pFact, explained_by=_CAUSES)
def node_exchanges_slowly_with_all(recording: Recording) -> Iterator[Draft]:
    """A node, or one of its ranks, receives slowly from all other nodes, or sends slowly to them.

    Finds: Reports directions between ranks across nodes that reach less than a third of the median node's best, if they
        are (nearly) all directions to or from a node. If only one of its ranks is slow, that rank is named. Over gloo,
        at most 5 Gbit/s is expected. Slow directions are measured again, and the better value counts; without that
        measurement, severity is info. With two nodes, there is no comparison, and if half of the nodes are slow in both
        directions, no node is named.
    Why: Every collective is as fast as its slowest member.
    Remedy: Compare the speed and errors of its NIC, the cable and the switch port with the other nodes'.
    See: docs/explanation/measurements.md
    """
    rates = _rates(recording, True)
    if rates is None:
        return
    for slow in _across(recording)[0]:
        evidence = _network_evidence(recording, slow.nodes[:1])
        yield _draft(rates, path_quality.SLOW_NODE_RATIO, slow, _COMPARE_NICS, more=evidence)


@rule("DD631", "path-between-ranks-is-slow", Consequence.SLOWER, P2pFact, explained_by=_CAUSES)
def path_between_ranks_is_slow(recording: Recording) -> Iterator[Draft]:
    """Data between two nodes, or two of their ranks, is slow in one or both directions, while others are faster.

    Finds: Reports directions between ranks across nodes that reach less than a quarter of the median node's best, if
        neither a node nor a rank at their ends explains it. Between two ranks, reports one direction with less than a
        tenth of the other. If more than a quarter of all pairs, or half of few ranks' pairs, are slow, the network is
        built that way: severity is info, and no pair is named. Over gloo, at most 5 Gbit/s is expected. Slow pairs are
        measured again, and the better value counts. A pair that is less than thirty times slower is skipped if one of
        its ranks had no processor for three tenths of the time, and an info finding shows the number of such pairs.
    Why: A ring is as fast as its slowest link.
    Remedy: Find out what the path between the two nodes goes through: a switch, a trunk or a separate route.
    See: docs/explanation/measurements.md
    """
    rates = _rates(recording, True)
    if rates is None:
        return
    for slow in _of_pairs(recording, rates, _across(recording)[1]):
        evidence = _network_evidence(recording, {_node(recording, rank) for path in slow.paths for rank in path})
        yield _draft(rates, path_quality.SLOW_PATH_RATIO, slow, _COMPARE_NICS, more=evidence)
    if left_out := sorted(rates.left_out(path_quality.SLOW_PATH_RATIO)):
        pairs = "1 pair" if len(left_out) == 1 else f"{len(left_out)} pairs"
        starved = _Slow(left_out, f"Cannot judge {pairs} of ranks that had no free processor", NOBODY)
        yield _draft(rates, path_quality.SLOW_PATH_RATIO, starved, _REPEAT)


# --- the cause -----------------------------------------------------------------------------------


@once_a_recording
def _across(recording: Recording) -> tuple[list[_Slow], set[Path]]:
    """Return the nodes and ranks that are slow with all others, and the slow paths that they do not explain."""
    rates = _rates(recording, True)
    if rates is None:
        return [], set()
    known, slow = rates.known(path_quality.SLOW_NODE_RATIO), rates.slower(path_quality.SLOW_NODE_RATIO)
    ways, found = _ways(recording, known), list[_Slow]()
    good, bad = known - slow, _bad(ways, slow)
    if len({node for way in ways for node in way}) > 2:
        blamed = _blame(bad, ways.keys() - bad)
        for node, of_node, does in _ends(blamed, bad):
            paths = [path for way in of_node for path in ways[way] if path in slow]
            name, culprit = host(recording, node), node_culprit(recording, node)
            found.append(_Slow(paths, f"{name} {does}", (culprit,), _explainable(recording, node)))
            slow -= {*paths}
    between = slow.intersection(path for way in bad for path in ways[way])
    ends, left = _of_ranks(recording, slow - between, good)
    return [*found, *ends], (left | between) & rates.slower(path_quality.SLOW_PATH_RATIO)


def _ways(recording: Recording, paths: Iterable[Path]) -> dict[Path, list[Path]]:
    """Return paths between ranks, grouped by the nodes they connect."""
    return grouped(((_node(recording, path[0]), _node(recording, path[1])), path) for path in sorted(paths))


def _bad(ways: Mapping[Path, Collection[Path]], slow: set[Path]) -> set[Path]:
    """Return the node paths where nearly all rank paths are slow: a few of many may be lucky."""
    return {way for way, paths in ways.items() if len(slow & {*paths}) >= path_quality.BLAMED_SHARE * len(paths)}


def _blame(bad: Collection[Path], good: Collection[Path]) -> Blame:
    """Return the causes. If many paths are bad, as between racks, a bad end has only bad paths; half are never bad."""
    few = len(bad) <= path_quality.FEW_PATHS_SHARE * (len(bad) + len(good))
    blamed = blame(bad, good, share=path_quality.BLAMED_SHARE if few else 1.0)
    if 2 * len({*blamed.inbound} & {*blamed.outbound}) >= len({end for path in (*bad, *good) for end in path}):
        return Blame(paths=tuple(bad))
    return blamed


def _of_ranks(recording: Recording, slow: Collection[Path], good: Collection[Path]) -> tuple[list[_Slow], set[Path]]:
    """Return the ranks that are slow with (nearly) all, and the remaining paths."""
    blamed, found = _blame(slow, good), []
    for rank, paths, does in _ends(blamed, slow):
        name, culprit = capital(rank_at(recording, rank)), rank_culprit(recording, rank)
        found.append(_Slow(paths, f"{name} {does}", (culprit,), _explainable(recording, _node(recording, rank))))
    return found, set(blamed.paths)


def _ends(blamed: Blame, bad: Collection[Path]) -> Iterator[tuple[int, list[Path], str]]:
    """Yield each end at fault, its bad paths, and its behavior."""
    for end in blamed.nodes:
        into, out = end in blamed.inbound, end in blamed.outbound
        does = "sends data slowly to" if out else "receives data slowly from"
        does = "exchanges data slowly with" if into and out else does
        paths = sorted(path for path in bad if (into and path[1] == end) or (out and path[0] == end))
        yield end, paths, f"{does} all others"


def _of_pairs(recording: Recording, rates: _Rates, slow: set[Path]) -> Iterator[_Slow]:
    """Yield slow paths by their two nodes if nearly all are slow in one direction, the others by their two ranks."""
    ways = _ways(recording, rates.of)
    whole = slow.intersection(path for way in _bad(ways, slow) for path in ways[way]) if rates.across else set()
    for some, of_nodes in ((whole, True), (slow - whole, False)):
        joins = partial(_node, recording) if of_nodes else int
        by_pair = grouped((tuple(sorted(map(joins, path))), path) for path in sorted(some))
        total = len({frozenset(map(joins, path)) for path in rates.of})
        half = not of_nodes and 2 * len(by_pair) >= total
        if half or len(by_pair) > max(2, path_quality.FEW_PATHS_SHARE * total):
            does = f"{len(by_pair)} of {total} pairs {rates.kind} exchange data slowly"
            yield _Slow(sorted(some), does, NOBODY)
            continue
        for ends, paths in by_pair.items():
            first, other = (host(recording, joins(end)) if of_nodes else rank_at(recording, end) for end in paths[0])
            does = f"Data is slow in one direction, from {first} to {other}"
            if len({(joins(sender), joins(receiver)) for sender, receiver in paths}) == 2:
                does = f"{first if of_nodes else capital(first)} and {other} exchange data slowly"
            culprit = node_pair(recording, *ends) if of_nodes else pair_culprit(recording, *ends)
            yield _Slow(paths, does, (culprit,), _explainable(recording, _node(recording, min(paths[0]))))


def _explainable(recording: Recording, node: int) -> tuple[int, ...]:
    """Return the nodes that findings about TCP must name to explain this node's rates; none with RDMA."""
    return (node, -1) if log_of(recording, node).network == "IB" else (node,)


def _node(recording: Recording, rank: int) -> int:
    return recording.world.node_of(rank) if recording.world else 0


# --- the findings ---------------------------------------------------------------------------------


def _draft(
    rates: _Rates,
    ratio: float,
    slow: _Slow,
    *remedies: Remedy,
    more: Iterable[Evidence] = (),
    reproduced_by: Reproducer | None = None,
) -> Draft:
    worst, ratio = min(rates.of[path] for path in slow.paths), rates.ratio(ratio)
    sure = bool(slow.culprits) and not rates.confirmed.isdisjoint(slow.paths)
    again = "best of two measurements" if sure else "measured once"
    return finding(
        slow.culprits,
        f"{slow.does}: {_amount(worst)}, typical pair {_amount(rates.typical)}",
        (
            *(
                Evidence(
                    text=f"best from rank {sender} to rank {receiver}",
                    value=round(rates.of[sender, receiver], 3),
                    unit="GB/s",
                    expected=round(rates.typical, 3),
                    expected_from=f"typical pair {rates.kind} in this run; slow below 1/{ratio:g} of it",
                )
                for sender, receiver in slow.paths[:LINES_OF_EVIDENCE]
            ),
            *more,
        ),
        *remedies,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        detail=f"The slowest pair is {rates.typical / worst:.0f} times slower than the"
        f" typical pair {rates.kind}. The limit is {ratio:g} times ({again}).",
        severity=of_slowdown(rates.typical / worst) if sure else Severity.INFO,
        reproduced_by=reproduced_by,
        nodes=slow.nodes if rates.across else (),
    )


def _amount(gb_per_s: float) -> str:
    return f"{gb_per_s:.2f} GB/s" if gb_per_s >= 0.1 else f"{gb_per_s * 1e3:.1f} MB/s"


def _limit_below(recording: Recording, slow: Sequence[tuple[int, int]]) -> str | None:
    """Return the NCCL_P2P_LEVEL that disables P2P for the slow pairs and for no other pair, by NCCL's log."""
    taken: dict[tuple[int, int], str] = {}
    for place in places(recording):
        joined = {(first, second): code for first, second, code in place.fact.gpu_pairs()}
        for way in used_within(recording, place):
            if way.kinds() == {"P2P"}:
                taken[way.ranks] = joined[way.gpus]
    if not set(slow) <= set(taken):
        return None
    bad = {taken[pair] for pair in slow}
    good = {code for pair, code in taken.items() if pair not in slow}
    fits = [
        level
        for level in ("NVL", "PIX", "PXB", "PHB")
        if all(link_codes.allowed(code, level) for code in good)
        and not any(link_codes.allowed(code, level) for code in bad)
    ]
    return fits[0] if fits else None


def _network_evidence(recording: Recording, nodes: Collection[int]) -> Iterator[Evidence]:
    """Yield the lines of NCCL's log about the network on these nodes."""
    for node in sorted(nodes)[:LINES_OF_EVIDENCE]:
        log = log_of(recording, node)
        devices = ", ".join(log.used_hcas())
        if log.network:
            text = f"NCCL's log on {host(recording, node)}: {log.network}{f', {devices}' if devices else ''}"
            yield Evidence(text=text)
