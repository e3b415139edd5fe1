"""p2p: every exchange is timed to its end, and no pair is called dead because its peer came late."""

from contextlib import contextmanager
from typing import Any

import pytest

from ddp_doctor.checks import p2p
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S, PAIR_S
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

    monkeypatch.setattr(p2p, "_swap", enqueue)
    received: Any = Late(ctx)
    assert p2p._timed(ctx, received, received, 1) == pytest.approx(2.001)


def test_the_first_exchange_is_timed_like_the_others(monkeypatch: pytest.MonkeyPatch):
    ctx = Context(40.0)

    def measured(*_: Any) -> float:
        return 0.5

    monkeypatch.setattr(p2p, "_timed", measured)
    result = p2p._exchange(ctx, 1, 1, SIZE)
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
    assert p2p._deadline(Context(left_s, backend)) == deadline_s


@pytest.mark.ranks
def test_three_ranks_exchange_with_all_their_peers():
    with Ranks(3, preload=(__name__,)) as ranks:
        facts = ranks.facts(p2p.probe)
    assert [sorted(pair.peer for pair in fact.pairs) for fact in facts] == [[1, 2], [0, 2], [0, 1]]
    assert all(pair.wrong_bytes == 0 and pair.latency_us > 0 for fact in facts for pair in fact.pairs)
