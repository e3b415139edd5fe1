"""Names of hosts, GPUs and rates in findings about paths, and the fixes for an unused path."""

from collections.abc import Iterator, Sequence
from typing import Any

from ddp_doctor.model.finding import Culprit, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.views.network import Crossing
from ddp_doctor.wording.nodes import first_names, node_names
from ddp_doctor.wording.ranks import rank_at


def hosts_of(recording: Recording, nodes: Sequence[FactAt[Any]]) -> str:
    """Name the hosts for a sentence; for pasted text, only their order is known."""
    if recording.world:
        return node_names(recording, nodes)
    several = len({reading.node for reading in recording.readings}) > 1
    return f"host {nodes[0].node + 1} of the text" if several else "this host"


def culprit(recording: Recording, node: int, gpus: Sequence[str], ranks: Sequence[int] = ()) -> Culprit:
    """Return the culprit for a GPU, or for a pair of GPUs of one node with their ranks if known."""
    host = recording.world.hostname(node) if recording.world else None
    number = int(gpus[0].removeprefix("GPU"))
    if len(gpus) == 1:
        return Culprit(kind="gpu", node=host, node_rank=node, gpu=number, name=gpus[0])
    rank, peer = ranks or (None, None)
    name = "-".join(gpus)
    return Culprit(
        kind="pair", node=host, node_rank=node, rank=rank, gpu=number, peer_node=host, peer_rank=peer, name=name
    )


#: NCCL's own words for its transports, for a sentence.
NAMES = {"P2P": "direct copies (P2P)", "SHM": "shared memory (SHM)", "NET": "the network (NET)"}
#: Maximum number of GPU pairs in a finding.
MOST_PAIRS = 6
#: Maximum number of pairs in a title.
_PAIRS_IN_A_TITLE = 3


def pair_names(pairs: Sequence[tuple[str, str]]) -> str:
    """Return "GPU0-GPU1, GPU2-GPU3 and 10 more"."""
    return first_names(["-".join(pair) for pair in dict.fromkeys(pairs)], _PAIRS_IN_A_TITLE)


def crossings_seen(recording: Recording, crossings: Sequence[Crossing]) -> Iterator[Evidence]:
    """Yield what NCCL's log reports about the first crossings."""
    ways = dict.fromkeys((min(crossing.ranks), max(crossing.ranks), crossing.transport.via) for crossing in crossings)
    for first, second, via in list(ways)[:MOST_PAIRS]:
        yield Evidence(text=f"NCCL's log: {rank_at(recording, first)} and {rank_at(recording, second)} via {via}")


def rate(gb_per_s: float | None) -> str:
    """Return " (371 GB/s)", or ""."""
    return "" if gb_per_s is None else f" ({gb_per_s:.3g} GB/s)"


def price(fast: float | None, slow: float | None) -> str:
    """Describe the cost of a detour in a sentence; "" unless both rates are known and differ."""
    if fast is None or slow is None or slow >= fast:
        return ""
    return f" NCCL's own figures: {slow:.3g} GB/s instead of {fast:.3g} GB/s in each direction."


def unset_setting(name: str, value: str, gains: str) -> Remedy:
    """Return the fix to unset a variable that forbids a transport."""
    return nccl.by_setting(
        f"Unset {name}; if it was set as a workaround for a fault, repair the fault first",
        Setting(name=name, action="unset", why=gains),
        cost="a hang or wrong data may return if it was set to prevent them",
        undo=f"export {name}={value}",
    )


def _log_more(summary: str, subsystems: str, *commands: str) -> Remedy:
    why = "the job's output then shows NCCL's choice and its reason"
    return Remedy(
        summary=summary,
        settings=(
            Setting(name="NCCL_DEBUG", value="INFO", why=why),
            Setting(name="NCCL_DEBUG_SUBSYS", value=subsystems, why=why),
        ),
        commands=commands,
        cost="several hundred log lines per rank",
        undo="unset NCCL_DEBUG NCCL_DEBUG_SUBSYS",
        proof=Proof(reason="no test is known for it"),
        references=(nccl.TROUBLE,),
    )


SHOW_CHOICE = _log_more(
    "Start the job with NCCL's log, and check the driver's P2P status of each GPU pair",
    "INIT,GRAPH,P2P,SHM",
    "nvidia-smi topo -p2p r",
    "nvidia-smi topo -p2p w",
)
SHOW_NETWORK = _log_more(
    "Start the job with NCCL's log, and read its lines about each network device", "INIT,NET,GRAPH", "ibv_devinfo"
)

ONE_HOST_ID = remedy(
    "Use one host name and one /dev/shm for all ranks of a machine (one container, or"
    " --ipc=host and --uts=host for all), with the same NCCL_HOSTID or none",
    scope="job",
    cost="containers see each other's shared memory",
    undo="start them without the option",
    untried="requires other containers",
    references=(nccl.entry("NCCL_HOSTID"), nccl.TROUBLE + "#sharing-data"),
    container=("--ipc=host", "--uts=host"),
)

UNSET_HOST_ID = nccl.by_setting(
    "Unset NCCL_HOSTID on all ranks",
    Setting(name="NCCL_HOSTID", action="unset", why="NCCL then identifies the host by host name and boot id"),
    cost="may affect other programs that rely on it",
    undo="restore the previous NCCL_HOSTID",
)


UNSET_LEVEL = nccl.by_setting(
    "Unset NCCL_P2P_LEVEL, unless the job needs direct copies over that distance",
    Setting(name="NCCL_P2P_LEVEL", action="unset", why="it extends P2P beyond its default distance"),
    cost="host memory traffic between GPUs beyond the limit, as NCCL intends",
    undo="restore the previous NCCL_P2P_LEVEL",
    conflicts=("NCCL_P2P_DISABLE",),
)
_ASK_FOR_INDEX = (
    "Whether NCCL_IB_GID_INDEX must be set as well needs show_gids or sysfs; NCCL 2.21 and newer find the"
    " RoCE v2 entry themselves"
)


REPAIR_FABRIC = by_administrator(
    "Find out why NVLink carries no P2P: fabric manager, a link that is down, MIG, or a GPU to reset",
    "systemctl status nvidia-fabricmanager",
    "nvidia-smi nvlink -s",
    "nvidia-smi --query-gpu=index,mig.mode.current --format=csv",
    "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
    cost="a drained node, to restart the fabric manager or reset GPUs",
    references=("https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",),
)


def use_hca(devices: tuple[str, ...], others: tuple[str, ...], why: str, gid_index: str | None = None) -> Remedy:
    """Return the fix to use these RDMA devices for NCCL; the GID index is only mentioned, never guessed.

    ``gid_index`` describes what is known about it; if empty, the text gives the commands that show it. Names in
    NCCL_IB_HCA are prefixes unless = precedes them, so = is added if ``others`` would match.
    """
    exact = any(device.startswith(name) for name in devices for device in others)
    value = ("=" if exact else "") + ",".join(devices)
    return Remedy(
        summary=(
            f"Only for jobs of several nodes: NCCL_IB_HCA could be {', '.join(devices)}. {gid_index or _ASK_FOR_INDEX}"
        ),
        settings=(Setting(name="NCCL_IB_HCA", value=value, why=why),),
        commands=()
        if gid_index
        else ("show_gids", *(f"grep . /sys/class/infiniband/{name}/ports/1/gid_attrs/types/*" for name in devices)),
        cost="idle NICs; no change within one node",
        undo="unset NCCL_IB_HCA",
        proof=Proof(reason="a test requires several nodes"),
        references=(nccl.entry("NCCL_IB_HCA"), nccl.entry("NCCL_IB_GID_INDEX")),
    )


def name_hca(candidate: Remedy) -> Remedy:
    """Return the fix as a line to paste without a trial, if it does not fix the finding's own fault."""
    lines = [f"export {setting.name}={setting.value}" for setting in candidate.settings]
    return candidate.model_copy(update={"settings": (), "commands": (*lines, *candidate.commands)})


def look_at_nvlinks(gpus: tuple[str, ...], *, none: bool = False) -> Remedy:
    """Return the next step to find the failed link and its cause; MIG mode and the fabric come first with ``none``."""
    numbers = [gpu.removeprefix("GPU") for gpu in gpus]
    first = "Check MIG mode, the fabric state and the links of" if none else "Look at the links of"
    return by_administrator(
        f"{first} {' and '.join(gpus)}; reset or reseat what is down",
        *([f"nvidia-smi -q -i {','.join(numbers)} | grep -A3 -E 'MIG Mode|Fabric'"] if none else []),
        *(f"nvidia-smi nvlink -s -i {number}" for number in numbers),
        *(f"nvidia-smi nvlink -e -i {number}" for number in numbers),
        "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
        cost="a drained node for a reset; physical access for a bridge or board",
        references=("https://docs.nvidia.com/deploy/xid-errors/",),
    )
