"""Consistency: whether the nodes agree in everything that the ranks of one job must share.

If a launcher starts ddp-doctor once per rank, the settings of ranks on one node are also compared. Raw input: what each
node read about itself (checks env_vars, software and gpus), its number of ranks, and the offset of its clock from the
head's, as measured at check-in::

    node0  ddp-doctor 0.1.0  torch 2.9.1+cu128  NCCL 2.27.5  2 ranks  clock   0.0 s
    node1  ddp-doctor 0.1.0  torch 2.8.0+cu128  NCCL 2.27.3  1 rank   clock +37.2 s  NCCL_ALGO=Tree

Why it matters: torchrun starts ranks with the software and the environment of each node's own shell, and compares
nothing. Ranks with different NCCL releases hang. With a different NCCL_ALGO, the first all-reduce hangs on all nodes.
If a node starts one rank less, the world is smaller, without a message. This check reports the odd node before the job.
"""

from ddp_doctor import __version__
from ddp_doctor.checks.cluster.consistency import settings, versions
from ddp_doctor.facts.cluster import ConsistencyFact, RankSettings
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import NodesContext
from ddp_doctor.model.rule import rules_in


def probe(ctx: NodesContext) -> ConsistencyFact:
    """Return this node's part; the rules compare the parts."""
    return ConsistencyFact(tool_version=__version__, clock_offset_s=ctx.clock_offset_s)


CHECK = Check(
    id="consistency",
    title="The nodes agree on versions, settings, ranks, GPUs and time",
    where=Where.NODES,
    probe=probe,
    facts=(ConsistencyFact, RankSettings),
    rules=rules_in(versions, settings),
    cost_s=0.01,
    is_essential=True,
    stops_ranks=True,
)
