"""DD511-DD514: what comes back from the endpoint: a refusal, nothing, no route, another program."""

from collections.abc import Iterator

from ddp_doctor.checks.cluster.roll_call import wording
from ddp_doctor.checks.cluster.roll_call.endpoint import draft, facing, head, jobs_that_clash
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, MissingNode, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.nodes import name_list

#: What the kernel says where this host itself knows no way, whatever the other one does (errno(3)).
_NO_NETWORK = "Network is unreachable"


@rule("DD511", "endpoint-refuses-connections", Severity.ERROR, RollCallFact, explained_by=("DD516",))
def endpoint_refuses_connections(recording: Recording) -> Iterator[Draft]:
    """The endpoint's host is up, and nobody listens on its port, or a packet filter refuses the connection.

    Finds: Connections to the endpoint that were refused until the time for the roll call was up. Where ICMP says so, it
        was a packet filter, and whose; else the head is missing, and not to blame for that.
    Why: torchrun prints "timed out after 60000ms" of this as of everything else, and keeps trying for minutes.
    Remedy: Start the command on the head too, with the same endpoint. If it runs there, look for a firewall that resets
        connections: it looks the same from here. Open the port in a filter that answered with ICMP.
    See: connect(2), ECONNREFUSED; ip(7), IP_RECVERR
    """
    for group in facing(recording, "rejected"):
        fact, who = group[0].fact, wording.names(group)
        rejections = [attempt for node in group for attempt in node.fact.attempts if attempt.rejected_by]
        is_heads = all(attempt.rejected_by == attempt.address for attempt in rejections)
        where = fact.endpoint_host if is_heads else name_list(sorted({attempt.rejected_by for attempt in rejections}))
        between = " A Kubernetes service without a ready pod answers so, too."
        yield draft(
            group,
            f"A firewall on {where} rejects {who}'s connections to {wording.endpoint(fact)}",
            f"It came by ICMP: from a firewall's reject rule, not from a closed port.{'' if is_heads else between}",
            (head(fact),) if is_heads else wording.paths(group),
            wording.open_port(fact, f"from {who} ", f"sudo nft list ruleset   # on {where}: a reject rule"),
            confidence=Confidence.LIKELY,
        )
    for group in facing(recording, "refused"):
        fact = group[0].fact
        waited = wording.time_given(max((node.fact for node in group), key=lambda fact: fact.waited_s))
        yield draft(
            group,
            f"Nothing listens on {wording.endpoint(fact)}: {wording.names(group)} was refused for {waited}",
            f"{fact.endpoint_host} answers, so it is up: the command was not started there, has ended, or uses"
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
    launcher = recording.world.launcher if recording.world else ""
    if launcher in wording.LAUNCHERS:
        return wording.launch_again(launcher, [fact.endpoint_host], *look)
    return wording.fix(
        f"Start the same command on {fact.endpoint_host}, with the same endpoint",
        wording.command_for(recording, fact, 0 if fact.claimed_rank is not None else None),
        *look,
        scope="job",
    )


@rule("DD512", "endpoint-does-not-answer", Severity.ERROR, RollCallFact, explained_by=("DD516",))
def endpoint_does_not_answer(recording: Recording) -> Iterator[Draft]:
    """Nothing at all comes back from the endpoint.

    Finds: Connections to the endpoint that only time out: no answer, no refusal, no word from a router.
    Why: This node's torchrun gives up after a minute with a time-out; the head's hangs without a word.
    Remedy: Open the port in the firewall of the head, or of the network between (security groups of a cloud); if the
        head does not answer a ping either, see whether it runs.
    See: connect(2), ETIMEDOUT; torchrun uses TCP port 29400 unless told otherwise
    """
    for group in facing(recording, "timed_out"):
        fact, who = group[0].fact, wording.names(group)
        yield draft(
            group,
            f"{wording.endpoint(fact)} does not answer {who} ({wording.system_words(group)}): a firewall drops the"
            " packets, or the host is down",
            "Nothing came back within the time, not even a refusal; from here the two causes look alike.",
            wording.paths(group),
            wording.open_port(
                fact,
                f"from {who} ",
                f"ping -c 3 {fact.endpoint_host}   # on {who}: whether the host is up",
                f"ss -ltnp 'sport = :{fact.endpoint_port}'; sudo nft list ruleset   # on {fact.endpoint_host}",
            ),
        )


@rule("DD513", "no-route-to-endpoint", Severity.ERROR, RollCallFact)
def no_route_to_endpoint(recording: Recording) -> Iterator[Draft]:
    """There is no way to the endpoint's address.

    Finds: A kernel without a route to the endpoint, or a network in which nobody owns its address.
    Why: The node can never join; torchrun retries without saying so.
    Remedy: An interface that is up on the endpoint's network, or a route to it. If only the endpoint's address is not
        found, see whether it is the right one and its host is up.
    See: connect(2), ENETUNREACH and EHOSTUNREACH; ip-route(8)
    """
    for group in facing(recording, "unreachable"):
        fact, who = group[0].fact, wording.names(group)
        own = any(_NO_NETWORK in attempt.error for node in group for attempt in node.fact.attempts)
        there = fact.endpoint_addresses[0] if fact.endpoint_addresses else fact.endpoint_host
        yield draft(
            group,
            f"{who} has no route to {wording.endpoint(fact)} ({wording.system_words(group) or fact.error})",
            f"{who} has no network on which that address lies, and no route to one."
            if own
            else "The packets get no further than the network: nobody there owns the address, or a router"
            " refuses them.",
            wording.readers(group) if own else wording.paths(group),
            wording.fix(
                f"Bring up the interface that leads there, or use an address of the head node that {who} can reach",
                f"ip route get {there}; ip -br address   # on {who}",
                f"ip -br address   # on {fact.endpoint_host}",
                scope="node",
            ),
        )


@rule("DD514", "endpoint-port-held-by-another-program", Severity.ERROR, RollCallFact)
def endpoint_port_held_by_another_program(recording: Recording) -> Iterator[Draft]:
    """Another program has the endpoint's port.

    Finds: On the head, or in a run of one node that names an endpoint: a port on which it cannot listen, and which
        program has it; a launcher that started this run may have it. On the others: a server at the endpoint that
        accepts the connection and says nothing, or answers and is no ddp-doctor, or is one of another job.
    Why: torchrun connects to such a port and hangs without a word, on all nodes.
    Remedy: Choose another port with --rdzv-endpoint, --master-port or MASTER_PORT, for the job as well; or end that
        program.
    See: bind(2), EADDRINUSE; ss(8)
    """
    for group in facing(recording, "held", "other"):
        fact = group[0].fact
        port, name = fact.endpoint_port, head(fact).node
        yield draft(
            group,
            _held_by(fact, wording.names(group)),
            "A job with this endpoint would connect to it and hang. A doctor that was stopped looks the same."
            if fact.outcome == "mute"
            else "A job with this endpoint could not start either."
            if fact.nnodes > 1
            else "A job with this endpoint could not start. The ranks of this run met on another port.",
            (head(fact),),
            wording.fix(
                "Choose another port with --rdzv-endpoint, --master-port or MASTER_PORT, the same on all nodes and in"
                " the job, or end that program",
                f"ss -ltnp 'sport = :{port}'   # on {name}: who it is",
                scope="job",
                cost="another port may have to be opened in a firewall",
                undo="give the old port again",
            ),
            expected="the endpoint's port is free on the head, and the head's doctor answers on it",
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
        jobs = [f"{fact.held_by} has it", f"{fact.job} came to it from {fact.hostname}", *jobs]
    found = draft(
        group,
        f"Two jobs use one endpoint, {wording.endpoint(fact)}: {name_list(jobs)}",
        "The nodes are those of two jobs, so neither a node nor its rank is to blame. This run was not begun.",
        (setting,),
        wording.fix(
            "Give one of the two jobs another port with --rdzv-endpoint, on all of its nodes",
            f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {setting.node}: who it is",
            scope="job",
            cost="another port may have to be opened in a firewall",
            undo="give the old port again",
        ),
        expected="each job has a port of its own on the head",
    )
    if fact.outcome == "other_job":
        return found
    likely = {"evidence": (wording.who_came(fact.present),), "confidence": Confidence.LIKELY}
    return found.model_copy(update=likely)  # or one run in two allocations, with wrong options


def _held_by(fact: RollCallFact, observers: str) -> str:
    where, port = wording.endpoint(fact), fact.endpoint_port
    if fact.outcome == "mute":
        return f"Another program listens on {where}: it accepted {observers}'s connection, but sent no answer"
    if fact.outcome == "foreign":
        return f"Another program, or the store of another job, listens on {where}"
    if fact.held_by or not fact.error or "in use" in fact.error:
        return (
            f"Port {port} of {fact.hostname} is in use by {fact.held_by or 'another program'},"
            " so it cannot be used for the rendezvous"
        )
    return f"{fact.hostname} cannot listen on port {port}: {fact.error}"
