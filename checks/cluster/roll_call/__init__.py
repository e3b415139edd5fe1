"""Roll call: do all nodes of the run find the endpoint and one another, and does each stay?

Raw input, on a node that cannot get through to ``--rdzv-endpoint node0:29400``: what the system said
of each attempt to connect, by address::

    10.77.0.1  timed_out   no answer within 4 s

and on the node that is the endpoint: who reported in, under which node rank, until when.

Why it matters to DDP: torchrun's rendezvous is the first thing that hangs on several nodes, for up to ten
minutes and without a word about who is missing. A refused, a dropped and a mute port look alike in its
messages, and of two nodes with one rank it says nothing at all.
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
