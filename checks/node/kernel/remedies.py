"""What an operator does about a GPU that the kernel log names."""

from collections.abc import Sequence

from ddp_doctor.knowledge.gpu.xids import CATALOG
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Remedy
from ddp_doctor.remedies.kinds import by_operator


def reset_gpus(bus_ids: Sequence[str]) -> Remedy:
    """Reset exactly these GPUs."""
    return by_operator(
        "Drain the node and reset the GPU; where it does not come back, reboot; what returns is hardware.",
        *(f"sudo nvidia-smi --gpu-reset -i {bus_id}" for bus_id in bus_ids[:8]),
        cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
        undo=NOTHING_TO_UNDO,
        references=(CATALOG,),
    )


REBOOT_NODE = by_operator(
    "Drain the node and reboot it; have power, cooling and the slot inspected if it returns.",
    "sudo reboot",
    cost="ends all jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(CATALOG,),
)


WATCH = by_operator(
    "Nothing now. If it comes again on the same device, have it inspected.",
    "sudo dmesg -T | grep -i -e xid",
    undo=NOTHING_TO_UNDO,
    references=(CATALOG,),
)
