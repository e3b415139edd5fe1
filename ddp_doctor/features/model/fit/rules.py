"""DD870 to DD872: a model that does not fit, and a factory that does not return."""

from collections.abc import Iterator

from ddp_doctor.features.model.fit.facts import FitFact
from ddp_doctor.features.model.fit.report import FitEstimate
from ddp_doctor.features.model.fit.views import FIT, asked, estimates, memory, name_of, nothing_fits, size, to_take
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.frames import called
from ddp_doctor.remedies.torch_calls import HUNG_CODE, in_model_code
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.ranks import line_in_the_job, stack_in_the_job


@rule("DD870", "no-strategy-fits-the-gpu", Consequence.FAILS, FitFact)
def no_strategy_fits(recording: Recording) -> Iterator[Draft]:
    """A model does not fit on a GPU with any strategy.

    Finds: Under DDP, ZeRO-1 to ZeRO-3, HSDP and CPU offload, each with and without activation checkpointing, the peak
        of a rank's memory plus the excess that CUDA's caching allocator keeps is above the memory of the smallest GPU,
        or above ``--memory``.
    Why: The job ends with "CUDA out of memory" in one of its first two steps.
    Remedy: Use a smaller batch, more ranks to shard over, lower precision or a larger GPU. Otherwise, use tensor or
        pipeline parallelism, which split a layer or the sequence of layers, and which this command does not estimate.
    See: https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
        https://docs.pytorch.org/docs/stable/distributed.pipelining.html
    """
    room, fact = memory(recording), recording.first(FitFact)
    if room is None or fact is None or not nothing_fits(recording):
        return
    least = min(estimates(recording), key=lambda each: each.needed_bytes)
    layer = f" Its largest layer, {fact.largest}, has {size(fact.largest_bytes)}."
    smaller = max((each.batch for each in estimates(recording) if each.batch), default=0)
    fewer = f"Use a batch of at most {smaller}, and accumulate gradients" if smaller else "Use more ranks to shard over"
    yield proved(
        NOBODY,
        f"{fact.model} does not fit in {size(room.size_bytes)} with any strategy; the"
        f" smallest ({least.words.partition(':')[0]}) needs {size(least.needed_bytes)}",
        _evidence(least, room.size_bytes, room.whose),
        in_model_code(fewer, cost="more steps or more GPUs for the same samples"),
        in_model_code(
            "Split layers with tensor parallelism, or the sequence of layers with pipeline parallelism",
            cost="model changes, and communication in each layer or between stages",
            reference="distributed.tensor.parallel.html",
        ),
        detail=f"Estimated for {fact.ranks} ranks with a batch of {fact.batch or 'no'}"
        f" samples each.{layer} Tensor and pipeline parallelism are not estimated.",
    )


def _evidence(each: FitEstimate, room_bytes: int, whose: str) -> Evidence:
    most = max(each.parts, key=lambda part: each.parts[part])
    return Evidence(
        text=f"{name_of(each)}, peak in the {each.moment}, largest part {most} with"
        f" {size(each.parts[most])}{'; its steps ran out of memory' * each.measured_out_of_memory}",
        value=float(each.needed_bytes),
        unit="B",
        expected=float(room_bytes),
        expected_from=whose,
    )


@rule("DD871", "chosen-strategy-does-not-fit", Consequence.REQUIRED, FitFact, explained_by=("DD870",))
def chosen_does_not_fit(recording: Recording) -> Iterator[Draft]:
    """The requested strategy does not fit, but another one does.

    Finds: Under ``--strategy`` the peak, with and without activation checkpointing, is above the memory of the smallest
        GPU or above ``--memory``.
    Why: The job ends with "CUDA out of memory" in one of its first two steps.
    Remedy: Use the strategy that the finding names, or a batch that fits.
    See: docs/how-to/does-it-fit.md
        https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    wanted, room, fact = asked(recording).strategy, memory(recording), recording.first(FitFact)
    chosen = [each for each in estimates(recording) if each.strategy == wanted]
    if room is None or fact is None or not chosen or any(each.fits is not False for each in chosen):
        return
    least = min(chosen, key=lambda each: each.needed_bytes)
    instead = to_take(recording, "")
    yield proved(
        NOBODY,
        f"{fact.model} does not fit in {size(room.size_bytes)}: {name_of(least)} needs {size(least.needed_bytes)}",
        (_evidence(each, room.size_bytes, room.whose) for each in chosen),
        in_model_code(
            f"Use {name_of(instead)}, which needs {size(instead.needed_bytes)} ({instead.words})"
            if instead
            else "Use a strategy that fits"
        ),
        detail=f"Estimated for {fact.ranks} ranks with a batch of {fact.batch} samples each." if fact.batch else "",
    )


@rule("DD872", "estimated-model-does-not-come-back", Consequence.RISK, explained_by=("DD611",))
def does_not_come_back(recording: Recording) -> Iterator[Draft]:
    """Code of the user's model does not return on the rank that estimates.

    Finds: Until the deadline, the rank was stuck in the import, the factory, ``make_batch`` or the forward. With
        ``--measure``, other ranks wait for it, and DD610 names it.
    Why: Nothing was estimated, and the job would also be stuck: a lock, a question on the terminal, an endless loop.
    Remedy: Look at the line. If a module needs data from the network, download it before the job.
    See: docs/explanation/hangs.md
    """
    for trial in recording.trials:
        if trial.judged_check != FIT or trial.outcome not in ("stuck", "slow") or len(trial.ranks) > 1:
            continue
        for rank in trial.evidence:
            yield likely(
                NOBODY,
                f"No progress for {trial.waited_s:.0f} s in {called(rank.stack) or 'your code'}{line_in_the_job(rank)}",
                Evidence(text=stack_in_the_job(rank)),
                HUNG_CODE,
            )
