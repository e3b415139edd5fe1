"""Who is to blame, from tests of groups of nodes: a pure function of the tests, live, on replay and in simulation.

An innocent is never blamed: a node fails alone, or with several partners that pass without it; a pair fails together
while both ends pass with others; a leaf fails with others while its nodes pass among themselves. What no such pattern
explains is left open, with those between whom it is (docs/explanation/isolation.md).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb, exp, log
from statistics import median
from typing import Literal

from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.knowledge import isolation as bars
from ddp_doctor.knowledge.baselines import SIGMA
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.views.node_traits import node_traits
from ddp_doctor.views.rates import FAILED

Pair = tuple[int, int]
#: With so few tests a round has no median of its own: all may be of nodes under suspicion.
_FEW = 3
#: What happened in the tests that count against somebody.
How = Literal["failed", "hung", "wrong", "slow", "lost"]


@dataclass(frozen=True)
class BadNode:
    """A node to blame."""

    node: int
    pattern: Literal["alone", "with others", "lost"]  # in which tests it is bad
    how: How  # what happened in most of them
    failed: int  # tests of these that are bad, …
    tests: int  # … of so many
    partners: tuple[int, ...] = ()  # nodes with which it is bad, and which pass without it
    share: float | None = None  # its best rate, where it is slow, as a share of the others' median
    reason: str = ""  # what a rank said


@dataclass(frozen=True)
class BadPair:
    """Two nodes that are bad together, and pass with others."""

    nodes: Pair
    how: How
    failed: int
    tests: int
    share: float | None = None  # of the others' median, where it is slow
    reason: str = ""


@dataclass(frozen=True)
class BadLeaf:
    """A leaf switch or rack whose nodes are bad with those of others, and pass among themselves."""

    name: str
    nodes: tuple[int, ...]  # those that were tested so
    others: tuple[str, ...]  # the leaves with whose nodes they are bad
    how: How
    share: float | None = None  # of the others' median, where it is slow


@dataclass(frozen=True)
class Unsettled:
    """Failures that nobody is blamed for: it is one of these nodes, or something between them."""

    nodes: tuple[int, ...]
    how: How
    failed: int
    tests: int
    passing: int = 0  # the most nodes of a test that passed, where only larger groups fail
    alike: int = 0  # other groups of as many nodes that fail as well
    partners: int = 0  # with so many others each of these nodes is bad, and with some it passes: a switch, perhaps
    reason: str = ""


@dataclass(frozen=True)
class Settled:
    """What the tests show."""

    nodes: tuple[BadNode, ...] = ()
    pairs: tuple[BadPair, ...] = ()
    leaves: tuple[BadLeaf, ...] = ()
    smallest: Unsettled | None = None  # the smallest group that fails, where no two of its nodes do
    unsettled: tuple[Unsettled, ...] = ()
    open_pairs: tuple[Pair, ...] = ()  # pairs that are bad, and nobody is blamed for it
    open_groups: tuple[tuple[int, ...], ...] = ()  # the smallest groups of three or more that fail likewise

    @property
    def blamed(self) -> set[int]:
        """The nodes to blame by themselves."""
        return {bad.node for bad in self.nodes}


@dataclass(frozen=True)
class Together:
    """The tests of one pair."""

    tests: int
    failed: int  # without those that are slow
    share: float | None = None  # its best rate as a share of the usual one, where it is slow

    @property
    def bad(self) -> int:
        """How many count against it."""
        return self.tests if self.share is not None else self.failed


@dataclass(frozen=True)
class Tests:
    """The tests from which something follows, by whom they were of."""

    all: Sequence[GroupTest]
    lost: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lost", frozenset(node for test in self.all for node in test.lost_nodes))

    @cached_property
    def groups(self) -> dict[tuple[int, ...], list[GroupTest]]:
        """By the nodes of the group."""
        telling = (test for test in self.all if test.outcome not in ("lost", "unknown"))
        return grouped((tuple(sorted(test.nodes)), test) for test in telling)

    @cached_property
    def pairs(self) -> dict[Pair, Together]:
        """Of two nodes."""
        shares = self._slow
        return {
            (nodes[0], nodes[1]): Together(len(tests), failures(tests), shares.get((nodes[0], nodes[1])))
            for nodes, tests in self.groups.items()
            if len(nodes) == 2
        }

    @cached_property
    def larger(self) -> dict[tuple[int, ...], list[GroupTest]]:
        """Of three or more, the smallest groups first."""
        return {nodes: self.groups[nodes] for nodes in sorted(self.groups, key=len) if len(nodes) > 2}

    @cached_property
    def good(self) -> dict[int, list[int]]:
        """The partners with which a node always passed."""
        return self._partners(is_bad=False)

    @cached_property
    def bad(self) -> dict[int, list[int]]:
        """The partners with which a node did not."""
        return self._partners(is_bad=True)

    def _partners(self, *, is_bad: bool) -> dict[int, list[int]]:
        found = defaultdict[int, list[int]](list)
        for (one, other), together in self.pairs.items():
            if bool(together.bad) is is_bad:
                found[one].append(other)
                found[other].append(one)
        return found

    @cached_property
    def _slow(self) -> dict[Pair, float]:
        """The pairs that are slow at their best, each rate held against those of its round, and their share of the
        median: one far off by chance is none of them once it was tested again."""
        rated = [
            (test.round, (nodes[0], nodes[1]), test.bytes_per_s)
            for nodes, tests in self.groups.items()
            for test in tests
            if len(nodes) == 2 and test.outcome == "passed" and test.bytes_per_s
        ]
        if not rated:
            return {}
        usual = median(rate for _, _, rate in rated)
        of_round = {
            number: median(rates) if len(rates) > _FEW else usual
            for number, rates in grouped((number, rate) for number, _, rate in rated).items()
        }
        of_pair, of_node = defaultdict[Pair, float](float), defaultdict[int, float](float)
        shares = [(pair, rate / of_round[number]) for number, pair, rate in rated]
        for pair, share in shares:
            of_pair[pair] = max(of_pair[pair], share)
            for node in pair:
                of_node[node] = max(of_node[node], share)
        middle = median(of_node.values())  # of few nodes half of all pairs may have the slow one, but half of the nodes
        usual_ones = [share for _, share in shares if 2 * share > middle]
        mid = median(usual_ones)
        spread = SIGMA * median(abs(log(share / mid)) for share in usual_ones)  # of factors: no rate is below zero
        limit = middle * min(1 - bars.SLOW_SHARE, exp(-bars.SLOW_DEVIATIONS * spread))
        return {pair: share / middle for pair, share in of_pair.items() if share < limit}


def failures(tests: Iterable[GroupTest]) -> int:
    """How many of these failed, hung or were wrong."""
    return sum(test.outcome in FAILED for test in tests)


def settle(tests: Sequence[GroupTest], nodes: Iterable[int], leaf_of: Mapping[int, str]) -> Settled:
    """Who is to blame among ``nodes``, whose leaf ``leaf_of`` tells where it is known; pure, linear in the tests."""
    known, count = Tests(tests), len(set(nodes))
    lost, alone = list(_lost(known)), list(_alone(known))
    aside = {bad.node for bad in (*lost, *alone)}
    leaves = _leaves(known, leaf_of, aside)
    together = list(_with_others(known, count, leaf_of, {leaf.name for leaf in leaves}, aside))
    blamed = aside | {bad.node for bad in together}
    is_explained = _Explained(blamed, {leaf.name for leaf in leaves}, leaf_of)
    left = {pair: each for pair, each in known.pairs.items() if each.bad and not is_explained(pair)}
    pairs = list(_pairs(known, left))
    named = {pair.nodes for pair in pairs}
    groups = _smallest(known, is_explained, {*left})
    open_pairs = [pair for pair in left if pair not in named]
    smallest, unsettled = _left_over(known, groups, open_pairs, blamed)
    return Settled(
        nodes=tuple(sorted((*lost, *alone, *together), key=lambda bad: bad.node)),
        pairs=tuple(pairs),
        leaves=tuple(leaves),
        smallest=smallest,
        unsettled=tuple(unsettled),
        open_pairs=tuple(open_pairs),
        open_groups=tuple(groups),
    )


@once_a_recording
def isolated(recording: Recording) -> Settled:
    """What the tests of groups of nodes in a recording show."""
    fact = recording.first(IsolationFact)
    if fact is None or recording.world is None:
        return Settled()
    return settle(fact.tests, range(recording.nnodes), leaves_of(recording))


@once_a_recording
def leaves_of(recording: Recording) -> dict[int, str]:
    """The leaf of each node that the topology names as who started it does, or as it calls itself."""
    if recording.world is None:
        return {}
    own = [recording.world.hostname(node) for node in range(recording.nnodes)]
    of_node = recording.options.leaves_of([*own, *recording.world.expected_hosts[: recording.nnodes]])
    return {index % recording.nnodes: leaf for index, leaf in enumerate(of_node) if leaf}


@dataclass(frozen=True)
class _Explained:
    """Whether that a group is bad follows from those who are blamed."""

    nodes: set[int]
    leaves: set[str]
    leaf_of: Mapping[int, str]

    def __call__(self, group: Sequence[int]) -> bool:
        if not self.nodes.isdisjoint(group):
            return True
        if not self.leaves:
            return False
        touched = {self.leaf_of.get(node) for node in group}
        return len(touched) > 1 and not self.leaves.isdisjoint(touched)


def _how(tests: Iterable[GroupTest]) -> tuple[How, str]:
    """What most of these did, and what a rank said of it."""
    bad = [test for test in tests if test.outcome in FAILED]
    most = Counter(test.outcome for test in bad).most_common(1)
    names: dict[str, How] = {"failed": "failed", "hung": "hung", "wrong": "wrong"}
    return (names[most[0][0]] if most else "slow"), next((test.reason for test in bad if test.reason), "")


def _lost(known: Tests) -> Iterator[BadNode]:
    for test in known.all:
        for node in test.lost_nodes:
            others = tuple(other for other in test.nodes if other != node)
            yield BadNode(node, "lost", "lost", 1, 1, others, reason=test.reason)


def _alone(known: Tests) -> Iterator[BadNode]:
    """Nodes that fail alone: at least twice, so that one bad moment is no verdict."""
    for nodes, tests in known.groups.items():
        failed = failures(tests)
        if len(nodes) == 1 and failed > 1 and nodes[0] not in known.lost:
            how, reason = _how(tests)
            yield BadNode(nodes[0], "alone", how, failed, len(tests), reason=reason)


def _leaves(known: Tests, leaf_of: Mapping[int, str], aside: set[int]) -> list[BadLeaf]:
    """Leaves of which several nodes are bad with nodes of several others, and no test across passes, while their nodes
    pass among themselves, and those others across without them."""
    within = defaultdict[str, set[int]](set)
    passes = defaultdict[str, set[str]](set)
    bad = defaultdict[str, list[tuple[int, str, Pair]]](list)
    for (one, other), together in known.pairs.items() if leaf_of else ():
        ends = ((one, leaf_of.get(one), leaf_of.get(other)), (other, leaf_of.get(other), leaf_of.get(one)))
        for node, own, there in ends:
            if own is None or there is None or not aside.isdisjoint((one, other)):
                continue
            if together.bad and own != there and known.good.get(one) and known.good.get(other):
                bad[own].append((node, there, (one, other)))
            elif not together.bad and own == there:
                within[own].add(node)
            elif not together.bad:
                passes[own].add(there)
    found = []
    for leaf, across in bad.items():
        nodes, others = {node for node, _, _ in across}, {there for _, there, _ in across}
        passing = [there for there in others if passes.get(there)]
        if len(nodes & within[leaf]) > 1 and len(passing) > 1 and not passes.get(leaf):
            how, _ = _how(test for _, _, pair in across for test in known.groups[pair])
            shares = [share for _, _, pair in across if (share := known.pairs[pair].share) is not None]
            middle = median(shares) if how == "slow" else None
            found.append(BadLeaf(leaf, tuple(sorted(nodes)), tuple(sorted(others)), how, middle))
    return found


def _with_others(
    known: Tests, count: int, leaf_of: Mapping[int, str], leaves: set[str], aside: set[int]
) -> Iterator[BadNode]:
    """Nodes that are bad with several partners, each of whom passes without it, more often than chance makes them."""
    need = bars.PARTNERS if count >= bars.FEW_NODES else bars.PARTNERS - 1
    suspects = {}
    for node, bad in known.bad.items():
        partners = [
            partner
            for partner in bad
            if known.good.get(partner)
            and partner not in aside
            and (leaf_of.get(partner) not in leaves or leaf_of.get(partner) == leaf_of.get(node))
        ]
        if node not in aside and len(partners) >= need and _has_one_rate(known, node):
            suspects[node] = tuple(partners)
    others = [together for pair, together in known.pairs.items() if suspects.keys().isdisjoint(pair)]
    slow = sum(together.share is not None for together in others) / max(len(others), 1)
    fails = sum(together.failed > 0 for together in others) / max(len(others), 1)
    for node, who in suspects.items():
        found = _bad_node(known, node, who)
        by_chance = slow if found.how == "slow" else fails
        if count * comb(len(who) + len(known.good.get(node, ())), len(who)) * by_chance ** len(who) <= bars.CHANCE:
            yield found


def _bad_node(known: Tests, node: int, partners: tuple[int, ...]) -> BadNode:
    pairs = [(min(node, each), max(node, each)) for each in (*partners, *known.good.get(node, ()))]
    how, reason = _how(test for pair in pairs for test in known.groups[pair])
    shares = [share for pair in pairs if (share := known.pairs[pair].share) is not None]
    failed, tests = sum(known.pairs[pair].bad for pair in pairs), sum(known.pairs[pair].tests for pair in pairs)
    share = max(shares) if how == "slow" and shares else None
    return BadNode(node, "with others", how, failed, tests, partners, share, reason)


def _has_one_rate(known: Tests, node: int) -> bool:
    """Whether it may be as bad with one partner as with any other: it passes with none, or now and then with several.

    A node behind a bad switch always passes with some and never with the others.
    """
    if not known.good.get(node):
        return True
    of_each = [known.pairs[min(node, each), max(node, each)] for each in (*known.bad[node], *known.good[node])]
    if sum(0 < each.bad < each.tests for each in of_each) < 2:
        return False
    whole = _log_likelihood(sum(each.bad for each in of_each), sum(each.tests for each in of_each))
    return whole - sum(_log_likelihood(each.bad, each.tests) for each in of_each) >= log(bars.ONE_RATE_RATIO)


def _log_likelihood(bad: int, tests: int) -> float:
    """Of so many bad tests, at the rate at which they are most likely."""
    return sum(part * log(part / tests) for part in (bad, tests - bad) if part)


def _pairs(known: Tests, left: Mapping[Pair, Together]) -> Iterator[BadPair]:
    """Pairs that fail together again and again, while both ends pass with others too often for it to be one of them."""
    often = Counter(node for pair in left for node in pair)
    for pair, together in left.items():
        if together.bad < bars.PAIR_FAILURES or any(often[node] > 1 for node in pair):
            continue
        if all(not is_end(known, node, pair) for node in pair):
            how, reason = _how(known.groups[pair])
            yield BadPair(pair, how, together.bad, together.tests, together.share, reason)


def is_end(known: Tests, node: int, pair: Pair) -> bool:
    """Whether that the pair is bad may be this node alone, which is so now and then with anybody."""
    together = known.pairs[pair]
    passed = sum(known.pairs[min(node, each), max(node, each)].tests for each in known.good.get(node, ()))
    one = _log_likelihood(together.bad, together.tests + passed)
    return exp(one - _log_likelihood(together.bad, together.tests)) > bars.PAIR_RATIO


def _smallest(known: Tests, is_explained: _Explained, bad_pairs: set[Pair]) -> list[tuple[int, ...]]:
    """The groups of three or more that fail, without blamed nodes, bad pairs and smaller groups of these in them."""
    inside = grouped((min(pair), pair) for pair in bad_pairs)
    found, by_first = list[tuple[int, ...]](), defaultdict[int, list[set[int]]](list)
    for group, tests in known.larger.items():
        if not failures(tests) or is_explained(group):
            continue
        members = set(group)
        smaller = any(each <= members for node in group for each in by_first.get(node, ()))
        if not smaller and not any(members.issuperset(pair) for node in group for pair in inside.get(node, ())):
            found.append(group)
            by_first[group[0]].append(members)
    return found


def _left_over(
    known: Tests, groups: Sequence[tuple[int, ...]], pairs: Sequence[Pair], blamed: set[int]
) -> tuple[Unsettled | None, list[Unsettled]]:
    """The smallest group that fails where no two of its nodes do, and what else nobody is blamed for."""

    def entry(nodes: tuple[int, ...], passing: int = 0, alike: int = 0) -> Unsettled:
        tests = known.groups[nodes]
        how, reason = _how(tests)
        return Unsettled(nodes, how, failures(tests), len(tests), passing, alike, reason=reason)

    sure = [group for group in groups if 1 < failures(known.groups[group]) == len(known.groups[group])]
    smallest = None
    if sure:
        fit = [len(group) for group, tests in known.larger.items() if not failures(tests) and len(group) < len(sure[0])]
        alike = sum(len(group) == len(sure[0]) for group in groups) - 1
        smallest = entry(sure[0], max(fit, default=2), alike)
        groups = [group for group in groups if len(group) < len(sure[0])]
    often = Counter(node for pair in pairs if known.pairs[pair].failed for node in pair)
    behind = {node: count for node, count in often.items() if count > 1 and known.good.get(node)}
    failing = (pair for pair in pairs if known.pairs[pair].failed and behind.keys().isdisjoint(pair))
    once = (
        nodes for nodes, tests in known.groups.items() if len(nodes) == 1 and failures(tests) and nodes[0] not in blamed
    )
    blocks = []
    if behind:
        some = [test for pair in pairs if not behind.keys().isdisjoint(pair) for test in known.groups[pair]]
        how, reason = _how(some)
        nodes = tuple(sorted(behind))
        blocks = [Unsettled(nodes, how, failures(some), len(some), 0, 0, min(behind.values()), reason)]
    return smallest, [*blocks, *(entry(nodes) for nodes in (*once, *failing, *groups))]


def in_common(recording: Recording, nodes: Sequence[int]) -> list[str]:
    """What all of these nodes have and none of the others: ``leaf rack7``, ``driver 535.129.03``."""
    leaves, traits, inside = leaves_of(recording), node_traits(recording), set(nodes)
    of_node = {node: traits.get(node, {}) | ({"leaf": leaves[node]} if node in leaves else {}) for node in inside}
    first = of_node[nodes[0]]
    same = {name: value for name, value in first.items() if all(of_node[node].get(name) == value for node in inside)}
    others = [node for node in range(recording.nnodes) if node not in inside]
    return [
        f"{name} {value}"
        for name, value in sorted(same.items())
        if others
        and not any(
            (leaves.get(node) if name == "leaf" else traits.get(node, {}).get(name)) == value for node in others
        )
    ]
