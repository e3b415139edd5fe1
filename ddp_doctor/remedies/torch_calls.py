"""Fixes for how a script or its launcher starts torch's process group, for models, and for a modified torch.

Sources: torch.distributed, init_process_group (device_id); torch.distributed.run, "Definitions" (LOCAL_RANK) and
--rdzv-conf (join_timeout, 600 s by default: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
"""

from ddp_doctor.model.finding import Proof, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import in_code, remedy

DOCS = "https://docs.pytorch.org/docs/stable/"

ONE_GPU_EACH = in_code(
    "Choose the device by LOCAL_RANK before creating the group, and start at most one rank per GPU",
    "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))",
    "torch.cuda.set_device(device)",
    "torch.distributed.init_process_group('nccl', device_id=device)   # torch 2.3 and newer",
    cost="with device_id the group connects immediately, and a wrong device fails there",
    references=(DOCS + "distributed.html#torch.distributed.init_process_group", DOCS + "elastic/run.html"),
)


def in_model_code(
    summary: str, cost: str = "", reference: str = "generated/torch.nn.parallel.DistributedDataParallel.html"
) -> Remedy:
    """Return a change to the user's code, which ddp-doctor cannot test because it has no other model."""
    return in_code(
        summary,
        cost=cost,
        undo="revert the change" if cost else "",
        untried="ddp-doctor does not change your code; repeat the run with --model after the change",
        references=(DOCS + reference,),
    )


HUNG_CODE = in_model_code(
    "Find out what this line waits for: the network, a lock, a terminal, an endless loop, or a collective that"
    " not all ranks call"
)


_NOT_TRIED = "ddp-doctor does not know which of these is the cause"

_WHICH_CODE = (
    'python -c "import inspect, torch; from torch.nn.parallel import DistributedDataParallel as D; '
    'print(torch.__version__, inspect.getsourcefile(D), inspect.getsourcefile(inspect.unwrap(D.no_sync)))"'
)

#: The probe does not run user code, so the only cause left above the transport is torch itself.
_SOFTWARE = remedy(
    "Look for code that replaces parts of torch (sitecustomize, .pth files, a vendor's fork)",
    _WHICH_CODE,
    untried=_NOT_TRIED,
    references=("https://pytorch.org/docs/stable/notes/ddp.html",),
)


def of_stock_ddp(recording: Recording, check: str) -> tuple[Remedy, ...]:
    """Return fixes for stock DDP that averages or broadcasts wrongly with ddp-doctor's model.

    ``check`` is the check to repeat.
    """
    if not recording.on_nccl:
        return (_SOFTWARE,)
    commands = (f"ddp-doctor run --only {check}",)
    return (
        nccl.SIMPLE_PROTOCOL.model_copy(update={"commands": commands, "proof": Proof(reason=_NOT_TRIED)}),
        _SOFTWARE,
    )
