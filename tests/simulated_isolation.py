"""Simulation: clusters with injected faults, with the real planning, evaluation and rendering of ``run --isolate``.

    python -m tests.simulated_isolation [--runs RUNS]

prints a table of nodes, kinds of fault and runs: right and wrong accusations, rounds, tests and seconds. Nothing is
sent over a network: the result of a group's test is drawn from the injected faults.
"""

import argparse
import io
import random
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import log2

from ddp_doctor import app
from ddp_doctor.engine.isolation.search import next_round
from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.model.recording import Leaf, Node, Options, Recording, World
from ddp_doctor.render import terminal
from ddp_doctor.views.isolation import settle
from tests.readings import collected

#: Bytes a second of a healthy group, and how far each test may be off.
_RATE, _NOISE = 1e9, 0.2
#: One test in a hundred is far slower, by chance.
_OUTLIERS = 0.01
_SLOW = 0.3


@dataclass
class Cluster:
    nodes: int
    rng: random.Random
    bad: dict[int, str] = field(default_factory=dict)  # nodes that do so with every other
    alone: dict[int, str] = field(default_factory=dict)  # nodes that do so even in separate tests
    pairs: dict[tuple[int, int], str] = field(default_factory=dict)
    leaf: int | None = None  # whose way to the others is broken
    leaf_size: int = 0  # 0: no topology
    tells_leaves: bool = True
    at_most: int | None = None  # larger groups hang
    flaky: dict[int, float] = field(default_factory=dict)  # nodes that hang intermittently, and how often
    dies: int | None = None  # a node that is lost in its third test
    outliers: float = _OUTLIERS
    spread: float = 0.0  # of busy hosts: the standard deviation of the logarithms of rates
    slow: float = _SLOW
    repeat: int = 1
    tests: list[GroupTest] = field(default_factory=list)

    def test(self, number: int, group: tuple[int, ...], at_s: float) -> GroupTest:
        if self.dies in group and sum(self.dies in test.nodes for test in self.tests) == 2:
            test = GroupTest(round=number, nodes=group, outcome="lost", lost_nodes=(self.dies,), duration_s=8.0)
            return test.model_copy(update={"at_s": at_s})
        faults = self._faults(group)
        if steady := [how for how in faults if how != "slow"]:
            reason = "" if steady[0] == "hung" else "ECONNRESET" if steady[0] == "failed" else "1 of 1024 sums is wrong"
            took_s = 12.0 if steady[0] == "hung" else 1.5
            found = {"round": number, "nodes": group, "outcome": steady[0], "reason": reason}
            return GroupTest.model_validate({**found, "at_s": at_s, "duration_s": took_s})
        rate = _RATE * (self.slow if faults else 1.0) * self.rng.uniform(1 - _NOISE, 1 + _NOISE)
        rate *= self.rng.lognormvariate(0.0, self.spread) if self.spread else 1.0
        if self.rng.random() < self.outliers:
            rate *= self.rng.uniform(0.1, 0.6)
        return GroupTest(round=number, nodes=group, outcome="passed", bytes_per_s=rate, at_s=at_s, duration_s=2.0)

    def _faults(self, group: tuple[int, ...]) -> list[str]:
        members = set(group)
        found = [how for node, how in self.alone.items() if node in members]
        if len(group) > 1:
            found += [how for node, how in self.bad.items() if node in members]
            found += [how for pair, how in self.pairs.items() if members.issuperset(pair)]
            found += ["hung" for node, rate in self.flaky.items() if node in members and self.rng.random() < rate]
        if self.leaf is not None and 0 < sum(self.leaf_of(node) == self.leaf for node in group) < len(group):
            found.append("hung")
        if self.at_most is not None and len(group) > self.at_most:
            found.append("hung")
        return found

    def leaf_of(self, node: int) -> int:
        return node // self.leaf_size

    def run(self) -> None:
        known = {node: f"leaf{self.leaf_of(node)}" for node in range(self.nodes)} if self.topology else {}
        number = 0
        while groups := next_round(tuple(self.tests), tuple(range(self.nodes)), known, self.repeat):
            met = [node for group in groups for node in group]
            assert len(met) == len(set(met)), "a node has a part in two tests of a round"
            dead = {node for test in self.tests for node in test.lost_nodes}
            assert dead.isdisjoint(met), "a node that was lost is tested again"
            at_s = max((test.at_s + test.duration_s for test in self.tests), default=0.0)
            self.tests += [self.test(number, group, at_s) for group in groups]
            number += 1
            assert number < 100 * self.repeat, "it does not end"

    @property
    def topology(self) -> bool:
        return bool(self.leaf_size) and self.tells_leaves

    @property
    def rounds(self) -> int:
        return 1 + max(test.round for test in self.tests)

    def named_in(self, guilty: set[int]) -> int:
        after = range(1, self.rounds + 1, self.repeat)
        told = ([test for test in self.tests if test.round < rounds] for rounds in after)
        found = (settle(tests, range(self.nodes), {}).blamed >= guilty for tests in told)
        return next((rounds for rounds, is_named in zip(after, found, strict=True) if is_named), self.rounds)

    def recording(self) -> Recording:
        names = [f"node{node}" for node in range(self.nodes)]
        leaves: tuple[Leaf, ...] = ()
        if self.topology:
            leaves = tuple(
                Leaf(name=f"leaf{number}", hosts=tuple(names[first : first + self.leaf_size]))
                for number, first in enumerate(range(0, self.nodes, self.leaf_size))
            )
        fact = IsolationFact(tests=tuple(self.tests))
        return Recording(
            tool_version="0",
            run_id="simulated",
            world=World(
                nnodes=self.nodes,
                world_size=self.nodes,
                nodes=tuple(Node(node_rank=node, hostname=name) for node, name in enumerate(names)),
            ),
            options=Options(isolate=True, leaves=leaves, repeat=self.repeat),
            readings=(collected("isolation", fact),),
        )


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how it is planted, and whom the findings are to name."""

    name: str
    plant: Callable[[int, random.Random], Cluster]
    least: int = 8  # nodes
    most: int = 1 << 14
    bar: Callable[[int], float] | None = None  # rounds at most, by the number of nodes


def _some(count: int, nodes: int, rng: random.Random) -> list[int]:
    return rng.sample(range(nodes), count)


def _bad(how: str, count: int = 1) -> Callable[[int, random.Random], Cluster]:
    return lambda nodes, rng: Cluster(nodes, rng, bad=dict.fromkeys(_some(count, nodes, rng), how))


def _mixed(nodes: int, rng: random.Random) -> Cluster:
    hows = ("hung", "failed", "wrong", "slow")
    some = _some(2 if nodes < 16 else 4, nodes, rng)
    return Cluster(nodes, rng, bad={node: rng.choice(hows) for node in some})


def _leaf(nodes: int, rng: random.Random, *, told: bool = True) -> Cluster:
    size = max(2, min(32, nodes // 4))
    return Cluster(nodes, rng, leaf=rng.randrange(nodes // size), leaf_size=size, tells_leaves=told)


def _pair(nodes: int, rng: random.Random) -> Cluster:
    one, other = sorted(_some(2, nodes, rng))
    return Cluster(nodes, rng, pairs={(one, other): rng.choice(("hung", "failed", "wrong"))})


def _one(nodes: int) -> float:
    return 2 + log2(nodes)


KINDS = (
    Kind("none", Cluster),
    Kind("one fails alone", lambda nodes, rng: Cluster(nodes, rng, alone={rng.randrange(nodes): "failed"}), bar=_one),
    Kind("one hangs", _bad("hung"), bar=_one),
    Kind("one fails", _bad("failed"), bar=_one),
    Kind("one is wrong", _bad("wrong"), bar=_one),
    Kind("one is slow", _bad("slow"), bar=_one),
    Kind("two hang", _bad("hung", 2), bar=lambda nodes: 2 + 2 * log2(nodes)),
    Kind("several, mixed", _mixed, bar=lambda nodes: 2 + (2 if nodes < 16 else 4) * log2(nodes)),
    Kind("a pair", _pair),
    Kind("a leaf", _leaf, least=16),
    Kind("a leaf, no topology", lambda nodes, rng: _leaf(nodes, rng, told=False), least=16),
    Kind("only more than half", lambda nodes, rng: Cluster(nodes, rng, at_most=nodes // 2 + rng.randrange(nodes // 4))),
    Kind("only more than a few", lambda nodes, rng: Cluster(nodes, rng, at_most=rng.randrange(3, 7)), most=1024),
    Kind(
        "one in five, 20 repeats",
        lambda nodes, rng: Cluster(nodes, rng, flaky={rng.randrange(nodes): 0.2}, repeat=20),
        most=1024,
    ),
    Kind("none, 20 repeats", lambda nodes, rng: Cluster(nodes, rng, repeat=20), most=256),
    Kind("one in five, once", lambda nodes, rng: Cluster(nodes, rng, flaky={rng.randrange(nodes): 0.2})),
    Kind("none, hosts busy", lambda nodes, rng: Cluster(nodes, rng, spread=1.0), most=64),
    Kind(
        "one at 1 %, hosts busy",
        lambda nodes, rng: Cluster(nodes, rng, bad={rng.randrange(nodes): "slow"}, slow=0.01, spread=1.0),
        most=64,
    ),
    Kind("one dies", lambda nodes, rng: Cluster(nodes, rng, dies=rng.randrange(nodes)), bar=_one),
)


@dataclass
class Outcome:
    right: bool  # all injected faults were reported, with their effect
    wrong: int  # accusations of innocents
    rounds: int
    named_in: int  # rounds until all faulty nodes were reported; 0: there are none, or they were not
    tests: int
    seconds: float
    said: str = ""


def judged(cluster: Cluster) -> Outcome:
    """Run it, judge what it recorded with all rules of the doctor, and render the report."""
    from rich.console import Console

    began = time.process_time()
    cluster.run()
    recording = cluster.recording()
    report = app.judge(recording).report
    page = io.StringIO()
    terminal.show(report, recording, Console(file=page, width=120))
    seconds = time.process_time() - began
    found = [finding for finding in report.findings if finding.code.startswith("DD63")]
    named = {
        (finding.code, tuple(sorted(f"{end}" for each in finding.culprits for end in (each.node, each.peer_node))))
        for finding in found
        if finding.code in ("DD635", "DD636")
    }
    blamed = {culprit.node_rank for finding in found if finding.code < "DD635" for culprit in finding.culprits}
    guilty = {*cluster.bad, *cluster.alone, *cluster.flaky, *([] if cluster.dies is None else [cluster.dies])}
    wrong = len(blamed - guilty)
    expected = {("DD635", tuple(sorted(f"node{node}" for node in pair))) for pair in cluster.pairs}
    if cluster.leaf is not None and cluster.topology:
        leaves = [culprit.name for finding in found if finding.code == "DD636" for culprit in finding.culprits]
        wrong += sum(name != f"leaf{cluster.leaf}" for name in leaves)
        is_named = bool(leaves)
    else:
        wrong += len(named - expected)
        is_named = expected <= named
    if cluster.leaf is not None and not cluster.topology:  # no node can be reported; its own nodes are not healthy ones
        wrong = sum(node is not None and cluster.leaf_of(node) != cluster.leaf for node in blamed)
        is_named = True
    if cluster.at_most is not None:
        [title] = [finding.title for finding in found if finding.code == "DD637"] or [""]
        is_named = title.startswith(f"{cluster.at_most + 1} nodes")
    is_surely_seen = not cluster.flaky or cluster.repeat > 1
    right = is_named and (blamed == guilty or not is_surely_seen or cluster.leaf is not None)
    named_in = cluster.named_in(guilty) if guilty and guilty <= blamed else 0
    return Outcome(right, wrong, cluster.rounds, named_in, len(cluster.tests), seconds, page.getvalue())


def runs(kind: Kind, nodes: int, count: int) -> Iterator[Outcome]:
    """Yield this number of runs with this kind of fault; each has its own seed and is reproducible."""
    for number in range(count):
        yield judged(kind.plant(nodes, random.Random(f"{kind.name} {nodes} {number}")))


def row(kind: Kind, nodes: int, count: int) -> str:
    found = list(runs(kind, nodes, count))
    rounds, named = sorted(each.rounds for each in found), [each.named_in for each in found if each.named_in]
    cells = (
        nodes,
        kind.name,
        count,
        sum(each.right for each in found),
        sum(each.wrong for each in found),
        max(named, default=0) or "",
        f"{kind.bar(nodes):.3g}" if kind.bar else "",
        f"{rounds[len(rounds) // 2]} to {rounds[-1]}",
        max(each.tests for each in found),
        f"{max(each.seconds for each in found):.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each kind up to 64 nodes; fewer of more nodes")
    parser.add_argument("--nodes", type=int, nargs="*", default=[8, 16, 64, 256, 1024, 4096, 16384])
    parser.add_argument("--kind", default="", help="only kinds with this in their name")
    asked = parser.parse_args()
    titles = ["nodes", "kind", "runs", "right", "wrong", "named in", "bar", "rounds", "tests", "CPU seconds"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for nodes in asked.nodes:
        for kind in KINDS:
            if kind.least <= nodes <= kind.most and asked.kind in kind.name:
                print(row(kind, nodes, max(2, min(asked.runs, asked.runs * 64 // nodes))), flush=True)
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
