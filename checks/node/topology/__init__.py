r"""The wiring of GPUs and NICs, which the rules compare with NCCL's choice of paths.

            GPU0    GPU1    NIC0    NIC1    NIC2    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      SYS     SYS     SYS     NODE    0-31,64-95      0               N/A
    GPU1    SYS      X      NODE    NODE    SYS     32-63,96-127    1               N/A
    …
    NIC Legend:

      NIC0: mlx5_2

That is ``nvidia-smi topo -m``. A live run reads the same from NVML (sources/child_nvml_topology.py, a separate process)
and /sys (probing/pci_devices.py). It asks nvidia-smi only if NVML is not available.

DDP's gradients cross these paths at every step. If NCCL copies directly between two GPUs (P2P) over a path that the
machine announces but does not carry, the first all-reduce spins forever at 100% utilization without a log message. If
an NVLink is down, every step waits for the slowest pair.
"""

from ddp_doctor.checks.node.topology import complaints, differences, nics, nvlinks, p2p, p2p_status, sockets, unclear
from ddp_doctor.checks.node.topology.formats.cpus import cpu_kind
from ddp_doctor.checks.node.topology.live import CannotAsk, ask_nvidia_smi, ask_nvml
from ddp_doctor.facts.node.topology import NvlinksFact, P2pStatusFact, RocmTopologyFact, TopologyFact, TopologyHangFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing import host_gpus

_SETTINGS = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_IB_HCA", "NCCL_IGNORE_DISABLED_P2P", "NCCL_TOPO_FILE")


def probe(ctx: Context) -> TopologyFact | TopologyHangFact:
    """Ask NVML and /sys, or nvidia-smi if NVML is not available. Starts no process without a GPU."""
    gpus = host_gpus.pci_gpus(ctx)
    if not host_gpus.may_have_gpus(ctx):
        bus = "GPUs for virtual machines only (vfio-pci)" if gpus else "no NVIDIA PCI device (vendor 10de)"
        raise Absent(f"no NVIDIA GPU found: {bus} and no driver device in /dev")
    limit_s = thresholds.NVML_BASE_LIMIT_S + thresholds.NVML_LIMIT_PER_GPU_S * len(gpus or ())
    try:
        fact = ask_nvml(ctx, limit_s)
    except CannotAsk as why:
        fact = ask_nvidia_smi(ctx, limit_s, str(why))
    if isinstance(fact, TopologyHangFact):
        return fact
    settings = {name: ctx.env[name] for name in _SETTINGS if name in ctx.env}
    return fact.model_copy(update={**cpu_kind(ctx), "nccl_settings": settings})


CHECK = Check(
    id="topology",
    title="Paths between GPUs and NICs",
    where=Where.NODE,
    probe=probe,
    facts=(TopologyFact, TopologyHangFact, P2pStatusFact, NvlinksFact, RocmTopologyFact),
    rules=rules_in(p2p, complaints, differences, nics, nvlinks, p2p_status, sockets, unclear),
    cost_s=0.5,
    deadline_s=60.0,  # without persistence mode NVML first wakes every GPU
)
