"""DD540: nodes that stopped responding after the check-in (causes: views/silence_causes.py)."""

from collections.abc import Iterator, Sequence
from functools import partial

from ddp_doctor.checks.cluster.roll_call.wording import advice, look_at
from ddp_doctor.facts.cluster import RollCallFact, SilenceFact
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.silence_causes import Cause, causes, farewells, links_lost
from ddp_doctor.wording.findings import NOBODY, finding, proved
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit, node_pair

_ANSWERED = {
    "answers": "answers on the direct line",
    "silent": "accepts connections but does not respond: its kernel runs, its ddp-doctor does not",
    "refused": "refuses connections: its kernel runs, its ddp-doctor exited",
    "timed_out": "does not answer",
    "unreachable": "is unreachable: no route, or no host at that address",
}

#: The reported silence of a node whose connection to the store is broken, because no more beats can arrive.
_FOR_EVER_S = 1e6


@rule("DD540", "node-fell-silent", Consequence.FAILS, SilenceFact)
def node_fell_silent(recording: Recording) -> Iterator[Draft]:
    """A node checked in but no longer responds.

    Finds: Reports a node whose agent no longer sends heartbeats, with what the other nodes still receive from its host:
        nothing (powered off, unplugged), only answers of its kernel (the agent is stopped or has exited), or an answer
        (the path between two nodes is broken). Only this node is named if it or two other nodes provide evidence,
        otherwise also the node that misses it. If a node is cut off from all others, that node is named.
    Why: A job would hang without a message until its timeout, and every other node would name its own rank as the root
        cause.
    Remedy: Depending on what the host still answers, check its power and cable, what stopped or killed the process, or
        the path between the two nodes.
    See: docs/explanation/many-nodes.md
        tcp(7), for what a kernel answers when no program does
    """
    for cause in causes(recording):
        without_head = 0 in cause.blamed and _is_head(cause)
        survivors = " Without the head node, each other node ended with its own result." if without_head else ""
        blamed = tuple(node_culprit(recording, node) for node in cause.blamed)
        yield finding(
            blamed or (node_pair(recording, node, peer) for node, peer in cause.pairs),
            _title(recording, cause),
            (_evidence(recording, silence) for silence in cause.seen),
            _remedy(recording, cause),
            confidence=_confidence(cause),
            detail=_DETAILS[cause.how] + survivors,
            severity=Severity.WARNING if cause.how == "beats" else None,
        )
    for farewell in farewells(recording):  # not a fault of the machine: only the run could not be completed
        why, name = farewell.fact.said_goodbye, host(recording, farewell.fact.node)
        again, how = "Run again, on all nodes", "it was interrupted"
        if why != "interrupted":
            again = "Run again; report it with the recording if it happens again, because it is a bug in ddp-doctor"
            how = f"ddp-doctor failed there: {why}"
        yield proved(
            NOBODY,
            f"{name} left before the end: {how}",
            Evidence(text=f"{name} stopped: {why}"),
            advice(again, scope="job", cost="the time of one run", untried="there is no fault to prove"),
            detail="The remaining tests did not run. No fault of the node was found.",
            severity=Severity.INFO,
        )


def _title(recording: Recording, cause: Cause) -> str:
    if cause.how in ("stopped", "link-down", "cut-off"):
        names, silent, since = hosts(recording, cause.blamed), hosts(recording, cause.silent), _since(cause)
        if cause.how == "stopped":
            stopped = max(silence.fact.stopped_s for silence in cause.seen)
            were = "were" if len(cause.blamed) > 1 else "was"
            return f"{names} {were} stopped for {stopped:.1f} s, and {silent} gave up waiting"
        if cause.how == "link-down":
            lost = name_list(sorted({name for silence in cause.seen for name in links_lost(recording, silence)}))
            return f"{names} lost the link on {lost} and {_hears_no_more(recording, cause, cause.blamed)}"
        is_off = f"was cut off{since}" if since else "is cut off"
        return f"{names} {is_off}: it receives nothing from other nodes ({silent})"
    if cause.how == "one-sided":
        return (
            f"{hosts(recording, cause.observers)}"
            f" {_hears_no_more(recording, cause, cause.observers)}: fault at either end or on"
            " the path"
        )
    if cause.how == "path":
        hearing = [silence.node for silence in cause.seen if silence.fact.answer == "answers"]
        paths = " and between ".join(
            f"{host(recording, node)} and {host(recording, peer)}" for node, peer in cause.pairs
        )
        return (
            f"Path between {paths} broke{_since(cause)}: {hosts(recording, hearing)} still"
            f" {_verb(hearing, 'hear')} {hosts(recording, cause.silent)}"
        )
    head = "head node " if _is_head(cause) else ""
    its = "its" if len(cause.silent) == 1 else "their"
    up = "host answers" if len(cause.silent) == 1 else "hosts answer"
    missing = f"{hosts(recording, cause.observers)} {_verb(cause.observers, 'get')} no answer"
    state = {
        "frozen": f"{its} {up}, but ddp-doctor does not (stopped or frozen)",
        "gone": f"{its} {up}, but ddp-doctor exited (killed, crashed, or gave up)",
        "store": f"ddp-doctor answers, but no longer serves other nodes over {_endpoint(recording)}",
        "beats": f"ddp-doctor answers on the direct connection, but not over {_endpoint(recording)}",
        "dark": f"{missing}: host down, cable out or dead switch port",
    }[cause.how]
    return f"Contact with {head}{hosts(recording, cause.silent)} was lost{_since(cause)}: {state}"


def _hears_no_more(recording: Recording, cause: Cause, observers: Sequence[int]) -> str:
    silent, since = hosts(recording, cause.silent), _since(cause)
    if not since:
        return f"no longer {_verb(observers, 'hear')} {silent}"
    return f"stopped hearing {silent}{since}"


def _is_head(cause: Cause) -> bool:
    return cause.silent == (0,) and any(silence.fact.head for silence in cause.seen)


def _verb(nodes: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(set(nodes)) == 1 else verb


def _since(cause: Cause) -> str:
    since = [silence.fact.since_s for silence in cause.seen if silence.fact.since_s is not None]
    return f" {max(since):.1f} s after all nodes had joined" if since else ""


def _endpoint(recording: Recording) -> str:
    roll_call = recording.first(RollCallFact)
    if roll_call is None or not roll_call.endpoint_port:
        return "the endpoint's port"
    return f"{roll_call.endpoint_host or host(recording, 0)}:{roll_call.endpoint_port}"


_DETAILS = {
    "stopped": "Its own clock shows the gap: its processes were stopped, or had no CPU time.",
    "link-down": "The kernel of that node reports it. The other nodes are only behind that link.",
    "cut-off": "One host, cable or switch port is more likely the cause than all other nodes.",
    "frozen": "The kernel accepted another node's connection, but no program read from it.",
    "gone": (
        "The kernel refused another node's connection, so no program listens there now."
        " On a path that loses or delays packets, either end may give up first; the"
        " node's own report, if there is one, shows it."
    ),
    "store": "ddp-doctor's store exited or stalled there. The host and its network work.",
    "dark": "More nodes lost it than are lost, so the fault is there and not between two nodes.",
    "one-sided": "The two nodes do not hear each other. A third node could show which one is at fault.",
    "path": "The node is alive. A firewall or a switch between the two nodes appeared or broke.",
    "beats": "Either that port is blocked between the two nodes, or the node stalled for several seconds.",
}


def _confidence(cause: Cause) -> Confidence:
    if cause.how in ("stopped", "link-down"):
        return Confidence.PROVED
    if cause.how in ("frozen", "gone"):
        agree = len({silence.node for silence in cause.seen if silence.fact.answer in ("silent", "refused")})
        return Confidence.PROVED if agree > 1 and len(cause.silent) == 1 else Confidence.LIKELY
    return Confidence.POSSIBLE if cause.how == "beats" else Confidence.LIKELY


def _evidence(recording: Recording, silence: FactAt[SilenceFact]) -> Evidence:
    fact = silence.fact
    observer, silent = host(recording, silence.node), host(recording, fact.node)
    parts = [f"to {observer}, {silent} {_ANSWERED[fact.answer]}"] if fact.answer in _ANSWERED else []
    timed = fact.heartbeat and fact.silent_s < _FOR_EVER_S
    if fact.heartbeat and not timed:
        parts.append(f"the connection of {observer} to ddp-doctor's TCPStore broke")
    if fact.stopped_s >= 1.0:
        parts.append(f"{observer} itself had stalled for {fact.stopped_s:.1f} s")
    if fact.links_down:
        parts.append(f"{observer} itself lost the link on {', '.join(fact.links_down)}")
    if timed:
        parts.append(f"{observer} received nothing from {silent} for")
    return Evidence(
        text="; ".join(parts),
        value=fact.silent_s if timed else None,
        unit="s" if timed else None,
        expected_from="a running node sends several messages per second",
    )


def _remedy(recording: Recording, cause: Cause) -> Remedy:
    where = hosts(recording, cause.blamed or cause.silent)
    links = sorted({name for silence in cause.seen for name in links_lost(recording, silence)})
    if cause.how == "link-down":
        summary = f"Check the cable, the switch port and the driver of {name_list(links)} on {where}"
        return _on_node(summary, *(f"ip -s link show {name}" for name in links), "sudo dmesg -T | tail -n 50")
    if cause.how == "cut-off":
        return _on_node(f"Check the network of {where}: interface, cable, switch port", "ip -br link", "ip -s link")
    if cause.how in ("stopped", "frozen"):
        return _on_node(
            f"Find what stopped it on {where}: T is stopped (SIGCONT), D waits for a device or file system",
            "ps -eo pid,stat,wchan:30,args | grep -e '[d]dp-doctor' -e '[d]dp_doctor'",
            "cat /proc/pressure/memory /proc/pressure/io",
        )
    if cause.how in ("gone", "store"):
        return _on_node(
            f"Find what ended it on {where}: lack of memory, a time limit, an epilog, an administrator",
            "sudo dmesg -T | grep -i -e oom -e killed -e segfault",
        )
    if cause.how == "dark":
        return _on_node(f"Check on its console or BMC whether {where} runs, then check its cable and switch port")
    first, second = (host(recording, node) for node in cause.pairs[0])
    if cause.how == "beats":
        summary = f"Check whether {_endpoint(recording)} stays open between {first} and {second}, then run again"
    else:
        summary = f"Test the path between {first} and {second} from both ends (firewall, switch, cable), then run again"
    return look_at(
        summary,
        f"ping -c 3 {second}   # on {first}, and the other way round",
        "ip neigh",
        "sudo nft list ruleset",
        scope="cluster",
    )


_on_node = partial(
    look_at, scope="node", cost="fewer nodes in the job until then", undo="return the node to the scheduler"
)
