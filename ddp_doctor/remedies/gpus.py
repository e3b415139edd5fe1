"""What an operator does about GPUs that are in trouble."""

from ddp_doctor.knowledge.gpu.nvml import CLOCK_EVENTS_API, PERSISTENCE_GUIDE, XID_CATALOG
from ddp_doctor.model.finding import NOTHING_TO_UNDO
from ddp_doctor.remedies.kinds import by_operator

COOL_DOWN = by_operator(
    "Have cooling and power inspected: air flow, fans, heat sinks, power supplies and their cables.",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    cost="the node is out of work meanwhile",
    references=(CLOCK_EVENTS_API,),
)
FIND_GPU = by_operator(
    "Look at the kernel log for the missing GPU (RmInitAdapter failed, Xid 79, PCIe errors); then reboot "
    "or take the node out.",
    "sudo dmesg | grep -i -e nvrm -e xid -e pcieport",
    "lspci -nn -d 10de:",
    cost="the node is out of work meanwhile",
    undo=NOTHING_TO_UNDO,
    references=(XID_CATALOG,),
)
REBOOT = by_operator(
    "Reboot the node; before that, look for the Xid that began it and for processes in state D.",
    "sudo dmesg | grep -i -e xid -e nvrm",
    "ps -eo pid,stat,wchan:32,cmd | awk '$2 ~ /^D/'",
    cost="ends all jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(XID_CATALOG, PERSISTENCE_GUIDE),
)
