"""Choose the groups of nodes to test next until the bad nodes are known: a pure function of the earlier tests.

Every node by itself comes first, then all nodes together. Then pairs are tested: neighbors, pairs across leaves, failed
with passed nodes, and the fastest with the slowest nodes. Suspected nodes get more partners. If pairs pass but the full
group fails, halves are tested, then halves of one half with halves of the other, and last the failing group size. All
groups of a round run in parallel, so a hundred bad nodes take as many rounds as one.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import log2

from ddp_doctor.facts.collectives import GroupTest
from ddp_doctor.knowledge import isolation as bars
from ddp_doctor.model.base import grouped
from ddp_doctor.views.isolation import Group, Tests, is_end, settle
from ddp_doctor.views.rates import FAILED

#: Number of free candidates to search for a partner; enough even with thousands of nodes.
_WINDOW = 16
#: Consecutive failures after which a repeated group counts as always failing.
_ALWAYS = 3
#: Maximum number of slow pairs to repeat without other pairs at the same time.
_FEW_SLOW = 3
#: Retries of an inconclusive test: its machine may have been busy.
_TRIED_AGAIN = 2


def next_round(
    tests: Sequence[GroupTest], nodes: Sequence[int], leaf_of: Mapping[int, str], repeat: int = 1
) -> tuple[Group, ...]:
    """Return the disjoint groups of node ranks to test at once; empty when all is settled.

    ``tests`` are the tests of all earlier rounds, ``nodes`` all nodes that may take part, ``leaf_of`` the leaf switch
    of each node, if known, and ``repeat`` the number of consecutive rounds in which each group is tested.
    """
    if not tests:
        return tuple((node,) for node in sorted(nodes))
    if again := tuple(_again(tests, repeat)):
        return again
    rounds = 1 + tests[-1].round
    if rounds > repeat * (8 + 8 * log2(len(nodes) + 1)):
        return ()  # more tests of this kind would not settle the rest
    return tuple(_Search(tests, nodes, leaf_of, repeat).groups())


def _again(tests: Sequence[GroupTest], repeat: int) -> Iterator[Group]:
    """Yield the groups of the last round that need more repeats."""
    last, lost = tests[-1].round, {node for test in tests for node in test.lost_nodes}
    for group, its in grouped((test.nodes, test) for test in tests).items():
        in_a_row = [test.outcome in FAILED for ago, test in enumerate(reversed(its)) if test.round == last - ago]
        fails_always = len(in_a_row) >= _ALWAYS and all(in_a_row)
        if len(in_a_row) % repeat and not fails_always and lost.isdisjoint(group):
            yield group


class _Search:
    """The choice of groups for one round, from the tests so far."""

    def __init__(
        self, tests: Sequence[GroupTest], nodes: Sequence[int], leaf_of: Mapping[int, str], repeat: int
    ) -> None:
        self.known = Tests(tests)
        self.settled = settle(self.known, nodes, leaf_of)
        self.bad_leaves = {fault.leaf for fault in self.settled.leaves}
        self.leaf_of = leaf_of
        self.repeat = repeat
        self.used = set[int]()  # nodes that take part in this round
        #: Number of tests per group, without up to two inconclusive ones, and the partners of each node.
        untold = Counter(tuple(sorted(test.nodes)) for test in tests if test.outcome == "unknown")
        self.asked = Counter(tuple(sorted(test.nodes)) for test in tests)
        self.asked -= Counter({group: min(times, _TRIED_AGAIN) for group, times in untold.items()})
        pairs = (group for group in self.asked if len(group) == 2)
        ends = ((one, other) for pair in pairs for one, other in (pair, pair[::-1]))
        self.met = defaultdict(list, grouped(ends))
        once = (group for group, times in self.asked.items() if times == len(group) == 1 and group in self.known.groups)
        self.alone = [group for group in once if self.known.count(group).bad]  # may be chance
        aside = self.settled.blamed | {node for group in self.alone for node in group}
        #: The nodes to test with others, ordered by leaf.
        self.part = sorted(sorted(set(nodes) - aside), key=lambda node: leaf_of.get(node, ""))

    def groups(self) -> list[Group]:
        """Return the groups of the next round."""
        whole = tuple(sorted(self.part))
        if len(whole) < 2:
            return [*self.alone]
        if not self.asked[whole] and not any(len(group) > 1 for group in self.known.groups):
            return [*self.alone, whole]
        return self.alone + (self._in_pairs() or self._of_suspects() or self._halved())

    def _in_pairs(self) -> list[Group]:
        """Return pairs of neighbors on a leaf, and in a later round each node with another partner."""
        least = min(2, len(self.part) - 1)
        fresh = [node for node in self.part if len(self.met[node]) < least]
        lonely = [node for node in self.part if not self.met[node]]
        if len(self.part) < 2 or (len(fresh) < 3 and not lonely):
            return []
        if len(lonely) > len(self.part) // 2:
            return [tuple(sorted(two)) for two in zip(self.part[::2], self.part[1::2], strict=False)]
        bad = [node for node in self.part if self.known.bad.get(node)]
        found = self._matched([*lonely, *bad], self._good(bad))
        free = [node for node in self.part if node not in self.used]
        return found + self._matched(free[: len(free) // 2], free[len(free) // 2 :])

    def _good(self, aside: Iterable[int]) -> list[int]:
        """Return the nodes outside ``aside`` that passed with a partner: never bad first, then fastest first."""
        rates = grouped(
            (node, test.bytes_per_s or 0.0)
            for pair in self.known.pairs
            for test in self.known.groups[pair]
            for node in pair
        )
        good, out = self.known.good, set(aside)
        passed = (node for node in self.part if node not in out and good.get(node))
        return sorted(passed, key=lambda node: (len(self.known.bad.get(node, ())), -max(rates[node])))

    def _matched(self, seekers: Iterable[int], partners: Iterable[int]) -> list[Group]:
        """Return each seeker with a free partner that it has not met, on another leaf if possible."""
        free, found = deque(node for node in partners if node not in self.used), list[Group]()
        for seeker in dict.fromkeys(seekers):
            window = [free.popleft() for _ in range(min(_WINDOW, len(free)))] if seeker not in self.used else []
            fit = [node for node in window if node != seeker and node not in self.used]
            leaf = self.leaf_of.get(seeker)
            taken = min(
                fit,
                key=lambda node: (node in self.met[seeker], leaf is not None and self.leaf_of.get(node) == leaf),
                default=None,
            )
            free.extendleft(node for node in reversed(window) if node not in (taken, seeker))
            if taken is not None:
                found += self._unless_used([tuple(sorted((seeker, taken)))])
        return found

    def _unless_used(self, groups: Iterable[Group]) -> list[Group]:
        """Return the groups whose nodes are not used in this round yet, and mark their nodes as used."""
        found = []
        for group in groups:
            if self.used.isdisjoint(group):
                self.used.update(group)
                found.append(group)
        return found

    def _of_suspects(self) -> list[Group]:
        """Return suspected nodes with partners that passed, or pairs to repeat, and all other nodes as one group."""
        seekers, again = self._suspects()
        found = self._unless_used(again)
        found += self._matched(seekers, self._good(seekers))
        if not found:  # without partners: with few nodes all untested pairs, then pairs that may have failed by chance
            few = self.part if len(self.part) < bars.FEW_NODES and self.settled.open_pairs else []
            new = self._unless_used(pair for pair in combinations(sorted(few), 2) if not self.asked[pair])
            return new or self._unless_used(pair for pair in self.settled.open_pairs if self.asked[pair] < 2)
        slow = [pair for pair in self.settled.open_pairs if pair in self.known.slow]
        if len(slow) > _FEW_SLOW or any(not self.known.good.get(node) for pair in slow for node in pair):
            passed = (pair for pair, count in self.known.pairs.items() if not count.bad)
            return found + self._unless_used(passed)  # their rates are the reference
        return found + self._rest()

    def _suspects(self) -> tuple[list[int], list[Group]]:
        """Return the nodes that need another partner, and the pairs that need another test."""
        known, seekers, again = self.known, list[int](), list[Group]()
        often = Counter(node for pair in self.settled.open_pairs for node in pair)
        least = min(2, len(self.part) - 2)
        for pair in self.settled.open_pairs:
            bad, tests = known.pairs[pair]
            ends = [node for node in pair if self.leaf_of.get(node) not in self.bad_leaves]  # not on a bad leaf
            lonely = [node for node in ends if not known.good.get(node)]
            short = [node for node in ends if len(known.good.get(node, ())) < least and often[node] < bars.PARTNERS]
            if lonely:
                wanted = lonely
            elif pair in known.slow and tests == 1:
                wanted = []
                again.append(pair)  # usually chance
            elif short:
                wanted = short
            elif max(often[node] for node in pair) > 1:
                wanted = [node for node in pair if 0 < bad < tests and often[node] > 1]
            else:
                wanted = [node for node in pair if bad >= bars.PAIR_FAILURES and is_end(known, node, pair)]
                again += [pair] if bad < bars.PAIR_FAILURES and tests < bars.PAIR_FAILURES * self.repeat else []
            seekers += [node for node in wanted if len(self.met[node]) < bars.MOST_PARTNERS]
        return seekers, again

    def _rest(self) -> list[Group]:
        """Return a group of all nodes but known bad nodes, nodes of bad leaves and one end of each bad pair.

        Only if more than two nodes failed together, and too few of these nodes have passed together.
        """
        ends = {fault.nodes[0] for fault in self.settled.pairs}
        others = {node for node in self.part if node not in ends and self.leaf_of.get(node) not in self.bad_leaves}
        larger = self.known.larger.items()
        most = max((len(others.intersection(group)) for group, count in larger if not count.bad), default=0)
        may_fail = any(count.bad for _, count in larger) and len(others) - most > len(self.settled.blamed)
        rest = tuple(sorted(others - self.used))
        return [rest] if may_fail and len(rest) > 2 and not self.asked[rest] else []

    def _halved(self) -> list[Group]:
        """Return tests that divide the smallest failing group whose pairs pass; otherwise all other nodes at once."""
        if not self.settled.open_groups:
            return self._rest()
        group = self.settled.open_groups[0]
        is_trimmed = self._longest(group, group[::-1]) > (len(group) + 1) // 2
        halves = [] if is_trimmed else self._halves(group)
        return self._unless_used(halves or self._shorter(group))

    def _halves(self, group: Group) -> list[Group]:
        """Return the halves, or groups of a half of each half, that were neither tested nor part of a passing group."""
        new = [[each] * (not self.asked[each] and not self._passes(each)) for each in _parts(group)]
        at_once = (one + other for one, other in zip(new[::2], new[1::2], strict=True))
        return next((groups for groups in at_once if groups), [])

    def _passes(self, group: Group) -> bool:
        """Return True if the group passed, by itself or as part of a larger group; a single node passes."""
        members, known = set(group), self.known
        if len(group) < 2 or (group in known.pairs and not known.pairs[group].bad):
            return True
        return any(not count.bad and members.issubset(each) for each, count in known.larger.items())

    def _shorter(self, group: Group) -> list[Group]:
        """Return the next test for the shortest failing run of nodes in ``group``, whose halves all pass.

        First its end is searched, then its start. Then the run is repeated, and another group of its length is tested.
        """
        size = len(group)
        if not self._passes(group[:-1]):
            return [group[: (size + self._longest(group)) // 2]]
        if not self._passes(group[1:]):  # usually only the length matters, and one node fewer passes
            return [group[1:] if self.asked[group[:-1]] else group[-((size + self._longest(group[::-1])) // 2) :]]
        if self.asked[group] < 2:
            return [group]
        some = tuple(sorted(self.part))
        other = some[-size:] if some[-size:] != group else some[:size]
        return [other] * (not self.asked[other])

    def _longest(self, *orders: Group) -> int:
        """Return how many of the first nodes of these orders passed together; at least half are assumed to."""
        passed = [set(each) for each, count in self.known.larger.items() if not count.bad]
        fit = (len(each) for each in passed for order in orders if each == {*order[: len(each)]})
        return max([len(orders[0]) // 2, *fit])


def _parts(group: Group) -> list[Group]:
    """Return the halves of a group, then groups of a half of each half, two by two."""
    one, other = _in_two(group)
    (ahead, behind), (left, right) = _in_two(one), _in_two(other)
    return [one, other, ahead + left, behind + right, ahead + right, behind + left]


def _in_two(group: Group) -> tuple[Group, Group]:
    return group[: len(group) // 2], group[len(group) // 2 :]
