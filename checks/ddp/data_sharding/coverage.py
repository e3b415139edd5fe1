"""DD753 - DD756: shards that overlap, an order that stays, unequal steps, a wrong mean under join()."""

from collections.abc import Iterator, Mapping

from ddp_doctor.checks.ddp.data_sharding.measure import Coverage, behind, judge_indices
from ddp_doctor.checks.ddp.data_sharding.wording import (
    EQUAL_STEPS,
    SET_EPOCH,
    WHICH_JOIN,
    WHICH_SAMPLER,
    Facts,
    by_rank,
    cases,
    draft,
    samples,
    some,
)
from ddp_doctor.facts.ddp.data_sharding import DataSharding, Joined, Share
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import rank_list, ranks_at

#: The passes that a share records, and their names in a sentence.
_PASSES = {"first": "in epoch 0", "again": "in a second pass without set_epoch()", "next_epoch": "after set_epoch(1)"}


#: The rules about samplers with wrong arguments: they make wrong shards.
_SAMPLERS = ("DD750", "DD751", "DD752")


@rule("DD753", "shards-overlap-or-leave-out", Severity.ERROR, DataSharding, explained_by=_SAMPLERS)
def shards_overlap_or_leave_out(recording: Recording) -> Iterator[Draft]:
    """Finds: The ranks' shards, together, do not hold every index of a data set once. Indices that are repeated to make
        the shares equal (fewer than there are ranks), or left out for it with ``drop_last``, are right.
    Why: Samples that two ranks have count twice in every gradient, and what no rank has is never learnt from.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    facts = by_rank(recording)
    reported = {"next_epoch"} if _deaf(facts) else set()
    for shares in cases(facts):
        if behind({rank: len(share.first) for rank, share in shares.items()}):
            continue
        length, drop_last = _of(shares)
        for name, when in _PASSES.items():
            if name in reported:
                continue
            held = {rank: getattr(share, name) for rank, share in shares.items()}
            coverage = judge_indices(held, length, drop_last)
            if not coverage.right:
                yield _wrong(recording, coverage, f"a data set of {length} samples {when}", drop_last)
                return


@rule("DD754", "order-stays-after-set-epoch", Severity.WARNING, DataSharding, explained_by=_SAMPLERS)
def order_stays_after_set_epoch(recording: Recording) -> Iterator[Draft]:
    """Finds: A shuffling sampler that gives the same order after ``set_epoch(1)`` as in epoch 0. On some ranks only, it
        is an error: these ranks' shards are of another order than the others'.
    Why: Every epoch repeats the batches of the first. Without a call of ``set_epoch`` that is so by design.
    Remedy: Call ``set_epoch`` before each epoch on every rank; none of your own code runs in this check, so look for
        code that replaces parts of torch.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    facts = by_rank(recording)
    stays = _deaf(facts)
    if not stays:
        return
    everywhere = len(stays) == len(facts)
    found = draft(
        recording,
        f"set_epoch(1) does not change the order of the data on {ranks_at(recording, stays)}",
        "A sampler shuffles by its seed and the epoch that set_epoch() told it."
        + ("" if everywhere else " On the other ranks it does, so that the shards overlap and leave samples out."),
        [] if everywhere else stays,
        Evidence(
            text=f"order of epoch 1 on rank {stays[0]} is that of epoch 0: {some(facts[stays[0]].shares[0].first)}"
        ),
        SET_EPOCH,
        WHICH_SAMPLER,
    )
    yield found if everywhere else found.model_copy(update={"severity": Severity.ERROR})


@rule("DD755", "ranks-take-different-numbers-of-steps", Severity.ERROR, DataSharding, explained_by=_SAMPLERS)
def ranks_take_different_numbers_of_steps(recording: Recording) -> Iterator[Draft]:
    """Finds: Ranks whose share of a data set is shorter than that of others.
    Why: They end their epoch earlier. The others then wait in an all-reduce until the time-out, or meet the next
        epoch's gradients: a job that hangs at the end of each epoch.
    Remedy: Use a sampler that pads or drops, or train under ``model.join()``.
    See: https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html
    """
    for shares in cases(by_rank(recording)):
        steps = {rank: len(share.first) for rank, share in shares.items()}
        short = behind(steps)
        if short:
            length, drop_last = _of(shares)
            held = {rank: share.first for rank, share in shares.items()}
            missing = judge_indices(held, length, drop_last).missing
            left = f" Indices that no rank has: {some(missing)}." if missing else ""
            yield draft(
                recording,
                f"The sampler gives {ranks_at(recording, short)} fewer samples than the others:"
                f" {min(steps.values())} of a data set of {length} instead of {max(steps.values())}",
                f"Without join() the others would wait for these ranks at the end of the epoch.{left}",
                short,
                Evidence(
                    text=f"samples of rank {short[0]}",
                    value=steps[short[0]],
                    expected=max(steps.values()),
                    expected_from="the other ranks",
                ),
                EQUAL_STEPS,
                WHICH_SAMPLER,
            )
            return


def _deaf(facts: Facts) -> list[int]:
    """The ranks whose order set_epoch() does not change."""
    return sorted(rank for rank, fact in facts.items() if all(share.first == share.next_epoch for share in fact.shares))


def _of(shares: Mapping[int, Share]) -> tuple[int, bool]:
    share = next(iter(shares.values()))
    return share.data_length, share.drop_last


def _wrong(recording: Recording, coverage: Coverage, where: str, drop_last: bool) -> Draft:
    faults, blamed = [], list(coverage.outside or ())
    for rank, indices in (coverage.outside or {}).items():
        faults.append(f"{ranks_at(recording, [rank])} takes {samples(indices)} beyond its end")
    if coverage.repeated:
        holders = sorted({rank for ranks in coverage.repeated.values() for rank in ranks})
        faults.append(f"{samples(tuple(coverage.repeated))} more than once ({rank_list(holders)})")
    if coverage.missing:
        faults.append(f"{samples(coverage.missing)} on no rank")
    return draft(
        recording,
        f"The ranks' shards do not cover {where}: {name_list(faults)}",
        f"With drop_last={drop_last} every index must be there once, but for fewer than there are ranks.",
        blamed,
        Evidence(text=f"of {where}: {name_list(faults)}"),
        WHICH_SAMPLER,
    )


#: float32, summed over thousands of ranks in any order.
_RELATIVE = 1e-4


@rule("DD756", "join-gives-a-wrong-mean", Severity.ERROR, DataSharding)
def join_gives_a_wrong_mean(recording: Recording) -> Iterator[Draft]:
    """Finds: One rank has a batch more than the others, all train under ``DDP.join()``, and afterwards a weight is not
        what the batches make of it: the mean of the last step is divided by all ranks (the default), or by those
        that still take part, and all ranks end with the weights of the one that trained last.
    Why: join() is what keeps uneven inputs from hanging. A wrong division changes the size of the last steps, and
        without the last broadcast ranks begin the next epoch with different weights.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch.
    See: https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html
    """
    facts = by_rank(recording)
    for number in range(max((len(fact.joined) for fact in facts.values()), default=0)):
        held = {rank: fact.joined[number] for rank, fact in facts.items() if number < len(fact.joined)}
        wrong = sorted(rank for rank, joined in held.items() if _is_off(joined))
        if not wrong:
            continue
        joined, fact = held[wrong[0]], facts[wrong[0]]
        yield draft(
            recording,
            f"After join() the weight on {ranks_at(recording, wrong)} is wrong"
            + _meaning(joined, [way for way in fact.joined if way is not joined]),
            f"divide_by_initial_world_size was {joined.by_initial_world_size}; the ranks took"
            f" {', '.join(str(steps) for steps in fact.steps[:16])} steps.",
            wrong if len(wrong) < len(held) else [],
            Evidence(
                text=f"weight on rank {wrong[0]}",
                value=joined.weight,
                expected=joined.expected,
                expected_from="closed form of the batches",
            ),
            WHICH_JOIN,
        )
        return


def _is_off(joined: Joined) -> bool:
    return joined.weight is None or abs(joined.weight - joined.expected) > _RELATIVE * abs(joined.expected)


def _meaning(joined: Joined, others: list[Joined]) -> str:
    if joined.weight is None:
        return ": it is not a finite number"
    if any(abs(joined.weight - way.expected) <= _RELATIVE * abs(way.expected) for way in others):
        ranks = "ranks that still took part" if joined.by_initial_world_size else "all ranks"
        return f": the last step's gradient was divided by the number of {ranks}"
    return ""
