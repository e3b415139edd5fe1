"""DD740 - DD743: the ranks' models differ, or wrapping leaves a rank without rank 0's values."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.facts.ddp.model_state import Buffers, InitialState
from ddp_doctor.knowledge.ddp.manifests import Difference, Kind, compare, restored
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.ranks import rank_at, rank_culprits, ranks_at

#: What follows from each difference, with torch 2.13 over gloo, seen on three ranks of which rank 1 was the odd one:
#: see docs/explanation/ddp-semantics.md. First, of a difference that DDP does not see: it pairs the lists by place.
_MIXED = "DDP goes by the place in the list and raises nothing: it averages what does not belong together."
_REFUSED = "DDP refuses such a model, if it comes that far: its message counts parameters and names none."
_UNSEEN = (
    "DDP does not compare this: bytes arrive in the wrong place or form, a rank aborts, or all wait for ever."
)
_CONSEQUENCES: dict[Kind, str] = {
    "missing": _REFUSED,
    "extra": _REFUSED,
    "tied": "DDP sees a shared parameter once, so that the ranks' lists have different lengths, and refuses.",
    "shape": "The rank that is unlike rank 0 raises, and the others lose their connections or wait.",
    "strides": "The rank that is unlike rank 0 raises, and the others lose their connections or wait.",
    "order": _MIXED,
    "name": "DDP goes by the place in the list and does not see names: right only if they mean the same layer.",
    "requires_grad": "DDP averages what requires a gradient, by place: with unequal numbers it refuses, with"
    " equal ones it averages what does not belong together.",
    "persistent": "The state_dict of some ranks has it and that of others has not.",
}


_SILENT = ("order", "name")


@rule("DD740", "model-differs-between-ranks", Severity.ERROR, InitialState)
def model_differs_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        A parameter that some ranks lack, or that has another shape, type, device or requires_grad there.
        The ranks compare lists over the control store before the model is wrapped.

    Why it matters
        Wrapping such a model raises on some ranks and hangs or aborts on others, and torch's message counts
        parameters without a name, or blames a connection.

    Remedy
        None of your own code builds this model: compare the versions of torch on these ranks, and look for
        code that replaces parts of it. Of three ranks or more the odd one is named.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp
    """
    yield from _drafts(
        recording,
        [difference for difference in _of(recording, "parameter") if difference.kind not in _SILENT],
    )


@rule("DD741", "parameter-order-differs-between-ranks", Severity.ERROR, InitialState)
def parameter_order_differs_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        The ranks have the same parameters in another order, or other names in the same places.

    Why it matters
        DDP pairs parameters by place. If shapes agree nothing is raised: a layer gets the values and the
        gradients of another one, and the ranks train different models.

    Remedy
        None of your own code builds this model: compare the versions of torch on these ranks. In a model
        of your own the cause is a set, an unsorted directory or a layer under ``if rank``.

    References
        https://pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _drafts(
        recording, [difference for difference in _of(recording, "parameter") if difference.kind in _SILENT]
    )


@rule("DD742", "buffers-differ-between-ranks", Severity.ERROR, InitialState)
def buffers_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        A buffer that some ranks lack, or that has another shape, type, device, order or name there.

    Why it matters
        DDP compares parameters, never buffers. It broadcasts them as one stretch of bytes: a rank aborts, or
        silently gets the values of another buffer.

    Remedy
        None of your own code builds this model: compare the versions of torch on these ranks, and look for
        code that replaces parts of it. Of three ranks or more the odd one is named.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from _drafts(recording, _of(recording, "buffer"))


def _of(recording: Recording, what: str) -> list[Difference]:
    models = {rank.rank or 0: rank.fact.model for rank in recording.facts(InitialState)}
    return [difference for difference in compare(restored(models)) if difference.what == what]


def _drafts(recording: Recording, found: list[Difference]) -> Iterator[Draft]:
    offered = remedies(recording, "initial_state")[-1:]  # no bytes have moved yet: NCCL has no part in it
    for difference in found:
        ranks, peer = ranks_at(recording, difference.ranks), rank_at(recording, difference.peer)
        left = difference.count - len(difference.names)
        listed = f"It is {', '.join(difference.names)}{f' and {left} more' if left else ''}. "
        unsure = "" if difference.sure else " No majority tells which of them is wrong."
        unseen = difference.what == "buffer" and difference.kind != "persistent"
        consequence = _UNSEEN if unseen else _CONSEQUENCES.get(difference.kind, _UNSEEN)
        yield finding(
            rank_culprits(recording, InitialState, difference.ranks if difference.sure else ()),
            f"The doctor's own model is not the same on {ranks} as on {peer}: {difference.words()}",
            Evidence(
                text=f"{difference.kind} of {difference.names[0]}: {difference.here} on {ranks},"
                f" {difference.there} on {peer}",
            ),
            *offered,
            confidence=Confidence.PROVED if difference.sure else Confidence.LIKELY,
            detail=f"{listed if difference.count > 1 else ''}Compare {ranks} with {peer}.{unsure} {consequence}",
            severity=Severity.WARNING if difference.kind in ("name", "persistent") else None,
        )


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
    facts = {rank.rank or 0: rank.fact for rank in recording.facts(InitialState)}
    reported = _reported_by_dd712(recording)
    off = [
        state
        for rank, fact in facts.items()
        if fact.source_rank in facts and rank not in reported
        for state in _off(rank, fact, facts)
    ]
    groups: dict[str, list[_Off]] = defaultdict(list)
    for state in off:
        groups[state.holds].append(state)
    # Rank 0 receives nothing: only another rank that got it right shows that the broadcast worked.
    receivers = {rank for rank, fact in facts.items() if rank != fact.source_rank}
    blameless = receivers <= {state.rank for state in off} | reported
    for group in groups.values():
        yield _draft(recording, group, facts[group[0].rank].source_rank, blameless)


def _reported_by_dd712(recording: Recording) -> set[int]:
    """The ranks that DD712 already reports with parameters of their own: one fault, one finding."""
    return {rank.rank or 0 for rank in recording.facts(Buffers) if rank.fact.parameters_off}


def _off(rank: int, fact: InitialState, facts: Mapping[int, InitialState]) -> Iterator[_Off]:
    wanted = facts[fact.source_rank].before
    for name, got in fact.after.items():
        if got != wanted.get(name):
            yield _Off(rank, name, _holds(rank, name, got, facts), got, wanted.get(name, "none"))


def _holds(rank: int, name: str, got: str, facts: Mapping[int, InitialState]) -> str:
    origin = next((source for source, fact in facts.items() if fact.before.get(name) == got), None)
    alone = not any(fact.after.get(name) == got for peer, fact in facts.items() if peer != rank)
    if origin is None:
        return "they match those of no rank"
    return "they are the rank's own" if origin == rank and alone else f"they are rank {origin}'s"


def _draft(recording: Recording, off: list[_Off], source: int, blameless: bool) -> Draft:
    first, ranks = off[0], sorted({state.rank for state in off})
    names = sorted({state.name for state in off})
    return likely(
        rank_culprits(recording, InitialState, () if blameless else ranks),
        f"After wrapping, parameters or buffers on {ranks_at(recording, ranks)} are not rank {source}'s:"
        f" {first.holds}",
        Evidence(
            text=f"fingerprint of {first.name} on rank {first.rank}: {first.got}, and {first.wanted} on"
            f" rank {source} before",
            expected_from=f"rank {source}'s, broadcast by DDP",
        ),
        *remedies(recording, "initial_state"),
        detail=f"Wrong: {', '.join(names)} of the doctor's own model, on {ranks_at(recording, ranks)}; none of"
        " your code took part. What is not broadcast starts from the rank's own seed.",
    )
