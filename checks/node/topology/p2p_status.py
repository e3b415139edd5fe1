"""DD410, DD411: pairs of GPUs for which the driver does not allow P2P.

Sources: NVIDIA/nccl src/graph/paths.cc (ncclTopoCheckP2p, NCCL_IGNORE_DISABLED_P2P), src/transport/shm.cc;
NVIDIA fabric manager user guide (a GPU whose NVLinks the fabric manager has not set up reports no P2P).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ddp_doctor.checks.node.topology.wording import REPAIR_FABRIC, culprit, hosts_of
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.topology import P2pStatusFact, TopologyFact
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.link_codes import ASKED_BY_NCCL, p2p_status
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.views.failed_trials import nodes_nccl_ran_on
from ddp_doctor.views.reproducers import meeting
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import name_list

Pair = tuple[str, str]

#: The names of the NVML capabilities that NCCL queries.
_NAMES_ASKED_BY_NCCL = ("read", "write")


@dataclass(frozen=True)
class Refused:
    """A pair without P2P, the driver's word for it, and its connection according to the matrix."""

    pair: Pair
    word: str
    code: str | None

    @property
    def has_nvlink(self) -> bool:
        """Return True if the pair is connected by NVLink."""
        return link_codes.nvlinks(self.code or "") > 0


@dataclass(frozen=True)
class Host:
    """The driver's answers for each pair of one host's GPUs, and how the pairs are connected, if known.

    ``asked`` is False if the text does not name the capability of its table.
    """

    seen: FactAt[TopologyFact] | FactAt[P2pStatusFact]
    words: Mapping[Pair, tuple[str, ...]]
    asked: bool
    codes: Mapping[Pair, str]
    settings: Mapping[str, str]

    def refused(self) -> tuple[Refused, ...]:
        """The pairs without P2P."""
        bad = {pair: [word for word in words if word != "OK"] for pair, words in self.words.items()}
        return tuple(Refused(pair, words[0], self.codes.get(pair)) for pair, words in bad.items() if words)


#: One answer of the driver, from NVML or pasted: its source, ``asked`` as in ``Host``, and its pairs with words.
_Table = tuple[FactAt[TopologyFact] | FactAt[P2pStatusFact], bool, list[tuple[str, str, tuple[str, ...]]]]


def _tables(recording: Recording) -> Iterator[_Table]:
    """Yield the answers about reads and writes, and the answers about an unknown capability."""
    for live in recording.facts(TopologyFact):
        for name in _NAMES_ASKED_BY_NCCL:
            answers = live.fact.p2p.get(name)
            if answers:
                gpus = [gpu for gpu in live.fact.gpus if gpu not in live.fact.mig_gpus]
                job = live.fact.job_gpus
                gpus = gpus if job is None else [gpu for gpu in gpus if gpu in job]
                yield live, True, list(_pairs_with_words(gpus, answers))
    for pasted in recording.facts(P2pStatusFact):
        asked = pasted.fact.capability
        if asked is None or set(asked) & set(ASKED_BY_NCCL):
            yield pasted, asked is not None, list(pasted.fact.pairs())


def _pairs_with_words(
    gpus: Sequence[str], answers: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for gpu, peer in combinations(gpus, 2):
        both = [answers.get(a, {}).get(b) for a, b in ((gpu, peer), (peer, gpu))]
        words = tuple(dict.fromkeys(word for word in both if word is not None))
        if words:
            yield gpu, peer, words


@once_a_recording
def hosts(recording: Recording) -> list[Host]:
    """Return the hosts with any recorded answer that NCCL would ask for."""
    found = []
    matrices = {node.node: node.fact for node in recording.facts(TopologyFact)}
    for node, tables in grouped((seen.node, (seen, asked, pairs)) for seen, asked, pairs in _tables(recording)).items():
        asked = [table for table in tables if table[1]]
        words: dict[Pair, tuple[str, ...]] = {}
        for _, _, pairs in asked or tables:
            for gpu, peer, more_words in pairs:
                words[gpu, peer] = tuple(dict.fromkeys((*words.get((gpu, peer), ()), *more_words)))
        matrix = matrices.get(node)
        joined = {(gpu, peer): code for gpu, peer, code in matrix.gpu_pairs()} if matrix else {}
        settings = matrix.nccl_settings if matrix else {}
        found.append(Host(tables[0][0], words, bool(asked), joined, settings))
    return found


#: Maximum number of pairs in the evidence; a title counts further pairs.
_MOST_TOLD = 6
_PAIRS_IN_A_TITLE = 3


@rule("DD410", "nvlink-without-p2p", Consequence.MUCH_SLOWER)
def nvlink_without_p2p(recording: Recording) -> Iterator[Draft]:
    """NVLink connects GPUs, but the driver allows no P2P between them.

    Finds: Reports pairs for which the matrix shows NVLinks but the driver does not report OK for reads or writes
        between them. Not reported if NCCL ran over these GPUs and ended, or if NCCL_P2P_DISABLE=1 or
        NCCL_IGNORE_DISABLED_P2P is set.
    Why: NCCL treats this as broken hardware and fails in its first call, on every rank ("P2P is disabled between NVLINK
        connected GPUs"). The matrix, nvidia-smi and the states of the NVLinks may all look healthy.
    Remedy: Check whether the fabric manager runs and has finished, whether a link is down, and whether MIG is on. Reset
        the GPUs. Until then, NCCL_IGNORE_DISABLED_P2P=1 lets NCCL start without that path.
    See: NVIDIA/nccl src/graph/paths.cc, ncclTopoCheckP2p; nvidia-smi topo -p2p r and w
        NVIDIA fabric manager user guide
    """
    settled = nodes_nccl_ran_on(recording.trials)
    groups: dict[tuple[Refused, ...], list[Host]] = {}
    for host in hosts(recording):
        broken = tuple(pair for pair in host.refused() if pair.has_nvlink)
        off = {"NCCL_IGNORE_DISABLED_P2P", "NCCL_P2P_DISABLE"} & set(host.settings)
        if broken and host.asked and not off and host.seen.node not in settled:
            groups.setdefault(broken, []).append(host)
    for broken, group in groups.items():
        yield likely(
            _culprits(recording, group, broken),
            f"NCCL fails on {_names(recording, group)} because the driver forbids P2P between GPUs"
            f" joined by NVLink: {_listed(broken)}",
            _evidence(broken),
            REPAIR_FABRIC,
            nccl.by_setting(
                "Start NCCL without P2P between these GPUs until that is repaired (workaround)",
                Setting(
                    name="NCCL_IGNORE_DISABLED_P2P",
                    value="1",
                    why="NCCL then uses another path for these GPUs instead of failing",
                ),
                cost="host memory traffic for these GPUs, several times slower than NVLink; all ranks wait for them",
            ),
            detail="NCCL treats this as broken hardware and fails in its first call. Often"
            " the fabric manager has not set up these GPUs.",
            severity=asked_for(recording, Severity.ERROR),
            reproduced_by=meeting(recording, [host.seen.node for host in group]),
        )


@rule("DD411", "p2p-not-available", Consequence.COST)
def p2p_not_available(recording: Recording) -> Iterator[Draft]:
    """The driver allows no P2P between GPUs without NVLink.

    Finds: Reports pairs for which the driver does not report OK: CNS (not on this chipset), GNS (not with these GPUs),
        TNS (not over this path), DR (disabled by a setting), NS, U. Severity is warning if GPUs of one model behind
        PCIe switches differ, or if a setting disables P2P that NCCL would use. Otherwise, it is info, because GeForce
        cards and many boards do not support P2P. Not reported if only pairs are affected over which NCCL would not use
        P2P anyway.
    Why: NCCL copies between such GPUs through host memory, at about half the rate of PCIe. Nothing hangs or fails. If
        some pairs have P2P and others of the same kind do not, all wait for the slower pairs.
    Remedy: No action is needed if all pairs are the same: no setting enables P2P on GPUs without it. If pairs differ,
        compare their slots, the BIOS and the IOMMU.
    See: NVIDIA/nccl src/graph/paths.cc, ncclTopoCheckP2p; NVIDIA/nccl issue 1127 (GeForce)
        nvidia-smi topo -p2p r and w; nvml.h, nvmlGpuP2PStatus_t
    """
    for lack, group in grouped((_lack(recording, host), host) for host in hosts(recording)).items():
        if lack is None:
            continue
        words = dict.fromkeys(pair.word for pair in lack.shown)
        meanings = name_list([f"{word}: {p2p_status(word).meaning}" for word in words])
        yield finding(
            _culprits(recording, group, lack.shown) if lack.matters else (),
            f"Driver does not allow direct copies (P2P) between GPUs of {_names(recording, group)}:"
            f" {_listed(lack.shown)}",
            _evidence(lack.shown),
            *_remedies(lack),
            confidence=Confidence.PROVED if lack.asked else Confidence.POSSIBLE,
            detail=f"Driver status {meanings}. {_detail(lack)}",
            severity=asked_for(recording, Severity.WARNING) if lack.matters else Severity.INFO,
        )


@dataclass(frozen=True)
class _Lack:
    """Pairs without P2P and NVLink; ``by_setting`` and ``uneven`` are the reasons for a warning."""

    shown: tuple[Refused, ...]
    asked: bool
    by_setting: bool = False
    uneven: bool = False

    @property
    def matters(self) -> bool:
        """Return True if NCCL would use P2P for this pair, but something prevents it."""
        return self.by_setting or self.uneven


def _lack(recording: Recording, host: Host) -> _Lack | None:
    refused = tuple(pair for pair in host.refused() if not pair.has_nvlink)
    near = [pair for pair, code in host.codes.items() if _within_reach(code)]
    near_refused = tuple(pair for pair in refused if pair.code and _within_reach(pair.code))
    if not refused or (near and not near_refused):
        return None
    by_setting = host.asked and any(pair.word == "DR" for pair in near_refused)
    models = {gpu.name for fact in recording.at(GpusFact, host.seen.node) for gpu in fact.gpus}  # that seldom share P2P
    uneven = host.asked and 0 < len(near_refused) < len(near) and len(models) < 2
    shown = near_refused if by_setting or uneven else refused
    return _Lack(shown, host.asked, by_setting, uneven)


def _within_reach(code: str) -> bool:
    """Return True if NCCL would use P2P here by default: only PCIe bridges in between."""
    return not link_codes.nvlinks(code) and link_codes.allowed(code, link_codes.DEFAULT_P2P_LIMIT)


def _detail(lack: _Lack) -> str:
    if not lack.asked:
        return (
            "The text does not show which query it answers. For reads or writes (-p2p r,"
            " -p2p w), NCCL copies through host memory. For NVLink (-p2p n), it means only"
            " that there is no NVLink."
        )
    if lack.by_setting:
        return "NCCL could copy directly here, but a setting forces it through host memory."
    if lack.uneven:
        return "Other GPUs behind PCIe switches here have P2P, so these GPUs slow every all-reduce."
    return "NCCL copies through host memory here. That is normal for these GPUs or boards, and nothing fails."


def _remedies(lack: _Lack) -> Iterator[Remedy]:
    if lack.by_setting:
        yield by_administrator(
            "Remove the kernel module setting, unless P2P was turned off on purpose",
            "cat /proc/driver/nvidia/params",
            "grep -r nvidia /etc/modprobe.d/",
            cost="administrator access and a reload of the module",
            undo="restore the setting",
            references=(nccl.TROUBLE,),
        )
    if lack.uneven:
        yield by_administrator(
            "Compare slots, BIOS and IOMMU of these GPUs with GPUs between which P2P works",
            "lspci -tv",
            "cat /proc/cmdline",
            "nvidia-smi topo -p2p r",
            "nvidia-smi topo -p2p w",
            cost="administrator access to the BIOS or the slots",
            references=(nccl.TROUBLE,),
        )


def _names(recording: Recording, group: Sequence[Host]) -> str:
    return hosts_of(recording, [host.seen for host in group])


def _culprits(recording: Recording, group: Sequence[Host], refused: Sequence[Refused]) -> tuple[Culprit, ...]:
    return tuple(culprit(recording, host.seen.node, pair.pair) for host in group for pair in refused)


def _listed(refused: Sequence[Refused]) -> str:
    names = ["-".join(pair.pair) for pair in refused]
    return ", ".join(names) if len(names) <= _PAIRS_IN_A_TITLE else f"{len(names)} pairs, first {names[0]}"


def _evidence(refused: Sequence[Refused]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            text=f"driver status of P2P between {'-'.join(pair.pair)}: {pair.word}"
            + (f", joined by {pair.code}" if pair.code else "")
        )
        for pair in refused[:_MOST_TOLD]
    )
