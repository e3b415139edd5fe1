"""compile: whether torch.compile captures the same graphs of the user's model on every rank, in the same steps.

Raw input: the graphs of a forward, which ddp-doctor's backend keeps instead of generating code, and torch's reasons for
failed guards::

    step 0    linear(l_x_, ...) -> float32     net.py:31        on all ranks
              mul(linear, 2.0) -> float32      net.py:33        on rank 1 only
    step 3    net.py:30 forward compiled again: tensor 'x' size mismatch at index 0. expected 8, actual 5

Why it matters: each rank compiles separately, and for minutes if the model is large. A rank that compiles when the
others do not keeps them waiting in their next collective, up to its timeout. A rank that compiles a different graph
computes something else, and calls the collectives inside it in a different order.
"""

from ddp_doctor.features.model.compile import rules
from ddp_doctor.features.model.compile.facts import CompiledFact
from ddp_doctor.features.model.compile.probing.capture import CompileProbe
from ddp_doctor.features.model.compile.rules import facts_by_rank
from ddp_doctor.features.model.user_model.check import DEADLINE_S
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import COMPILE, Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> CompiledFact:
    """Capture the graphs of the user's model. Raises Skip if it is not compiled."""
    return CompileProbe(ctx).capture()


def untested(recording: Recording) -> str:
    """Return why recompilations could not be detected, or ""."""
    for fact in facts_by_rank(recording).values():
        if fact.not_offered:
            return f"this torch release does not report {' and '.join(fact.not_offered)}"
        if len(fact.steps) < 2:
            return f"one step alone was looked at: {fact.ended}"
    return ""


CHECK = Check(
    id=COMPILE,
    title="What torch.compile makes of your own model",
    where=Where.RANK,
    probe=probe,
    facts=(CompiledFact,),
    rules=rules_in(rules),
    level=Level.STANDARD,
    cost_s=3.0,
    deadline_s=DEADLINE_S,
    still_s=deadlines.STILL_S,
    needs_model=True,
    untested=untested,
)
