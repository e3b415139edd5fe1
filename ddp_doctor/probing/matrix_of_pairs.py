"""All pairs of ranks in rounds of disjoint ones: each once, doubtful ones again, at level thorough each alone as well.

What ranks must agree on goes through the control store: where a pair hangs, a collective would hang too.
"""

from collections.abc import Sequence
from statistics import median_high

from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.ddp.payload import CROWD
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing.exchanges import better, exchange, exchange_rate, size_of_message

_Pair = tuple[int, int]
_SHORT = "time is short"


class MatrixOfPairs:
    """What one rank measures of it; pairs are of group ranks."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.size = size_of_message(ctx)
        self.rounds = path_quality.rounds_of_ranks(ctx.nodes)
        self.found: dict[int, PairResult] = {}  # by group rank of the peer
        self.skipped: list[int] = []
        self.several_nodes = len(set(ctx.nodes)) > 1

    def measure(self) -> P2pFact:
        """Everything that fits the time; pairs that hung before are left out, and nothing waits for their ranks."""
        ctx = self.ctx
        measured = self._each_once()
        left = [pair for pairs in self.rounds[measured:] for pair in pairs]
        not_alone = 0
        if not ctx.skip_pairs:
            if ctx.level is Level.THOROUGH:
                not_alone = self._each_alone(self.rounds[:measured])
            if ctx.world_size > 2 and self._judged_kinds():
                self._doubtful_again()
        return P2pFact(
            pairs=tuple(self.found.values()),
            skipped=tuple(self.skipped),
            by_node=self.several_nodes and ctx.world_size > path_quality.MATRIX_OF_RANKS,
            not_measured=len(left),
            not_alone=not_alone,
        )

    # --- each once --------------------------------------------------------------------------------

    def _each_once(self) -> int:
        """How many rounds there was time for; of many rounds, all ranks agree before twice as many."""
        started, ended, bounded = self.ctx.clock(), 0, len(self.rounds) > CROWD and not self.ctx.skip_pairs
        while ended < len(self.rounds):
            until = min(2 * ended or 1, len(self.rounds)) if bounded else len(self.rounds)
            spent = self.ctx.clock() - started
            if bounded and ended and self._is_short(f"round {ended}", spent / ended * (until - ended)):
                break
            for pairs in self.rounds[ended:until]:
                self._exchange_in(pairs)
            ended = until
        return ended

    def _is_short(self, name: str, needed_s: float) -> bool:
        """Whether any rank has not twice this time left; all ranks meet."""
        mine = _SHORT if 2 * needed_s > self.ctx.remaining() else ""
        with self.ctx.step("exchange", name):
            return _SHORT in self.ctx.exchange(name, mine)

    def _peer_in(self, pairs: Sequence[_Pair]) -> int | None:
        """This rank's partner in a round; one rank of an odd world rests, and those that stand for no node do."""
        return next((sum(pair) - self.ctx.group_rank for pair in pairs if self.ctx.group_rank in pair), None)

    def _exchange_in(self, pairs: Sequence[_Pair]) -> None:
        ctx, peer = self.ctx, self._peer_in(pairs)
        if peer is None:
            return
        original = ctx.ranks[peer]
        if (min(ctx.rank, original), max(ctx.rank, original)) in ctx.skip_pairs:
            self.skipped.append(original)
            return
        measured = exchange(ctx, peer, original, self.size)
        self.found[peer] = better(self.found[peer], measured) if peer in self.found else measured

    # --- each alone -------------------------------------------------------------------------------

    def _each_alone(self, measured: Sequence[Sequence[_Pair]]) -> int:
        """All pairs of a round at once, then one after the other; returns how many there was no time for."""
        ctx = self.ctx
        rounds = [pairs for pairs in measured if len(pairs) > 1]
        until = ctx.clock() + min(path_quality.ALONE_S, path_quality.ALONE_SHARE * ctx.remaining())
        for number, pairs in enumerate(rounds):
            turns = [(f"round {number} together", pairs, "together_gb_per_s")]
            turns += [(f"round {number} pair {at}", [pair], "alone_gb_per_s") for at, pair in enumerate(pairs)]
            for at, (name, moving, field) in enumerate(turns):
                mine = _SHORT if ctx.clock() > until else ""
                with ctx.step("exchange", name):
                    if _SHORT in ctx.exchange(name, mine):
                        return sum(map(len, rounds[number:])) - max(at - 1, 0)
                peer = self._peer_in(moving)
                if peer is not None:
                    rate = exchange_rate(ctx, peer, ctx.ranks[peer], self.size)
                    self.found[peer] = self.found[peer].model_copy(update={field: rate})
        return 0

    # --- doubtful ones again ----------------------------------------------------------------------

    def _doubtful_again(self) -> None:
        """Slow pairs once more, as many as fit: one slow exchange may be chance. Texts are short and mostly equal."""
        ctx = self.ctx
        received = {peer: found.received_gb_per_s or 0.0 for peer, found in self.found.items()}
        kinds = [
            {peer: rate for peer, rate in received.items() if self._is_across(peer) is across}
            for across in self._judged_kinds()
        ]
        mine = " ".join(f"{median_high(kind.values()) if kind else 0.0:.1e}" for kind in kinds)
        with ctx.step("exchange", "typical rates"):
            of_ranks = [tuple(map(float, text.split())) for text in ctx.exchange("typical rates", mine)]
        doubtful: dict[int, float] = {}
        for kind, medians in zip(kinds, zip(*of_ranks, strict=True), strict=True):
            typical = path_quality.typical_rate([value for value in medians if value], ctx.backend)
            doubtful |= {peer: rate for peer, rate in kind.items() if rate * path_quality.DOUBTFUL_RATIO < typical}
        needed_s = sum(8 * self.size / rate / 1e9 for rate in doubtful.values())
        is_short = needed_s > path_quality.AGAIN_SHARE * ctx.remaining()
        mine = _SHORT if is_short else " ".join(map(str, sorted(doubtful)))
        with ctx.step("exchange", "doubtful pairs"):
            texts = ctx.exchange("doubtful pairs", mine)
        if _SHORT in texts:
            return
        pairs = {
            (min(rank, int(peer)), max(rank, int(peer))) for rank, text in enumerate(texts) for peer in text.split()
        }
        for disjoint in path_quality.disjoint(sorted(pairs), path_quality.AGAIN_ROUNDS):
            self._exchange_in(disjoint)

    def _judged_kinds(self) -> list[bool]:
        """Of the pairs within nodes (False) and of those across them, which are judged."""
        kinds = (False, True) if self.several_nodes else (False,)
        return [way for way in kinds if path_quality.is_judged(self.ctx.backend, self.size, across=way)]

    def _is_across(self, peer: int) -> bool:
        return self.ctx.nodes[peer] != self.ctx.nodes[self.ctx.group_rank]
