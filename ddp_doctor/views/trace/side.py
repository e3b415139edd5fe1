"""What the traces of a job come to, for a comparison with another's."""

from collections.abc import Sequence
from statistics import fmean, median

from ddp_doctor.facts.cluster import UNKNOWN_GPU, TracedPart, TracedSide
from ddp_doctor.facts.trace import TraceFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.trace.parts import Parts, parts
from ddp_doctor.views.trace.windows import problem, windows


def side(recording: Recording, file: str) -> TracedSide | None:
    """The latest window of these traces; None where none can be judged."""
    if not (found := windows(recording)):
        return None
    window = found[-1]
    steps = [
        Parts(*(fmean(values) for values in zip(*of_ranks, strict=True)))
        for of_ranks in zip(*parts(recording, window), strict=False)
    ]
    taken = {name: [getattr(step, name) for step in steps] for name in Parts._fields}
    taken["exposed"] = [step.waiting + step.transfer + step.not_told for step in steps]
    ranks = window.world_size or len(window.ranks)
    if ranks == 1:  # there is nobody to wait for
        taken |= {"transfer": taken["exposed"], "not_told": [0.0] * len(steps)}
    samples = [_samples(fact) for fact in window.ranks]
    return TracedSide(
        file=file,
        ranks=ranks,
        steps=len(steps),
        samples=fmean(each for each in samples if each) if all(samples) else None,
        gpus=tuple(sorted({fact.gpu or UNKNOWN_GPU for fact in window.ranks if fact.device == "gpu"})),
        problem=problem(recording) if ranks > 1 else "",
        parts={name: _part(values) for name, values in taken.items()},
    )


def _samples(fact: TraceFact) -> float | None:
    """Of a step, all its passes."""
    if not all(step.batch for step in fact.steps):
        return None
    return median(step.batch[0] * max(step.passes, 1) for step in fact.steps)


def _part(values: Sequence[float]) -> TracedPart:
    middle = median(values)
    return TracedPart(median_us=middle, mad_us=median(abs(value - middle) for value in values))
