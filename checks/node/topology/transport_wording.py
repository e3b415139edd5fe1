"""What rules about NCCL's transports say of rates, and what mends a way that is not taken."""

from collections.abc import Sequence

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Setting
from ddp_doctor.remedies import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator, remedy

#: NCCL's own words for its transports, for a sentence.
NAMES = {"P2P": "direct copies (P2P)", "SHM": "shared memory (SHM)", "NET": "the network (NET)"}
#: A finding shows no more pairs of GPUs.
MOST_PAIRS = 6


def pair_names(pairs: Sequence[tuple[str, str]]) -> str:
    """ "GPU0-GPU1, GPU2-GPU3 and 10 more"."""
    names = ["-".join(pair) for pair in dict.fromkeys(pairs)]
    more = f" and {len(names) - MOST_PAIRS} more" if len(names) > MOST_PAIRS else ""
    return ", ".join(names[:MOST_PAIRS]) + more


def rate(gb_per_s: float | None) -> str:
    """ " (371 GB/s)", or nothing."""
    return "" if gb_per_s is None else f" ({gb_per_s:.3g} GB/s)"


def price(fast: float | None, slow: float | None) -> str:
    """What a detour costs, in a sentence, as far as both rates are known and differ."""
    if fast is None or slow is None or slow >= fast:
        return ""
    return f" By NCCL's own constants {slow:.3g} GB/s remain of {fast:.3g} GB/s, one way."


def unset_setting(name: str, value: str, gains: str) -> Remedy:
    """Take a variable that forbids a transport out of the job's environment."""
    return nccl_settings.remedy(
        f"Unset {name} unless it keeps the job from a fault; then repair that first",
        Setting(name=name, action="unset", why=gains),
        cost="none, unless it was set against a hang or wrong data: then that returns",
        undo=f"export {name}={value}",
    )


def widen_gpudirect(name: str, level: str) -> Remedy:
    """Let GPUDirect RDMA go farther than NCCL does by itself, as a trial."""
    return nccl_settings.remedy(
        "Measure the job with it and without, on the same nodes, and keep what is faster",
        Setting(name=name, value=level, why="NICs behind the CPU then read and write GPU memory"),
        cost=(
            "where the CPU forwards between PCIe devices slowly, the network gets slower; every node of the job"
            " must bear it"
        ),
    )


def more_sockets(threads: int, each: int) -> Remedy:
    """Several TCP connections between two nodes, as a trial."""
    why = "one connection is bound by one core"
    return nccl_settings.remedy(
        "Measure the job with more connections and without, on the same nodes, and keep what is faster",
        Setting(name="NCCL_SOCKET_NTHREADS", value=str(threads), why=why),
        Setting(name="NCCL_NSOCKS_PERTHREAD", value=str(each), why=why),
        cost=f"{threads} threads for each connection, which take CPU time from the ranks and their data loaders",
    )


def _explain(summary: str, subsystems: str, *commands: str) -> Remedy:
    """Have NCCL say more, in the job itself."""
    why = "the job's own output then says which way NCCL takes, and why"
    return Remedy(
        summary=summary,
        settings=(
            Setting(name="NCCL_DEBUG", value="INFO", why=why),
            Setting(name="NCCL_DEBUG_SUBSYS", value=subsystems, why=why),
        ),
        commands=commands,
        cost="some hundred lines of each rank",
        undo="unset NCCL_DEBUG NCCL_DEBUG_SUBSYS",
        proof=Proof(reason="nothing is known that could be tried"),
        references=(nccl_settings.TROUBLE,),
    )


SHOW_CHOICE = _explain(
    "Start the job with NCCL's log, and look at what the driver says of each pair of GPUs",
    "INIT,GRAPH,P2P,SHM",
    "nvidia-smi topo -p2p r",
    "nvidia-smi topo -p2p w",
)
SHOW_NETWORK = _explain(
    "Start the job with NCCL's log, and look at what it says of each network device",
    "INIT,NET,GRAPH",
    "ibv_devinfo",
)

LOAD_PEERMEM = by_administrator(
    "Load nvidia_peermem, or install the open NVIDIA kernel modules, and see them inside the container",
    "sudo modprobe nvidia_peermem",
    "cat /sys/module/nvidia_peermem/version",
    cost="an administrator's work",
    undo="sudo modprobe -r nvidia_peermem",
    references=(nccl_settings.TROUBLE,),
)

ONE_HOST_ID = remedy(
    "Let all ranks of a machine have one host name and one /dev/shm (one container, or --ipc=host and"
    " --uts=host for all); NCCL_HOSTID must be the same for them, or unset",
    scope="job",
    cost="the containers see each other's shared memory",
    undo="start them as before",
    untried="it takes other containers",
    references=(nccl_settings.entry("NCCL_HOSTID"), nccl_settings.TROUBLE + "#sharing-data"),
    container=("--ipc=host", "--uts=host"),
)

COMPARE_LINKS = remedy(
    "Look at width and generation of PCIe under load, at the NVLinks' errors and at ACS on the bridges",
    "nvidia-smi -q -d PCIE,CLOCK,PERFORMANCE   # while the job runs",
    "nvidia-smi nvlink -e",
    "sudo lspci -vvv | grep ACSCtl   # SrcValid+ means that ACS is on",
    undo=NOTHING_TO_UNDO,
    untried="nothing is known that could be tried",
    references=(nccl_settings.TROUBLE,),
)
