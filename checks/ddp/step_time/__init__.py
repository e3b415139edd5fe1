"""step_time: how much of a training step is communication, and how much of it overlaps with computation.

Raw input: none; it is measured on every rank with a small model or that of --model, and all ranks start together::

    forward and backward alone      10.1 ms  (9.9 to 10.4)
    the same in DDP                 14.3 ms  (14.0 to 15.1)    exposed communication 4.2 ms
    its all-reduces alone            7.9 ms  (7.6 to 8.4)      overlap 47 %
    on the first rank alone          9.8 ms                    weak scaling 69 %

Why it matters: DDP averages gradients while backward still runs. In every step, each rank pays for the communication
that does not overlap, and waits for the slowest rank. Both look the same from outside: a slow step.
"""

from collections.abc import Iterator
from statistics import median

from ddp_doctor.checks.ddp.step_time import advised, rules
from ddp_doctor.checks.ddp.step_time.measure import YOURS, measure
from ddp_doctor.checks.ddp.step_time.rounds import crowded, summary
from ddp_doctor.checks.ddp.step_time.work import own
from ddp_doctor.facts.ddp.step_time import StepTimeFact
from ddp_doctor.features import run_feature
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> StepTimeFact:
    """Measure the steps of the user's model or of a small one. Raises Skip if they would take too long."""
    with ctx.step("compare_names"):
        models = set(ctx.exchange("whose model", ctx.model))
    if len(models) > 1:
        raise Skip("the nodes have different models, or some nodes have none (DD770)")
    return measure(ctx, own(ctx)) if models == {""} else measure(ctx, run_feature("model").work(ctx), YOURS)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield medians over the rounds of the slowest rank in each, the compute time of each rank, and bucket sizes."""
    totals = summary(recording)
    if totals is None:
        return
    labels: dict[str, str | int | float] = {
        "ranks": totals.fact.ranks,
        "gradient_bytes": totals.fact.gradient_bytes,
        "shared_processors": "yes" if crowded(recording) else "no",
    }
    for name, value, unit in (
        ("compute", median(totals.computing), "s"),
        ("compute_noise", totals.noise_s, "s"),
        ("time", median(totals.step), "s"),
        ("communicate", median(totals.communicate), "s"),
        ("exposed", median(totals.exposed), "s"),
        ("communicate_to_compute", totals.ratio, "ratio"),
        ("overlap", totals.overlap, "ratio"),
        ("weak_scaling", totals.weak_scaling, "ratio"),
        ("strong_scaling", totals.strong_scaling, "ratio"),
        ("allreduce_latency", totals.fact.curve.latency_s, "s"),
        ("allreduce_bandwidth", totals.fact.curve.bytes_per_s, "B/s"),
    ):
        if value is not None:
            yield Measurement(name=f"step_{name}", value=value, unit=unit, labels=labels)
    for rank in recording.facts(StepTimeFact):
        of_rank: dict[str, str | int | float] = {"rank": rank.rank or 0, "node": rank.node}
        computing = median(took for each in rank.fact.rounds for took in (each.compute_s, each.again_s))
        yield Measurement(name="step_compute_of_rank", value=computing, unit="s", labels=of_rank)
    for size in rules.measured(recording) or ():
        of_size: dict[str, str | int | float] = {"bucket_cap_mib": size.cap_mib}
        yield Measurement(name="step_predicted", value=size.predicted_s, unit="s", labels=of_size)
        yield Measurement(name="step_measured", value=median(size.step_s), unit="s", labels=of_size)
    for each in advised.all_tried(recording):
        for name, took in (("step_as_the_job", each.without_s), ("step_changed", each.with_s)):
            labels = {
                "change": advised.words(each.advice),
                "least": min(took),
                "most": max(took),
                "at_most": each.advice.at_most,
            }
            yield Measurement(name=name, value=median(took), unit="s", labels=labels)


CHECK = Check(
    id="step_time",
    title="The parts of a training step's time",
    where=Where.RANK,
    probe=probe,
    facts=(StepTimeFact,),
    rules=rules_in(rules, advised),
    level=Level.THOROUGH,
    level_with_model=Level.STANDARD,
    cost_s=5.0,
    deadline_s=60.0,
    still_s=deadlines.STILL_S,
    measurements=measurements,
)
