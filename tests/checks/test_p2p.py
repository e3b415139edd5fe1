"""p2p: every exchange is timed to its end, and no pair is called dead because its peer came late."""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from ddp_doctor.checks.cluster import connectivity
from ddp_doctor.checks.collectives import p2p
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S, PAIR_S
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Confidence, Level, Severity
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.probing import exchanges
from ddp_doctor.probing.matrix_of_pairs import MatrixOfPairs
from tests.rank_harness import HarnessContext, Ranks
from tests.readings import collected, findings_of, uneven_world
from tests.recordings import load

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
def test_a_node_that_was_slow_by_chance_is_measured_again_and_fast(ranks: Ranks, on: tuple[int, ...]):
    facts = ranks.facts(_slow_from_rank_1, on=on)
    assert all(pair.measured_again for pair in facts[1].pairs)
    assert all(
        rank == 1 or pair.measured_again for rank, fact in enumerate(facts) for pair in fact.pairs if pair.peer == 1
    )
    assert [found.code for found in _found(facts, on, "gloo") if found.culprits] == []


@pytest.mark.ranks
def test_at_level_thorough_each_pair_is_measured_alone_as_well(ranks: Ranks):
    facts = ranks.facts(_thoroughly, on=(0, 1, 2, 3))
    assert all(pair.alone_gb_per_s and pair.together_gb_per_s for fact in facts for pair in fact.pairs)
    assert {fact.not_alone for fact in facts} == {0}


@pytest.mark.ranks
def test_what_does_not_fit_the_time_is_counted_alike_on_all_ranks(ranks: Ranks):
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


def test_pairs_in_rounds_are_disjoint_and_what_does_not_fit_is_left_out():
    rounds = path_quality.disjoint([(0, 1), (0, 2), (3, 4), (0, 3)], most=2)
    assert rounds == [[(0, 1), (3, 4)], [(0, 2)]]


Rate = Callable[[bool, int, int], float]


def _judge(
    counts: Sequence[int],
    rate: Rate = lambda across, _sender, _receiver: 25.0 if across else 200.0,
    wrong: Collection[tuple[int, int]] = (),
    backend: str = "nccl",
    **more: Any,
) -> list[Finding]:
    """All pairs of ranks of these nodes; ``rate`` in GB/s from sender to receiver, ``wrong`` as (sender, receiver)."""
    of_ranks = [node for node, count in enumerate(counts) for _ in range(count)]
    return _found(_facts(of_ranks, rate, wrong, **more), of_ranks, backend)


def _facts(of_ranks: Sequence[int], rate: Rate, wrong: Collection[tuple[int, int]] = (), **more: Any) -> list[P2pFact]:
    def result(rank: int, peer: int) -> PairResult:
        across = of_ranks[rank] != of_ranks[peer]
        there, back = rate(across, peer, rank), rate(across, rank, peer)
        fields = {"measured_again": True, "received_gb_per_s": there, **more}
        return PairResult(
            peer=peer,
            wrong_bytes=7 if (peer, rank) in wrong else 0,
            latency_us=20.0,
            bandwidth_gb_per_s=min(there, back),
            size_bytes=4 << 20,
            **fields,
        )

    ranks = range(len(of_ranks))
    return [P2pFact(pairs=tuple(result(rank, peer) for peer in ranks if peer != rank)) for rank in ranks]


def _found(facts: Sequence[P2pFact], of_ranks: Sequence[int], backend: str) -> list[Finding]:
    return findings_of(p2p.CHECK, _recording(facts, of_ranks, backend))


def _recording(
    facts: Sequence[P2pFact], of_ranks: Sequence[int], backend: str, trials: tuple[TrialRecord, ...] = ()
) -> Recording:
    counts = [of_ranks.count(node) for node in sorted(set(of_ranks))]
    world = uneven_world(counts, backend)
    readings = tuple(collected("p2p", fact, world.node_of(rank), rank=rank) for rank, fact in enumerate(facts))
    return Recording(world=world, readings=readings, trials=trials)


SLOW_ENDS = (
    pytest.param(lambda s, r: 2 in (s, r), "exchanges data slowly with all others", id="both ways"),
    pytest.param(lambda s, r: r == 2, "receives data slowly from all others", id="receives"),
    pytest.param(lambda s, r: s == 2, "sends data slowly to all others", id="sends"),
)


@pytest.mark.parametrize(("is_slow", "does"), SLOW_ENDS)
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_node_that_is_slow_with_all_others_is_named_with_its_direction(is_slow: Any, does: str, backend: str):
    (found,) = _judge([1, 1, 1, 1], lambda _, s, r: 0.1 if is_slow(s, r) else 0.5, backend=backend)
    assert (found.code, found.severity) == ("DD630", Severity.ERROR)
    assert found.title == f"node2 {does}: 0.10 GB/s, typical pair 0.50 GB/s"
    assert [(one.kind, one.node) for one in found.culprits] == [("node", "node2")]
    assert "5 times slower" in found.detail
    assert not any(setting for remedy in found.remedies for setting in remedy.settings)


@pytest.mark.parametrize(
    ("counts", "is_slow", "pairs"),
    [
        pytest.param([1] * 6, lambda s, r: (s + r) % 3 == 0, "5 of 15", id="no common end"),
        pytest.param([1] * 6, lambda s, r: s // 3 != r // 3, "9 of 15", id="racks"),
        pytest.param([1] * 6, lambda s, r: s // 2 != r // 2 and 0 in (s // 2, r // 2), "8 of 15", id="a rack of two"),
        pytest.param([1] * 6, lambda s, r: max(s, r) > 2, "12 of 15", id="half of all nodes"),
        pytest.param([2, 2], lambda s, r: s % 2 != r % 2, "2 of 4", id="across rails"),
    ],
)
def test_many_slow_pairs_without_an_end_to_blame_are_information(counts: list[int], is_slow: Any, pairs: str):
    (found,) = _judge(counts, lambda across, s, r: 1.0 if across and is_slow(s, r) else 25.0)
    assert (found.severity, found.culprits) == (Severity.INFO, ())
    assert found.title.startswith(f"{pairs} pairs across nodes exchange data slowly")


@pytest.mark.parametrize(("counts", "rate"), [([2, 2], 1.0), ([8, 8], 1.0), ([1, 1], 1.0), ([2, 2], 4.0)])
def test_of_two_nodes_with_one_slow_direction_nobody_is_named_but_the_way(counts: list[int], rate: float):
    (found,) = _judge(counts, lambda across, s, r: 200.0 if not across else rate if s < r else 25.0)
    assert (found.code, found.severity) == ("DD631", Severity.ERROR)
    assert found.title.startswith("Data is slow in one direction, from node0 to node1: ")
    assert [(one.kind, one.node, one.peer_node) for one in found.culprits] == [("pair", "node0", "node1")]


@pytest.mark.parametrize(
    ("counts", "slow"), [([1, 1, 1], ["node2"]), ([2, 2, 2], ["node2"]), ([1] * 5, ["node3", "node4"])]
)
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_node_is_named_where_most_paths_lead_to_slow_ones(counts: list[int], slow: list[str], backend: str):
    first = sum(counts) - counts[0] * len(slow)
    found = _judge(counts, lambda across, *ends: 0.02 if across and max(ends) >= first else 0.5, backend=backend)
    assert [(one.code, one.severity, one.culprits[0].node) for one in found] == [
        ("DD630", Severity.ERROR, node) for node in slow
    ]


def test_one_slow_gpu_of_three_is_named():
    (found,) = _judge([3], lambda _, *ends: 10.0 if 2 in ends else 200.0)
    assert (found.code, found.culprits[0].rank) == ("DD607", 2)


@pytest.mark.parametrize("field", ["received_gb_per_s", "bandwidth_gb_per_s"])
def test_a_rate_of_nothing_is_no_measurement(field: str):
    with pytest.raises(ValidationError):
        PairResult.model_validate(_facts([0, 1], lambda *_: 1.0)[0].pairs[0].model_dump() | {field: 0.0})


def test_a_rank_that_exchanged_with_nobody_has_no_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MatrixOfPairs, "measure", lambda _: P2pFact(pairs=(), not_measured=3))
    with pytest.raises(Skip, match="no pair"):
        p2p.probe(Context(1.0))


@pytest.mark.parametrize(("queued_share", "severity"), [(0.2, "error"), (0.3, "info")])
def test_a_pair_without_a_processor_is_not_called_slow(queued_share: float, severity: str):
    """The other rank of the pair may be on an idle node."""
    facts = _facts([0, 1, 2], lambda _across, sender, receiver: 3.0 if (sender, receiver) == (0, 1) else 25.0)
    (pair, *others) = facts[0].pairs
    starved = facts[0].model_copy(update={"pairs": (pair.model_copy(update={"queued_share": queued_share}), *others)})

    (found,) = _found([starved, *facts[1:]], [0, 1, 2], "nccl")
    assert (found.code, found.severity.value, bool(found.culprits)) == ("DD631", severity, severity == "error")


@pytest.mark.parametrize(
    ("rate_gb_per_s", "starved_receivers"),
    [
        pytest.param(0.1, [2], id="a slow pair of a starved rank does not count as fast"),
        pytest.param(0.003, [0, 2], id="200 times slower is not explained by half the time in the run queue"),
    ],
)
def test_slow_sender_is_named_when_receivers_are_starved(rate_gb_per_s: float, starved_receivers: list[int]):
    facts = _facts([0, 1, 2, 3], lambda _across, sender, _receiver: rate_gb_per_s if sender == 1 else 0.6)
    for rank in starved_receivers:
        pairs = (pair.model_copy(update={"queued_share": 0.5 if pair.peer == 1 else 0.0}) for pair in facts[rank].pairs)
        facts[rank] = facts[rank].model_copy(update={"pairs": tuple(pairs)})
    found = _found(facts, [0, 1, 2, 3], "gloo")

    assert [(each.code, each.culprits[0].node) for each in found if each.culprits] == [("DD630", "node1")]


def test_a_slow_pair_that_was_not_measured_again_is_only_possible():
    (found,) = _judge([4], lambda _, s, r: 2.0 if {s, r} == {1, 2} else 200.0, measured_again=False)
    assert (found.severity, found.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert found.detail.endswith("(measured once).")


def test_small_messages_and_processes_of_one_node_are_not_judged_over_gloo():
    assert _judge([4], lambda _, s, r: 0.001 if 2 in (s, r) else 3.7, backend="gloo") == []


@pytest.mark.parametrize(("network", "codes"), [("Socket", ["DD533"]), ("IB", ["DD533", "DD630"])])
def test_what_tcp_shows_explains_a_slow_node_unless_its_data_goes_by_rdma(network: str, codes: list[str]):
    facts = _facts([0, 1, 2, 3], lambda _, s, r: 0.5 if 2 in (s, r) else 25.0)
    log = f"Using network {network}\nChannel 00/0 : 0[0] -> 1[0] [send] via NET/{network}/0"
    evidence = tuple(RankEvidence(rank=node, node=node, output_tail=log) for node in range(4))
    trial = TrialRecord(trial="t", backend="nccl", ranks=(0, 1, 2, 3), evidence=evidence)
    recording = _recording(facts, [0, 1, 2, 3], "nccl", (trial,))
    rows = [reading for reading in load("connectivity/node-at-100-mbit").readings if reading.check == "connectivity"]
    both = recording.model_copy(update={"readings": (*recording.readings, *rows)})
    rules = (*p2p.CHECK.rules, *connectivity.CHECK.rules)
    assert sorted(finding.code for finding in diagnose(both, rules).findings) == codes


def test_two_slow_links_of_a_rank_that_has_fast_ones_too_name_the_links():
    found = _judge([4], lambda _, s, r: 2.0 if {s, r} in ({0, 1}, {0, 2}) else 200.0)
    assert [(one.culprits[0].rank, one.culprits[0].peer_rank) for one in found] == [(0, 1), (0, 2)]


def test_a_rank_whose_data_arrive_wrong_everywhere_is_one_finding():
    wrong = {(5, peer) for peer in range(8) if peer != 5}
    (found,) = _judge([4, 4], wrong=wrong)
    assert found.title == (
        "Data between rank 5 (node1, CUDA device 1) and ranks 0-4, 6, 7 (node0 and node1) arrives corrupted"
    )
    assert [one.rank for one in found.culprits] == [5]
