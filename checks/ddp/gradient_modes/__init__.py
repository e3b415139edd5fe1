"""gradient_modes: is the gradient right in every mode that DistributedDataParallel has?

gradient_sync looks at an ordinary step. This check turns the switches that training scripts turn, one at a
time, on a small model of parameters of mixed sizes, shapes, strides and dtypes in several buckets::

    mode                 what the ranks do                                      right gradient, 2 ranks
    bucket-view          gradient_as_bucket_view=True                           mean, and part of its bucket
    accumulation         micro-steps of 1, 2, 4 times; two inside no_sync()     7 times the mean
    unused               find_unused_parameters=True; rank 1 leaves weight3 out sum over 1 rank / 2 ranks
    twice, checkpoint    a parameter used twice, a forward that is run again    3 times the mean, the mean
    static-graph         static_graph=True, also with reentrant checkpoints     3 times the mean
    fp16-compress, …     communication hooks                                    mean, to the format's rounding

Every local gradient is known in closed form (knowledge/ddp/gradient_shares.py), so that the right gradient of each
element is compared in float64, and a share that is missing or counted twice is named.

Why it matters: each switch is another path through DDP, and a wrong mean raises nothing.
"""

from ddp_doctor.checks.ddp.gradient_modes import other_faults, wrong
from ddp_doctor.checks.ddp.gradient_modes.steps import measure
from ddp_doctor.facts.ddp.gradients import GradientModes
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> GradientModes:
    """Take steps in all modes of this level and compare the gradients with their closed form."""
    return measure(ctx)


CHECK = Check(
    id="gradient_modes",
    title="DDP averages gradients in all its modes",
    where=Where.RANK,
    probe=probe,
    facts=(GradientModes,),
    rules=rules_in(other_faults, wrong),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.1,
)
