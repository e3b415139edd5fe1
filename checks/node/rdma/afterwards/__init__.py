r"""RDMA ports once the ranks have ended: did a link go down, were packets lost, did bits flip?

Counters say little by themselves: they count since the driver was loaded, and every reboot of a switch leaves its mark.
What they grew by while ranks talked over the ports is another matter. Raw input, held against what the
check rdma read before the ranks started::

    /sys/class/infiniband/mlx5_0/ports/1/state                             4: ACTIVE
    /sys/class/infiniband/mlx5_0/ports/1/counters/link_downed              1
    /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error             0
    /sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err 0
"""

from ddp_doctor.checks.node.rdma.afterwards import growth, timeouts
from ddp_doctor.facts.node.rdma import RdmaAfterFact
from ddp_doctor.knowledge.network.rdma import MOST_HCAS
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing import rdma

__all__ = ["CHECK", "probe"]


def probe(ctx: Context) -> RdmaAfterFact:
    """Read states and counters again. Raises Absent where there are no devices."""
    names = rdma.hca_names(ctx)
    if not names:
        raise Absent("the kernel shows no RDMA device here")
    return RdmaAfterFact(ports=rdma.read_after(ctx, names[:MOST_HCAS]))


CHECK = Check(
    id="rdma_after",
    title="RDMA ports after the ranks: links that went down, packets lost, errors on the link",
    where=Where.AFTERWARDS,
    probe=probe,
    facts=(RdmaAfterFact,),
    rules=rules_in(growth, timeouts),
    cost_s=0.05,
)
