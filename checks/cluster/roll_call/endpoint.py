"""DD510-DD514, DD517, DD519: obstacles between a node and the endpoint, other programs on it, and wrong names."""

from collections.abc import Iterator, Sequence
from typing import Literal

from ddp_doctor.checks.cluster.roll_call import wording
from ddp_doctor.facts.cluster import AttemptOutcome, RollCallFact
from ddp_doctor.knowledge.network.addresses import is_loopback, is_own_host
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, MissingNode, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.silence_causes import leads_out
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import by_cause, name_list

Obstacle = Literal[
    "unresolved", "loopback", "family", "rejected", "refused", "timed_out", "unreachable", "held", "other", "job"
]


def obstacle_of(recording: Recording, fact: RollCallFact) -> Obstacle | None:
    """Return what keeps a node from the endpoint, or None; an address that cannot work explains any outcome."""
    if is_led_astray(fact):
        return "loopback"
    theirs = {":" in address for address in fact.endpoint_addresses}
    mine = {":" in address for address in own_addresses(recording, fact)}
    if fact.outcome in ("refused", "timed_out", "unreachable") and theirs and mine and not theirs & mine:
        return "family"
    if fact.outcome == "other_job" or jobs_that_clash(fact):
        return "job"
    if fact.outcome in ("held", "mute", "foreign"):
        return "held" if fact.outcome == "held" else "other"
    if fact.outcome in ("unresolved", "refused", "timed_out", "unreachable"):
        return "rejected" if any(attempt.rejected_by for attempt in fact.attempts) else fact.outcome
    return None


def facts_with(recording: Recording, *outcomes: AttemptOutcome) -> Iterator[RollCallFact]:
    """Yield the facts with one of these outcomes; wrong addresses and two jobs have their own rules."""
    for node in recording.facts(RollCallFact):
        led_astray = is_led_astray(node.fact) or jobs_that_clash(node.fact)
        if node.fact.outcome in outcomes and not led_astray:
            yield node.fact


def jobs_that_clash(fact: RollCallFact) -> tuple[str, ...]:
    """Return the jobs of the nodes that came if they conflict; a run may span two matching jobs."""
    jobs = dict.fromkeys(node.job for node in fact.present if node.job)
    return tuple(jobs) if len(jobs) > 1 and fact.outcome in ("duplicate", "disagree") else ()


def is_led_astray(fact: RollCallFact) -> bool:
    """Return True if the endpoint's name resolves to this host itself although it is another host."""
    if fact.outcome == "met" or fact.claimed_rank == 0 or wording.same_host(fact.hostname, fact.endpoint_host):
        return False
    waits_in_vain = fact.role == "head" and fact.outcome == "missing"
    dials_itself = fact.outcome in ("refused", "timed_out", "unreachable", "mute", "foreign")
    addresses = fact.endpoint_addresses
    return (waits_in_vain or dials_itself) and bool(addresses) and all(map(is_loopback, addresses))


def own_addresses(recording: Recording, fact: RollCallFact) -> list[str]:
    """Return the addresses of this node that others can reach."""
    nodes = recording.world.nodes if recording.world else ()
    mine = next((node for node in nodes if node.hostname == fact.hostname), None)
    return [address for of in (mine.addresses.values() if mine else ()) for address in of if leads_out(address)]


def facing(recording: Recording, *obstacles: Obstacle) -> list[wording.Group]:
    """Return the nodes with one of these obstacles, in groups that share it and the endpoint."""

    def cause(fact: RollCallFact) -> tuple[str, str] | None:
        obstacle = obstacle_of(recording, fact)
        return (obstacle, wording.endpoint(fact)) if obstacle in obstacles else None

    return list(by_cause(recording.facts(RollCallFact), cause).values())


def head(fact: RollCallFact) -> Culprit:
    """Return the host that the endpoint names."""
    name = fact.hostname if fact.role == "head" else fact.endpoint_host
    return Culprit(kind="node", node=name or fact.hostname, node_rank=0)


def draft(
    group: wording.Group,
    title: str,
    detail: str,
    culprits: tuple[Culprit, ...],
    *remedies: Remedy,
    expected: str = "the endpoint answers within the time for the node check-in",
    confidence: Confidence = Confidence.PROVED,
    missing: tuple[MissingNode, ...] = (),
) -> Draft:
    """Return a finding based on what each node of the group saw of the endpoint; the head may know the cause."""
    evidence = []
    for fact in (node.fact for node in group):
        attempts = [f"{attempt.address}: {attempt.error or attempt.outcome}" for attempt in fact.attempts]
        if not attempts or fact.outcome == "foreign":
            attempts += [fact.error or f"{fact.endpoint_host} is {', '.join(fact.endpoint_addresses)}"]
        seen_there = Evidence(
            text=f"on {wording.reader(fact).node}, {'; '.join(attempts)}{'; tried for' if fact.waited_s else ''}",
            value=round(fact.waited_s, 1) or None,
            unit="s" if fact.waited_s else None,
            expected_from=expected,
        )
        evidence.append(seen_there)
    return finding(
        culprits, title, evidence, *remedies, confidence=confidence, detail=detail, nodes=(0,), missing=missing
    )


_HOSTS = "/etc/hosts"


@rule("DD510", "endpoint-name-does-not-resolve", Consequence.FAILS, RollCallFact)
def endpoint_name_does_not_resolve(recording: Recording) -> Iterator[Draft]:
    """The host name of the endpoint has no address on a node.

    Finds: Reports a name in --rdzv-endpoint (or --master-addr) that this node's resolver cannot resolve for several
        seconds: misspelled, or missing from DNS or /etc/hosts on this node.
    Why: torchrun repeats "The IPv6 network addresses of (…) cannot be retrieved" for more than a minute on this node,
        and prints nothing on the others.
    Remedy: Correct the name, add it to DNS or /etc/hosts on this host, or use the endpoint's address instead.
    See: getent(1), nsswitch.conf(5)
    """
    for group in facing(recording, "unresolved"):
        fact, who = group[0].fact, wording.names(group)
        yield draft(
            group,
            f"{who} cannot resolve the endpoint's name {fact.endpoint_host}: {fact.error or 'no address'}",
            "The node cannot find the other nodes, and they wait for it.",
            tuple(
                culprit.model_copy(update={"kind": "setting", "name": "--rdzv-endpoint"})
                for culprit in wording.readers(group)
            ),
            wording.fix(
                "Correct the name, add it to DNS or /etc/hosts, or use the IP address of the head node",
                f"getent ahosts {fact.endpoint_host}   # on {who}",
                "hostname -I   # on the head: its addresses",
                cost="manual maintenance of a line in /etc/hosts",
                undo="remove the line",
            ),
            expected="the resolver knows the name of the endpoint on every node",
        )


@rule("DD517", "endpoint-has-no-common-address-family", Consequence.FAILS, RollCallFact)
def endpoint_has_no_common_address_family(recording: Recording) -> Iterator[Draft]:
    """The endpoint has only IPv6 addresses and a node has only IPv4, or vice versa.

    Finds: Reports an endpoint whose name has, on this node, only addresses of one family, while the node has only
        loopback and link-local addresses of that family.
    Why: The node can never join. torch reports "errno: 101 - Network is unreachable" and retries for minutes.
    Remedy: Give the node an address of that family, or the endpoint's name an address of the other family.
    See: getaddrinfo(3), ENETUNREACH in connect(2)
    """
    for group in facing(recording, "family"):
        fact, who = group[0].fact, wording.names(group)
        theirs, mine = _family(fact.endpoint_addresses), _family(own_addresses(recording, fact))
        yield draft(
            group,
            f"{who} has only {mine}, but the endpoint {fact.endpoint_host} has only {theirs}"
            f" ({', '.join(fact.endpoint_addresses)})",
            "They have no common address family, so they cannot connect.",
            wording.paths(group),
            wording.fix(
                f"Add an {theirs} address on {who}, or an {mine} address and name entry for {fact.endpoint_host}",
                f"getent ahosts {fact.endpoint_host}; ip -br address   # on both",
                scope="cluster",
                cost="a changed host address",
                undo="remove the address",
            ),
        )


def _family(addresses: Sequence[str]) -> str:
    return "IPv6" if any(":" in address for address in addresses) else "IPv4"


@rule("DD519", "endpoint-name-resolves-to-loopback-for-others", Consequence.FAILS, RollCallFact)
def endpoint_name_resolves_to_loopback_for_others(recording: Recording) -> Iterator[Draft]:
    """On a node other than the head node, the endpoint's name resolves to that node itself.

    Finds: Reports an endpoint whose name resolves to 127.x or ::1 on a node with a different name, which then connects
        to, or waits for, only itself.
    Why: The node waits for itself until the timeout. In a job, it may even become a second head node.
    Remedy: Remove the name from the loopback line of /etc/hosts on that node. Use the name of the head node, not
        localhost.
    See: hosts(5); Debian writes the own host name to 127.0.1.1
    """
    for group in facing(recording, "loopback"):
        fact = group[0].fact
        where, name = wording.names(group), fact.endpoint_host
        typed = is_own_host(name)  # otherwise the host's own files define it
        blamed = {"kind": "setting", "name": "--rdzv-endpoint"} if typed else {"kind": "file", "name": _HOSTS}
        yield draft(
            group,
            f"{where} cannot reach the head node: {name} resolves to"
            f" {', '.join(fact.endpoint_addresses)}, which is {where} itself",
            f"If {where} is meant to be the head node, then no other node checked in.",
            tuple(culprit.model_copy(update=blamed) for culprit in wording.readers(group)),
            wording.fix(
                "Use a name or address that is the head node on every node"
                if typed
                else f"Remove {name} from the loopback line of {_HOSTS} on {where}",
                f"getent ahosts {name}; grep -n {name} {_HOSTS}   # on {where}",
                scope="job" if typed else "node",
                undo="restore the previous line or option",
            ),
            expected="the endpoint's name is the head node on every node",
        )


#: The kernel's error if this host itself has no route, independent of the other host (errno(3)).
_NO_NETWORK = "Network is unreachable"


@rule("DD511", "endpoint-refuses-connections", Consequence.FAILS, RollCallFact, explained_by=("DD516",))
def endpoint_refuses_connections(recording: Recording) -> Iterator[Draft]:
    """The endpoint's host is up, but its port is closed or a packet filter refuses the connection.

    Finds: Reports connections to the endpoint that were refused until the check-in timed out. An ICMP answer shows that
        a packet filter refused them, and whose. Otherwise the head node is missing, but not necessarily at fault.
    Why: torchrun prints "timed out after 60000ms", as for every other problem, and keeps trying for minutes.
    Remedy: Start the command on the head node as well, with the same endpoint. If it already runs, look for a firewall
        that resets connections, which looks the same from this node. Open the port in a filter that answered with ICMP.
    See: connect(2), ECONNREFUSED; ip(7), IP_RECVERR
    """
    for group in facing(recording, "rejected"):
        fact, who = group[0].fact, wording.names(group)
        rejections = [attempt for node in group for attempt in node.fact.attempts if attempt.rejected_by]
        is_heads = all(attempt.rejected_by == attempt.address for attempt in rejections)
        where = fact.endpoint_host if is_heads else name_list(sorted({attempt.rejected_by for attempt in rejections}))
        between = " A Kubernetes service without a ready pod answers the same way."
        yield draft(
            group,
            f"Firewall on {where} rejects connections of {who} to {wording.endpoint(fact)}",
            "The answer is ICMP, from a firewall's reject rule and not from a closed"
            f" port.{'' if is_heads else between}",
            (head(fact),) if is_heads else wording.paths(group),
            wording.open_port(fact, f"from {who} ", f"sudo nft list ruleset   # on {where}: a reject rule"),
            confidence=Confidence.LIKELY,
        )
    for group in facing(recording, "refused"):
        fact = group[0].fact
        waited = wording.time_given(max((node.fact for node in group), key=lambda fact: fact.waited_s))
        yield draft(
            group,
            f"No program listens on {wording.endpoint(fact)}: connections of"
            f" {wording.names(group)} were refused for {waited}",
            f"{fact.endpoint_host} is up. The command was not started there, exited, or uses"
            " another port. A firewall that resets connections looks the same.",
            (),
            _start_the_head(recording, fact),
            confidence=Confidence.LIKELY,
            missing=(MissingNode(node=fact.endpoint_host, node_rank=0),),
        )


def _start_the_head(recording: Recording, fact: RollCallFact) -> Remedy:
    look = (
        f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {fact.endpoint_host}: who listens",
        "sudo nft list ruleset   # there, if somebody does: a reject rule",
    )
    if recording.launcher in wording.LAUNCHERS:
        return wording.launch_again(recording.launcher, [fact.endpoint_host], *look)
    return wording.fix(
        f"Start the same command on {fact.endpoint_host}, with the same endpoint",
        wording.command_for(recording, fact, 0 if fact.claimed_rank is not None else None),
        *look,
        scope="job",
    )


@rule("DD512", "endpoint-does-not-answer", Consequence.FAILS, RollCallFact, explained_by=("DD516",))
def endpoint_does_not_answer(recording: Recording) -> Iterator[Draft]:
    """The endpoint does not answer at all.

    Finds: Reports connections to the endpoint that only time out: no answer, no refusal, no message from a router.
    Why: This node's torchrun gives up after a minute with a timeout. The head node's torchrun hangs without a message.
    Remedy: Open the port in the firewall of the head node, or of the network between the nodes (security groups of a
        cloud). If the head node does not answer a ping either, check whether it runs.
    See: connect(2), ETIMEDOUT; torchrun uses TCP port 29400 unless told otherwise
    """
    for group in facing(recording, "timed_out"):
        fact, who = group[0].fact, wording.names(group)
        yield draft(
            group,
            f"{wording.endpoint(fact)} does not answer {who} ({wording.system_words(group)}): firewall or host down",
            "A firewall drops the packets, or the host is down. Without any answer, the two causes look the same.",
            wording.paths(group),
            wording.open_port(
                fact,
                f"from {who} ",
                f"ping -c 3 {fact.endpoint_host}   # on {who}: whether the host is up",
                f"ss -ltnp 'sport = :{fact.endpoint_port}'; sudo nft list ruleset   # on {fact.endpoint_host}",
            ),
        )


@rule("DD513", "no-route-to-endpoint", Consequence.FAILS, RollCallFact)
def no_route_to_endpoint(recording: Recording) -> Iterator[Draft]:
    """The endpoint's address cannot be reached.

    Finds: Reports a kernel without a route to the endpoint, or a network in which no host has its address.
    Why: The node can never join, and torchrun retries without a message.
    Remedy: Bring up an interface on the endpoint's network, or add a route to it. If only the endpoint's address is not
        found, check that it is correct and that its host is up.
    See: connect(2), ENETUNREACH and EHOSTUNREACH; ip-route(8)
    """
    for group in facing(recording, "unreachable"):
        fact, who = group[0].fact, wording.names(group)
        own = any(_NO_NETWORK in attempt.error for node in group for attempt in node.fact.attempts)
        there = fact.endpoint_addresses[0] if fact.endpoint_addresses else fact.endpoint_host
        yield draft(
            group,
            f"{who} has no route to {wording.endpoint(fact)} ({wording.system_words(group) or fact.error})",
            f"{who} has no network with that address, and no route to one."
            if own
            else "No host in the network owns the address, or a router rejects the packets.",
            wording.readers(group) if own else wording.paths(group),
            wording.fix(
                f"Bring up the interface to that network, or use an address of the head node that {who} can reach",
                f"ip route get {there}; ip -br address   # on {who}",
                f"ip -br address   # on {fact.endpoint_host}",
            ),
        )


@rule("DD514", "endpoint-port-held-by-another-program", Consequence.FAILS, RollCallFact)
def endpoint_port_held_by_another_program(recording: Recording) -> Iterator[Draft]:
    """Another program uses the endpoint's port.

    Finds: On the head node, or in a run of one node that names an endpoint, reports a port that it cannot listen on and
        the program that uses it. This may be the launcher that started this run. On other nodes, reports a server at
        the endpoint that accepts the connection without answering, is not ddp-doctor, or belongs to another job.
    Why: torchrun connects to this port and hangs without a message, on all nodes.
    Remedy: Choose another port with --rdzv-endpoint, --master-port or MASTER_PORT, for the job as well, or stop that
        program.
    See: bind(2), EADDRINUSE; ss(8)
    """
    for group in facing(recording, "held", "other"):
        fact = group[0].fact
        yield draft(
            group,
            _held_by(fact, wording.names(group)),
            "A job with this endpoint connects to it and hangs. A stopped ddp-doctor looks the same."
            if fact.outcome == "mute"
            else "A job with this endpoint cannot start either."
            if fact.nnodes > 1
            else "A job with this endpoint cannot start. The ranks of this run used another port.",
            (head(fact),),
            wording.another_port(
                "Choose another port with --rdzv-endpoint, --master-port or MASTER_PORT, the"
                " same on all nodes and in the job, or stop that program",
                fact,
                head(fact),
            ),
            expected="the port is free on the head node, and ddp-doctor answers there",
            confidence=Confidence.LIKELY if fact.outcome == "mute" else Confidence.PROVED,
        )
    for group in facing(recording, "job"):
        yield _two_jobs(group)


def _two_jobs(group: wording.Group) -> Draft:
    fact = group[0].fact
    setting = Culprit(kind="setting", node=fact.endpoint_host or fact.hostname, name="--rdzv-endpoint")
    jobs = [
        f"{job} ({', '.join(dict.fromkeys(node.hostname for node in fact.present if node.job == job))})"
        for job in jobs_that_clash(fact)
    ]
    if fact.outcome == "other_job":
        jobs = [f"{fact.held_by} uses it", f"{fact.job} connected to it from {fact.hostname}", *jobs]
    found = draft(
        group,
        f"Two jobs use one endpoint, {wording.endpoint(fact)}: {name_list(jobs)}",
        "The nodes belong to two jobs, so no node or rank is at fault. This run did not start.",
        (setting,),
        wording.another_port(
            "Use another port for one of the two jobs: --rdzv-endpoint on all of its nodes", fact, setting
        ),
        expected="each job has its own port on the head node",
    )
    if fact.outcome == "other_job":
        return found
    likely = {"evidence": (wording.who_came(fact.present),), "confidence": Confidence.LIKELY}
    return found.model_copy(update=likely)  # or one run in two allocations, with wrong options


def _held_by(fact: RollCallFact, observers: str) -> str:
    where, port = wording.endpoint(fact), fact.endpoint_port
    if fact.outcome == "mute":
        return f"Another program listens on {where}: it accepted the connection of {observers}, but did not answer"
    if fact.outcome == "foreign":
        return f"Another program, or the store of another job, listens on {where}"
    if fact.held_by or not fact.error or "in use" in fact.error:
        return f"Rendezvous port {port} of {fact.hostname} is in use by {fact.held_by or 'another program'}"
    return f"{fact.hostname} cannot listen on port {port}: {fact.error}"
