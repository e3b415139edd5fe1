"""DD821: changes that a trace advised, tested with the user's model."""

from collections.abc import Iterator
from statistics import median

from ddp_doctor.checks.ddp.step_time import rounds
from ddp_doctor.facts.ddp.step_time import ArgumentTrial, StepTimeFact
from ddp_doctor.knowledge.ddp.arguments import COST, had
from ddp_doctor.knowledge.severity import WARNING_SHARE, of_lost_share
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy
from ddp_doctor.model.recording import Recording, TraceAdvice
from ddp_doctor.model.rule import rule
from ddp_doctor.wording import proofs
from ddp_doctor.wording.findings import NOBODY, finding

#: A change that gains less does not count, even if every round is faster (judgment).
LEAST_GAIN = 0.02
#: One round in this many may be lost: by chance, eight of nine are won in 1 of 50 cases, and five of five in 1 of 32.
_ONE_LOST_IN = 9
_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"


def _gain(tried: ArgumentTrial) -> float:
    """Return the share of a step that a change saves; negative if it costs time."""
    return 1 - median(tried.with_s) / median(tried.without_s)


def _proof(tried: ArgumentTrial) -> Proof:
    """Return the proof: proved if faster in nearly every round, disproved if not faster, otherwise inconclusive."""
    before, after = rounds.spread(tried.without_s), rounds.spread(tried.with_s)
    pairs = list(zip(tried.without_s, tried.with_s, strict=True))
    gain, most_lost = _gain(tried), len(pairs) // _ONE_LOST_IN
    if gain < LEAST_GAIN:
        is_slower = gain <= -LEAST_GAIN and sum(changed < without for without, changed in pairs) <= most_lost
        reason = proofs.SLOWER if is_slower else proofs.NO_GAIN
        return Proof(status="disproved", before=before, after=after, reason=reason)
    if sum(changed >= without for without, changed in pairs) <= most_lost:
        return Proof(status="proved", before=before, after=after)
    return Proof(before=before, after=after, reason=proofs.UNCLEAR)


def all_tried(recording: Recording) -> list[ArgumentTrial]:
    """Return the changes that were tested on all ranks, with the slowest rank's step in each round."""
    ranks = [rank.fact for rank in recording.facts(StepTimeFact)]
    if not ranks or len(ranks) != ranks[0].ranks:
        return []
    found = []
    for of_ranks in zip(*(rank.arguments for rank in ranks), strict=False):
        if all(each.without_s and each.with_s for each in of_ranks):
            slowest = {
                "without_s": rounds.slowest(each.without_s for each in of_ranks),
                "with_s": rounds.slowest(each.with_s for each in of_ranks),
            }
            found.append(of_ranks[0].model_copy(update=slowest))
    return found


def words(advice: TraceAdvice) -> str:
    """Return ``with bucket_cap_mb=12``, ``without bucket_cap_mb``."""
    return f"without {advice.setting}" if advice.value is None else f"with {_argument(advice.setting, advice.value)}"


def _argument(name: str, value: bool | float) -> str:
    return f"{name}={value if isinstance(value, bool) else format(value, 'g')}"


@rule("DD821", "advice-of-a-trace-tried", Consequence.SLOWER, StepTimeFact)
def advice_tried(recording: Recording) -> Iterator[Draft]:
    """An argument of DistributedDataParallel that a trace recommended was tested with your model.

    Finds: With ``--from-trace``, compares steps of your model in DDP with the job's arguments and with one of them
        changed, alternately. The change helps if steps are shorter in every round (eight of nine) and their median is
        2% shorter. It does not help if the median is not shorter; otherwise the result is inconclusive. Severity is
        info below a tenth of the step.
    Why: A trace gives only an upper bound. A trial shows how much of it can be gained.
    Remedy: Change the argument if it helped. The finding also lists its cost.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html;
        docs/how-to/test-your-own-model.md
    """
    proofs_of = ((tried, _gain(tried), _proof(tried)) for tried in all_tried(recording))
    found = sorted(proofs_of, key=lambda each: (_ORDER[each[2].status], -each[1]))
    if not found:
        return
    (best, gain, proof), model = found[0], recording.facts(StepTimeFact)[0].fact.model
    status, change = proof.status, words(best.advice)
    title = f"No advice of the trace makes a step{rounds.of(model)} shorter"
    if status == "proved":
        title = f"A step{rounds.of(model)} is {_shorter(gain)} {change}"
    elif status == "not_tried":
        title = f"The rounds do not show whether a step{rounds.of(model)} is shorter {change}"
    yield finding(
        NOBODY,
        title,
        (
            Evidence(
                text=f"a step is {_shorter(saved)} {words(each.advice)},"
                f" by the trace ({each.advice.code}) at most {each.advice.at_most:.0%} of the job's"
            )
            for each, saved, _ in found
        ),
        *(_remedy(each.advice, proof) for each, _, proof in found),
        confidence=Confidence.POSSIBLE if status == "not_tried" else Confidence.PROVED,
        severity=of_lost_share(gain) if status == "proved" and gain >= WARNING_SHARE else Severity.INFO,
        detail="Each change was tested alone. A step here is forward and backward, without loading and the optimizer.",
    )


def _shorter(gain: float) -> str:
    return f"{abs(gain):.0%} {'longer' if gain < 0 else 'shorter'}"


_ORDER = {"proved": 0, "not_tried": 1, "disproved": 2}


def _remedy(advice: TraceAdvice, proof: Proof) -> Remedy:
    name, before = advice.setting, had(advice)
    take = "" if advice.value is None else _argument(name, advice.value)
    return Remedy(
        summary=f"DistributedDataParallel(..., {take})" if take else f"Remove {name} from DDP's arguments",
        scope="code",
        cost=COST[name],
        undo=f"remove {name}" if before is None else _argument(name, before),
        proof=proof,
        references=(_DDP,),
    )
