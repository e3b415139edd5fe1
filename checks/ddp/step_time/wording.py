"""How findings speak of the times of steps, and what mends steps that wait for communication."""

from collections.abc import Sequence
from statistics import median

from ddp_doctor.model.finding import Remedy
from ddp_doctor.remedies.kinds import in_code, remedy

_COMPUTED = "the number is worked out of measured times; no trial tells what it does to a training"
_DDP_NOTES = "https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"


def of(model: str) -> str:
    """`` of train.models:make``, or nothing for the doctor's own model."""
    return f" of {model}" if model else ""


def ms(seconds: float) -> str:
    """``43 ms``, ``4.3 ms``, ``0.43 ms``."""
    return f"{seconds * 1e3:.{_places(seconds)}f} ms"


def spread(seconds: Sequence[float]) -> str:
    """The median and the range: ``43 ms (40 to 47)``."""
    places = _places(median(seconds))
    least, most = (f"{one * 1e3:.{places}f}" for one in (min(seconds), max(seconds)))
    return f"{median(seconds) * 1e3:.{places}f} ms ({least} to {most})"


def limits(seconds: Sequence[float]) -> str:
    """``40 to 47 ms``."""
    places = _places(median(seconds))
    return f"{min(seconds) * 1e3:.{places}f} to {max(seconds) * 1e3:.{places}f} ms"


def _places(seconds: float) -> int:
    """Decimal places of a time in ms: two or three digits in all."""
    return 0 if seconds >= 0.01 else 1 if seconds >= 0.001 else 2


def accumulate(micro_steps: int, share: float) -> Remedy:
    """Synchronise in one of several steps."""
    return in_code(
        f"Accumulate gradients: with one synchronisation in {micro_steps} steps, waiting is {share:.0%} of"
        " the time. Run the others inside model.no_sync(), forward and backward, and step the optimiser once",
        cost=f"a batch {micro_steps} times as large and so many times fewer updates: learning rate and schedule"
        " may need another look",
        undo="step and synchronise in every step again",
        untried=_COMPUTED,
        references=(_DDP_NOTES,),
    )


def compute_more(per_mib_s: float, share: float) -> Remedy:
    """Where it is not known how much the user's own model computes."""
    return in_code(
        f"Let each rank compute for {ms(per_mib_s)} or more for each MiB of gradients between two"
        f" synchronisations, so that at most {share:.0%} of the time is waiting: a larger batch, or gradients"
        " accumulated over several steps inside model.no_sync(). A job that does so already has nothing to change",
        cost="a larger batch and fewer updates: learning rate and schedule may need another look",
        undo="the former batch, and a synchronisation in every step",
        untried=_COMPUTED,
        references=(_DDP_NOTES,),
    )


def larger_batch(times: int) -> Remedy:
    """More computing for the same gradients."""
    return in_code(
        f"Give each rank a batch {times} times as large, where memory allows: gradients stay as large as they"
        " are, and computing grows",
        cost="memory, and the same change to the training as accumulating brings",
        undo="the former batch",
        untried=_COMPUTED,
    )


FEWER_RANKS = remedy(
    "Start fewer ranks, those of one node first, or change what each of them computes between two"
    " synchronisations",
    scope="job",
    cost="fewer samples at a time where the batch per rank stays as it is",
    undo="start as many as before",
    untried=_COMPUTED,
)
