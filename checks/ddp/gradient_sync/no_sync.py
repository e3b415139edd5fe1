"""DD703, DD704: a step inside ``no_sync()`` synchronises, or the step after it does not."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.gradient_sync.blame import by_cause, draft, lost_a_step, minority, off_in, who
from ddp_doctor.facts.gradient_sync import GradientSync
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


@rule("DD703", "no-sync-still-synchronises", Severity.ERROR, GradientSync)
def no_sync_still_synchronises(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        After a step inside ``no_sync()`` a gradient is not exactly the rank's own.

    Why it matters
        Gradient accumulation relies on it. If the ranks synchronise all the same, every micro-step pays for
        an all-reduce; if only some do, they wait for each other for ever.

    Remedy
        None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    # Without a gradient in ordinary steps, none is to be expected here: that is DD701's finding.
    seen = recording.facts(GradientSync)
    before = {(one.gradient.parameter, one.gradient.held.holds) for one in off_in(seen, "step")}
    off_inside = off_in(seen, "no_sync")
    wrong = [one for one in off_inside if (one.gradient.parameter, one.gradient.held.holds) not in before]
    for off in by_cause(wrong):
        what = f"no_sync() does not leave {who(recording, off)} its own gradient"
        yield draft(recording, what, off, minority(off, wrong))


@rule("DD704", "step-after-no-sync-not-synchronised", Severity.ERROR, GradientSync)
def step_after_no_sync_not_synchronised(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        An ordinary step gives the mean, but the step after ``no_sync()`` lacks what one of the two steps
        contributed, or is not synchronised at all.

    Why it matters
        With gradient accumulation every optimiser step then differs between ranks, or loses micro-steps.

    Remedy
        None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    seen = recording.facts(GradientSync)
    before = {one.gradient.parameter for one in off_in(seen, "step", "no_sync")}
    after = [one for one in off_in(seen, "resync") if one.gradient.parameter not in before]
    wrong = [one for one in after if lost_a_step(one.gradient.held)]
    for off in by_cause(wrong):
        what = f"The step after no_sync() is not synchronised on {who(recording, off)}"
        yield draft(recording, what, off, minority(off, wrong))


RULES = (no_sync_still_synchronises, step_after_no_sync_not_synchronised)
