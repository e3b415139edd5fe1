"""DD606: bytes that arrive changed."""

from collections.abc import Iterable, Iterator

from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.remedies.nccl import DISABLE_P2P, REPAIR_PATH
from ddp_doctor.views.reproducers import between
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, proved
from ddp_doctor.wording.ranks import pair_culprit, rank_at, rank_culprit, ranks_at


@rule("DD606", "pair-of-ranks-corrupts-data", Severity.ERROR, P2pFact)
def pair_of_ranks_corrupts_data(recording: Recording) -> Iterator[Draft]:
    """A pair of ranks between which bytes arrive changed.

    Finds: Bytes that differ from the pattern the peer is known to send, pair by pair.
    Why: Gradients sent over this link are silently wrong.
    Remedy: GPUs: NCCL_P2P_DISABLE=1 sends the data through the host and proves the cause; consumer GPUs with forced
        peer-to-peer are the usual case. Else look for memory errors.
    See: NVIDIA/nccl-tests#117
    """
    wrong = {
        (pair.peer, rank.rank or 0): pair
        for rank in recording.facts(P2pFact)
        for pair in rank.fact.pairs
        if pair.wrong_bytes
    }
    each = {frozenset(path) for path in wrong}
    common = next(iter(frozenset.intersection(*each)), None) if len(each) > 1 else None
    pairs = [(min(path), max(path)) for path in wrong]
    if common is not None:
        peers = {rank for path in wrong for rank in path} - {common}
        yield proved(
            (rank_culprit(recording, common),),
            f"Data that {rank_at(recording, common)} exchanges with {ranks_at(recording, peers)} arrives wrong",
            (_wrong_bytes(*ends, pair) for ends, pair in list(wrong.items())[:LINES_OF_EVIDENCE]),
            *_without_p2p(recording, wrong),
            detail="Pairs without this rank were tested in the same way, and their data arrive right.",
            reproduced_by=between(recording, next(iter(wrong)), pairs),
        )
        return
    for (sender, receiver), pair in list(wrong.items())[:LINES_OF_EVIDENCE]:
        yield proved(
            (pair_culprit(recording, receiver, sender),),
            f"Data from {rank_at(recording, sender)} arrives wrong on {rank_at(recording, receiver)}:"
            f" {pair.wrong_bytes} of {pair.size_bytes} bytes",
            _wrong_bytes(sender, receiver, pair),
            *_without_p2p(recording, [(sender, receiver)]),
            detail=f"All pairs were tested in the same way; {len(wrong)} of their directions are wrong.",
            reproduced_by=between(recording, (sender, receiver), pairs),
        )


def _wrong_bytes(sender: int, receiver: int, pair: PairResult) -> Evidence:
    return Evidence(
        text=f"bytes from rank {sender} that differ from its pattern on rank {receiver}",
        value=pair.wrong_bytes,
        unit="B",
        expected=0,
        expected_from="the pattern is a function of the sender's rank",
    )


def _without_p2p(recording: Recording, pairs: Iterable[tuple[int, int]]) -> tuple[Remedy, ...]:
    """The proof for GPUs of one node; between nodes nothing goes peer to peer."""
    world = recording.world
    if world is not None and all(world.node_of(first) != world.node_of(second) for first, second in pairs):
        return (
            remedy(
                "Look for errors of the NICs and of the memory on both nodes; try another NIC",
                "ethtool -S IFACE | grep -i -e err -e crc",
                "nvidia-smi -q -d ECC",
            ),
        )
    if not recording.on_nccl:
        return (_LOOK_AT_MEMORY,)
    return (
        DISABLE_P2P.model_copy(
            update={"summary": "Try host memory in place of direct copies: if data is then right, P2P is to blame"}
        ),
        REPAIR_PATH,
        _LOOK_AT_MEMORY,
    )


_LOOK_AT_MEMORY = by_administrator(
    "Look for memory errors of the GPUs and of the host",
    "nvidia-smi -q -d ECC",
    "sudo dmesg | grep -i -e xid -e edac -e mce",
)
