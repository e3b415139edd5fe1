"""Which groups of nodes to test next, until it is settled who is to blame: a pure function of the tests so far.

Every node alone; the whole; pairs of neighbours, then pairs across leaves, nodes that failed with nodes that passed and
the fastest with the slowest; nodes under suspicion with ever other partners; where pairs pass and the whole fails,
halves, halves of one half with halves of the other, and last how many nodes it takes. All groups of a round run at
once, so that a hundred bad nodes are found in as many rounds as one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log2

from ddp_doctor.facts.collectives import GroupTest
from ddp_doctor.knowledge import isolation as bars
from ddp_doctor.views.isolation import Pair, Settled, Tests, failures, is_end, settle

Group = tuple[int, ...]
#: A partner is looked for among so many that are free: among thousands any few will do.
_WINDOW = 16
#: Failures in a row after which a group that is to be tested again and again fails always.
_ALWAYS = 3
#: Slow pairs that may be tested again without others beside them.
_FEW_SLOW = 3


def next_round(
    tests: Sequence[GroupTest], nodes: Sequence[int], leaf_of: Mapping[int, str], repeat: int = 1
) -> tuple[Group, ...]:
    """The groups of node ranks to test at once, no node in two of them; none when all is settled.

    ``tests`` are those of all rounds before, ``nodes`` all that may take part, ``leaf_of`` the leaf of those of which
    it is known, ``repeat`` how often each group is tested, in rounds one after the other.
    """
    if not tests:
        return tuple((node,) for node in sorted(nodes))
    return tuple(_Search(tests, nodes, leaf_of, repeat).groups())


@dataclass(frozen=True)
class _Search:
    """What the tests so far leave to be tested."""

    tests: Sequence[GroupTest]
    nodes: Sequence[int]
    leaf_of: Mapping[int, str]
    repeat: int
    used: set[int] = field(default_factory=set)  # nodes that have a part in this round

    @cached_property
    def known(self) -> Tests:
        return Tests(self.tests)

    @cached_property
    def settled(self) -> Settled:
        return settle(self.tests, self.nodes, self.leaf_of)

    @cached_property
    def asked(self) -> Counter[Group]:
        """How often each group was tested, also where nothing followed from it."""
        return Counter(tuple(sorted(test.nodes)) for test in self.tests)

    @cached_property
    def met(self) -> dict[int, set[int]]:
        """With whom each node was tested in pairs, also where nothing followed from it."""
        found: dict[int, set[int]] = {node: set() for node in self.nodes}
        for group in self.asked:
            if len(group) == 2:
                for node, other in (group, group[::-1]):
                    found.setdefault(node, set()).add(other)
        return found

    @cached_property
    def part(self) -> list[int]:
        """The nodes that take part with others, those of a leaf next to each other."""
        aside = self.settled.blamed | {group[0] for group in self._once_more()}
        live = (node for node in sorted(set(self.nodes)) if node not in aside)
        return sorted(live, key=lambda node: self.leaf_of.get(node, ""))

    def groups(self) -> list[Group]:
        """The groups of the next round."""
        if again := self._again():
            return again
        stages = len(self.tests) and 1 + self.tests[-1].round
        if stages > self.repeat * (8 + 8 * log2(len(self.nodes) + 1)):
            return []  # whatever is open, more of the same will not settle it
        alone = self._once_more()
        self.used.update(node for group in alone for node in group)
        of_several = any(len(test.nodes) > 1 and test.outcome != "lost" for test in self.tests)
        if not of_several:
            return [*alone, *self._whole()]
        return [*alone, *(self._in_pairs() or self._of_suspects() or self._rest() or self._halved())]

    def _again(self) -> list[Group]:
        """The groups of the last round that are to be tested more often."""
        if self.repeat == 1:
            return []
        in_rounds: dict[int, dict[Group, bool]] = {}
        for test in self.tests:
            in_rounds.setdefault(test.round, {})[test.nodes] = bool(failures([test]))
        last, *before = (in_rounds[number] for number in sorted(in_rounds, reverse=True))
        found, counted = list[Group](), {group: [is_bad] for group, is_bad in last.items()}
        for earlier in before:
            running = [group for group, rounds in counted.items() if group in earlier and len(rounds) < self.repeat]
            for group in running:
                counted[group].append(earlier[group])
            if not running:
                break
        for group, rounds in counted.items():
            always = len(rounds) >= _ALWAYS and all(rounds)
            if len(rounds) < self.repeat and not always and self.known.lost.isdisjoint(group):
                found.append(group)
        return found

    def _once_more(self) -> list[Group]:
        """Nodes that failed alone, once: whether it was chance."""
        groups = self.known.groups
        return [
            (node,)
            for node in sorted(set(self.nodes) - self.known.lost)
            if self.asked[node,] == 1 and (node,) in groups and failures(groups[node,])
        ]

    def _whole(self) -> list[Group]:
        """All that take part, unless that was tested."""
        group = tuple(sorted(self.part))
        return [group] if len(group) > 1 and not self.asked[group] else []

    def _in_pairs(self) -> list[Group]:
        """Every node with a neighbour, and then once more with another partner."""
        least = min(2, len(self.part) - 1)
        fresh = [node for node in self.part if len(self.met[node]) < least]
        lonely = [node for node in self.part if not self.met[node]]
        if len(self.part) < 2 or (len(fresh) < 3 and not lonely):
            return []
        if len(lonely) > len(self.part) // 2:
            return self._neighbours()
        bad = [node for node in self.part if self.known.bad.get(node)]
        return self._matched([*lonely, *bad], self._rest_of(bad)) + self._across()

    def _neighbours(self) -> list[Group]:
        of_leaf: dict[str, list[int]] = {}
        for node in self.part:
            of_leaf.setdefault(self.leaf_of.get(node, ""), []).append(node)
        alone = [members.pop() for members in of_leaf.values() if len(members) % 2]
        in_order = [node for members in of_leaf.values() for node in members] + alone
        return [_pair(*two) for two in zip(in_order[::2], in_order[1::2], strict=False)]

    def _across(self) -> list[Group]:
        """Those that are free in pairs, each of the first half with one of the second."""
        free = [node for node in self.part if node not in self.used]
        return self._matched(free[: len(free) // 2], free[len(free) // 2 :])

    def _rest_of(self, aside: Iterable[int]) -> list[int]:
        """The nodes that never were bad, the fastest first, without these."""
        best: dict[int, float] = {}
        for (one, other), tests in ((group, tests) for group, tests in self.known.groups.items() if len(group) == 2):
            rate = max((test.bytes_per_s or 0.0 for test in tests), default=0.0)
            best[one], best[other] = max(best.get(one, 0.0), rate), max(best.get(other, 0.0), rate)
        names = set(aside) | self.known.bad.keys()
        good = [node for node in self.part if node not in names and self.known.good.get(node)]
        return sorted(good, key=lambda node: -best.get(node, 0.0))

    def _matched(self, seekers: Sequence[int], partners: Sequence[int]) -> list[Group]:
        """Each seeker with a free partner that it has not met, on another leaf where there is one."""
        free, found = deque(node for node in partners if node not in self.used), list[Group]()
        for seeker in dict.fromkeys(seekers):
            if seeker in self.used:
                continue
            window = [free.popleft() for _ in range(min(_WINDOW, len(free)))]
            fit = [node for node in window if node != seeker and node not in self.used]
            leaf = self.leaf_of.get(seeker)
            taken = min(
                fit,
                key=lambda node: (node in self.met[seeker], leaf is not None and self.leaf_of.get(node) == leaf),
                default=None,
            )
            free.extendleft(node for node in reversed(window) if node not in (taken, seeker))
            if taken is not None:
                self.used.update((seeker, taken))
                found.append(_pair(seeker, taken))
        return found

    def _of_suspects(self) -> list[Group]:
        """Nodes under suspicion with partners that passed, or pairs once more; beside them all others at once."""
        seekers, again = self._suspects()
        found = self._unless_used(again)
        found += self._matched(seekers, self._rest_of(seekers))
        if not found:  # nobody is left to test them with: whether it was chance
            return self._unless_used(pair for pair in self.settled.open_pairs if self.asked[pair] < 2)
        slow = [pair for pair in self.settled.open_pairs if self.known.pairs[pair].share is not None]
        if len(slow) > _FEW_SLOW or any(not self.known.good.get(node) for pair in slow for node in pair):
            return found + self._across()  # with which their rates are compared
        rest = tuple(sorted(node for node in self._to_pass() if node not in self.used))
        wanted = self._may_fail() and len(rest) > 2 and not self.asked[rest]
        return [*found, rest] if wanted else found

    def _suspects(self) -> tuple[list[int], list[Pair]]:
        """The nodes that need another partner, and the pairs that need another test."""
        known, seekers, again = self.known, list[int](), list[Pair]()
        often = Counter(node for pair in self.settled.open_pairs for node in pair)
        least = min(2, len(self.part) - 1)
        for pair in self.settled.open_pairs:
            able = [node for node in pair if len(self.met[node]) < bars.MOST_PARTNERS]
            lonely = [node for node in pair if not known.good.get(node)]
            short = [node for node in pair if len(known.good.get(node, ())) < least and often[node] < bars.PARTNERS]
            together = known.pairs[pair]
            if lonely:
                seekers += [node for node in lonely if node in able]
            elif together.share is not None and together.tests == 1:
                again.append(pair)  # mostly chance
            elif short:
                seekers += [node for node in short if node in able]
            elif max(often[node] for node in pair) > 1:
                seekers += [node for node in able if 0 < together.bad < together.tests and often[node] > 1]
            elif together.bad < bars.PAIR_FAILURES:
                again += [pair] if together.tests < bars.PAIR_FAILURES * self.repeat else []
            else:
                seekers += [node for node in able if is_end(known, node, pair)]
        return seekers, again

    def _to_pass(self) -> list[int]:
        """The nodes that ought to pass together: without those of bad leaves, and one end of each bad pair."""
        leaves = {leaf.name for leaf in self.settled.leaves}
        ends = {pair.nodes[0] for pair in self.settled.pairs}
        return [node for node in self.part if node not in ends and self.leaf_of.get(node) not in leaves]

    def _may_fail(self) -> bool:
        """Whether more than two nodes failed together, and too few of those that should pass have passed together."""
        wanted = set(self._to_pass())
        larger = self.known.larger.items()
        most = max((len(wanted.intersection(group)) for group, tests in larger if not failures(tests)), default=0)
        return any(failures(tests) for _, tests in larger) and len(wanted) - most > len(self.settled.blamed)

    def _rest(self) -> list[Group]:
        """All but those who are blamed: whether they pass without them."""
        rest = tuple(sorted(self._to_pass()))
        wanted = len(rest) > 2 and not self.asked[rest] and not self.settled.open_groups and self._may_fail()
        return [rest] if wanted else []

    def _halved(self) -> list[Group]:
        """What divides the groups that fail though their pairs pass; several of them at once."""
        return self._unless_used(each for group in self.settled.open_groups for each in self._parts_of(group))

    def _unless_used(self, groups: Iterable[Group]) -> list[Group]:
        """Those of which no node has a part in this round yet."""
        found = []
        for group in groups:
            if self.used.isdisjoint(group):
                self.used.update(group)
                found.append(group)
        return found

    def _parts_of(self, group: Group) -> list[Group]:
        whole = self._base_of(group)
        if halves := self._untested_halves(group) if whole == group else []:
            return halves
        return next(([each] for each in self._shorter(whole) if each), [])

    def _base_of(self, group: Group) -> Group:
        """The group of which this one is a part that was found by its length; itself where there is none."""
        for bigger, tests in reversed(self.known.larger.items()):
            is_longer = len(group) < len(bigger) < 2 * len(group)
            if is_longer and failures(tests) and set(group) <= set(bigger) and not self._untested_halves(bigger):
                return bigger
        return group

    def _untested_halves(self, group: Group) -> list[Group]:
        """Its halves, then what has a half of each; those that neither were tested nor pass within others."""
        half = len(group) // 2
        one, other = group[:half], group[half:]
        ahead, behind, left, right = one[: half // 2], one[half // 2 :], other[: half // 2], other[half // 2 :]
        for groups in ((one, other), (ahead + left, behind + right), (ahead + right, behind + left)):
            if new := [each for each in groups if len(each) > 1 and not self.asked[each] and not self._passes(each)]:
                return new
        return []

    def _passes(self, group: Group) -> bool:
        """Whether a group passed of which it is a part."""
        members = set(group)
        return any(
            members.issubset(bigger)
            for bigger, tests in self.known.larger.items()
            if len(bigger) >= len(group) and not failures(tests)
        )

    def _shorter(self, group: Group) -> Iterator[Group]:
        """What is to be tested for the shortest piece of ``group`` that fails, no pieces of half its length do: first
        where it ends, then where it begins, then that piece once more, and another one of its length."""
        fails, passes = self._pieces(group, from_end=False, of=group)
        yield group[: (fails + passes) // 2] if fails - passes > 1 else ()
        front = group[:fails]
        fails, passes = self._pieces(group, from_end=True, of=front)
        if fails - passes > 1:  # mostly it is the length that counts, and one less passes
            yield front[1:] if fails == len(front) and not self.asked[front[1:]] else front[-((fails + passes) // 2) :]
        piece = front[-fails:]
        yield piece if self.asked[piece] < 2 else ()
        other = group[-len(piece) :] if group[-len(piece) :] != piece else group[: len(piece)]
        yield other if not self.asked[other] else ()

    def _pieces(self, group: Group, *, from_end: bool, of: Group) -> tuple[int, int]:
        """The lengths of the shortest piece of ``of``, from its beginning or end, that fails, and the longest that
        passes."""
        fails, passes = len(of), len(group) // 2
        for each, tests in self.known.groups.items():
            if 1 < len(each) < len(of) and (of[-len(each) :] if from_end else of[: len(each)]) == each:
                if failures(tests):
                    fails = min(fails, len(each))
                else:
                    passes = max(passes, len(each))
        return fails, min(passes, fails - 1)


def _pair(one: int, other: int) -> Pair:
    return (min(one, other), max(one, other))
