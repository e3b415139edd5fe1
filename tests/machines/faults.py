"""One fault at a time on the second of two DGX H100 (or HGX A100 with RoCE), and its expected findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddp_doctor.model.finding import Culprit, Finding
from ddp_doctor.model.report import Report
from tests import rdma_trees
from tests.machines import parts
from tests.machines import planting as plant
from tests.machines.planting import GPU, NIC, Pair, dgx_pair, roce_pair

MOST_NAMES = 4
#: Info finding of the healthy pair as well: its port for storage next to InfiniBand.
ALWAYS = ("DD563",)
XID_79 = f"NVRM: Xid (PCI:{GPU[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@dataclass(frozen=True)
class Planted:
    """A fault, all expected findings (code, severity, culprit), and the function that injects it."""

    name: str
    says: tuple[str, ...]
    plant: Callable[[Pair], None]
    build: Callable[[], Pair] = dgx_pair

    def nodes(self) -> Pair:
        pair = self.build()
        self.plant(pair)
        return pair


def blame(finding: Finding) -> str:
    nodes = {one.node for one in finding.culprits}
    if len(finding.culprits) > MOST_NAMES and len(nodes) == 1:
        return f"{len(finding.culprits)} on {nodes.pop()}"
    return ", ".join(map(_named, finding.culprits))


def said(report: Report) -> tuple[str, ...]:
    told = (one for one in report.findings if one.code not in ALWAYS)
    return tuple(f"{one.code} {one.severity.value} {blame(one)}".rstrip() for one in told)


def _named(culprit: Culprit) -> str:
    what = f" GPU {culprit.gpu}" if culprit.gpu is not None else f" {culprit.name}" if culprit.name else ""
    return f"{culprit.node or ''}{what}".strip()


FAULTS = (
    Planted("a GPU that NVML calls lost", ("DD304 error node1 GPU 3",), plant.nvml("gpu_lost")),
    Planted(
        "the same, and Xid 79 in the log",
        ("DD304 error node1 GPU 3",),
        plant.both(plant.nvml("gpu_lost"), plant.said(XID_79)),
    ),
    Planted(
        "Xid 79, and the GPU gone from NVML and the bus",
        ("DD330 error node1 0000:df:00.0",),
        plant.both(plant.nvml("seven"), plant.lacks_a_gpu_on_the_bus, plant.said(XID_79.replace("61", "df"))),
    ),
    Planted("a GPU that NVML does not list", ("DD303 error node1",), plant.nvml("seven")),
    Planted(
        "the same, and the driver could not start it",
        ("DD303 error node1",),
        plant.both(plant.nvml("seven"), plant.said("NVRM: GPU 0000:df:00.0: RmInitAdapter failed! (0x24:0x72:1568)")),
    ),
    Planted("NVML crashes", ("DD301 error node1",), plant.nvml("crash")),
    Planted(
        "NVML hangs, nvidia-smi is stuck", ("DD302 error node1 GPU 3",), plant.both(plant.nvml("hang_gpu"), plant.stuck)
    ),
    Planted(
        "library of another version than the module",
        ("DD301 error node1",),
        plant.both(plant.nvml("mismatch"), plant.new_library),
    ),
    Planted("no kernel module", ("DD301 error node1",), plant.both(plant.nvml("not_loaded"), plant.no_module)),
    Planted(
        "row remapping pending, Xid 63",
        ("DD313 warning node1 GPU 3",),
        plant.both(
            plant.nvml("remap_pending"),
            plant.said(f"NVRM: Xid (PCI:{GPU[:-2]}): 63, pid=1, Row Remapper: New row marked for remapping, reset gpu"),
        ),
    ),
    Planted(
        "row remapping failed, Xid 64",
        ("DD312 error node1 GPU 3",),
        plant.both(
            plant.nvml("remap_failed"), plant.said(f"NVRM: Xid (PCI:{GPU[:-2]}): 64, pid=1, Row Remapper failed")
        ),
    ),
    Planted(
        "uncorrected errors, Xid 95",
        ("DD307 error node1 GPU 3",),
        plant.both(
            plant.nvml("ecc"),
            plant.said(
                f"NVRM: Xid (PCI:{GPU[:-2]}): 95, pid=1, name=python3, Uncontained: SM (0x1). RST: Yes, D-RST: No"
            ),
        ),
    ),
    Planted(
        "two NVLinks down, Xid 74",
        ("DD331 warning node1 GPU 3", "DD406 warning node1 GPU 3"),
        plant.both(
            plant.nvml("healthy", "nvlinks_down"),
            plant.said(
                f"NVRM: Xid (PCI:{GPU[:-2]}): 74, pid=1, NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000)"
            ),
        ),
    ),
    Planted(
        "no fabric manager, GPUs not taken in",
        ("DD316 error 8 on node1",),
        plant.both(plant.nvml("fabric_in_progress"), plant.no_fabric_manager),
    ),
    Planted("no fabric manager, GPUs still well", ("DD316 info node1",), plant.no_fabric_manager),
    Planted(
        "a fatal SXid, fabric degraded",
        ("DD333 error node1 0000:06:00.0",),
        plant.both(
            plant.nvml("fabric_degraded"),
            plant.said("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        ),
    ),
    Planted("ECC off", ("DD315 warning node1 GPU 3",), plant.nvml("ecc_off")),
    Planted("power limit lowered", ("DD318 warning node1 GPU 3",), plant.nvml("power_capped")),
    Planted("clocks set lower", ("DD319 warning node1 GPU 3",), plant.nvml("clocks_set")),
    Planted("slowed by heat", ("DD308 warning node1 GPU 3",), plant.nvml("throttled")),
    Planted("GPU memory in use", ("DD305 error node1 GPU 3",), plant.nvml("full")),
    Planted("one GPU in slices", ("DD554 error", "DD309 info node1 GPU 3"), plant.nvml("mig")),
    Planted("GPU at x8", ("DD422 warning node1 GPU 3",), plant.half_width),
    Planted("access control on", ("DD420 warning node1",), plant.acs),
    Planted("an InfiniBand port down", ("DD560 warning node1 mlx5_3",), plant.down(3)),
    Planted(
        "the same, NIC's firmware at fault",
        ("DD336 error node1 mlx5_3 (0000:5e:00.0)",),
        plant.both(
            plant.down(3),
            plant.said(f"mlx5_core {NIC}: poll_health:739:(pid 0): device's health compromised - reached miss count"),
        ),
    ),
    Planted("all InfiniBand ports of a node down", ("DD560 error 8 on node1",), plant.every(plant.down)),
    Planted(
        "the same, NCCL_IB_HCA=mlx5 on both",
        ("DD560 error 8 on node1",),
        plant.both(plant.every(plant.down), plant.env(0, 1, NCCL_IB_HCA="mlx5")),
    ),
    Planted("a port at SDR", ("DD562 warning node1 mlx5_3",), plant.port(3, rate="10 Gb/sec (4X SDR)")),
    Planted(
        "no subnet manager",
        ("DD561 error 8 on node1",),
        plant.every(lambda at: plant.port(at, state="2: INIT", sm_lid="0x0")),
    ),
    Planted(
        "firmware of one node differs",
        ("DD564 info",),
        plant.every(lambda at: plant.file(f"{rdma_trees.CLASS}/mlx5_{at}/fw_ver", "28.36.1010\n")),
    ),
    Planted(
        "PCIe errors of the NIC",
        ("DD335 warning node1 mlx5_3 (0000:5e:00.0)",),
        plant.said(
            f"pcieport {parts.below(3, 1)[-1]}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
        ),
    ),
    Planted(
        "no nvidia_peermem",
        ("DD339 warning node1",),
        plant.both(
            plant.no_peermem,
            plant.via((1,), between="NET/IB/0", says="NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
        ),
    ),
    Planted("/dev/shm of 64 MiB", ("DD221 warning node1",), plant.shm),
    Planted("64 KiB of locked memory", ("DD222 error node1", "DD341 info node1"), plant.memlock),
    Planted("another NCCL by LD_PRELOAD", ("DD205 error node1",), plant.preloaded),
    Planted(
        "NCCL_IB_HCA matches nothing",
        ("DD571 error node0 NCCL_IB_HCA, node1 NCCL_IB_HCA",),
        plant.both(plant.env(0, 1, NCCL_IB_HCA="mlx4"), plant.SOCKETS),
    ),
    Planted(
        "NCCL_IB_HCA matches nothing on one node",
        ("DD571 error node1 NCCL_IB_HCA",),
        plant.both(plant.env(0, NCCL_IB_HCA="mlx5"), plant.env(1, NCCL_IB_HCA="mlx4"), plant.SOCKETS),
    ),
    Planted(
        "NCCL_P2P_DISABLE=1 left over",
        ("DD434 error NCCL_P2P_DISABLE",),
        plant.both(plant.env(0, 1, NCCL_P2P_DISABLE="1"), plant.via((0, 1), "SHM/direct/direct")),
    ),
    Planted(
        "NCCL_P2P_DISABLE=1 left over on one node",
        ("DD434 error NCCL_P2P_DISABLE, node1",),
        plant.both(plant.env(1, NCCL_P2P_DISABLE="1"), plant.via((1,), "SHM/direct/direct")),
    ),
    Planted(
        "NCCL_IB_DISABLE=1 left over",
        ("DD436 error NCCL_IB_DISABLE, node0, node1",),
        plant.both(plant.env(0, 1, NCCL_IB_DISABLE="1"), plant.SOCKETS),
    ),
    Planted(
        "NCCL_IB_DISABLE=1 on one node",
        ("DD436 error NCCL_IB_DISABLE, node1",),
        plant.both(plant.env(1, NCCL_IB_DISABLE="1"), plant.SOCKETS),
    ),
    Planted(
        "NCCL_IB_DISABLE=1 in nccl.conf of one node",
        ("DD436 error NCCL_IB_DISABLE, node1", "DD228 info node1 nccl.conf"),
        plant.both(plant.conf, plant.SOCKETS),
    ),
    Planted(
        "no libibverbs in the image",
        ("DD574 error node1",),
        lambda pair: pair[1].board.tree.remove("/usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
    ),
    Planted("own names mean loopback", ("DD520 info node0, node1",), plant.loopback_names),
    Planted("GID index of another table", ("DD568 error 8 on node1",), plant.another_table, build=roce_pair),
    Planted("RoCE ports without IPv4", ("DD567 error 8 on node1",), plant.no_address, build=roce_pair),
    Planted(
        "a RoCE port with a small MTU",
        ("DD570 warning node1 mlx5_3",),
        plant.file("/sys/class/net/eth3/mtu", "1500\n"),
        build=roce_pair,
    ),
)
