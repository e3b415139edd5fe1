"""The healthy machines, and the few findings that each may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.machines import lent, servers
from tests.machines.whole import Whole
from tests.rdma_trees import CLASS, full

Build = Callable[[], Sequence[Whole]]


@dataclass(frozen=True)
class Healthy:
    """A machine, or several of one run, without findings above info."""

    name: str
    build: Build
    says: tuple[str, ...] = ()  # all of them worth knowing only
    command: str = "run"


def _pair(one: Callable[[int], Whole]) -> Build:
    return lambda: [one(node) for node in range(2)]


def _with(one: Callable[[int], Whole], change: Callable[[Whole], object]) -> Build:
    def build() -> list[Whole]:
        pair = [one(node) for node in range(2)]
        for machine in pair:
            change(machine)
        return pair

    return build


def _older_nccl(machine: Whole) -> None:
    """The releases of mid 2024: NCCL 2.20 does not search GID tables."""
    torch = {"torch_version": "2.4.1+cu121", "torch_metadata_version": "2.4.1", "torch_cuda": "12.1"}
    pins = {"torch_requires": ["nvidia-nccl-cu12==2.20.5"], "nccl_packages": {"nvidia-nccl-cu12": "2.20.5"}}
    machine.installed = {**(machine.installed or {}), **torch, **pins}
    machine.nccl_version = 22005


def _storage_without_address(machine: Whole) -> None:
    for index in (2, 3):
        machine.board.tree.write(f"{CLASS}/mlx5_8/ports/1/gids/{index}", f"{full('::')}\n")


def _half_of_the_rails(machine: Whole) -> None:
    for at in (1, 3, 5, 7):
        for name, text in (("state", "1: DOWN"), ("phys_state", "2: Polling"), ("rate", "10 Gb/sec (4X SDR)")):
            machine.board.tree.write(f"{CLASS}/mlx5_{at}/ports/1/{name}", f"{text}\n")


def _setting(**settings: str) -> Callable[[Whole], object]:
    return lambda machine: machine.env.update(settings)


def _debian(machine: Whole) -> None:
    machine.names[machine.host] = ("127.0.1.1",)


MACHINES = (
    Healthy("DGX H100, prolog as root", lambda: [servers.dgx_h100(as_root=True)], command="prolog"),
    Healthy("HGX A100 with RoCE, prolog", lambda: [servers.hgx_a100_roce(as_root=True)], command="prolog"),
    Healthy("four A100 PCIe, prolog", lambda: [servers.a100_pcie(as_root=True)], command="prolog"),
    Healthy("H100 NVL, prolog", lambda: [servers.h100_nvl(as_root=True)], command="prolog"),
    Healthy("DGX-1, prolog", lambda: [servers.v100_dgx1(as_root=True)], command="prolog"),
    Healthy("GH200, prolog", lambda: [servers.gh200(as_root=True)], command="prolog"),
    Healthy("GB200, prolog", lambda: [servers.gb200(as_root=True)], command="prolog"),
    Healthy("DGX H100, run as a user", lambda: [servers.dgx_h100()], ("DD341", "DD423")),
    Healthy("two DGX H100", _pair(servers.dgx_h100), ("DD341", "DD423", "DD563")),
    Healthy(
        "two DGX H100 of one name",
        _pair(lambda node: servers.dgx_h100(node, host="localhost")),
        ("DD341", "DD423", "DD563"),
    ),
    Healthy("two DGX H100 with NCCL 2.20", _with(servers.dgx_h100, _older_nccl), ("DD341", "DD423", "DD563")),
    Healthy(
        "two DGX H100, NCCL_IB_HCA=mlx5", _with(servers.dgx_h100, _setting(NCCL_IB_HCA="mlx5")), ("DD341", "DD423")
    ),
    Healthy(
        "two DGX H100, NCCL_IB_GID_INDEX=3",
        _with(servers.dgx_h100, _setting(NCCL_IB_GID_INDEX="3")),
        ("DD341", "DD423", "DD563"),
    ),
    Healthy(
        "two DGX H100, storage without IPv4",
        _with(servers.dgx_h100, _storage_without_address),
        ("DD341", "DD423", "DD563"),
    ),
    Healthy(
        "two DGX H100 with half of the rails", _with(servers.dgx_h100, _half_of_the_rails), ("DD341", "DD423", "DD563")
    ),
    Healthy(
        "two DGX H100 that call themselves loopback",
        _with(servers.dgx_h100, _debian),
        ("DD341", "DD423", "DD520", "DD563"),
    ),
    Healthy("HGX A100 with RoCE", lambda: [servers.hgx_a100_roce()], ("DD341", "DD423")),
    Healthy("two HGX A100 with RoCE", _pair(servers.hgx_a100_roce), ("DD341", "DD423")),
    Healthy("four A100 PCIe on two EPYC", lambda: [servers.a100_pcie()], ("DD341",)),
    Healthy("four A10G without P2P", lambda: [servers.a10g_pcie()], ("DD341", "DD411", "DD421", "DD423")),
    Healthy("workstation with two RTX 4090", lambda: [lent.workstation()], ("DD320", "DD341", "DD411", "DD421")),
    Healthy("H100 NVL in pairs", lambda: [servers.h100_nvl()], ("DD341",)),
    Healthy("two AWS p5", _pair(lent.aws), ("DD341",)),
    Healthy("AWS p4d", lambda: [lent.aws(model="0x20b0", nvml="a100")], ("DD341",)),
    Healthy("two GCP A3", _pair(lent.gcp_a3), ("DD341",)),
    Healthy("two GCP A3 Mega", _pair(lent.gcp_a3_mega), ("DD113", "DD341")),
    Healthy("two Azure ND H100 v5", _pair(lent.azure), ("DD341", "DD563")),
    Healthy("pod with one of eight GPUs", lambda: [lent.pod()], ("DD423",)),
    Healthy("two pods with RoCE of their own", _pair(lent.pods_with_roce), ("DD341", "DD423")),
    Healthy("two containers of NVIDIA's image", _pair(lent.container), ("DD341", "DD423", "DD563")),
    Healthy("SLURM step with GPUs 4 and 5", lambda: [lent.slurm_step_of_others()], ("DD423",)),
    Healthy("SLURM step with two of eight GPUs", lambda: [lent.slurm_step()], ("DD423",)),
    Healthy("laptop", lambda: [lent.laptop()], ("DD341",)),
    Healthy("laptop, prolog", lambda: [lent.laptop()], ("DD341",), command="prolog"),
    Healthy("laptop under WSL 2", lambda: [lent.wsl()]),
    Healthy("DGX-1 with V100", lambda: [servers.v100_dgx1()], ("DD341", "DD423")),
    Healthy("GH200", lambda: [servers.gh200()], ("DD341",)),
    Healthy("two trays of GB200", _pair(servers.gb200), ("DD341",)),
    Healthy("all GPUs in slices (MIG)", lambda: [servers.mig()], ("DD309", "DD341", "DD423")),
    Healthy("CPUs with InfiniBand", lambda: [servers.cpus_with_infiniband()]),
)
