"""DD632, DD633, DD634: nodes that are bad alone, or with every other."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.collectives.isolation.wording import counted, of_usual, said, shared, verb
from ddp_doctor.facts.collectives import IsolationFact
from ddp_doctor.knowledge.network.path_quality import SLOW_NODE_RATIO
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.views.isolation import Fault, in_common, isolated
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, Who, likely, proved
from ddp_doctor.wording.nodes import hosts, node_culprit

_NETWORK = "network: interface, cable, switch port, driver, firewall"


@rule("DD632", "node-fails-alone", Severity.ERROR, IsolationFact, explained_by=("DD540",))
def node_fails_alone(recording: Recording) -> Iterator[Draft]:
    """A node that fails while no other takes part.

    Finds: A node whose own ranks fail, hang or sum wrongly when they are tested without any other node, twice, or that
        falls silent in a test.
    Why: No network and no other node has a part in it, so the fault is its own: a GPU, memory, its software. Every job
        that has this node hangs or fails.
    Remedy: Leave it out of the job, and run the doctor on it alone.
    See: docs/explanation/isolation.md
    """
    for bad in isolated(recording).lost:
        name, others = hosts(recording, bad.nodes), hosts(recording, bad.partners)
        yield likely(
            _who(recording, [bad]),
            f"{name} fell silent while it was tested {f'with {others}' if others else 'alone'}",
            Evidence(text=f"{name} answered no more, and took part in no later test"),
            by_administrator(f"See on its console or BMC whether {name} runs"),
            nodes=bad.nodes,
        )
    for how, some in grouped((bad.how, bad) for bad in isolated(recording).alone).items():
        yield proved(
            _who(recording, some),
            f"{{who}} {verb(how, len(some))} alone, without any other node",
            _evidence(recording, some),
            _leave_out(recording, some, "GPUs, memory and software", "ddp-doctor run --nnodes 1   # on that node"),
            detail=_shared(recording, some),
        )


@rule("DD633", "node-fails-with-others", Severity.ERROR, IsolationFact)
def node_fails_with_others(recording: Recording) -> Iterator[Draft]:
    """A node that fails with one partner after the other, each of whom passes without it.

    Finds: A node that hangs, fails or sums wrongly with three other nodes (of fewer than eight nodes: two), one at a
        time, while each of these passes with somebody else. Where tests are repeated, also one that does so now and
        then; then the rate has its interval of 95 % (Wilson). A node that always passes with some and never with others
        is not named.
    Why: What these tests share is this node. Every job that has it hangs or fails.
    Remedy: Leave it out of the job, and look at its network.
    See: docs/explanation/isolation.md
    """
    bad = [bad for bad in isolated(recording).nodes if bad.how != "slow"]
    for (how, always), some in grouped(((each.how, each.failed == each.tests), each) for each in bad).items():
        count = len(some)
        without, alone = ("them", "alone they pass") if count > 1 else ("it", "alone it passes")
        partners = min(len(node.partners) for node in some)
        make = proved if always else likely
        yield make(
            _who(recording, some),
            f"{{who}} {verb(how, count)} with each of {partners} other nodes, which pass without {without}; {alone}"
            if always
            else f"{{who}} {verb(how, count)} now and then, with {partners} other nodes, which pass without {without}"
            + (f": {counted(how, some[0].failed, some[0].tests)}" if count == 1 else ""),
            _evidence(recording, some),
            _leave_out(recording, some, "memory, GPUs and network interface" if how == "wrong" else _NETWORK),
            detail=_shared(recording, some),
        )


@rule("DD634", "node-slow-with-others", Severity.WARNING, IsolationFact, ranks="slow")
def node_slow_with_others(recording: Recording) -> Iterator[Draft]:
    """A node that is slow with one partner after the other, each of whom is fast without it.

    Finds: A node whose best rate with three other nodes (of fewer than eight nodes: two), one at a time, is a quarter
        below the median of all, and by more than three standard deviations, estimated from the median absolute
        deviation. From three times slower on it is an error. One slow test names nobody.
    Why: DDP runs at the speed of its slowest node.
    Remedy: Leave it out of the job, and look at its network and what else runs there.
    See: docs/explanation/isolation.md
    """
    bad = [bad for bad in isolated(recording).nodes if bad.how == "slow"]
    for is_grave, some in grouped(((each.share or 0.0) * SLOW_NODE_RATIO <= 1, each) for each in bad).items():
        worst = min(each.share or 0.0 for each in some)
        yield likely(
            _who(recording, some),
            f"{{who}} {verb('slow', len(some))} with every other node tested, which are fast without it: "
            f"{100 * worst:.0f} % of the usual rate",
            _evidence(recording, some),
            _leave_out(recording, some, "link speeds, clocks and power limits, other programs"),
            severity=Severity.ERROR if is_grave else None,
            detail=_shared(recording, some),
        )


def _who(recording: Recording, some: Sequence[Fault]) -> Who:
    nodes = [bad.nodes[0] for bad in some]
    return Who(tuple(node_culprit(recording, node) for node in nodes), hosts(recording, nodes))


def _shared(recording: Recording, some: Sequence[Fault]) -> str:
    return shared(in_common(recording, [bad.nodes[0] for bad in some])) if len(some) > 1 else ""


def _evidence(recording: Recording, some: Sequence[Fault]) -> list[Evidence]:
    found = []
    for bad in some[:LINES_OF_EVIDENCE]:
        name, partners = hosts(recording, bad.nodes), hosts(recording, bad.partners)
        did = f"{counted(bad.how, bad.failed, bad.tests)}{of_usual(bad.share)}{said(bad.reason)}"
        found.append(Evidence(text=f"{name} {f'with {partners}' if partners else 'alone'}: {did}"))
    return found


def _leave_out(recording: Recording, some: Sequence[Fault], look_at: str, *commands: str) -> Remedy:
    names = _who(recording, some).names
    return by_administrator(
        f"Leave {names} out of the job (--bad-nodes FILE writes the list), and look at its {look_at}",
        *commands,
        cost="the job has fewer nodes",
    )
