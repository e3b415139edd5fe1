"""DD632 - DD638: nodes that fail alone or with all others, pairs, leaves, larger groups, and unexplained failures."""

from collections.abc import Iterator, Sequence

from ddp_doctor.facts.collectives import IsolationFact
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import RanksDo, rule
from ddp_doctor.remedies.kinds import by_administrator, by_operator
from ddp_doctor.views.isolation import Fault, How, in_common, isolated
from ddp_doctor.views.rates import wilson
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, Who, finding, likely, possible
from ddp_doctor.wording.nodes import hosts, name_list, node_culprit, node_pair

_NETWORK = "network: interface, cable, switch port, driver, firewall"
#: For one node or group, and for several.
_VERBS: dict[How, tuple[str, str]] = {
    "hung": ("hangs", "hang"),
    "failed": ("fails", "fail"),
    "wrong": ("sums wrongly", "sum wrongly"),
    "slow": ("is slow", "are slow"),
    "lost": ("stops responding", "stop responding"),
}
_DID: dict[How, str] = {"hung": "hung", "failed": "failed", "wrong": "summed wrongly", "slow": "slow", "lost": "silent"}


@rule("DD632", "node-fails-alone", Consequence.FAILS, IsolationFact, explained_by=("DD540",))
def node_fails_alone(recording: Recording) -> Iterator[Draft]:
    """A node fails in a test without any other node.

    Finds: Reports a node whose own ranks fail, hang or compute wrong sums twice when they are tested without any other
        node, or that stops responding in a test.
    Why: No network and no other node is involved, so the fault is in the node: a GPU, memory, its software. Every job
        on this node hangs or fails.
    Remedy: Exclude it from the job, and run ddp-doctor only on it.
    See: docs/explanation/isolation.md
    """
    for bad in isolated(recording).lost:
        name, others = hosts(recording, bad.nodes), hosts(recording, bad.partners)
        yield likely(
            [node_culprit(recording, bad.nodes[0])],
            f"{name} stopped responding while it was tested {f'with {others}' if others else 'alone'}",
            Evidence(text=f"{name} did not respond, and took part in no later test"),
            by_administrator(f"Check on its console or BMC whether {name} runs"),
            nodes=bad.nodes,
        )
    for how, some in grouped((bad.how, bad) for bad in isolated(recording).alone).items():
        title = f"{{who}} {_verb(how, len(some))} even when tested alone"
        alone = "ddp-doctor run --nnodes 1   # on that node"
        yield _of_nodes(recording, some, title, "GPUs, memory and software", alone, confidence=Confidence.PROVED)


@rule("DD633", "node-fails-with-others", Consequence.FAILS, IsolationFact)
def node_fails_with_others(recording: Recording) -> Iterator[Draft]:
    """A node fails with several partners that each pass without it.

    Finds: Reports a node that hangs, fails or computes wrong sums with three other nodes (two, if there are fewer than
        eight nodes), one at a time, while each of these passes with another node. If tests are repeated, also reports a
        node that fails intermittently, with the 95% interval of the rate (Wilson). Not reported if a node always passes
        with some nodes and never with others.
    Why: These tests have only this node in common. Every job on it hangs or fails.
    Remedy: Exclude it from the job, and check its network.
    See: docs/explanation/isolation.md
    """
    bad = [bad for bad in isolated(recording).nodes if bad.how != "slow"]
    for (how, always), some in grouped(((each.how, each.failed == each.tests), each) for each in bad).items():
        count = len(some)
        without, passes = ("them", "pass") if count > 1 else ("it", "passes")
        partners = f"{min(len(node.partners) for node in some)} other nodes"
        met = f"with each of {partners} but {passes} alone; the other nodes pass without {without}"
        if not always:
            told = f": {_counted(some[0])}" if count == 1 else ""
            met = f"intermittently with {partners} that pass without {without}{told}"
        title = f"{{who}} {_verb(how, count)} {met}"
        look_at = "memory, GPUs and network interface" if how == "wrong" else _NETWORK
        confidence = Confidence.PROVED if always else Confidence.LIKELY
        yield _of_nodes(recording, some, title, look_at, confidence=confidence)


@rule("DD634", "node-slow-with-others", Consequence.SLOWER, IsolationFact, ranks="slow")
def node_slow_with_others(recording: Recording) -> Iterator[Draft]:
    """A node is slow with several partners that are each fast without it.

    Finds: Reports a node whose best rate with three other nodes (two, if there are fewer than eight nodes), one at a
        time, is a quarter below the median of all, and by more than three standard deviations, estimated from the
        median absolute deviation. A single slow test names no node.
    Why: DDP runs at the speed of its slowest node.
    Remedy: Exclude it from the job, and check its network and other programs on it.
    See: docs/explanation/isolation.md
    """
    bad = [bad for bad in isolated(recording).nodes if bad.how == "slow"]
    for severity, some in grouped((_severity(each), each) for each in bad).items():
        worst = min(each.share or 0.0 for each in some)
        reaches, without = ("reach as little as", "them") if len(some) > 1 else ("reaches only", "it")
        yield _of_nodes(
            recording,
            some,
            f"{{who}} {reaches} {100 * worst:.0f}% of the usual rate with every other node tested,"
            f" and those nodes are fast without {without}",
            "link speeds, clocks and power limits, other programs",
            severity=severity,
        )


def _severity(fault: Fault) -> Severity:
    """Return the severity: by the rate of a slow node, pair or leaf, and an error for other faults."""
    if fault.how != "slow":
        return Severity.ERROR
    return of_slowdown(1 / fault.share) if fault.share else Severity.WARNING


def _of_nodes(
    recording: Recording,
    some: Sequence[Fault],
    title: str,
    look_at: str,
    *commands: str,
    confidence: Confidence = Confidence.LIKELY,
    severity: Severity | None = None,
) -> Draft:
    nodes, evidence = [bad.nodes[0] for bad in some], []
    for bad in some[:LINES_OF_EVIDENCE]:
        where = f"with {hosts(recording, bad.partners)}" if bad.partners else "alone"
        did = f"{_counted(bad)}{_of_usual(bad.share)}{_said(bad.reason)}"
        evidence.append(Evidence(text=f"{hosts(recording, bad.nodes)} {where}: {did}"))
    who = Who(tuple(node_culprit(recording, node) for node in nodes), hosts(recording, nodes))
    return finding(
        who,
        title,
        evidence,
        by_administrator(
            f"Exclude {who.names} from the job (--bad-nodes FILE writes the list), and check its {look_at}",
            *commands,
            cost="fewer nodes in the job",
        ),
        confidence=confidence,
        severity=severity,
        detail=_shared(recording, nodes) if len(some) > 1 else "",
    )


def _ranks_do(recording: Recording) -> RanksDo:
    settled = isolated(recording)
    return "slow" if all(each.how == "slow" for each in (*settled.pairs, *settled.leaves)) else "stop"


@rule("DD635", "pair-fails", Consequence.FAILS, IsolationFact, ranks=_ranks_do)
def pair_fails(recording: Recording) -> Iterator[Draft]:
    """Two nodes fail together, but not with other nodes.

    Finds: Reports two nodes that hang, fail, compute wrong sums or are slow together five times or more, while both
        pass with other nodes so often that an intermittent failure of one of them is 50 times less likely.
    Why: The path between them is at fault, or their settings conflict. A ring or tree that uses that path hangs.
        Another order of the nodes may not.
    Remedy: Check the path between them, from both ends. Until it is repaired, use them in different jobs.
    See: docs/explanation/isolation.md
    """
    for bad in isolated(recording).pairs:
        yield likely(
            Who((node_pair(recording, bad.nodes[0], bad.nodes[1]),), hosts(recording, bad.nodes)),
            f"{{who}} {_verb(bad.how, 2)} together, but each passes with other nodes",
            Evidence(text=f"{_counted(bad)}{_of_usual(bad.share)}{_said(bad.reason)}"),
            by_administrator(
                "Check the path between the two from both ends: routes, firewall, switch ports",
                scope="cluster",
                cost="exclude one of the two nodes until then",
            ),
            severity=_severity(bad),
        )


@rule("DD636", "leaf-fails", Consequence.FAILS, IsolationFact, ranks=_ranks_do)
def leaf_fails(recording: Recording) -> Iterator[Draft]:
    """The nodes of a leaf switch or rack fail with nodes of other leaves.

    Finds: Reports a leaf of the topology (``--topology``, or SLURM's own) if several of its nodes hang, fail, compute
        wrong sums or are slow with nodes of several other leaves and pass with none of them, while its nodes pass among
        themselves and the other leaves pass with each other.
    Why: The nodes are healthy, but the links out of their leaf are not.
    Remedy: Check the leaf's uplinks. Until they are repaired, run jobs only within the leaf, or without it.
    See: docs/explanation/isolation.md
    """
    for bad in isolated(recording).leaves:
        yield likely(
            Who(tuple(node_culprit(recording, node, name=bad.leaf) for node in bad.nodes), bad.leaf),
            f"Nodes of leaf {{who}} {_verb(bad.how, 2)} with nodes of other leaves but pass among themselves",
            Evidence(
                text=f"{hosts(recording, bad.nodes)} with nodes of {name_list(bad.others)}: none of the tests passed"
                f"{_of_usual(bad.share)}"
            ),
            by_administrator(
                f"Check the uplinks of {bad.leaf}: cables, ports, routes, rates",
                scope="cluster",
                cost="exclude its nodes until fixed, or run the job only on it",
            ),
            severity=_severity(bad),
        )


@rule("DD637", "only-larger-groups-fail", Consequence.FAILS, IsolationFact)
def only_larger_groups_fail(recording: Recording) -> Iterator[Draft]:
    """Nodes fail only in large groups.

    Finds: Reports the smallest group found that fails twice although no pair of its nodes and no half of it fails. The
        finding shows its number of nodes, the largest group that passes, and what its nodes have in common that others
        do not: leaf, driver, versions, settings. No node is named.
    Why: A resource that grows with the number of nodes reaches a limit: open files, connections, table entries, groups
        of a switch.
    Remedy: Look for such a limit on the nodes and in the switches.
    See: docs/explanation/isolation.md
    """
    found, fact = isolated(recording).smallest, recording.first(IsolationFact)
    if found is None or fact is None or fact.stopped:
        return
    count, passes = len(found.nodes), f"groups of up to {found.passing} nodes" if found.passing > 2 else "only pairs"
    evidence = [_evidence(recording, found)]
    if found.alike:
        evidence.append(Evidence(text=f"other groups of {count} nodes that also fail: {found.alike}"))
    yield likely(
        NOBODY,
        f"{count} nodes {_verb(found.how, count)} together, but no pair of them fails; {passes} pass",
        evidence,
        by_administrator(
            "Check limits that so many nodes reach: open files and processes, connections"
            " through a firewall, neighbor tables, multicast groups of switches",
            "ulimit -n; sysctl net.ipv4.neigh.default.gc_thresh3 net.netfilter.nf_conntrack_max",
            scope="cluster",
        ),
        detail=_shared(recording, found.nodes) or "These nodes have no trait that other nodes do not have.",
    )


@rule("DD638", "who-fails-is-not-settled", Consequence.FAILS, IsolationFact)
def not_settled(recording: Recording) -> Iterator[Draft]:
    """Tests failed, but they do not show which node is at fault.

    Finds: Reports nodes or groups of nodes that failed in a test, if the other tests do not show which of them is at
        fault: it failed once and then passed, there are too few nodes to test them with, or the time limit was reached.
        With the time limit, the finding is only possible, and the verdict is unsure.
    Why: The cause is one of these nodes, or something between them. Naming one would be a guess.
    Remedy: Run it again with more time, with more nodes, with the topology, or with several repeats of each test.
    See: docs/explanation/isolation.md
    """
    settled, fact = isolated(recording), recording.first(IsolationFact)
    stopped = fact.stopped if fact else ""
    left = [*settled.unsettled, *([settled.smallest] if settled.smallest and stopped else [])]
    if not left:
        return
    nodes = sorted({node for each in left for node in each.nodes})
    names = hosts(recording, nodes)
    title = f"{len(left)} groups of {names} fail" if len(left) > 1 else _what(recording, left[0])
    yield (possible if stopped else likely)(
        NOBODY,
        f"{title}; the faulty node is unknown{_said(stopped)}",
        [_evidence(recording, each) for each in left[:LINES_OF_EVIDENCE]],
        by_operator(
            "Test again, each group several times and with more time, and with --topology if switches may be at fault",
            f"ddp-doctor run --isolate --repeat 5 --budget {max(10 * recording.options.budget_s, 600):.0f}",
            cost="nodes unavailable until then",
        ),
    )


def _what(recording: Recording, each: Fault) -> str:
    names, count = hosts(recording, each.nodes), len(each.nodes)
    together = "together" if count > 1 else "alone"
    if each.met:
        together = f"with at least {each.met} other nodes and {'pass' if count > 1 else 'passes'} with some"
    return f"{names} {_verb(each.how, count)} {together}"


def _evidence(recording: Recording, each: Fault) -> Evidence:
    return Evidence(text=f"{_what(recording, each)}: {_counted(each)}{_said(each.reason)}")


def _verb(how: How, count: int = 1) -> str:
    """Return ``hangs``, ``are slow``."""
    return _VERBS[how][count > 1]


def _counted(bad: Fault) -> str:
    """Return ``3 of 3 tests hung``, or ``4 of 20 tests failed (20%, 95% interval 8 to 42%)`` if some passed."""
    said = f"{bad.failed} of {bad.tests} test{'s' if bad.tests > 1 else ''} {_DID[bad.how]}"
    if bad.failed == bad.tests:
        return said
    low, high = wilson(bad.failed, bad.tests)
    return f"{said} ({100 * bad.failed / bad.tests:.0f}%, 95% interval {100 * low:.0f} to {100 * high:.0f}%)"


def _of_usual(share: float | None) -> str:
    """Return ``, 31% of the usual rate``; empty if the fault is not a slow rate."""
    return "" if share is None else f", {100 * share:.0f}% of the usual rate"


def _said(reason: str) -> str:
    """Return a rank's message for the end of a line."""
    return f": {reason}" if reason else ""


def _shared(recording: Recording, nodes: Sequence[int]) -> str:
    """Return a sentence about what only these nodes have in common."""
    traits = in_common(recording, nodes)
    return f"Only these nodes have: {', '.join(traits)}." if traits else ""
