"""p2p: every exchange is timed to its end, and no pair is called dead because its peer came late."""

import threading
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from ddp_doctor.checks.collectives import p2p
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S, PAIR_S
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Level
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing import exchanges
from ddp_doctor.probing.matrix_of_pairs import MatrixOfPairs
from tests.rank_harness import HarnessContext, Ranks
from tests.readings import collected, findings_of, uneven_world

SIZE = 1 << 16


class Context(HarnessContext):
    """A context whose clock moves only with the test; ``step_deadlines`` are kept in order."""

    now = 0.0

    def __init__(self, left_s: float, backend: str = "gloo") -> None:
        super().__init__(rank=0, group_rank=0, world_size=2, ranks=(0, 1), local_rank=0, group=None)
        self.backend, self.deadline = backend, left_s
        self.step_deadlines: list[float | None] = []

    def clock(self) -> float:
        return self.now

    @contextmanager
    def step(self, name: str, detail: str = "", *, peers: Any = (), deadline_s: float | None = None) -> Any:
        self.step_deadlines.append(deadline_s)
        yield


class Late:
    """A received tensor whose data arrives when it is read, as on a GPU."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def __getitem__(self, _: int) -> "Late":
        return self

    def item(self) -> float:
        self.ctx.now += 2.0
        return 0.0


def test_exchange_is_timed_until_its_data_arrives(monkeypatch: pytest.MonkeyPatch):
    ctx = Context(20.0)

    def enqueue(*_: Any) -> None:
        ctx.now += 0.001

    monkeypatch.setattr(exchanges, "move", enqueue)
    received: Any = Late(ctx)
    assert exchanges.timed(ctx, received, received, 1) == pytest.approx(2.001)


def test_the_first_exchange_is_timed_like_the_others(monkeypatch: pytest.MonkeyPatch):
    ctx = Context(40.0)

    def measured(*_: Any) -> float:
        return 0.5

    monkeypatch.setattr(exchanges, "timed", measured)
    monkeypatch.setattr(exchanges, "timed_receipt", measured)
    monkeypatch.setattr(exchanges, "move", lambda *_: None)
    result = exchanges.exchange(ctx, 1, 1, SIZE)
    assert result.bandwidth_gb_per_s == pytest.approx(SIZE / 0.5 / 1e9)
    assert result.received_gb_per_s == pytest.approx(SIZE / 0.5 / 1e9)
    assert result.latency_us == pytest.approx(0.5e6)
    assert ctx.step_deadlines == [10.0]


@pytest.mark.parametrize(
    ("left_s", "backend", "deadline_s"),
    [
        pytest.param(40.0, "gloo", 10.0, id="a quarter of what is left"),
        pytest.param(160.0, "gloo", 40.0, id="more on a machine with eight times the ranks"),
        pytest.param(8.0, "gloo", PAIR_S, id="never under a pair's own time"),
        pytest.param(3.0, "gloo", 3.0, id="never over the check's"),
        pytest.param(-1.0, "gloo", 1.0, id="a second, when the check is overdue"),
        pytest.param(100.0, "nccl", FIRST_NCCL_S, id="NCCL's first transfer connects"),
    ],
)
def test_a_pair_waits_for_a_late_peer(left_s: float, backend: str, deadline_s: float):
    assert exchanges.deadline_of_pair(Context(left_s, backend)) == deadline_s


@pytest.mark.ranks
def test_three_ranks_exchange_with_all_their_peers_each_way(ranks: Ranks):
    facts = ranks.facts(p2p.probe, on=(0, 1, 2))
    assert [sorted(pair.peer for pair in fact.pairs) for fact in facts] == [[1, 2], [0, 2], [0, 1]]
    pairs = [pair for fact in facts for pair in fact.pairs]
    assert all(pair.wrong_bytes == 0 and pair.latency_us > 0 for pair in pairs)
    assert all((pair.received_gb_per_s or 0) >= (pair.least_gb_per_s or 0) > 0 for pair in pairs)
    assert not any(pair.measured_again or pair.alone_gb_per_s for pair in pairs)


def _slow_from_rank_1(ctx: HarnessContext) -> P2pFact:
    """Nodes of one rank; on rank 1's, every large message leaves a tenth of a second late, but for those sent again."""
    ctx.nodes = tuple(range(ctx.world_size))
    real = exchanges.move

    def move(*transfers: Any) -> None:
        is_large = any(len(tensor) > 1 for name, tensor, _ in transfers if name == "isend")
        if ctx.rank == 1 and is_large and not any(detail.startswith("doubtful") for _, detail in ctx.steps):
            threading.Event().wait(0.1)  # slowness that the product must measure
        real(*transfers)

    exchanges.move = move
    try:
        return p2p.probe(ctx)
    finally:
        exchanges.move = real


@pytest.mark.ranks
@pytest.mark.parametrize("on", [(0, 1), (0, 1, 2, 3)])
def test_node_that_was_slow_by_chance_is_fast_when_measured_again(ranks: Ranks, on: tuple[int, ...]):
    facts = ranks.facts(_slow_from_rank_1, on=on)
    assert all(pair.measured_again for pair in facts[1].pairs)
    assert all(
        rank == 1 or pair.measured_again for rank, fact in enumerate(facts) for pair in fact.pairs if pair.peer == 1
    )
    assert [found.code for found in _found(facts, on, "gloo") if found.culprits] == []


@pytest.mark.ranks
def test_level_thorough_also_measures_each_pair_separately(ranks: Ranks):
    facts = ranks.facts(_thoroughly, on=(0, 1, 2, 3))
    assert all(pair.alone_gb_per_s and pair.together_gb_per_s for fact in facts for pair in fact.pairs)
    assert {fact.not_alone for fact in facts} == {0}


@pytest.mark.ranks
def test_pairs_that_do_not_fit_the_time_are_counted_equally_on_all_ranks(ranks: Ranks):
    facts = ranks.facts(_thoroughly, 0.0, on=(0, 1, 2, 3))
    assert {fact.not_alone for fact in facts} == {6}


def _thoroughly(ctx: HarnessContext, alone_s: float = 600.0) -> P2pFact:
    ctx.level, ctx.deadline, usual = Level.THOROUGH, ctx.clock() + 2000.0, path_quality.ALONE_S
    path_quality.ALONE_S = alone_s
    try:
        return p2p.probe(ctx)
    finally:
        path_quality.ALONE_S = usual


def test_a_large_world_is_a_matrix_of_nodes():
    nodes = [rank // 8 for rank in range(80)]
    rounds = path_quality.rounds_of_ranks(nodes)
    pairs = [pair for pairs in rounds for pair in pairs]
    across = {(nodes[a], nodes[b]) for a, b in pairs if nodes[a] != nodes[b]}
    assert len(pairs) == len(set(pairs)) == 10 * 28 + 45
    assert len(across) == 45
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)


def test_rounds_have_disjoint_pairs_and_omit_what_does_not_fit():
    rounds = path_quality.disjoint([(0, 1), (0, 2), (3, 4), (0, 3)], most=2)
    assert rounds == [[(0, 1), (3, 4)], [(0, 2)]]


def _found(facts: Sequence[P2pFact], of_ranks: Sequence[int], backend: str) -> list[Finding]:
    world = uneven_world([of_ranks.count(node) for node in sorted(set(of_ranks))], backend)
    readings = tuple(collected("p2p", fact, world.node_of(rank), rank=rank) for rank, fact in enumerate(facts))
    return findings_of(p2p.CHECK, Recording(world=world, readings=readings))


PAIR: dict[str, Any] = {
    "peer": 1,
    "wrong_bytes": 0,
    "latency_us": 20.0,
    "bandwidth_gb_per_s": 1.0,
    "size_bytes": 4 << 20,
}


@pytest.mark.parametrize("field", ["received_gb_per_s", "bandwidth_gb_per_s"])
def test_rate_of_zero_is_not_a_measurement(field: str):
    PairResult.model_validate(PAIR | {field: 1.0})
    with pytest.raises(ValidationError):
        PairResult.model_validate(PAIR | {field: 0.0})


def test_rank_without_an_exchange_has_no_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MatrixOfPairs, "measure", lambda _: P2pFact(pairs=(), not_measured=3))
    with pytest.raises(Skip, match="no pair"):
        p2p.probe(Context(1.0))
