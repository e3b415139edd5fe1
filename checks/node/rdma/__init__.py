r"""RDMA: the InfiniBand and RoCE ports of a node, which of them NCCL chooses, and whether they are usable.

Between nodes NCCL uses RDMA if it finds an active port. Otherwise it uses TCP, which is many times slower, and writes
only a line in its log. One rail that is down or slow slows all ranks down. One node without a usable port, or with
another kind of address, fails or hangs the entire job. All raw input comes from the kernel's own files
(ddp_doctor/probing/rdma.py has more)::

    /sys/class/infiniband/mlx5_0/ports/1/state            4: ACTIVE
    /sys/class/infiniband/mlx5_0/ports/1/rate             400 Gb/sec (4X NDR)
    /sys/class/infiniband/mlx5_0/ports/1/link_layer       InfiniBand
    /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3    RoCE v2
    /dev/infiniband/uverbs0
    NCCL_IB_HCA==mlx5_0:1,mlx5_1:1
"""

from ddp_doctor.checks.node.rdma import access, addresses, choice, ports, verbs_library
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.network.nccl_hca import HCA
from ddp_doctor.knowledge.network.rdma import MOST_HCAS
from ddp_doctor.knowledge.network.roce_gids import INDEX, SEARCH_SETTINGS
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.probing import host_gpus, host_limits, rdma
from ddp_doctor.probing.nccl_interface import nccl_environment

_SETTINGS = (HCA, INDEX, *SEARCH_SETTINGS, "NCCL_NET", "NCCL_NET_GDR_LEVEL")


def probe(ctx: Context) -> RdmaFact:
    """Read the devices and what NCCL needs to use them. Raises Absent if there are none."""
    names = rdma.hca_names(ctx)
    if not names:
        raise Absent("no RDMA device found")
    hcas = rdma.read_hcas(ctx, names[:MOST_HCAS])
    env = nccl_environment(ctx)
    library = verbs_library.verbs_library(ctx)
    return RdmaFact(
        hcas=hcas,
        left_out=len(names[MOST_HCAS:]),
        netdevs=rdma.read_netdevs(ctx, hcas),
        verbs_library=library,
        verbs_providers=verbs_library.verbs_providers(ctx, library),
        settings=open_and_withheld({name: env[name] for name in _SETTINGS if env.get(name)})[0],
        unused_by=host_limits.rdma_unused_by(env),
        in_container=host_gpus.in_container(ctx),
        uptime_s=rdma.uptime_s(ctx),
    )


CHECK = Check(
    id="rdma",
    title="RDMA ports: state, rate, addresses, and which of them NCCL takes",
    where=Where.NODE,
    probe=probe,
    facts=(RdmaFact,),
    rules=rules_in(access, addresses, ports, choice),
    cost_s=0.1,
    stops_ranks=True,
)
