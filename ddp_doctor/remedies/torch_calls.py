"""What mends how a script or its launcher starts torch's process group.

Sources: torch.distributed, init_process_group (device_id); torch.distributed.run, "Definitions" (LOCAL_RANK) and
--rdzv-conf (join_timeout, 600 s by default: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
"""

import math

from ddp_doctor.model.finding import Remedy
from ddp_doctor.remedies.kinds import in_code, remedy

_DOCS = "https://docs.pytorch.org/docs/stable/"
#: The rendezvous gives a node so long to come, unless it is told otherwise.
JOIN_TIMEOUT_S = 600
#: A slow start is given so many times what it took.
_ROOM = 3

ONE_GPU_EACH = in_code(
    "Start as many ranks as there are GPUs, and choose the device by LOCAL_RANK before the group is made",
    "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))",
    "torch.cuda.set_device(device)",
    "torch.distributed.init_process_group('nccl', device_id=device)   # torch 2.3 and newer",
    cost="none; with device_id the group is connected at once, and a wrong device fails there",
    references=(_DOCS + "distributed.html#torch.distributed.init_process_group", _DOCS + "elastic/run.html"),
)


def join_later(took_s: float) -> Remedy:
    """Room for nodes that start slowly, so that the rendezvous does not give them up."""
    seconds = max(JOIN_TIMEOUT_S, math.ceil(_ROOM * took_s / 60) * 60)
    return remedy(
        f"Give the rendezvous {seconds} s meanwhile: on a busy day it takes longer than its {JOIN_TIMEOUT_S} s",
        f"torchrun --rdzv-conf join_timeout={seconds} …",
        scope="job",
        cost="a node that never comes is noticed so much later",
        undo="leave the option out",
        untried="the time is lost in the file system, and no time-out gives it back",
        references=(_DOCS + "elastic/run.html",),
    )
