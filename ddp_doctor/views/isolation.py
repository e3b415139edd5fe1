"""Find bad nodes from tests of groups of nodes: a pure function of the tests, live, on replay and in simulation.

Healthy nodes are never blamed. A node is bad if it fails by itself, or with several partners that pass without it. A
pair is bad if it fails together while both ends pass with others. A leaf is bad if it fails with others while its nodes
pass among themselves. Everything else is left open, with the nodes it may be (docs/explanation/isolation.md).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb, exp, log, sqrt
from statistics import mean, median
from typing import Literal, NamedTuple

from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.knowledge import isolation as bars
from ddp_doctor.knowledge.baselines import SIGMA
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.views.node_traits import node_traits
from ddp_doctor.views.rates import FAILED, telling

Group = tuple[int, ...]
#: The outcome of the tests that count against a node.
How = Literal["failed", "hung", "wrong", "slow", "lost"]
#: A round with this few tests has no median: half of its tests may include suspected nodes.
_FEW = 7
#: With more degrees of freedom Student's t hardly changes.
_MOST_FREEDOM = 200


@dataclass(frozen=True)
class Fault:
    """Bad nodes, with the outcome of their tests and how often they failed."""

    nodes: Group
    how: How  # the outcome of most of these tests
    failed: int  # bad tests of these nodes
    tests: int  # all tests of these nodes
    reason: str = ""  # a rank's message
    share: float | None = None  # a slow rate as a share of the usual rate: the median of its pairs
    partners: Group = ()  # of a node: its bad partners, which pass without it
    leaf: str = ""  # of a leaf: its name
    others: tuple[str, ...] = ()  # of a leaf: the leaves whose nodes its own nodes are bad with
    passing: int = 0  # of a group that fails though its pairs pass: the most nodes of a test that passed
    alike: int = 0  # of such a group: number of other failing groups of its size
    met: int = 0  # of nodes without a known cause: number of bad partners of each node, which passes with others


@dataclass(frozen=True)
class Settled:
    """The result of the tests."""

    alone: tuple[Fault, ...] = ()  # nodes that fail by themselves
    lost: tuple[Fault, ...] = ()  # nodes that stopped responding in a test
    nodes: tuple[Fault, ...] = ()  # nodes that are bad with others
    pairs: tuple[Fault, ...] = ()  # pairs that are bad together and pass with others
    leaves: tuple[Fault, ...] = ()  # leaf switches or racks that are bad with others and pass among themselves
    smallest: Fault | None = None  # the smallest failing group without a failing pair
    unsettled: tuple[Fault, ...] = ()  # without a known cause: one of these nodes, or something between them
    open_pairs: tuple[Group, ...] = ()  # bad pairs without a known cause
    open_groups: tuple[Group, ...] = ()  # the smallest such groups of three or more nodes

    @property
    def blamed(self) -> set[int]:
        """The nodes that are bad themselves."""
        return {fault.nodes[0] for fault in (*self.alone, *self.lost, *self.nodes)}


class Count(NamedTuple):
    """The number of bad tests, and of all tests."""

    bad: int
    tests: int


class Tests:
    """Tests by their nodes; only ``all`` includes inconclusive tests."""

    def __init__(self, tests: Sequence[GroupTest], *, is_timed: bool = True) -> None:
        self.all = tests
        self.is_timed = is_timed  # True if slow pairs count as bad
        self.met = {node for test in tests for node in test.nodes}
        self.lost = {node for test in tests for node in test.lost_nodes}
        self.groups = grouped((tuple(sorted(test.nodes)), test) for test in telling(tests))

    @cached_property
    def pairs(self) -> dict[Group, Count]:
        """The counts of pairs."""
        return {group: self.count(group) for group in self.groups if len(group) == 2}

    @cached_property
    def larger(self) -> dict[Group, Count]:
        """The counts of groups of three or more nodes, the smallest groups first."""
        return {group: self.count(group) for group in sorted(self.groups, key=len) if len(group) > 2}

    @cached_property
    def good(self) -> dict[int, list[int]]:
        """The partners that a node always passed with."""
        return self._partners(lambda count: not count.bad)

    @cached_property
    def bad(self) -> dict[int, list[int]]:
        """The partners that a node failed with."""
        return self._partners(lambda count: count.bad > 0)

    def _partners(self, is_wanted: Callable[[Count], bool]) -> dict[int, list[int]]:
        pairs = [pair for pair, count in self.pairs.items() if is_wanted(count)]
        return grouped(ends for one, other in pairs for ends in ((one, other), (other, one)))

    @cached_property
    def shares(self) -> dict[Group, list[float]]:
        """The rates of each pair, first to last, compared with the rates of their rounds."""
        rated = [
            (group, test.round, test.bytes_per_s)
            for group, tests in self.groups.items()
            for test in tests
            if self.is_timed and len(group) == 2 and test.bytes_per_s
        ]
        usual = _upper(rate for _, _, rate in rated) if rated else 0.0
        of_round = {
            number: _upper(rates) if len(rates) > _FEW else usual
            for number, rates in grouped((number, rate) for _, number, rate in rated).items()
        }
        return grouped((group, rate / of_round[number]) for group, number, rate in rated)

    @cached_property
    def slow(self) -> dict[Group, float]:
        """The pairs that are slow even at their best, with their share of the median.

        A pair that was slow by chance is no longer included after a repeated test.
        """
        best = {group: max(some) for group, some in self.shares.items()}
        of_node = grouped((node, share) for group, share in best.items() for node in group)
        # With few nodes, half of all pairs may include the slow node, but half of the nodes are not slow.
        middle = median(map(max, of_node.values())) if best else 0.0
        healthy = [share for some in self.shares.values() for share in some if 2 * share > middle]
        usual = median(healthy) if healthy else 0.0
        # The spread is of factors: no rate is below zero.
        spread = SIGMA * median(abs(log(share / usual)) for share in healthy) if healthy else 0.0
        limit = usual * min(1 - bars.SLOW_SHARE, exp(-bars.SLOW_DEVIATIONS * spread))
        return {group: share / usual for group, share in best.items() if share < limit}

    def count(self, group: Group) -> Count:
        """Return how many tests of a group are bad; for a slow pair, all."""
        tests = self.groups[group]
        is_slow = len(group) == 2 and group in self.slow
        return Count(len(tests) if is_slow else sum(test.outcome in FAILED for test in tests), len(tests))

    def with_each(self, node: int, partners: Iterable[int]) -> list[Group]:
        """Return the pairs of a node with these partners."""
        return [(min(node, each), max(node, each)) for each in partners]

    def passed(self, node: int) -> int:
        """Return how many tests of a node passed with the partners that it always passes with."""
        return sum(self.pairs[pair].tests for pair in self.with_each(node, self.good.get(node, ())))

    def fault(self, nodes: Group, groups: Sequence[Group]) -> Fault:
        """Return the fault of some nodes, from the tests of these groups."""
        bad = [test for group in groups for test in self.groups[group] if test.outcome in FAILED]
        names: dict[str, How] = {"failed": "failed", "hung": "hung", "wrong": "wrong"}
        most = Counter(test.outcome for test in bad).most_common(1)
        slow = [self.slow[group] for group in groups if group in self.slow]
        counts = [self.count(group) for group in groups]
        return Fault(
            nodes,
            names[most[0][0]] if most else "slow",
            sum(count.bad for count in counts),
            sum(count.tests for count in counts),
            next((test.reason for test in bad if test.reason), ""),
            None if bad or not slow else median(slow),
        )


def settle(tests: Sequence[GroupTest] | Tests, nodes: Iterable[int], leaf_of: Mapping[int, str]) -> Settled:
    """Return the bad nodes among ``nodes``; ``leaf_of`` has the known leaves. Pure, linear in the tests."""
    known, count = tests if isinstance(tests, Tests) else Tests(tests), len(set(nodes))
    lost = tuple(
        Fault((node,), "lost", 1, 1, test.reason, partners=tuple(other for other in test.nodes if other != node))
        for test in known.all
        for node in test.lost_nodes
    )
    alone = tuple(  # at least twice: a single failure proves nothing
        known.fault(group, [group])
        for group in known.groups
        if len(group) == 1 and known.count(group).bad > 1 and group[0] not in known.lost
    )
    aside = {fault.nodes[0] for fault in (*lost, *alone)}
    views = (known, Tests(known.all, is_timed=False))  # slow hosts may be noise
    leaves = tuple({leaf.leaf: leaf for each in views for leaf in _leaves(each, leaf_of, aside)}.values())
    names = {fault.leaf for fault in leaves}
    together = tuple(_with_others(known, count, lambda one, other: _crosses(leaf_of, names, (one, other)), aside))
    blamed = aside | {fault.nodes[0] for fault in together}
    left = [
        group
        for group in (*known.pairs, *known.larger)
        if known.count(group).bad and blamed.isdisjoint(group) and not _crosses(leaf_of, names, group)
    ]
    open_pairs = [group for group in left if len(group) == 2]
    named = set[Group]()
    for each in views:
        bad = [pair for pair in open_pairs if each.pairs[pair].bad]
        often = Counter(node for pair in bad for node in pair)
        named |= {pair for pair in bad if _is_bad_pair(each, pair, often)}
    pairs = tuple(known.fault(pair, [pair]) for pair in open_pairs if pair in named)
    groups, left_pairs = tuple(_smallest(left)), tuple(pair for pair in open_pairs if pair not in named)
    smallest = _smallest_fault(known, groups)
    unsettled = tuple(_unsettled(known, left_pairs, groups, smallest, blamed))
    return Settled(alone, lost, together, pairs, leaves, smallest, unsettled, left_pairs, groups)


@once_a_recording
def isolated(recording: Recording) -> Settled:
    """Return the result of the tests of groups of nodes in a recording."""
    fact = recording.first(IsolationFact)
    return settle(fact.tests, range(recording.nnodes), leaves_of(recording)) if fact is not None else Settled()


@once_a_recording
def leaves_of(recording: Recording) -> dict[int, str]:
    """Return the leaf of each node that the topology lists, by the name it was started with or its own name."""
    if recording.world is None:
        return {}
    own = [recording.world.hostname(node) for node in range(recording.nnodes)]
    of_node = recording.options.leaves_of([*own, *recording.world.expected_hosts[: recording.nnodes]])
    return {index % recording.nnodes: leaf for index, leaf in enumerate(of_node) if leaf}


def in_common(recording: Recording, nodes: Sequence[int]) -> list[str]:
    """Return what all of these nodes have and no other node has: ``leaf rack7``, ``driver 535.129.03``."""
    leaves, traits = leaves_of(recording), node_traits(recording)
    of_node = [traits.get(node, {}) | {"leaf": leaves.get(node, "")} for node in range(recording.nnodes)]
    inside, outside = [of_node[node] for node in nodes], [of_node[node] for node in set(range(len(of_node))) - {*nodes}]
    same = [item for item in inside[0].items() if item[1] and all(each.get(item[0]) == item[1] for each in inside)]
    return [f"{name} {value}" for name, value in same if outside and all(each.get(name) != value for each in outside)]


def _upper(rates: Iterable[float]) -> float:
    """Return the upper quartile, because more than half of the tests of a round may include slow nodes."""
    in_order = sorted(rates)
    return in_order[3 * len(in_order) // 4]


def _crosses(leaf_of: Mapping[int, str], leaves: set[str], group: Group) -> bool:
    """Return True if a group has nodes of one of these leaves and of another leaf."""
    touched = {leaf_of.get(node) for node in group} if leaves else set()
    return len(touched) > 1 and not leaves.isdisjoint(touched)


def _leaves(known: Tests, leaf_of: Mapping[int, str], aside: set[int]) -> Iterator[Fault]:
    """Yield leaves whose nodes are bad with nodes of several other leaves.

    Several of their nodes must be bad, no test across them passes, their nodes pass among themselves, and the other
    nodes pass across leaves without them.
    """
    within, passes = defaultdict[str, set[int]](set), set[str]()
    bad = defaultdict[str, list[tuple[int, str, Group]]](list)
    for pair, count in known.pairs.items() if leaf_of else ():
        for node, other in (pair, pair[::-1]):
            own, there = leaf_of.get(node), leaf_of.get(other)
            if own is None or there is None or not aside.isdisjoint(pair):
                continue
            if count.bad and own != there and known.good.get(node) and known.good.get(other):
                bad[own].append((node, there, pair))
            elif not count.bad and own == there:
                within[own].add(node)
            elif not count.bad:
                passes.add(own)
    for leaf, across in bad.items():
        nodes, others = {node for node, _, _ in across}, {there for _, there, _ in across}
        if leaf not in passes and len(nodes & within[leaf]) > 1 and len(others & passes) > 1:
            fault = known.fault(tuple(sorted(nodes)), [pair for _, _, pair in across])
            yield replace(fault, leaf=leaf, others=tuple(sorted(others)))


def _with_others(known: Tests, count: int, is_told: Callable[[int, int], bool], aside: set[int]) -> Iterator[Fault]:
    """Yield nodes that are bad with several partners, each of which passes without it, beyond chance.

    ``is_told`` returns True if a bad leaf is between two nodes.
    """
    need = bars.PARTNERS if count >= bars.FEW_NODES else bars.PARTNERS - 1
    suspects = dict[int, tuple[bool, Group]]()
    for node, bad in known.bad.items():
        fit = [each for each in bad if known.good.get(each) and each not in aside and not is_told(node, each)]
        is_slow = [pair in known.slow for pair in known.with_each(node, fit)]
        for slowly, some in grouped(zip(is_slow, fit, strict=True)).items():
            least = need + (slowly and count >= 2 * bars.FEW_NODES)  # some are slow three times by chance
            if node not in aside and len(some) >= least and _has_one_rate(known, node):
                suspects[node] = slowly, tuple(some)
    aside_of_chance = suspects.keys() | {n for n, bad in known.bad.items() if len(bad) > 1 and not known.good.get(n)}
    others = [pair for pair in known.pairs if aside_of_chance.isdisjoint(pair)]
    fails = sum(known.pairs[pair].bad > 0 and pair not in known.slow for pair in others) / max(len(others), 1)
    usual = _logs(share for pair in others for share in known.shares.get(pair, ()))
    ways = comb(count, min(2, sum(slowly for slowly, _ in suspects.values())))
    for node, (slowly, who) in suspects.items():
        pairs = known.with_each(node, (*who, *known.good.get(node, ())))
        by_chance = count * comb(len(pairs), len(who)) * fails ** len(who)
        if slowly:
            own = _logs(share for pair in pairs for share in known.shares.get(pair, ()))
            by_chance = ways * _slower_by_chance(own, usual)
        if by_chance <= bars.CHANCE:
            yield replace(known.fault((node,), pairs), partners=who)


def _has_one_rate(known: Tests, node: int) -> bool:
    """Return True if a node may be equally bad with each partner: it passes with none, or sometimes with several.

    A node behind a bad switch always passes with some and never with the others.
    """
    if not known.good.get(node):
        return True
    of_each = [known.pairs[pair] for pair in known.with_each(node, (*known.bad[node], *known.good[node]))]
    if sum(0 < each.bad < each.tests for each in of_each) < 2:
        return False
    bad, tests = (sum(numbers) for numbers in zip(*of_each, strict=True))
    return _same_rate(bad, tests - known.passed(node), known.passed(node)) >= bars.ONE_RATE_RATIO


class _Logs(NamedTuple):
    """Logarithms of rates: how many, their mean, and the sum of their squared distances from it."""

    rates: int
    mean: float
    squares: float


def _logs(rates: Iterable[float]) -> _Logs:
    """Return the logarithms of rates; the mean of none is 0."""
    logs = [log(rate) for rate in rates]
    middle = mean(logs) if logs else 0.0
    return _Logs(len(logs), middle, sum((value - middle) ** 2 for value in logs))


def _slower_by_chance(some: _Logs, usual: _Logs) -> float:
    """Return the probability of rates so far below the usual ones by chance: Student's t of their logarithms.

    For few rates, the variance is moderated by the variance of healthy clusters (knowledge/isolation.py).
    """
    if not usual.rates:
        return 1.0
    freedom = some.rates + usual.rates - 2 + bars.USUAL_FREEDOM
    variance = (some.squares + usual.squares + bars.USUAL_FREEDOM * bars.USUAL_SPREAD**2) / freedom
    apart = (usual.mean - some.mean) / sqrt(variance * (1 / some.rates + 1 / usual.rates))
    freedom = min(freedom, _MOST_FREEDOM)
    # The integral of the distribution for an even number of degrees of freedom, rounded down.
    sine = apart / sqrt(freedom + apart**2)
    term = total = 1.0
    for number in range(1, freedom // 2):
        term *= (2 * number - 1) / (2 * number) * (1 - sine**2)
        total += term
    return (1 - sine * total) / 2


def _log_likelihood(bad: int, tests: int) -> float:
    """Return the log likelihood of this many bad tests, at the rate that makes it highest."""
    return sum(part * log(part / tests) for part in (bad, tests - bad) if part)


def _is_bad_pair(known: Tests, pair: Group, often: Counter[int]) -> bool:
    """Return True if two nodes are repeatedly bad together and neither is bad with another node."""
    if known.pairs[pair].bad < bars.PAIR_FAILURES or any(often[node] > 1 or is_end(known, node, pair) for node in pair):
        return False
    if pair not in known.slow:
        return True
    others = (share for other, shares in known.shares.items() if other != pair for share in shares)
    by_chance = _slower_by_chance(_logs(known.shares[pair]), _logs(others))
    return known.slow[pair] < bars.SLOW_PAIR and len(known.pairs) * by_chance <= bars.CHANCE


def is_end(known: Tests, node: int, pair: Group) -> bool:
    """Return True if this node may be the only cause of the bad pair, by sometimes failing with any partner."""
    least = min(bars.PARTNERS, len(known.met) - 2)
    return len(known.good.get(node, ())) < least or _same_rate(*known.pairs[pair], known.passed(node)) > bars.PAIR_RATIO


def _same_rate(bad: int, tests: int, passed: int) -> float:
    """Return the likelihood ratio of one failure rate for all tests, compared with a separate rate for ``tests``."""
    return exp(_log_likelihood(bad, tests + passed) - _log_likelihood(bad, tests))


def _smallest(failing: Iterable[Group]) -> list[Group]:
    """Return the groups of three or more that do not contain a smaller one of these, the smallest first."""
    found, by_first = list[Group](), defaultdict[int, list[set[int]]](list)
    for group in failing:
        members = set(group)
        if not any(each <= members for node in group for each in by_first.get(node, ())):
            by_first[group[0]].append(members)
            found += [group] if len(group) > 2 else []
    return found


def _smallest_fault(known: Tests, groups: Sequence[Group]) -> Fault | None:
    """Return the smallest group that fails repeatedly although no two of its nodes do."""
    sure = [group for group in groups if 1 < known.larger[group].bad == known.larger[group].tests]
    if not sure:
        return None
    size = len(sure[0])
    passing = max(
        (len(group) for group, count in known.larger.items() if not count.bad and len(group) < size), default=2
    )
    alike = sum(len(group) == size for group in groups) - 1
    return replace(known.fault(sure[0], sure[:1]), passing=passing, alike=alike)


def _unsettled(
    known: Tests, pairs: Iterable[Group], groups: Iterable[Group], smallest: Fault | None, blamed: set[int]
) -> Iterator[Fault]:
    """Yield failures without a known cause: first nodes that fail with some and pass with others, then the rest."""
    pairs = [pair for pair in pairs if pair not in known.slow]
    often = Counter(node for pair in pairs for node in pair)
    behind = {node: met for node, met in often.items() if met > 1 and known.good.get(node)}
    if behind:
        some = [pair for pair in pairs if not behind.keys().isdisjoint(pair)]
        yield replace(known.fault(tuple(sorted(behind)), some), met=min(behind.values()))
    for group in known.groups:
        if len(group) == 1 and known.count(group).bad and group[0] not in blamed:
            yield known.fault(group, [group])
    for group in (*pairs, *groups):
        if behind.keys().isdisjoint(group) and (smallest is None or len(group) < len(smallest.nodes)):
            yield known.fault(group, [group])
