"""DD743: wrapping a model does not leave every rank with rank 0's values."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.facts.ddp.model_state import Buffers, InitialState
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at


@dataclass(frozen=True)
class _Off:
    """A parameter or buffer that a rank does not hold as rank 0 had it, and what it holds."""

    rank: int
    name: str
    holds: str
    got: str
    wanted: str


@rule("DD743", "initial-state-not-from-rank-0", Severity.ERROR, InitialState)
def initial_state_not_from_rank_0(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Every rank makes a model from its own seed. After wrapping, a parameter or buffer (bf16, frozen, tied,
        strided, integer, without dimensions, not persistent) is not rank 0's, bit for bit.

    Why it matters
        With DDP seeds need not agree, because wrapping broadcasts rank 0's values. Where it does not, the
        ranks average the gradients of different models; a loss that falls hides it.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch, and for
        ``init_sync=False``. With NCCL, repeat it with NCCL_PROTO=Simple.

    References
        https://pytorch.org/docs/stable/notes/ddp.html
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    facts = {seen.rank or 0: seen.fact for seen in recording.facts(InitialState)}
    told = _told_by_dd712(recording)
    off = [
        one
        for rank, fact in facts.items()
        if fact.source_rank in facts and rank not in told
        for one in _off(rank, fact, facts)
    ]
    groups: dict[str, list[_Off]] = defaultdict(list)
    for one in off:
        groups[one.holds].append(one)
    # Rank 0 has nothing to receive: only a rank that got it right shows that the others could have.
    receivers = {rank for rank, fact in facts.items() if rank != fact.source_rank}
    blameless = receivers <= {one.rank for one in off} | told
    for group in groups.values():
        yield _draft(recording, group, facts[group[0].rank].source_rank, blameless)


def _told_by_dd712(recording: Recording) -> set[int]:
    """The ranks that the check of buffers has shown to keep parameters of their own: one fault, one finding."""
    return {seen.rank or 0 for seen in recording.facts(Buffers) if seen.fact.parameters_off}


def _off(rank: int, fact: InitialState, facts: Mapping[int, InitialState]) -> Iterator[_Off]:
    wanted = facts[fact.source_rank].before
    for name, got in fact.after.items():
        if got != wanted.get(name):
            yield _Off(rank, name, _holds(rank, name, got, facts), got, wanted.get(name, "none"))


def _holds(rank: int, name: str, got: str, facts: Mapping[int, InitialState]) -> str:
    origin = next((other for other, fact in facts.items() if fact.before.get(name) == got), None)
    alone = not any(fact.after.get(name) == got for other, fact in facts.items() if other != rank)
    if origin is None:
        return "no rank's explain them"
    return "they are the rank's own" if origin == rank and alone else f"they are rank {origin}'s"


def _draft(recording: Recording, off: list[_Off], source: int, blameless: bool) -> Draft:
    first, ranks = off[0], sorted({one.rank for one in off})
    names = sorted({one.name for one in off})
    return likely(
        rank_culprits(recording, InitialState, () if blameless else ranks),
        f"After wrapping, parameters or buffers are not rank {source}'s on"
        f" {ranks_at(recording, ranks)}: {first.holds}",
        Evidence(
            text=f"fingerprint of {first.name} on rank {first.rank}: {first.got}, and {first.wanted} on"
            f" rank {source} before",
            expected_from=f"rank {source}'s, broadcast by DDP",
        ),
        *remedies(recording.world.backend if recording.world else "", "initial_state"),
        detail=f"Off are {', '.join(names)} of the probe's model, on {ranks_at(recording, ranks)}; none of"
        " your code took part. What is not broadcast starts from the rank's own seed.",
    )
