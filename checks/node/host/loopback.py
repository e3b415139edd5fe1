"""DD240: a loopback interface that cannot be used."""

from collections.abc import Iterator

from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD240", "loopback-interface-down", Severity.ERROR, Host)
def loopback_down(recording: Recording) -> Iterator[Draft]:
    """The processes of one host cannot reach each other over the loopback interface.

    What it finds
        The interface lo is down, or has no address 127.0.0.1. The latter is a warning with several nodes, whose
        ranks meet at another address.

    Why it matters
        torchrun and its ranks meet at 127.0.0.1, and what a host sends to any of its own addresses goes over
        lo. Nobody answers there, so the job waits until its time-out.

    Remedy
        ip link set lo up

    References
        https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for problem, group in by_cause(recording.facts(Host), lambda fact: fact.loopback_problem).items():
        elsewhere = recording.world is not None and recording.world.nnodes > 1 and "no address" in problem
        yield proved(
            of_nodes(recording, group),
            f"The loopback interface of {{who}} cannot be used: {problem}",
            Evidence(text=problem, expected_from="lo is up and has the address 127.0.0.1"),
            _LOOPBACK_UP,
            detail="torchrun and the ranks of a node meet over it, and wait for each other in vain.",
            severity=Severity.WARNING if elsewhere else None,
        )


_LOOPBACK_UP = by_administrator(
    "Bring the loopback interface up",
    "sudo ip link set lo up",
    "sudo ip address add 127.0.0.1/8 dev lo   # where it has none",
    "ip address show lo",
    undo="sudo ip link set lo down",
)
