"""DD756: uneven inputs under join() give another mean than they must."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.data_sharding.blame import by_rank, draft
from ddp_doctor.checks.ddp.data_sharding.wording import WHICH_JOIN
from ddp_doctor.facts.ddp.data_sharding import DataSharding, Joined
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.ranks import ranks_at

#: float32, summed over thousands of ranks in any order.
_RELATIVE = 1e-4


@rule("DD756", "join-gives-a-wrong-mean", Severity.ERROR, DataSharding)
def join_gives_a_wrong_mean(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        One rank has a batch more than the others, all train under ``DDP.join()``, and afterwards a weight is not
        what the batches make of it: the mean of the last step is divided by all ranks (the default), or by
        those that still take part, and all ranks end with the weights of the one that trained last.

    Why it matters
        join() is what keeps uneven inputs from hanging. A wrong division changes the size of the last steps,
        and without the last broadcast ranks begin the next epoch with different weights.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch.

    References
        https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html
    """
    facts = by_rank(recording)
    for number in range(max((len(fact.joined) for fact in facts.values()), default=0)):
        held = {rank: fact.joined[number] for rank, fact in facts.items() if number < len(fact.joined)}
        wrong = sorted(rank for rank, one in held.items() if _is_off(one))
        if not wrong:
            continue
        one, fact = held[wrong[0]], facts[wrong[0]]
        yield draft(
            recording,
            f"After join() the weight on {ranks_at(recording, wrong)} is not what the batches make of it"
            + _meaning(one, [other for other in fact.joined if other is not one]),
            f"divide_by_initial_world_size was {one.by_initial_world_size}; the ranks took"
            f" {', '.join(str(steps) for steps in fact.steps[:16])} steps.",
            wrong if len(wrong) < len(held) else [],
            Evidence(
                text=f"weight on rank {wrong[0]}",
                value=one.weight,
                expected=one.expected,
                expected_from="closed form of the batches",
            ),
            WHICH_JOIN,
        )
        return


def _is_off(one: Joined) -> bool:
    return one.weight is None or abs(one.weight - one.expected) > _RELATIVE * abs(one.expected)


def _meaning(one: Joined, others: list[Joined]) -> str:
    if one.weight is None:
        return ": it is not a finite number"
    if any(abs(one.weight - other.expected) <= _RELATIVE * abs(other.expected) for other in others):
        by = "those that still took part" if one.by_initial_world_size else "all ranks"
        return f": the last step was divided by {by}"
    return ""
