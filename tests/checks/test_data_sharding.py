"""data_sharding on real ranks: healthy worlds, and samplers, seeds and join() sabotaged in every way a rule names."""

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.ddp import data_sharding
from ddp_doctor.checks.ddp.data_sharding import CHECK
from ddp_doctor.checks.ddp.data_sharding.measure import behind, joined_mean, judge_indices, streams
from ddp_doctor.facts.ddp.data_sharding import DataSharding
from ddp_doctor.model.recording import Node, World
from tests.checks.judged_ranks import assert_found, judge_by, planted, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: what runs on each rank.


@contextmanager
def instead(owner: Any, name: str, planted: Any):
    """``planted`` in place of what torch or the probe calls, as long as the block runs."""
    stock = getattr(owner, name)
    setattr(owner, name, planted)
    try:
        yield
    finally:
        setattr(owner, name, stock)


def with_sampler(ctx: Any, make: Callable[[Any, Any], Any]) -> DataSharding:
    """The probe with ``make(ctx, torch's class)`` in place of torch's sampler."""
    from torch.utils.data import distributed

    with instead(distributed, "DistributedSampler", make(ctx, distributed.DistributedSampler)):
        return data_sharding.probe(ctx)


class Planted:
    """torch's sampler, but for the indices it yields and for what it makes of ``set_epoch``."""

    def __init__(self, inner: Any, indices: Callable[[Any], Any] = list, deaf: bool = False) -> None:
        self.inner, self._indices, self._deaf = inner, indices, deaf

    def __iter__(self) -> Any:
        return iter(self._indices(self.inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def set_epoch(self, epoch: int) -> None:
        if not self._deaf:
            self.inner.set_epoch(epoch)


def overlapping(ctx: Any, stock: Any) -> Any:
    """Rank 2 takes rank 1's indices, though it says that it is rank 2."""

    def rank_1s(sampler: Any) -> list[int]:
        sampler.rank, own = 1, sampler.rank
        try:
            return list(sampler)
        finally:
            sampler.rank = own

    return lambda data, **given: Planted(stock(data, **given), rank_1s if ctx.rank == 2 else list)


def local_rank_for_rank(_ctx: Any, stock: Any) -> Any:
    return lambda data, rank, **given: stock(data, rank=rank % 2, **given)


def ranks_of_one_node(ctx: Any, stock: Any) -> Any:
    """Rank 3 counts the ranks of its own node for all."""

    wrong = {"num_replicas": 2, "rank": 1} if ctx.rank == 3 else {}
    return lambda data, **given: stock(data, **{**given, **wrong})


def seeded_by_rank(ctx: Any, stock: Any, of=lambda rank: rank) -> Any:
    return lambda data, **given: stock(data, seed=of(ctx.rank), **given)


def seeded_alone(ctx: Any, stock: Any) -> Any:
    return seeded_by_rank(ctx, stock, of=lambda rank: 7 if rank == 1 else 0)


def one_sample_more(ctx: Any, stock: Any) -> Any:
    """Rank 2's copy of the data set has one file more."""

    return lambda data, **given: stock(range(len(data) + (ctx.rank == 2)), **given)


def deaf_to_epochs(_ctx: Any, stock: Any) -> Any:
    return lambda data, **given: Planted(stock(data, **given), deaf=True)


def deaf_on_rank_1(ctx: Any, stock: Any) -> Any:
    return lambda data, **given: Planted(stock(data, **given), deaf=ctx.rank == 1)


def short_on_rank_3(ctx: Any, stock: Any) -> Any:
    """Rank 3's last sample is lost, as with a sampler that does not pad."""
    end = -1 if ctx.rank == 3 else None
    return lambda data, **given: Planted(stock(data, **given), lambda sampler: list(sampler)[:end])


def beyond_the_end_on_rank_0(ctx: Any, stock: Any) -> Any:
    more = 1000 * (ctx.rank == 0)
    return lambda data, **given: Planted(stock(data, **given), lambda sampler: [i + more for i in sampler])


def seeds(ctx, planted):
    """The probe with ``planted(ctx, seed)`` as the seed that torch is given."""
    import torch

    stock = torch.manual_seed
    with instead(torch, "manual_seed", lambda seed: stock(planted(ctx, seed))):
        return data_sharding.probe(ctx)


def other_numbers_on_rank_1(ctx, seed):
    return seed + 1000 * (ctx.rank == 1)


def always_42(_ctx, _seed):
    return 42


def seeded_by_the_environment(ctx, seed):
    """As a sitecustomize does that seeds all processes."""
    import sys

    import torch

    customize = type(sys)("sitecustomize")
    customize.__file__ = "/opt/site/sitecustomize.py"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed(ctx.rank))
        stock = sys.modules.get("sitecustomize")
        sys.modules["sitecustomize"] = customize
        try:
            return data_sharding.probe(ctx)
        finally:
            sys.modules.pop("sitecustomize")
            if stock is not None:
                sys.modules["sitecustomize"] = stock


def forty_two(_rank):
    return 42


def by_rank(rank):
    return 42 + rank


def joins(ctx, planted):
    """The probe with ``planted(ctx, DDP.join)`` in place of DDP's."""
    from torch.nn.parallel import DistributedDataParallel

    stock = DistributedDataParallel.join
    with instead(DistributedDataParallel, "join", planted(ctx, stock)):
        return data_sharding.probe(ctx)


def divides_by_those_left(_ctx: Any, stock: Any) -> Any:
    return lambda model, divide_by_initial_world_size: stock(model, divide_by_initial_world_size=False)


def keeps_own_weights_on_rank_2(ctx: Any, stock: Any) -> Any:
    """Rank 2 leaves join() with the weight it had when its own batches ended."""

    @contextmanager
    def join(model, divide_by_initial_world_size):
        with stock(model, divide_by_initial_world_size=divide_by_initial_world_size):
            yield
            own = model.module.weight.detach().clone()
        if ctx.rank == 2:
            model.module.weight.data.copy_(own)

    return join


def as_found(ctx):
    """What the probe puts back: torch's, Python's and numpy's states."""
    import pickle
    import random

    import numpy as np
    import torch

    def states() -> Any:
        return (torch.random.get_rng_state().tolist(), random.getstate(), pickle.dumps(np.random.get_state()))

    before = states()
    drawn = streams(ctx)
    return [one.source for one in drawn], before == states()


# Healthy worlds


@pytest.mark.parametrize("on", [(0,), (1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_give_no_finding(ranks, on):
    facts = ranks.facts(data_sharding.probe, on=on)

    assert judge(recording(facts, on)) == []
    assert all(fact.world_size == len(on) for fact in facts)


def test_without_set_epoch_the_order_stays_and_with_it_changes(ranks):
    for fact in ranks.facts(data_sharding.probe, on=(0, 1)):
        assert all(share.first == share.again != share.next_epoch for share in fact.shares)


def test_the_states_of_random_numbers_are_put_back(ranks):
    assert ranks.facts(as_found) == [(["torch", "random", "numpy"], True)] * 4


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    (steps,) = {one.steps for one in ranks.run(data_sharding.probe)}
    assert [name for name, _ in steps] == ["exchange", "ddp_construct", "join", "join"]


def test_two_ranks_take_less_than_the_budget(ranks):
    ranks.run(data_sharding.probe, on=(0, 1))
    quickest = min(max(one.duration_s for one in ranks.run(data_sharding.probe, on=(0, 1))) for _ in range(3))
    assert quickest < 0.15


def test_a_world_that_lost_a_rank_s_fact_is_not_judged(ranks):
    facts = ranks.facts(with_sampler, seeded_alone)
    assert judge(recording(facts[:3])) == []


# Sabotage


@planted(
    (  # which of the two is right, shards do not tell
        *("a shard that another rank has too", (with_sampler, overlapping), "DD753", []),
        *("more than once (ranks 1, 2)", "on no rank"),
    ),
    (
        "a wrong number of replicas",
        (with_sampler, ranks_of_one_node),
        "DD750",
        [3],
        "rank 3 of 4 has that of rank 1 of 2",
    ),
    ("seeds that all differ", (with_sampler, seeded_by_rank), "DD752", []),
    ("one rank with another seed", (with_sampler, seeded_alone), "DD752", [1]),
    ("a data set of another length", (with_sampler, one_sample_more), "DD751", [2], "node2"),
    ("an order that never changes", (with_sampler, deaf_to_epochs), "DD754", [], "warning"),
    ("one rank that misses set_epoch", (with_sampler, deaf_on_rank_1), "DD754", [1], "error"),
    (*("a rank with fewer steps", (with_sampler, short_on_rank_3), "DD755", [3]), "3 of a data set of 16 instead of 4"),
    (
        *("indices beyond the data set", (with_sampler, beyond_the_end_on_rank_0), "DD753", [0]),
        "rank 0 (node0) takes samples 10",
    ),
    ("one seed that gives other numbers on a rank", (seeds, other_numbers_on_rank_1), "DD757", [1]),
    ("one stream on all ranks", (seeds, always_42), "DD758", [], "warning", "every rank"),
    (
        *("an environment that seeds all ranks alike", (seeded_by_the_environment, forty_two), "DD759", []),
        *("info", "/opt/site/sitecustomize.py"),
    ),
    (
        *("join that divides by those left", (joins, divides_by_those_left), "DD756", []),
        "the last step's gradient was divided by the number of ranks that still took part",
    ),
    ("a rank that leaves join with its own weights", (joins, keeps_own_weights_on_rank_2), "DD756", [2]),
)
def test_a_planted_defect_is_found_and_named(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


def test_local_rank_used_as_rank_is_named_as_such_on_two_nodes(ranks):
    facts = ranks.facts(with_sampler, local_rank_for_rank)
    nodes = tuple(Node(node_rank=rank, hostname=f"node{rank}") for rank in range(2))
    world = World(nnodes=2, nproc_per_node=2, world_size=4, nodes=nodes)
    findings = judge(recording(facts).model_copy(update={"world": world}))
    title = "The sampler on both ranks of node1 was made for another rank: for example rank 2 of 4 has that of rank 0"
    assert_found(findings, "DD750", [2, 3], [title, "LOCAL_RANK"])


def test_an_environment_that_seeds_each_rank_on_its_own_is_healthy(ranks):
    assert judge(recording(ranks.facts(seeded_by_the_environment, by_rank))) == []


# Pure judgement


@given(ranks=st.integers(1, 9), length=st.integers(1, 60), drop_last=st.booleans(), epoch=st.integers(0, 3))
def test_torch_s_own_sampler_is_right_for_every_length(ranks, length, drop_last, epoch):
    from torch.utils.data import distributed

    sampler_of: Any = distributed.DistributedSampler  # which asks only for a length
    held = {}
    for rank in range(ranks):
        sampler = sampler_of(range(length), ranks, rank, drop_last=drop_last)
        sampler.set_epoch(epoch)
        held[rank] = list(sampler)

    seen = judge_indices(held, length, drop_last)

    assert seen.right
    assert len(seen.dropped) == (length % ranks if drop_last else 0)
    assert bool(seen.padded) == (not drop_last and length % ranks > 0)
    assert behind({rank: len(indices) for rank, indices in held.items()}) == ()


@given(
    shares=st.lists(st.lists(st.integers(-3, 12), max_size=6), min_size=1, max_size=4),
    length=st.integers(0, 10),
    drop_last=st.booleans(),
)
def test_what_is_judged_right_covers_the_data_set(shares, length, drop_last):
    seen = judge_indices(dict(enumerate(shares)), length, drop_last)
    held = [index for indices in shares for index in indices]

    if seen.right:
        assert set(held) <= set(range(length))
        assert len(set(range(length)) - set(held)) == len(seen.dropped) < len(shares)
        assert len(held) - len(set(held)) < len(shares)


def test_the_mean_under_join_counts_those_that_take_part():
    assert joined_mean([2, 1], [1.0, 2.0], by_initial=True) == 1.5 + 0.5
    assert joined_mean([2, 1], [1.0, 2.0], by_initial=False) == 1.5 + 1.0
    assert joined_mean([0, 0], [1.0, 2.0], by_initial=False) == 0.0
