"""The interface for ``run --model``: two checks, their results for the verdict, and the work of step_time."""

from collections.abc import Iterator

from ddp_doctor.features import CodeRaised, RunFeature, later
from ddp_doctor.features.model.compile import check as compile_check
from ddp_doctor.features.model.user_model import check as user_model_check
from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.findings import short_count


def words(recording: Recording) -> str:
    """Return `` with train.models:make (124M parameters)``."""
    fact = recording.first(UserModel)
    parameters = f" ({short_count(fact.elements)} parameters)" if fact and fact.elements else ""
    return f" with {recording.options.model}{parameters}"


def unmet(recording: Recording) -> str | None:
    """Return why the model was not fully tested, "" if it was, or None without a result."""
    model, facts = recording.options.model, [rank.fact for rank in recording.facts(UserModel)]
    if not facts:
        return None
    if len({fact.model for fact in facts}) > 1:
        return "not all nodes were started with it"
    if not all(fact.has_batch for fact in facts):
        return f"no forward was run; let {model} return (model, make_batch)"
    if stopped := [fact.stopped for fact in facts if fact.stopped]:
        too_slow = "no synchronized step was run; let make_batch return a smaller batch"
        return too_slow if "time" in stopped else f"the ranks stopped at {stopped[0]}"
    untested = [fact.sharded.not_compared for fact in facts if fact.sharded and fact.sharded.not_compared]
    return f"its steps were not compared with those of a single rank: {untested[0]}" if untested else ""


def raised(recording: Recording) -> Iterator[CodeRaised]:
    """Yield exceptions of the model, except on ranks whose factory changes the GPU, which DD772 reports."""
    for rank in recording.facts(UserModel):
        trouble = rank.fact.trouble
        if trouble is not None and rank.fact.found_device is None:
            doing = f"{trouble.phase} of {rank.fact.model}"
            yield CodeRaised(rank.rank or 0, user_model_check.CHECK.id, trouble.message, doing, trouble.where)


FEATURE = RunFeature(
    checks=(user_model_check.CHECK, compile_check.CHECK),
    words=words,
    unmet=unmet,
    raised=raised,
    work=later("model", ".user_model.work", "yours"),
)
