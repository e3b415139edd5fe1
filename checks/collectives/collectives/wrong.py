"""DD622, DD623: collectives that bring something else than what was given, or not the same twice."""

from collections.abc import Iterator

from ddp_doctor.facts.collectives import ELEMENTS, CollectiveFact
from ddp_doctor.knowledge.collectives import ALL_REDUCE, BARRIER, TABLE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Reproducer
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.nccl import ONE_ALGORITHM, against_wrong_sums
from ddp_doctor.wording.findings import NOBODY, finding, likely
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import ranks_at
from ddp_doctor.wording.wrong_shares import Taken, share_evidence, whose_share


@rule("DD622", "collective-is-wrong", Severity.ERROR, CollectiveFact)
def collective_is_wrong(recording: Recording) -> Iterator[Draft]:
    """A collective that brings something else than what was given.

    Finds: Shares that arrive otherwise than their sender is known to have given them, sums that differ from the closed
        form, and barriers that are left before all are in. Each collective is called in all types and operations that
        the backend offers, with odd lengths, strided tensors and each rank as the root. A rank is named where all that
        it gives is wrong wherever it is looked at, or all that it takes; where one way alone is wrong, its two ends
        are. Otherwise nobody is: one wrong element is a bit that flipped somewhere.
    Why: What is sent this way is silently wrong: parameters of FSDP and ZeRO, activations, tokens of experts.
    Remedy: GPUs: NCCL_P2P_DISABLE=1 tells whether peer-to-peer transfers corrupt data; then memory errors (nvidia-smi
        -q -d ECC). Else the library: another NCCL or torch.
    See: nccl-tests, verifiable/: the same idea
    """
    for name, ranks in _by_part(recording).items():
        row = TABLE[name]
        faulty = [rank for rank in ranks if rank.fact.wrong or any(size.wrong for size in rank.fact.sizes)]
        if not faulty:
            continue
        early = (NOBODY, "it was left before every rank was in")
        taken = [Taken(rank.rank or 0, rank.fact.wrong, tuple(rank.fact.sources)) for rank in ranks]
        culprits, whose = early if name == BARRIER else whose_share(recording, taken, to_root=row.to_root)
        in_sizes = [
            Evidence(text=f"{size.size_bytes} B on rank {rank.rank}: #wrong {size.wrong}", value=size.wrong, expected=0)
            for rank in faulty
            for size in rank.fact.sizes
            if size.wrong
        ]
        where = ranks_at(recording, [rank.rank or 0 for rank in faulty])
        yield finding(
            culprits,
            f"{row.words.capitalize()} gives wrong results on {where}: {whose}",
            [*(share_evidence(rank.rank or 0, wrong) for rank in faulty for wrong in rank.fact.wrong), *in_sizes][:6],
            *against_wrong_sums(recording),
            confidence=Confidence.PROVED,
            detail="A training that calls it would go on, with wrong data.",
            reproduced_by=Reproducer(kind="all_reduce", size_bytes=4 * ELEMENTS) if name == ALL_REDUCE else None,
        )


def _by_part(recording: Recording) -> dict[str, list[FactAt[CollectiveFact]]]:
    return grouped((rank.fact.part, rank) for rank in recording.facts(CollectiveFact))


@rule("DD623", "collective-is-not-repeatable", Severity.WARNING, CollectiveFact, explained_by=("DD602",))
def collective_is_not_repeatable(recording: Recording) -> Iterator[Draft]:
    """A collective that adds up equal inputs to sums that differ in their last bits.

    Finds: A rank where the same inexact fp32 inputs gave two different results in one process group.
    Why: Runs cannot be reproduced bit for bit, and silent data corruption cannot be told from noise.
    Remedy: Set one fixed algorithm (NCCL_ALGO=Ring) where repeatability matters; it costs speed.
    See: NCCL user guide, NCCL_ALGO
    """
    names = _by_part(recording)
    unsteady = {
        TABLE[name].words: [rank.rank or 0 for rank in ranks if rank.fact.repeatable is False]
        for name, ranks in names.items()
    }
    unsteady = {words: ranks for words, ranks in unsteady.items() if ranks}
    if unsteady:
        on = sorted({rank for ranks in unsteady.values() for rank in ranks})
        yield likely(
            (),
            f"Not repeatable bit for bit on {ranks_at(recording, on)}: {name_list([*unsteady])}",
            Evidence(text="two float32 sums of equal inputs differ"),
            *((ONE_ALGORITHM,) if recording.on_nccl else ()),
        )
