"""isolation: which node is at fault, found by testing groups of nodes.

Raw input: the results of all-reduces with new ranks on some nodes, round after round (``--isolate``)::

    round 2   node4, node5   hung after 12.0 s
    round 2   node6, node7   passed, 1.1 GB/s

Why it matters to DDP: if only the complete job hangs, every rank waits and none looks faulty. A half without the faulty
node passes. This is how people find it by hand, over several nights.
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
    cost_s=4.0,  # for healthy nodes: four rounds of at most a second on CPUs
)
