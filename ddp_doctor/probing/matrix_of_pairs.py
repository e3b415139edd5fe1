"""All pairs of ranks, in rounds of disjoint pairs. Slow pairs are measured again; level thorough also measures each
alone.

The ranks agree over the control store, because a collective would hang if a pair does.
"""

from collections.abc import Sequence

from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.ddp.payload import CROWD
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing.exchanges import better, exchange, exchange_rate, size_of_message

_Pair = tuple[int, int]
_SHORT = "time is short"


class MatrixOfPairs:
    """One rank's measurements of the matrix. Pairs hold group ranks."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.size = size_of_message(ctx)
        self.shorter = max(self.size // 4, path_quality.JUDGED_MESSAGE_BYTES)  # enough to detect a slow pair
        self.rounds = path_quality.rounds_of_ranks(ctx.nodes)
        self.found: dict[int, PairResult] = {}  # by group rank of the peer
        self.skipped: list[int] = []
        #: The kinds of pairs to evaluate: within a node (False) and across nodes (True).
        self.judged = [
            kind
            for kind in ((False, True) if len(set(ctx.nodes)) > 1 else (False,))
            if path_quality.is_judged(ctx.backend, self.size, across=kind)
        ]

    def measure(self) -> P2pFact:
        """Measure all pairs that fit in the time. Skip pairs that hung before, without waiting for their ranks."""
        ctx = self.ctx
        measured = self._each_once()
        left = [pair for pairs in self.rounds[measured:] for pair in pairs]
        not_alone = 0
        if not ctx.skip_pairs:
            if ctx.level is Level.THOROUGH:
                not_alone = self._each_alone(self.rounds[:measured])
            if self.judged:
                self._doubtful_again()
        return P2pFact(
            pairs=tuple(self.found.values()), skipped=tuple(self.skipped), not_measured=len(left), not_alone=not_alone
        )

    # --- each once --------------------------------------------------------------------------------

    def _each_once(self) -> int:
        """Return the number of measured rounds. If there are many, all ranks agree before the number doubles."""
        started, ended, bounded = self.ctx.clock(), 0, len(self.rounds) > CROWD and not self.ctx.skip_pairs
        while ended < len(self.rounds):
            until = min(2 * ended or 1, len(self.rounds)) if bounded else len(self.rounds)
            needed_s = (self.ctx.clock() - started) / max(ended, 1) * (until - ended)
            if bounded and ended and self._is_short(f"round {ended}", 2 * needed_s > self.ctx.remaining()):
                break
            for pairs in self.rounds[ended:until]:
                self._exchange_in(pairs, self.size)
            ended = until
        return ended

    def _is_short(self, name: str, mine: bool) -> bool:
        """Return True if any rank is short of time; all ranks meet."""
        return _SHORT in self._texts(name, _SHORT if mine else "")

    def _texts(self, name: str, mine: str) -> tuple[str, ...]:
        with self.ctx.step("exchange", name):
            return self.ctx.exchange(name, mine)

    def _peer_in(self, pairs: Sequence[_Pair]) -> int | None:
        """Return this rank's partner in a round, or None if it rests: an odd rank, or not its node's representative."""
        return next((sum(pair) - self.ctx.group_rank for pair in pairs if self.ctx.group_rank in pair), None)

    def _exchange_in(self, pairs: Sequence[_Pair], size: int) -> None:
        ctx, peer = self.ctx, self._peer_in(pairs)
        if peer is None:
            return
        original = ctx.ranks[peer]
        if (min(ctx.rank, original), max(ctx.rank, original)) in ctx.skip_pairs:
            self.skipped.append(original)
            return
        measured = exchange(ctx, peer, original, size)
        self.found[peer] = better(self.found[peer], measured) if peer in self.found else measured

    # --- each alone -------------------------------------------------------------------------------

    def _each_alone(self, measured: Sequence[Sequence[_Pair]]) -> int:
        """Measure all pairs of a round at once, then one by one; return how many were skipped for lack of time."""
        ctx = self.ctx
        rounds = [pairs for pairs in measured if len(pairs) > 1]
        until = ctx.clock() + min(path_quality.ALONE_S, path_quality.ALONE_SHARE * ctx.remaining())
        for number, pairs in enumerate(rounds):
            turns = [(f"round {number} together", pairs, "together_gb_per_s")]
            turns += [(f"round {number} pair {at}", [pair], "alone_gb_per_s") for at, pair in enumerate(pairs)]
            for at, (name, moving, field) in enumerate(turns):
                if self._is_short(name, ctx.clock() > until):
                    return sum(map(len, rounds[number:])) - max(at - 1, 0)
                peer = self._peer_in(moving)
                if peer is not None:
                    rate = exchange_rate(ctx, peer, ctx.ranks[peer], self.shorter)
                    self.found[peer] = self.found[peer].model_copy(update={field: rate})
        return 0

    # --- slow pairs again -------------------------------------------------------------------------

    def _doubtful_again(self) -> None:
        """Measure slow pairs again, as many as fit, until they are fast or were slow too often for chance."""
        mine = " ".join(f"{max(self._rates(kind).values(), default=0.0):.1e}" for kind in self.judged)
        of_ranks = [map(float, text.split()) for text in self._texts("typical rates", mine)]
        typical = [
            path_quality.typical_rate([rate for rate in best if rate], self.ctx.backend)
            for best in zip(*of_ranks, strict=True)
        ]
        for time in range(path_quality.AGAIN_TIMES):
            texts = self._texts(f"doubtful pairs {time}", self._doubtful(typical))
            if _SHORT in texts or not any(texts):
                return
            paths = ((rank, int(peer)) for rank, text in enumerate(texts) for peer in text.split())
            pairs = {(min(path), max(path)) for path in paths}
            for disjoint in path_quality.disjoint(sorted(pairs), path_quality.AGAIN_ROUNDS):
                self._exchange_in(disjoint, self.shorter)

    def _doubtful(self, typical: Sequence[float]) -> str:
        """Return the peers from which this rank receives slowly, or _SHORT if there is no time to repeat them."""
        slow = {
            peer: rate
            for kind, usual in zip(self.judged, typical, strict=True)
            for peer, rate in self._rates(kind).items()
            if rate * path_quality.DOUBTFUL_RATIO < usual
        }
        times = [self.shorter / rate / 1e9 for rate in slow.values()]
        needed_s = sum((2 if time > path_quality.LONG_EXCHANGE_S else 8) * time for time in times)
        is_short = needed_s > path_quality.AGAIN_SHARE * self.ctx.remaining()
        return _SHORT if is_short else " ".join(map(str, sorted(slow)))

    def _rates(self, across: bool) -> dict[int, float]:
        """Return the rates at which this rank receives, in GB/s by peer: on its own node, or across nodes."""
        nodes, mine = self.ctx.nodes, self.ctx.nodes[self.ctx.group_rank]
        return {
            peer: found.received_gb_per_s or 0.0
            for peer, found in self.found.items()
            if (nodes[peer] != mine) is across
        }
