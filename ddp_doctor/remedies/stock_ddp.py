"""What to try where stock DDP, with a model of the doctor's own, averages or broadcasts wrongly."""

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import remedy

_NOT_TRIED = "the doctor cannot tell beforehand which of these is the cause"

_WHICH_CODE = (
    'python -c "import inspect, torch; from torch.nn.parallel import DistributedDataParallel as D; '
    'print(torch.__version__, inspect.getsourcefile(D), inspect.getsourcefile(D.no_sync))"'
)

#: The probe runs none of the user's code, so what is left above the transport is torch itself.
_SOFTWARE = remedy(
    "Look for code that replaces parts of torch (sitecustomize, .pth files, a vendor's fork)",
    _WHICH_CODE,
    cost="None: it only prints where the code of DDP and no_sync() comes from",
    undo=NOTHING_TO_UNDO,
    untried=_NOT_TRIED,
    references=("https://pytorch.org/docs/stable/notes/ddp.html",),
)


def remedies(recording: Recording, check: str) -> tuple[Remedy, ...]:
    """What to try, the cheapest first; ``check`` is the one to repeat."""
    if recording.world is None or recording.world.backend != "nccl":
        return (_SOFTWARE,)
    commands = (f"ddp-doctor run --only {check}",)
    return (
        nccl.SIMPLE_PROTOCOL.model_copy(update={"commands": commands, "proof": Proof(reason=_NOT_TRIED)}),
        _SOFTWARE,
    )
