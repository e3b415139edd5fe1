"""What the driver says of P2P between the GPUs of each host, from NVML or pasted tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ddp_doctor.facts.node.topology import P2pStatusFact, TopologyFact
from ddp_doctor.knowledge.topology.link_codes import ASKED_BY_NCCL
from ddp_doctor.model.recording import FactAt, Recording

Pair = tuple[str, str]

#: What NVML's answers are called that NCCL asks for.
_NAMES_ASKED_BY_NCCL = ("read", "write")


@dataclass(frozen=True)
class Host:
    """What the driver says of each pair of one host's GPUs, and how they are joined, as far as known.

    ``asked`` is False where the text does not say which capability its table is about.
    """

    seen: FactAt[TopologyFact] | FactAt[P2pStatusFact]
    words: Mapping[Pair, tuple[str, ...]]
    asked: bool
    codes: Mapping[Pair, str]
    settings: Mapping[str, str]

    def refused(self) -> dict[Pair, str]:
        """The pairs without P2P, and the driver's word for it."""
        bad = {pair: [word for word in words if word != "OK"] for pair, words in self.words.items()}
        return {pair: words[0] for pair, words in bad.items() if words}


@dataclass(frozen=True)
class _Table:
    """One answer of the driver, from NVML or pasted; ``asked`` as in ``Host``."""

    seen: FactAt[TopologyFact] | FactAt[P2pStatusFact]
    asked: bool
    pairs: tuple[tuple[str, str, tuple[str, ...]], ...]


def _tables(recording: Recording) -> Iterator[_Table]:
    """The answers about reads and writes, and those of which nobody knows what they are about."""
    for live in recording.facts(TopologyFact):
        for name in _NAMES_ASKED_BY_NCCL:
            answers = live.fact.p2p.get(name)
            if answers:
                gpus = [gpu for gpu in live.fact.gpus if gpu not in live.fact.mig_gpus]
                job = live.fact.job_gpus
                gpus = gpus if job is None else [gpu for gpu in gpus if gpu in job]
                yield _Table(live, asked=True, pairs=tuple(_pairs_told(gpus, answers)))
    for pasted in recording.facts(P2pStatusFact):
        asked = pasted.fact.capability
        if asked is None or set(asked) & set(ASKED_BY_NCCL):
            yield _Table(pasted, asked=asked is not None, pairs=tuple(pasted.fact.pairs()))


def _pairs_told(
    gpus: Sequence[str], answers: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for one, two in combinations(gpus, 2):
        told = [answers.get(a, {}).get(b) for a, b in ((one, two), (two, one))]
        words = tuple(dict.fromkeys(word for word in told if word is not None))
        if words:
            yield one, two, words


def hosts(recording: Recording) -> list[Host]:
    """The hosts of which anything is told that NCCL would ask."""
    return recording.once("P2P by host", lambda: list(_make_hosts(recording)))


def _make_hosts(recording: Recording) -> Iterator[Host]:
    matrices = {seen.node: seen.fact for seen in recording.facts(TopologyFact)}
    by_node: dict[int, list[_Table]] = {}
    for table in _tables(recording):
        by_node.setdefault(table.seen.node, []).append(table)
    for node, tables in by_node.items():
        asked = [table for table in tables if table.asked]
        words: dict[Pair, tuple[str, ...]] = {}
        for table in asked or tables:
            for one, two, told in table.pairs:
                words[one, two] = tuple(dict.fromkeys((*words.get((one, two), ()), *told)))
        matrix = matrices.get(node)
        joined = {(one, two): code for one, two, code in matrix.gpu_pairs()} if matrix else {}
        settings = matrix.nccl_settings if matrix else {}
        yield Host(tables[0].seen, words, bool(asked), joined, settings)


def pairs_without_p2p(recording: Recording, node: int) -> set[Pair]:
    """The pairs of this node's GPUs that the driver refuses P2P, as far as it was asked."""
    return {pair for host in hosts(recording) if host.seen.node == node for pair in host.refused()}
