"""Healthy virtual machines, containers and batch jobs, which see a part of a machine; and small machines."""

from __future__ import annotations

from ddp_doctor.knowledge.topology.cluster_kinds import AZURE_ASSET_TAG
from ddp_doctor.model.context import Disk, Interface
from tests import rdma_trees
from tests.machines import parts
from tests.machines.board import Board
from tests.machines.servers import dgx_h100
from tests.machines.whole import GIB, Whole, ended
from tests.nvml_stand_in.machine import BUSES
from tests.words import pairs

_ETH = Interface(name="eth0", addresses=("10.224.0.4/16",), speed_mbps=50000)


#: Variables that the documentation of each cloud recommends, and that images for GPUs set.
_IMAGE = pairs("""
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility CUDA_VERSION=12.8.1.012
    NCCL_VERSION=2.25.1 NV_LIBNCCL_PACKAGE=libnccl2=2.25.1-1+cuda12.8 OMPI_MCA_coll_hcoll_enable=0
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 NVIDIA_REQUIRE_CUDA=cuda>=12.8
    TORCH_CUDA_ARCH_LIST=9.0 PYTORCH_VERSION=2.7.0a0+79aa174 TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1
    TORCHINDUCTOR_CACHE_DIR=/tmp/torch PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
""")
_AWS = pairs("""
    FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1 NCCL_DEBUG=INFO
    LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu OFI_NCCL_PROTOCOL=RDMA
""")
_TCPXO = "/var/lib/tcpxo/lib64"
_A3_MEGA = {
    "LD_LIBRARY_PATH": _TCPXO,
    "NCCL_FASTRAK_CTRL_DEV": "eth0",
    "NCCL_FASTRAK_IFNAME": "eth1,eth2,eth3,eth4",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_CROSS_NIC": "0",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_PROTO": "Simple,LL128",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_TUNER_PLUGIN": "libnccl-tuner.so",
    "NCCL_FASTRAK_NUM_FLOWS": "2",
    "NCCL_TUNER_CONFIG_PATH": f"{_TCPXO}/a3plus_tuner_config_ll128.textproto",
    "NCCL_NET": "FasTrak",
    "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": f"{_TCPXO}/a3plus_guest_config_ll128.textproto",
    "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_P2P_PCI_CHUNKSIZE": "524288",
    "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
    "NCCL_FASTRAK_USE_SNAP": "1",
    "NCCL_BUFFSIZE": "8388608",
    "NCCL_FASTRAK_ENABLE_CONTROL_CHANNEL": "0",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_FASTRAK_PLUGIN_ACCEPT_TIMEOUT_MS": "600000",
    "NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING": "0",
    "NCCL_FASTRAK_USE_LLCM": "1",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}
_AZURE = pairs("""
    NCCL_IB_PCI_RELAXED_ORDERING=1 CUDA_DEVICE_ORDER=PCI_BUS_ID NCCL_SOCKET_IFNAME=eth0 UCX_TLS=rc
    UCX_NET_DEVICES=mlx5_ib0:1 NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml OMPI_MCA_coll_hcoll_enable=0
    SHARP_SMX_UCX_INTERFACE=mlx5_ib0:1
""")


def _driven(board: Board, driver: str, *names: str) -> None:
    for name in names:
        board.tree.link(f"/sys/class/net/{name}/device/driver", f"../../../../bus/pci/drivers/{driver}")


def aws(node: int = 0, *, model: str = "0x2330", nvml: str = "healthy") -> Whole:
    """A p5 (or p4d): a VM with EFA adapters and Amazon's plug-in for them."""
    board = Board()
    parts.linux(board, node=node, virtual="Amazon EC2")
    for at, bus in enumerate(BUSES):
        board.seat(f"0000:{bus}:00.0", ("pci0000:00", f"0000:00:{4 + at:02x}.0"), device=model, node=at // 4)
    parts.driver(board, range(8), switches=True)
    tree = rdma_trees.efa(32)
    places = {
        f"rdmap{at}s6": (f"0000:{0x50 + at:02x}:1b.0", ("pci0000:50", f"0000:50:{at:02x}.0"), at // 16)
        for at in range(32)
    }
    refused = board.rdma(tree, places, node)
    board.tree.write("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", "")
    _driven(board, "ena", "ens32")
    plugin = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    machine = Whole(
        board,
        f"ip-10-224-0-{4 + node}",
        nvml={"NVML_STAND_IN": nvml},
        uuids=str(node),
        refused=refused,
        network=(_ETH.model_copy(update={"name": "ens32", "addresses": (f"10.224.0.{4 + node}/16",)}),),
        env=dict(_AWS),
        between="NET/Libfabric/0/GDRDMA",
        says="Using network Libfabric",
    )
    machine.commands["/sbin/ldconfig"] = ended(f"\tlibnccl-net.so (libc6,x86-64) => {plugin}\n")
    if nvml == "a100":
        machine.nvml = {"NVML_STAND_IN": "a100", "NVML_STAND_IN_TOPOLOGY": "a100"}
    return machine


def gcp_a3(node: int = 0) -> Whole:
    """An A3: a VM with eight H100 behind switches, gVNIC interfaces and no RDMA."""
    board = Board()
    parts.linux(board, node=node, virtual="Google")
    for at, bus in enumerate(BUSES):
        up = (f"pci0000:{0x10 + at:02x}", f"0000:{0x10 + at:02x}:01.0")
        board.seat(f"0000:{bus}:00.0", up, node=at // 4)
    parts.driver(board, range(8), switches=True)
    parts.everyday(board, "0000:43:00.0", switch="0000:05:00.0")
    board.tree.write("/sys/class/dmi/id/product_name", "Google Compute Engine\n")
    _driven(board, "gve", *(f"eth{at}" for at in range(5)))
    network = tuple(
        _ETH.model_copy(update={"name": f"eth{at}", "addresses": (f"10.{at}.0.{2 + node}/24",), "speed_mbps": None})
        for at in range(5)
    )
    return Whole(board, f"a3-{node}", nvml={}, uuids=str(node), network=network, between="NET/Socket/0")


def gcp_a3_mega(node: int = 0) -> Whole:
    """The same with FasTrak, Google's plug-in, and the settings of its documentation."""
    machine = gcp_a3(node)
    machine.env = dict(_A3_MEGA)
    for name in ("libnccl-net.so", "libnccl-tuner.so", "libnccl.so.2"):
        machine.board.tree.write(f"{_TCPXO}/{name}")
    machine.between, machine.says = "NET/FasTrak/0", "Using network FasTrak"
    return machine


def container(node: int = 0) -> Whole:
    """A container of NVIDIA's image with all of a DGX H100: its devices, its network and its shared memory."""
    machine = dgx_h100(node)
    tree = machine.board.tree
    tree.write("/.dockerenv")
    tree.write("/proc/1/comm", "bash\n")
    tree.remove("/proc/2201")
    machine.env = dict(_IMAGE)
    return machine


def slurm_step_of_others(node: int = 0) -> Whole:
    """A step with GPUs 4 and 5, which the control group makes 0 and 1."""
    machine = slurm_step()
    machine.nvml = {"NVML_STAND_IN": "two", "NVML_STAND_IN_BUSES": "00000000:9D:00.0,00000000:C3:00.0"}
    parts.allow(machine.board, "32-47,96-111")
    machine.env |= {"SLURM_JOB_GPUS": "4,5", "SLURM_STEP_GPUS": "4,5"}
    return machine


def pods_with_roce(node: int = 0) -> Whole:
    """Return a pod with all GPUs of an HGX A100 and its own interfaces over the host's RoCE cards."""
    board = Board()
    parts.linux(board, parts.EPYC, node=node)
    parts.dgx_tree(board, "0x20b2")
    parts.driver(board, range(8), peermem=True, switches=True)
    board.tree.remove("/proc/2201")
    tree = rdma_trees.macvlan_pod(rdma_trees.roce(node), 4, f"10.66.{node}")
    refused = board.rdma(tree, parts.rails(tree), node)
    return Whole(
        board,
        f"pod-{node}",
        nvml={"NVML_STAND_IN": "a100", "NVML_STAND_IN_TOPOLOGY": "a100"},
        uuids=str(node),
        refused=refused,
        env={**_IMAGE, "KUBERNETES_SERVICE_HOST": "10.96.0.1"},
        network=(
            _ETH.model_copy(update={"addresses": (f"192.168.7.{12 + node}/32",), "mtu": 1450, "speed_mbps": 10000}),
        ),
    )


def azure(node: int = 0) -> Whole:
    """Return an ND H100 v5: a VM with a PCI domain per GPU and InfiniBand function, and hidden NUMA nodes."""
    board = Board()
    parts.linux(board, node=node, virtual="Microsoft Corporation")
    board.tree.write("/sys/class/dmi/id/product_name", "Virtual Machine\n")
    board.tree.write("/sys/class/dmi/id/chassis_asset_tag", f"{AZURE_ASSET_TAG}\n")
    _driven(board, "mana", "eth0")
    domains = [f"{at + 1:04x}" for at in range(8)]
    for domain in domains:
        board.seat(f"{domain}:00:00.0", (f"pci{domain}:00",), node=-1, cpus="0-95")
    parts.driver(board, range(8), peermem=True, switches=True)
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    places = {}
    for at in range(8):
        bus = f"{0x101 + at:04x}:00:00.0"
        tree.hca(f"mlx5_ib{at}", bus, at, hca_type="MT4126", board_id="MSF0000000012")
        tree.port(f"mlx5_ib{at}")
        places[f"mlx5_ib{at}"] = (bus, (f"pci{0x101 + at:04x}:00",), -1)
    tree.hca("mlx5_an0", "0109:00:02.0", 8, hca_type="MT4116", board_id="MSF0010110035")
    table = rdma_trees.roce_table("enP41s1", "10.0.0.4", 9)
    tree.port("mlx5_an0", layer="Ethernet", rate="100 Gb/sec (4X EDR)", sm_lid="0x0", gids=table)
    tree.netdev("enP41s1", mtu=1500)
    places["mlx5_an0"] = ("0109:00:02.0", ("pci0109:00",), -1)
    refused = board.rdma(tree, places, node)
    buses = ",".join(f"0000{domain}:00:00.0" for domain in domains)
    nvml = {"NVML_STAND_IN_TOPOLOGY": "virtual", "NVML_STAND_IN_BUSES": buses}
    board.tree.write("/opt/microsoft/ndv5-topo.xml", "<system version='1'/>\n")
    return Whole(
        board,
        f"nd-{node}",
        nvml=nvml,
        uuids=str(node),
        refused=refused,
        cpus=96,
        env=dict(_AZURE),
        network=(_ETH.model_copy(update={"addresses": (f"10.0.0.{4 + node}/24",)}),),
    )


def pod() -> Whole:
    """A Kubernetes pod with one of eight GPUs: the host's PCI bus and kernel log, no /dev/infiniband."""
    machine = dgx_h100()
    board = machine.board
    for at in (0, 1, 2, 4, 5, 6, 7):
        board.tree.remove(f"/dev/nvidia{at}")
    board.tree.remove("/dev/infiniband")
    board.as_root = True  # of the container: the log is shown, bridges are not
    board.tree.write("/proc/1/comm", "python\n")
    board.tree.write("/proc/1/cgroup", "0::/\n")
    board.tree.write("/proc/self/cgroup", "0::/\n")
    board.tree.write("/run/.containerenv", "")
    board.tree.remove("/proc/2201")
    other = "NVRM: Xid (PCI:0000:d1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    board.said(other, 600)
    board.said("NVRM: Xid (PCI:0000:43:00): 13, pid=123, name=python3, Graphics Exception: ESR 0x504224=0x80000", 600)
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "NVIDIA_VISIBLE_DEVICES": "GPU-00000000-d72c-4106-c12f-20bd9faed9f6"}
    machine.env, machine.host = env, "train-0"
    machine.nvml = {"NVML_STAND_IN": "one", "NVML_STAND_IN_BUSES": "00000000:61:00.0"}
    machine.shm = Disk(512 * GIB, 512 * GIB)
    machine.network = (_ETH.model_copy(update={"addresses": ("192.168.7.12/32",), "mtu": 1450, "speed_mbps": 10000}),)
    return machine


def slurm_step() -> Whole:
    """Return a SLURM step with two of eight GPUs in a control group; the log includes other users' GPUs."""
    machine = dgx_h100()
    board = machine.board
    board.said("NVRM: Xid (PCI:0000:d1:00): 94, pid=55, name=python3, Contained: SM (0x1). RST: No, D-RST: No", 3600)
    board.said("NVRM: Xid (PCI:0000:d1:00): 13, pid=55, name=python3, Graphics Exception", 60)
    board.as_root = True  # a user who may read the log
    parts.allow(board, "0-15,64-79")
    machine.nvml = {"NVML_STAND_IN": "two"}
    machine.cpus = 32
    machine.env = pairs("""
        SLURM_JOB_ID=41 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 SLURM_NNODES=1
        SLURM_NODEID=0 SLURM_JOB_NODELIST=node0 SLURM_STEP_NODELIST=node0 SLURM_GPUS_ON_NODE=2 SLURM_JOB_GPUS=0,1
        SLURM_STEP_GPUS=0,1 CUDA_VISIBLE_DEVICES=0,1
    """)
    return machine


def workstation() -> Whole:
    """Two RTX 4090 below one root complex: no P2P, access control on, the IOMMU translates, as Ubuntu has it."""
    board = Board()
    parts.linux(board, parts.EPYC, cpus=32, memory_gib=128)
    buses = [f"0000:{bus}:00.0" for bus in BUSES[:2]]
    for bus in buses:
        up = ("pci0000:00", f"0000:00:0{1 + (bus == buses[1])}.1")
        board.seat(bus, up, kind="0x030000", device="0x2684", node=-1, cpus="0-31", acs=0x1D, idle=True)
        board.seat(bus[:-1] + "1", up, kind="0x040300", device="0x22ba", driver="snd_hda_intel", node=-1)
    board.iommu("DMA-FQ", buses)
    _driven(board, "igc", "enp5s0")
    parts.driver(board, range(2), is_open=False)
    board.said(f"NVRM: Xid (PCI:{buses[0][:-2]}): 13, pid=812, name=game, Graphics Exception", 40 * 3600)
    return Whole(
        board,
        "desk",
        nvml={"NVML_STAND_IN": "geforce,two,no_persistence", "NVML_STAND_IN_TOPOLOGY": "no_p2p,pcie4"},
        cpus=32,
        shm=Disk(63 * GIB, 62 * GIB),
        limits={"MEMLOCK": 8 << 20, "NOFILE": 1024},
        network=(
            Interface(name="enp5s0", addresses=("192.168.1.20/24",), speed_mbps=2500),
            Interface(name="docker0", addresses=("172.17.0.1/16",), running=False),
        ),
        names={"desk": ("127.0.1.1",)},
        via=lambda _one, _two: "SHM/direct/direct",
    )


def laptop() -> Whole:
    """Return a machine with one GeForce next to Intel graphics: idle clocks, half of the lanes, no persistence mode."""
    board = Board()
    parts.linux(board, cpus=20, memory_gib=32)
    board.seat(
        "0000:00:02.0", ("pci0000:00",), kind="0x030000", vendor="0x8086", device="0xa7a0", driver="i915", node=-1
    )
    board.seat(
        "0000:1b:00.0",
        ("pci0000:00", "0000:00:01.0"),
        kind="0x030000",
        device="0x2820",
        node=-1,
        cpus="0-19",
        width=8,
        idle=True,
    )
    board.iommu("DMA-FQ", ["0000:1b:00.0"])
    _driven(board, "iwlwifi", "wlp0s20f3")
    parts.driver(board, range(1), "550.90.07")
    return Whole(
        board,
        "laptop",
        nvml={"NVML_STAND_IN": "laptop,one", "NVML_STAND_IN_TOPOLOGY": "pcie"},
        cpus=20,
        shm=Disk(16 * GIB, 15 * GIB),
        limits={"MEMLOCK": 8 << 20, "NOFILE": 1024},
        network=(Interface(name="wlp0s20f3", addresses=("192.168.1.31/24",)),),
        names={"laptop": ("127.0.1.1",)},
    )


def wsl() -> Whole:
    """The same under Windows: WSL 2 has no PCI devices, and Windows' driver behind /dev/dxg."""
    board = Board()
    parts.linux(board, virtual="Microsoft Corporation", cpus=20, memory_gib=16)
    board.tree.write("/proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
    board.tree.write("/dev/dxg")
    board.tree.link("/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so")
    return Whole(
        board,
        "WINDOWS-1",
        nvml={"NVML_STAND_IN": "wsl", "NVML_STAND_IN_TOPOLOGY": "pcie"},
        cpus=20,
        shm=Disk(8 * GIB, 8 * GIB),
        limits={"MEMLOCK": 64 << 10, "NOFILE": 1024},
        names={"WINDOWS-1": ("127.0.1.1",)},
    )
