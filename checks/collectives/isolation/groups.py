"""DD635, DD636, DD637, DD638: pairs, leaves and larger groups that are bad, and what is left open."""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.isolation.wording import counted, of_usual, said, shared, verb
from ddp_doctor.facts.collectives import IsolationFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator, by_operator
from ddp_doctor.views.isolation import Fault, in_common, isolated
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, Who, likely, possible
from ddp_doctor.wording.nodes import hosts, name_list, node_culprit, node_pair


@rule("DD635", "pair-fails", Severity.ERROR, IsolationFact)
def pair_fails(recording: Recording) -> Iterator[Draft]:
    """Two nodes that fail together, and with nobody else.

    Finds: Two nodes that hang, fail, sum wrongly or are slow together five times or more, while both pass with others
        so often that one of them, failing now and then, is 50 times less likely.
    Why: The path between them is at fault, or what the two have set against each other; a ring or tree that uses that
        path hangs, another order of the nodes may not.
    Remedy: Look at the path between them, from both ends; until then keep them in different jobs.
    See: docs/explanation/isolation.md
    """
    for bad in isolated(recording).pairs:
        yield likely(
            Who((node_pair(recording, bad.nodes[0], bad.nodes[1]),), hosts(recording, bad.nodes)),
            f"{{who}} {verb(bad.how, 2)} together, and both pass with others",
            Evidence(text=f"{counted(bad.how, bad.failed, bad.tests)}{of_usual(bad.share)}{said(bad.reason)}"),
            by_administrator(
                "Look at the path between the two from both ends: routes, firewall, switch ports",
                scope="cluster",
                cost="leave one of the two out until then",
            ),
            severity=Severity.WARNING if bad.how == "slow" else None,
        )


@rule("DD636", "leaf-fails", Severity.ERROR, IsolationFact)
def leaf_fails(recording: Recording) -> Iterator[Draft]:
    """A leaf switch or rack whose nodes fail with those of others.

    Finds: A leaf of the topology (``--topology``, or SLURM's own) of which several nodes hang, fail, sum wrongly or are
        slow with nodes of several other leaves and with none of these pass, while its nodes pass among themselves and
        the other leaves among each other.
    Why: The nodes are healthy; what leads out of their leaf is not.
    Remedy: Look at the leaf's ways up; until then keep jobs within it, or off it.
    See: docs/explanation/isolation.md
    """
    for bad in isolated(recording).leaves:
        yield likely(
            Who(tuple(node_culprit(recording, node, name=bad.leaf) for node in bad.nodes), bad.leaf),
            f"Leaf {{who}} {verb(bad.how)} with other leaves: its nodes pass among themselves",
            Evidence(
                text=f"{hosts(recording, bad.nodes)} with nodes of {name_list(bad.others)}: none of the tests passed"
                f"{of_usual(bad.share)}"
            ),
            by_administrator(
                f"Look at the uplinks of {bad.leaf}: cables, ports, routes, rates",
                scope="cluster",
                cost="leave its nodes out until then, or have the job on it alone",
            ),
            severity=Severity.WARNING if bad.how == "slow" else None,
        )


@rule("DD637", "only-larger-groups-fail", Severity.ERROR, IsolationFact)
def only_larger_groups_fail(recording: Recording) -> Iterator[Draft]:
    """Nodes that fail only when many of them take part.

    Finds: The smallest group found that fails, twice, though no pair of its nodes does and no half: how many nodes it
        has, the largest group that passes, and what its nodes have in common that the others have not: leaf, driver,
        versions, settings. No node is blamed.
    Why: What grows with the number of nodes has a limit: open files, connections, entries of a table, groups of a
        switch.
    Remedy: Look for such a limit, on the nodes and in the switches.
    See: docs/explanation/isolation.md
    """
    found, fact = isolated(recording).smallest, recording.first(IsolationFact)
    if found is None or fact is None or fact.stopped:
        return
    count, passes = len(found.nodes), f"groups of up to {found.passing}" if found.passing > 2 else "no more than pairs"
    evidence = [_evidence(recording, found)]
    if found.alike:
        evidence.append(Evidence(text=f"other groups of {count} nodes that fail likewise: {found.alike}"))
    yield likely(
        NOBODY,
        f"{count} nodes {verb(found.how, count)} together, while no pair of them does: {passes} pass",
        evidence,
        by_administrator(
            "Look for what has a limit that so many nodes reach: open files and processes, connections through a "
            "firewall, neighbour tables, multicast groups of switches",
            "ulimit -n; sysctl net.ipv4.neigh.default.gc_thresh3 net.netfilter.nf_conntrack_max",
            scope="cluster",
        ),
        detail=shared(in_common(recording, found.nodes)) or "These nodes have nothing that the others have not.",
    )


@rule("DD638", "who-fails-is-not-settled", Severity.ERROR, IsolationFact)
def not_settled(recording: Recording) -> Iterator[Draft]:
    """Tests that failed, for which nobody can be blamed.

    Finds: Nodes or groups of nodes that failed in a test, where what was tested beside it does not tell who of them it
        is: it failed once and then passed, there are too few nodes to test them with, or the time was over. Where the
        time was over it is a warning, and the verdict is unsure.
    Why: It is one of these nodes, or something between them; to name one of them would be a guess.
    Remedy: Run it again with more time, with more nodes, with the topology, or each test several times.
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
    yield possible(
        NOBODY,
        f"{title}; who is to blame is not settled{said(stopped)}",
        [_evidence(recording, each) for each in left[:LINES_OF_EVIDENCE]],
        by_operator(
            "Test again, each group several times and with more time; with --topology where switches may be at fault",
            f"ddp-doctor run --isolate --repeat 5 --budget {max(10 * recording.options.budget_s, 600):.0f}",
            cost="the nodes cannot be used meanwhile",
        ),
        severity=Severity.WARNING if stopped else None,
    )


def _what(recording: Recording, each: Fault) -> str:
    names, count = hosts(recording, each.nodes), len(each.nodes)
    together = "together" if count > 1 else "alone"
    if each.met:
        together = f"with {each.met} other nodes or more, and {'pass' if count > 1 else 'passes'} with some"
    return f"{names} {verb(each.how, count)} {together}"


def _evidence(recording: Recording, each: Fault) -> Evidence:
    return Evidence(text=f"{_what(recording, each)}: {counted(each.how, each.failed, each.tests)}{said(each.reason)}")
