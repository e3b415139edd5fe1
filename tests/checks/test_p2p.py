"""p2p: every exchange is timed to its end, and no pair is called dead because its peer came late."""

from contextlib import contextmanager
from typing import Any

import pytest

from ddp_doctor.checks.collectives import p2p
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S, PAIR_S
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.probing import exchanges
from tests.rank_harness import HarnessContext, Ranks

SIZE = 1 << 16


class Context(HarnessContext):
    """Time stands still unless the test moves it; ``step_deadlines`` are kept in order."""

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
    """A received tensor whose data arrives when it is looked at, as on a GPU."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def __getitem__(self, _: int) -> "Late":
        return self

    def item(self) -> float:
        self.ctx.now += 2.0
        return 0.0


def test_an_exchange_is_timed_until_its_data_is_here(monkeypatch: pytest.MonkeyPatch):
    ctx = Context(20.0)

    def enqueue(*_: Any) -> None:
        ctx.now += 0.001

    monkeypatch.setattr(exchanges, "swap", enqueue)
    received: Any = Late(ctx)
    assert exchanges.timed(ctx, received, received, 1) == pytest.approx(2.001)


def test_the_first_exchange_is_timed_like_the_others(monkeypatch: pytest.MonkeyPatch):
    ctx = Context(40.0)

    def measured(*_: Any) -> float:
        return 0.5

    monkeypatch.setattr(exchanges, "timed", measured)
    result = exchanges.exchange(ctx, 1, 1, SIZE)
    assert result.bandwidth_gb_per_s == pytest.approx(SIZE / 0.5 / 1e9)
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
def test_three_ranks_exchange_with_all_their_peers(ranks: Ranks):
    facts = ranks.facts(p2p.probe, on=(0, 1, 2))
    assert [sorted(pair.peer for pair in fact.pairs) for fact in facts] == [[1, 2], [0, 2], [0, 1]]
    assert all(pair.wrong_bytes == 0 and pair.latency_us > 0 for fact in facts for pair in fact.pairs)


def _judge(
    counts: list[int],
    rate: Any = lambda across, _pair: 25.0 if across else 200.0,
    wrong: Any = (),
    trials: tuple[TrialRecord, ...] = (),
) -> list[Finding]:
    """All pairs of ranks of these nodes over NCCL; ``rate`` in GB/s, ``wrong`` as (sender, receiver)."""
    nodes = tuple(Node(node_rank=at, hostname=f"node{at}", nproc=count) for at, count in enumerate(counts))
    size = sum(counts)
    world = World(nnodes=len(counts), nproc_per_node=counts[0], world_size=size, backend="nccl", nodes=nodes)

    def result(rank: int, peer: int) -> PairResult:
        return PairResult(
            peer=peer,
            wrong_bytes=7 if (peer, rank) in wrong else 0,
            latency_us=20.0,
            bandwidth_gb_per_s=rate(world.node_of(rank) != world.node_of(peer), {rank, peer}),
            size_bytes=64 << 20,
        )

    facts = [P2pFact(pairs=tuple(result(rank, peer) for peer in range(size) if peer != rank)) for rank in range(size)]
    readings = tuple(
        Reading(check="p2p", status=Status.COLLECTED, node=world.node_of(rank), rank=rank, fact=fact.recorded())
        for rank, fact in enumerate(facts)
    )
    recording = Recording(world=world, readings=readings, trials=trials)
    return [finding for rule in p2p.CHECK.rules for finding in rule.apply(recording)]


@pytest.mark.parametrize("counts", [[8], [2, 2], [4, 1], [1, 1, 1], [8, 8], [8, 1, 1, 1]])
def test_pairs_across_nodes_are_not_held_against_those_within_one(counts: list[int]):
    assert _judge(counts) == []


def test_a_node_whose_links_to_all_others_are_slow_is_named_by_its_only_rank():
    (found,) = _judge([1, 1, 1, 1], lambda _, pair: 1.5 if 2 in pair else 25.0)
    assert found.title == (
        "Rank 2 (node2, CUDA device 0) and each of rank 0 (node0, CUDA device 0), rank 1 (node1, CUDA device 0)"
        " and rank 3 (node3, CUDA device 0) exchange 1.50 GB/s, the typical pair 25.00 GB/s"
    )
    assert [(one.kind, one.rank, one.node) for one in found.culprits] == [("rank", 2, "node2")]
    assert not any(setting for remedy in found.remedies for setting in remedy.settings)


def test_a_slow_link_between_nodes_shows_which_nics_nccls_own_log_names():
    log = """NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_5:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
Using network IB
Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA"""
    evidence = (RankEvidence(rank=2, node=2, output_tail=log),)
    trial = TrialRecord(trial="t", backend="nccl", ranks=(0, 1, 2, 3), evidence=evidence)
    (found,) = _judge([1, 1, 1, 1], lambda _, pair: 1.5 if 2 in pair else 25.0, trials=(trial,))
    assert found.evidence[-1].text == "NCCL's log on node2: IB, mlx5_5"


def test_two_slow_links_of_a_rank_that_has_fast_ones_too_name_the_links():
    found = _judge([4], lambda _, pair: 2.0 if pair in ({0, 1}, {0, 2}) else 200.0)
    assert [(one.culprits[0].rank, one.culprits[0].peer_rank) for one in found] == [(0, 1), (0, 2)]


def test_a_rank_whose_data_arrive_wrong_everywhere_is_one_finding():
    wrong = {(5, peer) for peer in range(8) if peer != 5}
    (found,) = _judge([4, 4], wrong=wrong)
    assert found.title == (
        "Data that rank 5 (node1, CUDA device 1) exchanges with ranks 0-4, 6, 7 (node0 and node1) arrives wrong"
    )
    assert [one.rank for one in found.culprits] == [5]


def test_wrong_bytes_between_two_nodes_are_no_fault_of_peer_to_peer_transfers():
    (across,), (within,) = (_judge([2, 2], wrong={pair}) for pair in ((0, 3), (0, 1)))
    assert across.title.startswith("Data from rank 0 (node0, CUDA device 0) arrives wrong on rank 3 (node1, ")
    assert "P2P" not in str(across.remedies)
    assert "P2P" in str(within.remedies)
