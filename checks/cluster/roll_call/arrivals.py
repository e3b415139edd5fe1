"""DD515, DD518: who came to the roll call and does not go together."""

from collections.abc import Iterator

from ddp_doctor.checks.cluster.roll_call.endpoint import facts_with
from ddp_doctor.checks.cluster.roll_call.wording import command_for, endpoint, start_again, who_came
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import name_list


@rule("DD515", "two-nodes-claim-one-node-rank", Severity.ERROR, RollCallFact)
def two_nodes_claim_one_node_rank(recording: Recording) -> Iterator[Draft]:
    """Two hosts were started with the same node rank, or rank 0 with another host than the endpoint.

    Finds: A --node-rank that two of those who reported in claim, or node rank 0 on a host that is not the one that the
        endpoint names.
    Why: torchrun says nothing of it: both nodes wait for ever, or the second replaces the first.
    Remedy: Give each host its own node rank from 0 on, the head 0; or leave --node-rank out on all of them.
    See: torch.distributed.run, --node-rank
    """
    for fact in facts_with(recording, "duplicate"):
        yield from _duplicates(recording, fact)
    for fact in facts_with(recording, "misplaced"):
        addresses = ", ".join(fact.endpoint_addresses) or "unknown here"
        yield proved(
            (_claim(fact.hostname, 0),),
            f"{fact.hostname} was given node rank 0, but the endpoint {endpoint(fact)} is another host",
            Evidence(
                text=f"{fact.endpoint_host} is {addresses}, no address of {fact.hostname}",
                expected_from="node rank 0 runs on the endpoint's host",
            ),
            start_again(f"Give node rank 0 to {fact.endpoint_host}, or name {fact.hostname} as the endpoint"),
            detail="The node with rank 0 hosts the meeting, so it must be the host that the endpoint names.",
        )


def _claim(hostname: str, rank: int) -> Culprit:
    return Culprit(kind="setting", node=hostname, node_rank=rank, name="--node-rank")


def _duplicates(recording: Recording, fact: RollCallFact) -> Iterator[Draft]:
    claims = grouped((node.claimed_rank, node.hostname) for node in fact.present if node.claimed_rank is not None)
    for rank, hosts in claims.items():
        if len(hosts) < 2:
            continue
        distinct = list(dict.fromkeys(hosts))
        free = (number for number in range(fact.nnodes) if number not in {node.claimed_rank for node in fact.present})
        who = name_list(distinct) if len(distinct) > 1 else f"{len(hosts)} starts on {distinct[0]}"
        yield proved(
            (_claim(host, rank) for host in distinct),
            f"{who} have the same node rank {rank}: each needs its own",
            who_came(fact.present),
            start_again(
                f"Give each of the {fact.nnodes} hosts its own --node-rank, 0 to {fact.nnodes - 1}, or leave"
                " it out on all"
                if len(distinct) > 1
                else f"Start the command once on {distinct[0]}",
                *(
                    f"{command_for(recording, fact, node_rank)}   # on {host}"
                    for node_rank, host in zip(free, distinct[1:], strict=False)
                ),
            ),
            detail=f"They came to {endpoint(fact)} with the same --node-rank. torchrun would hang.",
        )


@rule("DD518", "nodes-disagree-on-number-of-nodes", Severity.ERROR, RollCallFact)
def nodes_disagree_on_number_of_nodes(recording: Recording) -> Iterator[Draft]:
    """The nodes were told different numbers of nodes, or one more came than was asked for.

    Finds: Nodes that reported in with another --nnodes than the rest, and a node that came when all were here. Where no
        number is the usual one, no node is blamed.
    Why: Each waits for another number of nodes: torchrun hangs, or starts a world that somebody is left out of.
    Remedy: The same --nnodes on all nodes, and as many starts.
    See: torch.distributed.run, --nnodes
    """
    for fact in facts_with(recording, "disagree"):
        ranks = {node.hostname: node.claimed_rank for node in reversed(fact.present)}
        hosts_by_number = grouped((node.nnodes, node.hostname) for node in fact.present)
        most = max(map(len, hosts_by_number.values()), default=0)
        usual = [number for number, hosts in hosts_by_number.items() if len(hosts) == most]
        odd_numbers = [number for number in hosts_by_number if len(usual) == 1 and number != usual[0]]
        each = "; ".join(f"{name_list(hosts)}: {number}" for number, hosts in sorted(hosts_by_number.items()))
        yield proved(
            tuple(
                Culprit(kind="setting", node=host, node_rank=ranks[host], name="--nnodes")
                for number in odd_numbers
                for host in hosts_by_number[number]
            )
            or (Culprit(kind="setting", name="--nnodes"),),
            f"--nnodes is not the same on all nodes: {each}",
            Evidence(text=f"--nnodes by host: {each}", expected_from="one number on all nodes"),
            start_again("Give all nodes the same --nnodes", command_for(recording, fact)),
            detail="Each waits for its own number of nodes, so the job would not start on all of them.",
        )
    for fact in facts_with(recording, "too_many"):
        yield proved(
            (Culprit(kind="setting", node=fact.hostname, name="--nnodes"),),
            f"{fact.hostname} is one too many: all {fact.nnodes} nodes had reported in to {endpoint(fact)}",
            Evidence(
                text=f"{fact.hostname} reported in after the last node",
                expected=fact.nnodes,
                unit="nodes",
                expected_from="--nnodes",
            ),
            start_again("Start as many nodes as --nnodes says, or raise --nnodes on all of them"),
            detail="Another host has taken the place, or the command was started twice.",
        )
