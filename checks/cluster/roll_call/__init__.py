"""Node check-in: whether all nodes find the endpoint and one another, and whether each stays.

Raw input: on a node that cannot reach ``--rdzv-endpoint node0:29400``, the system's error for each attempt to connect,
by address::

    10.77.0.1  timed_out   no answer within 4 s

On the node that is the endpoint: the nodes that checked in, their node ranks, and how long they stayed.

Why it matters to DDP: with several nodes, torchrun's rendezvous is the first thing that hangs, for up to ten minutes
and without reporting which nodes are missing. Its messages do not distinguish a port that refuses, drops or ignores
connections, and they do not report two nodes with the same node rank.
"""

from ddp_doctor.checks.cluster.roll_call import arrivals, endpoint, lost_nodes
from ddp_doctor.facts.cluster import RollCallFact, SilenceFact
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import NodesContext
from ddp_doctor.model.fact import Fact, Skip
from ddp_doctor.model.rule import rules_in


def probe(ctx: NodesContext) -> Fact:
    """Skip: the launcher itself does the node check-in and adds its facts."""
    raise Skip(f"node {ctx.node} did not take part in the node check-in")


CHECK = Check(
    id="roll_call",
    title="All nodes report in and stay",
    where=Where.NODES,
    probe=probe,
    facts=(RollCallFact, SilenceFact),
    rules=rules_in(arrivals, endpoint, lost_nodes),
    cost_s=0.1,
    is_essential=True,
    stops_ranks=True,
)
