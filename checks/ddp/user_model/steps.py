"""DD785 to DD787: the user's code does not come back on any rank, fails in a synchronised step, or takes too long."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.user_model.wording import code, facts
from ddp_doctor.facts.ddp.user_model import UserModel
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.frames import called, of_the_job
from ddp_doctor.remedies.torch_calls import HUNG_CODE, in_model_code
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.ranks import line_in_the_job, stack_in_the_job

_CHECK = "user_model"


@rule("DD785", "user-model-does-not-come-back", Severity.ERROR)
def does_not_come_back(recording: Recording) -> Iterator[Draft]:
    """Code of the user's model that no rank came back from.

    Finds: Until the deadline all ranks stood in the import, the factory, ``make_batch`` or the forward, and none
        reached the others again. A single rank that does not come back is DD610's finding.
    Why: The job would stand there, too: a download without network, a lock, a question on the terminal, an endless
        loop, a collective that the ranks do not share.
    Remedy: Look at the line. What a module needs from the network is better fetched before the job.
    See: docs/explanation/hangs.md
    """
    for trial in recording.trials:
        if trial.judged_check != _CHECK or trial.outcome not in ("stuck", "slow"):
            continue
        left = [rank for rank in trial.evidence if not rank.done]
        inside = [step for rank in left for step in rank.steps[-1:] if step.left_at is None]
        if len(left) < len(trial.ranks) or any(step.check == _CHECK for step in inside):
            continue  # in a step of the check a rank waits for its peers
        first = left[0]
        everyone = "Both ranks" if len(left) == 2 else f"All {len(left)} ranks"
        who = f"{everyone} have" if len(left) > 1 else f"Rank {first.rank} has"
        innermost = [frame for rank in left for frame in of_the_job(rank.stack)[-1:]]
        lines = dict.fromkeys(frame.partition(" in ")[0] for frame in innermost)
        yield likely(
            (code(line) for line in list(lines)[:4]),
            f"{who} hung for {trial.waited_s:.0f} s in {called(first.stack) or 'your code'}{line_in_the_job(first)}",
            (Evidence(text=stack_in_the_job(rank)) for rank in left[:8]),
            HUNG_CODE,
            detail="No rank waits for another one here: each stands in your code.",
        )


@rule("DD786", "user-model-fails-in-a-synchronised-step", Severity.ERROR)
def fails_in_a_step(recording: Recording) -> Iterator[Draft]:
    """A model that works on each rank alone and raises in DDP.

    Finds: The same exception on all ranks in the forward or backward through DDP, after each rank's own forward and
        backward went well. A single rank's exception is DD613's finding.
    Why: The job fails in its first steps: a parameter that is marked ready twice (reentrant checkpointing, two forwards
        before a backward), a buffer changed in place between them.
    Remedy: What the exception says: non-reentrant checkpointing, one forward a backward, ``static_graph=True``,
        ``broadcast_buffers=False``.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for trial in recording.trials:
        if trial.judged_check != _CHECK or trial.outcome != "broken":
            continue
        messages = [rank.raised.message for rank in trial.evidence if rank.raised and rank.raised.type == "StepFailed"]
        if not messages or len(messages) < len(trial.ranks):
            continue
        yield proved(
            NOBODY,
            f"{recording.options.model} works alone and fails in DDP on every rank: {messages[0][:120]}",
            Evidence(text=messages[0][:300]),
            in_model_code("Fix what the exception says; DDP takes one forward and one backward at a time"),
            detail=f"Each rank's own forward and backward went well. In DDP it says: {messages[0][:300]}",
        )


@rule("DD787", "user-model-takes-too-long", Severity.INFO, UserModel)
def takes_too_long(recording: Recording) -> Iterator[Draft]:
    """A model whose synchronised steps would not end within the check's deadline.

    Finds: From the time of the first forward and backward the rest would not end in time, so it was not begun.
    Why: What was looked at stands; gradients, repeatability and parameters after a step were not tested.
    Remedy: A smaller batch from ``make_batch``, or fewer layers of the same kind.
    See: docs/how-to/test-your-own-model.md
    """
    ranks = [rank for rank in facts(recording) if rank.fact.stopped == "time"]
    if not ranks:
        return
    yield proved(
        NOBODY,
        f"{ranks[0].fact.model} is too slow to be tested in DDP in the time of this check",
        Evidence(text="only each rank's own forward and backward were tested"),
        in_model_code("Let make_batch return a smaller batch"),
    )
