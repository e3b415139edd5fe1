r"""How GPUs and NICs are wired: ``nvidia-smi topo -m``, which NCCL's choice of paths can be checked against.

            GPU0    GPU1    NIC0    NIC1    NIC2    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      SYS     SYS     SYS     NODE    0-31,64-95      0               N/A
    GPU1    SYS      X      NODE    NODE    SYS     32-63,96-127    1               N/A
    …
    NIC Legend:

      NIC0: mlx5_2

DDP's gradients cross these paths at every step. Where NCCL copies directly between two GPUs (P2P) over
a path that the machine announces but does not carry, the first all-reduce spins for ever at 100 %
utilisation and nothing is logged; where an NVLink is down, every step waits for the slowest pair.
"""

from ddp_doctor.checks.topology import nvlinks, p2p, unclear
from ddp_doctor.checks.topology.facts import TopologyFact
from ddp_doctor.checks.topology.p2p import p2p_stalls
from ddp_doctor.checks.topology.pasted import read_pasted
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Failed, TookTooLong
from ddp_doctor.parse import host_gpus
from ddp_doctor.parse.cpuinfo import cpu_vendor
from ddp_doctor.parse.topo_matrix import TopologyError, parse_matrix

__all__ = ["CHECK", "TopologyFact", "p2p_stalls", "probe", "read_pasted"]

_SETTINGS = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_IB_HCA")


def probe(ctx: Context) -> TopologyFact:
    """Ask nvidia-smi for the matrix of this host."""
    result = ctx.run(["nvidia-smi", "topo", "-m"])
    if result.status == "missing":
        raise Absent("nvidia-smi is not installed here, so there is no NVIDIA driver to ask")
    raw = result.stdout + result.stderr
    ctx.keep(raw)
    if result.status == "timed_out":
        raise TookTooLong("nvidia-smi topo -m did not answer in time: the driver may hang")
    try:
        matrix = parse_matrix(raw)
    except TopologyError as error:
        said = next((line.strip()[:200] for line in raw.splitlines() if line.strip()), "nothing")
        if not _gpu_is_due(ctx):
            raise Absent(f"there is no NVIDIA GPU here; nvidia-smi says: {said}") from None
        raise Failed(f"nvidia-smi topo -m gave no topology ({error}); it says: {said}") from None
    settings = {name: ctx.env[name] for name in _SETTINGS if name in ctx.env}
    return TopologyFact(**dict(matrix), cpu_vendor=cpu_vendor(ctx), nccl_settings=settings)


def _gpu_is_due(ctx: Context) -> bool:
    """Whether this machine, or what a container was given of it, has a GPU that should answer."""
    found = host_gpus.pci_gpus(ctx)
    given = any(name[6:].isdecimal() for name in host_gpus.device_nodes(ctx))  # /dev/nvidia0
    if found is None or host_gpus.in_container(ctx):
        return given or found is None
    return given or any(not gpu.passed_through for gpu in found)


CHECK = Check(
    id="topology",
    title="Paths between GPUs and NICs",
    where=Where.NODE,
    probe=probe,
    facts=(TopologyFact,),
    rules=(*p2p.RULES, nvlinks.nvlinks_missing, *unclear.RULES),
    cost_s=0.5,
    deadline_s=20.0,  # without persistence mode nvidia-smi first wakes every GPU
)
