"""isolation: which of the nodes is to blame, by tests of groups of them.

Raw input: what became of an all-reduce of fresh ranks of some nodes, round after round (``--isolate``)::

    round 2   node4, node5   hung after 12.0 s
    round 2   node6, node7   passed, 1.1 GB/s

Why it matters to DDP: where only the whole hangs, every rank waits and none is to blame by what it shows. Half of the
nodes without the culprit pass; that is how people find it by hand, a night at a time.
"""

from ddp_doctor.checks.collectives.isolation import rules
from ddp_doctor.facts.collectives import IsolationFact
from ddp_doctor.model.check import ISOLATION, Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact, Skip
from ddp_doctor.model.rule import rules_in


def probe(_ctx: Context) -> Fact:
    """Skip: the head plans the groups and records their results."""
    raise Skip("the run ended before groups of nodes were tested")


CHECK = Check(
    id=ISOLATION,
    title="Groups of nodes, until it is known who is to blame",
    where=Where.GROUPS,
    probe=probe,
    facts=(IsolationFact,),
    rules=rules_in(rules),
    stops_ranks=True,
    cost_s=4.0,  # for healthy nodes: four rounds, each of which took a second or less on CPUs
)
