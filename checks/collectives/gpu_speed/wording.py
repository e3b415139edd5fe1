"""How findings speak of ranks' GPUs at work, and what mends a slow one."""

from collections.abc import Iterable

from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.knowledge.gpu.nvml import CLOCK_EVENTS_API
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.wording.ranks import rank_culprit


def gpu_culprit(recording: Recording, rank: int, uuid: str | None) -> Culprit:
    """The GPU of a rank."""
    return rank_culprit(recording, rank).model_copy(update={"kind": "gpu", "name": uuid})


def slower(factor: float) -> str:
    """A rate ``factor`` times below another: "41 % slower", "3.4 times slower"."""
    return f"{factor:.1f} times slower" if factor >= gpu_speed.MUCH_SLOWER else f"{1 - 1 / factor:.0%} slower"


def reasons(names: Iterable[str]) -> str:
    """What slowdowns mean; the hardware's own name for all of them goes where a special one is given."""
    given = [name for name in gpu_speed.SLOWDOWNS_UNDER_LOAD if name in set(names)]
    special = [name for name in given if name != "hw_slowdown"]
    return " and ".join(gpu_speed.SLOWDOWNS_UNDER_LOAD[name] for name in special or given)


def raise_power_limit(uuid: str | None, own_w: float, peers_w: float) -> Remedy:
    """The peers' limit for this GPU."""
    gpu = gpu_speed.as_argument(uuid)
    return by_operator(
        f"Give it the power limit of its peers, {peers_w:.0f} W; its own is {own_w:.0f} W.",
        f"nvidia-smi -i {gpu} -pl {peers_w:.0f}",
        cost="needs root; power supply and cooling must bear it",
        undo=f"nvidia-smi -i {gpu} -pl {own_w:.0f}",
    )


def free_clocks(uuid: str | None) -> Remedy:
    """Clocks that somebody set."""
    gpu = gpu_speed.as_argument(uuid)
    return by_operator(
        "Take back the clocks that somebody set for it.",
        f"nvidia-smi -i {gpu} -q -d CLOCK",
        f"nvidia-smi -i {gpu} -rgc",
        f"nvidia-smi -i {gpu} -rac",
        cost="needs root; they may have been set for a reason, such as power",
        undo="nvidia-smi -lgc or -ac with the clocks that the first command shows",
    )


COMPARE = by_operator(
    "Compare its clocks, power limit, temperature and ECC errors with its peers' while both are at work; where "
    "they are alike, reset the GPU, and have it exchanged if it stays slow.",
    "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE,ECC",
    cost="the node is out of work meanwhile",
    undo=NOTHING_TO_UNDO,
    references=(CLOCK_EVENTS_API,),
)
RESEAT = by_operator(
    "Look at the slot, riser and cable of the GPU, and at the link that the slot is wired and set up for in the "
    "firmware; reseat the GPU.",
    "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max --format=csv",
    "lspci -vv -d 10de: | grep -e LnkCap: -e LnkSta:",
    cost="the node is out of work meanwhile",
    undo=NOTHING_TO_UNDO,
)
FOLLOW_THE_PATH = by_operator(
    "Compare every link on the way from the processor to the GPU with its capability; a switch above it may be "
    "reduced, or shared with other devices at work.",
    "nvidia-smi topo -m",
    "lspci -tv",
    "lspci -vv | grep -e ^[0-9a-f] -e LnkCap: -e LnkSta:",
    undo=NOTHING_TO_UNDO,
)
