"""Texts of findings about the node check-in: endpoints, nodes, fixes, and why fixes are not tested."""

from collections.abc import Sequence
from functools import partial

from ddp_doctor.facts.cluster import Present, RollCallFact
from ddp_doctor.model.finding import Culprit, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording import run_options
from ddp_doctor.wording.nodes import name_list

#: Nodes in the same situation.
Group = Sequence[FactAt[RollCallFact]]


def endpoint(fact: RollCallFact) -> str:
    """Return ``node0:29400``; an IPv6 address is in brackets."""
    host = fact.endpoint_host or (fact.hostname if fact.role == "head" else "the head")
    return f"[{host}]:{fact.endpoint_port}" if ":" in host else f"{host}:{fact.endpoint_port}"


def reader(fact: RollCallFact) -> Culprit:
    """Return the node that took the reading; its rank is known only if it was given one."""
    known = 0 if fact.role == "head" else fact.claimed_rank
    name = fact.hostname or ("the head" if fact.role == "head" else "this node")
    return Culprit(kind="node", node=name, node_rank=known)


def same_host(name: str, other: str) -> bool:
    """Return True if two names mean one host: a short name matches the name with its domain."""
    short, other_short = name.lower().partition(".")[0], other.lower().partition(".")[0]
    both_full = "." in name and "." in other
    return name.lower() == other.lower() if both_full else short == other_short


def command_for(recording: Recording, fact: RollCallFact, node_rank: int | None = None) -> str:
    """Return the command for another host with the same options, and with a node rank if ranks are set manually."""
    ranked = f" --node-rank {node_rank}" if node_rank is not None else ""
    command = f"ddp-doctor run --nnodes {fact.nnodes}{ranked} --rdzv-endpoint {endpoint(fact)}"
    asked_s = fact.asked_s or run_options.JOIN_TIMEOUT_S
    options = run_options.typed(recording.options, fact.asked_ranks, asked_s)
    return run_options.line(command if ranked else fact.command or command, options)


def time_given(fact: RollCallFact) -> str:
    """Return ``60 s``: the time limit of the check-in, or its duration if it ended earlier."""
    return f"{min(fact.waited_s, fact.asked_s or fact.waited_s):.0f} s"


def names(group: Group) -> str:
    """Return the nodes of the group for a sentence."""
    return name_list(list(dict.fromkeys(reader(node.fact).node or "" for node in group)))


def readers(group: Group) -> tuple[Culprit, ...]:
    """Return the nodes of the group as culprits."""
    return tuple(dict.fromkeys(reader(node.fact) for node in group))


def paths(group: Group) -> tuple[Culprit, ...]:
    """Return each node of the group paired with the endpoint: it is only known that the two do not connect."""
    return tuple(
        culprit.model_copy(update={"kind": "pair", "peer_node": group[0].fact.endpoint_host})
        for culprit in readers(group)
    )


def system_words(group: Group) -> str:
    """Return the system's error message, for brackets: "10.77.0.1: No route to host"."""
    return "; ".join(
        dict.fromkeys(f"{a.address}: {a.error or a.outcome}" for node in group for a in node.fact.attempts)
    )


def who_came(present: Sequence[Present]) -> Evidence:
    """Return the nodes that checked in, with the node ranks that they claimed."""
    names_and_ranks = [
        node.hostname if node.claimed_rank is None else f"{node.hostname} as node rank {node.claimed_rank}"
        for node in present
    ]
    return Evidence(
        text=f"checked in: {', '.join(names_and_ranks)}",
        expected_from="each host has its own node rank, or none is set",
    )


ANOTHER_START = "requires another start on those hosts"

#: For actions of a person; an action without a cost does not change anything.
advice = partial(remedy)
#: For a host or network that blocks the check-in.
fix = partial(advice, untried="requires access to that host or the network")


def open_port(fact: RollCallFact, whom: str, *commands: str) -> Remedy:
    """Return the fix that opens the endpoint's port; ``whom`` is "from node1 ", or empty for all."""
    return fix(
        f"Allow TCP port {fact.endpoint_port} and the job's ephemeral ports {whom}to"
        f" {fact.endpoint_host or fact.hostname} in the host firewall and the cloud security"
        " group",
        *commands,
        scope="cluster",
        cost="an open port between the nodes of the cluster",
        undo="close the port",
    )


def another_port(summary: str, fact: RollCallFact, holder: Culprit) -> Remedy:
    """Return the fix to use another port if the current one is held by an unknown program."""
    return fix(
        summary,
        f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {holder.node}: who it is",
        scope="job",
        cost="another port to open in the firewall, if there is one",
        undo="use the previous port",
    )


#: For a host or network that failed after the check-in.
look_at = partial(advice, untried="the host or the network must be inspected first")
#: For a command that was started with the wrong options, or not at all.
start_again = partial(advice, scope="job", untried=ANOTHER_START, undo="start with the previous options")

#: Fixes by launcher. One command starts all nodes, so users do not start commands on the other nodes.
LAUNCHERS = {
    "ssh": "Check whether ssh works, then run the same command again",
    "slurm": "Check the state of the node and srun's output, then run the command again",
    "kubernetes": "Check the state of the pod, then start the job again",
    "mpi": "Read mpirun's output, then run the command again",
}
_LOOKS = {
    "ssh": ("ssh -o BatchMode=yes {} true",),
    "slurm": ("scontrol show node {}",),
    "kubernetes": ("kubectl describe pod {}", "kubectl logs {}"),
}


def looks(launcher: str, hosts: Sequence[str]) -> list[str]:
    """Return commands to check hosts that the launcher should have started; pods have their short names."""
    names = [host.partition(".")[0] if launcher == "kubernetes" else host for host in hosts[:4]]
    return [look.format(name) for name in names for look in _LOOKS.get(launcher, ())]


def launch_again(launcher: str, hosts: Sequence[str], *commands: str) -> Remedy:
    """Return the fix for hosts on which one of LAUNCHERS should have started the command."""
    commands_to_look = looks(launcher, hosts)
    return advice(LAUNCHERS[launcher], *commands_to_look, *commands, scope="cluster", untried=ANOTHER_START)
