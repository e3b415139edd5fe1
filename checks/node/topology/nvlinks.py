"""DD403, DD406, DD407: NVLinks that are missing, down, or lose data.

A GPU has too few NVLinks if its peers in the same matrix have more. A fixed table of link counts would often be wrong:
12 on an H100 NVL, 6 on each of four H100 on one board, and 8 on an A800 are all correct. So GPUs are compared only if
they are wired the same way:

* behind NVSwitch, where every GPU reaches every other over as many links as the poorer of both has;
* bridged in pairs, where each pair has one bridge of the same kind.

The rules skip a mesh without switches (eight V100 or P100), which mixes NV1 and NV2 by design, and groups that are too
small to show which GPU differs.

Thresholds for NVLink errors: NVIDIA's own monitor, DCGM (modules/health/DcgmHealthWatch.cpp,
dcgmlib/src/dcgm_gpu_hardware_limits.h), checks the growth of counters within a minute. One replay or recovery is a
failure (DCGM_LIMIT_MAX_NVLINK_ERROR). CRC errors are a failure at 100 or more per second
(DCGM_LIMIT_MAX_NVLINK_CRC_ERROR) and a warning below that. Errors before the first sample mean little: the counters
started when the driver was loaded, possibly months ago.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddp_doctor.checks.node.topology.wording import culprit, hosts_of, look_at_nvlinks
from ddp_doctor.facts.node.topology import GpuNvlinks, Nvlink, NvlinksFact, TopologyFact
from ddp_doctor.knowledge.gpu.nvml import is_on_a_board
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause

#: Number of GPUs, or pairs, that must agree before another counts as short.
_LEAST_WITNESSES = 3

Pair = tuple[str, str]


@dataclass(frozen=True)
class Shortfall:
    """GPUs (one, or both ends of a bridge) with ``links`` where their peers have ``expected``."""

    gpus: tuple[str, ...]
    links: int
    expected: int


def shortfalls(gpus: Sequence[str], pairs: Mapping[Pair, int]) -> list[Shortfall]:
    """Return the GPUs with too few NVLinks; ``pairs`` holds the number of NVLinks of every pair of ``gpus``, or 0.

    Empty if a pair is missing because its rows disagree: with MIG on one GPU, nvidia-smi does not show its NVLinks.
    """
    if len(pairs) < len(gpus) * (len(gpus) - 1) // 2:
        return []
    linked = {pair: links for pair, links in pairs.items() if links}
    partners = {gpu: sum(gpu in pair for pair in linked) for gpu in gpus}
    with_links = [gpu for gpu in gpus if partners[gpu]]
    if all(partners[gpu] == 1 for gpu in with_links):
        most = max(linked.values(), default=0)
        return [
            Shortfall(pair, links, most)
            for pair, links in linked.items()
            if links < most and _enough(list(linked.values()))
        ]
    if all(partners[gpu] == len(with_links) - 1 for gpu in with_links):
        without = [gpu for gpu in gpus if not partners[gpu]]
        own = {gpu: max(links for pair, links in linked.items() if gpu in pair) for gpu in with_links}
        switched = all(links == min(own[gpu], own[peer]) for (gpu, peer), links in linked.items())
        if not switched or not _enough(list(own.values())):
            return []
        top = max(own.values())
        short = [Shortfall((gpu,), links, top) for gpu, links in own.items() if links < top]
        return short + [Shortfall((gpu,), 0, top) for gpu in without]
    return []


def _enough(counts: Sequence[int]) -> bool:
    """Return True if the highest link count is frequent enough, and more frequent than any other count."""
    (_, most), *others = sorted(Counter(counts).items(), reverse=True)
    return most >= _LEAST_WITNESSES and all(most > count for _, count in others)


#: One more of these during the run is a fault: the link lost data and had to resend it, or went down and had to be
#: retrained.
GRAVE = ("replay", "recovery", "recovery_failed")
CRC_ERRORS_PER_S = 100.0

MEANINGS = {
    "replay": "transmissions repeated",
    "recovery": "times the link was trained again",
    "recovery_failed": "times training it again failed",
    "crc": "CRC errors",
}


#: With this many GPUs with all links up, it is certain that the other GPU is short.
_SURE_WITNESSES = 3


@dataclass(frozen=True)
class Down:
    """A GPU with some links down, and the number of its peers with all ``expected`` links."""

    gpu: str
    active: int
    inactive: tuple[int, ...]
    expected: int
    witnesses: int

    @property
    def sure(self) -> bool:
        """Return True if there are enough peers to identify the GPU that differs."""
        return self.witnesses >= _SURE_WITNESSES


def links_down(nvlinks: Iterable[GpuNvlinks]) -> tuple[Down, ...]:
    """Return the GPUs on one board that have fewer links up than peers of the same model.

    Their links lead to NVSwitch, or the model has no bridges. Bridges take 4, 8 or 12 of a board's 18 links by
    design. GPUs without a bridge have none. DD403 checks them by the matrix.
    """
    down: list[Down] = []
    for model, peers in grouped((gpu.name, gpu) for gpu in nvlinks).items():
        remotes = set().union(*(gpu.remotes() for gpu in peers))
        pasted = remotes == {None} and is_on_a_board(model)
        if remotes != {"switch"} and not pasted:
            continue
        expected = max(gpu.active() for gpu in peers)
        witnesses = sum(gpu.active() == expected for gpu in peers)
        if witnesses > len(peers) - witnesses or witnesses >= _SURE_WITNESSES or len(peers) == 2:
            short = (gpu for gpu in peers if gpu.active() < expected and (gpu.inactive() or pasted))
            down += [Down(gpu.gpu, gpu.active(), gpu.inactive(), expected, witnesses) for gpu in short]
    return tuple(down)


@rule("DD406", "nvlinks-down", Consequence.COST)
def nvlinks_down(recording: Recording) -> Iterator[Draft]:
    """NVLinks of a GPU behind NVSwitch are down.

    Finds: Reports GPUs with inactive links to NVSwitch, some or all, while other GPUs of the same model have them up.
        Severity is info with fewer than three such peers. The state of each link comes from the driver (NVML or
        ``nvidia-smi nvlink -s``), not from the matrix. GPUs with bridges, which leave links unused by design, and GPUs
        in MIG mode are skipped.
    Why: NVSwitch spreads all traffic over all links, and an all-reduce runs at the speed of the slowest GPU: with 16 of
        18 links, every GPU of the node loses a ninth. Without any link, NCCL uses PCIe, or fails.
    Remedy: Check the links' errors, Xid 74 in the kernel log, and the fabric manager's log. Reset all GPUs of the board
        together. If a link stays down, contact service.
    See: NVML API reference, nvmlDeviceGetNvLinkState
        NVIDIA Fabric Manager User Guide, NVLink failures
    """
    matrices = recording.facts(TopologyFact)
    known = {node.node for node in matrices}
    alone = [node for node in recording.facts(NvlinksFact) if node.node not in known]
    states: list[tuple[FactAt[Any], Sequence[GpuNvlinks]]] = [(node, node.fact.nvlinks) for node in matrices]
    states += [(node, node.fact.gpus) for node in alone]
    by_down = grouped((links_down(nvlinks), node) for node, nvlinks in states)
    parts = {
        (tuple(gpu for gpu in down if gpu.sure is sure), sure): group
        for down, group in by_down.items()
        for sure in (True, False)
    }
    for (down, sure), group in parts.items():
        if not down:
            continue
        expected, names = down[0].expected, [gpu.gpu for gpu in down]
        has = [f"{gpu.gpu} has {gpu.active or 'none'}" for gpu in down]
        yield finding(
            (culprit(recording, node.node, [name]) for node in group for name in names),
            f"NVLinks are down on {hosts_of(recording, group)}: {', '.join(has)}, but the others have {expected}",
            (
                Evidence(
                    text=f"{gpu.gpu}: inactive links {', '.join(map(str, gpu.inactive)) or 'all'}",
                    value=gpu.active,
                    expected=gpu.expected,
                    expected_from=f"{gpu.witnesses} GPUs of the same model on this host",
                )
                for gpu in down
            ),
            look_at_nvlinks(tuple(names), none=not all(gpu.active for gpu in down)),
            confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
            detail="NVSwitch spreads traffic over all links, so every GPU of the node waits for the slowest.",
            severity=asked_for(recording, Severity.WARNING if sure else Severity.INFO),
        )


@rule("DD407", "nvlink-errors", Consequence.RISK, TopologyFact)
def nvlink_errors(recording: Recording) -> Iterator[Draft]:
    """An NVLink loses data.

    Finds: Reports links whose replay or recovery counter grew, or which counted 100 CRC errors per second, between two
        readings half a second apart. If a link counted replays or recoveries at any time since the driver was loaded,
        severity is info. Slower CRC errors are normal.
    Why: Each replay delays every GPU that waits for the data. A link that is being retrained carries no data. Such
        links go down later.
    Remedy: Check the kernel log for Xid 74, reset the GPU, and reseat or replace the bridge or board.
    See: NVIDIA DCGM, dcgm_gpu_hardware_limits.h and DcgmHealthWatch.cpp: limits of NVLink errors
        nvidia-smi nvlink -e
    """
    for growing in (True, False):
        lossy = by_cause(recording.facts(TopologyFact), partial(_lossy, growing=growing))
        for links, group in lossy.items():
            names = ", ".join(f"link {number} of {gpu}" for gpu, number in links)
            gpus = tuple(dict.fromkeys(gpu for gpu, _ in links))
            what = "errors are increasing" if growing else "errors were counted in the past"
            yield finding(
                (culprit(recording, node.node, [gpu]) for node in group for gpu in gpus),
                f"NVLink {what} on {hosts_of(recording, group)}: {names}",
                _counters(group[0].fact, links),
                *((look_at_nvlinks(gpus),) if growing else ()),
                confidence=Confidence.LIKELY if growing else Confidence.POSSIBLE,
                detail="The link is losing data right now, and every GPU that waits for the data waits longer."
                if growing
                else "Counted since the driver was loaded; none came while the doctor looked.",
                severity=asked_for(recording, Severity.WARNING if growing else Severity.INFO),
            )


_Link = tuple[str, int]


def _lossy(fact: TopologyFact, *, growing: bool) -> tuple[_Link, ...] | None:
    links = ((gpu.gpu, link) for gpu in fact.nvlinks for link in gpu.links)
    return tuple((gpu, link.index) for gpu, link in links if _is_lossy(link, growing=growing)) or None


def _is_lossy(link: Nvlink, *, growing: bool) -> bool:
    """Return True if its errors grow at DCGM's failure rate, or if it lost data since the driver was loaded.

    CRC errors that grow more slowly are acceptable.
    """
    lost = any(link.errors_per_s.get(name, 0) > 0 for name in GRAVE)
    grows = lost or link.errors_per_s.get("crc", 0) >= CRC_ERRORS_PER_S
    return grows if growing else not grows and any(link.errors.get(name, 0) > 0 for name in GRAVE)


def _counters(fact: TopologyFact, links: Sequence[_Link]) -> Iterator[Evidence]:
    known = {(gpu.gpu, link.index): link for gpu in fact.nvlinks for link in gpu.links}
    for gpu, number in links:
        link = known[gpu, number]
        for name, count in link.errors.items():
            if count:
                rate = link.errors_per_s.get(name, 0.0)
                text = f"{gpu}, link {number}: {MEANINGS.get(name, name)}, {rate:g} more a second"
                yield Evidence(text=text, value=count, expected_from="DCGM's limits")


@rule("DD403", "nvlinks-missing", Consequence.COST, TopologyFact)
def nvlinks_missing(recording: Recording) -> Iterator[Draft]:
    """A GPU has fewer NVLinks than its peers.

    Finds: Among GPUs with the same wiring (all behind NVSwitch, or bridged in pairs), reports a GPU for which the
        matrix shows a smaller NV number than for the others. A GPU without any link is info if it may be a display
        card: it is of another model, or the model is unknown and the others have fewer than 6 links or are not on a
        board of 4, 8 or 16 GPUs.
    Why: Every step of an all-reduce waits for the slowest link, so all GPUs lose the bandwidth that one of them lacks.
        A link that is down is often the first sign of a failing one.
    Remedy: Check the links' state and errors, and Xid 74 in the kernel log. Reset the GPU, reseat the bridge, or send
        the board to service.
    See: NVIDIA Xid catalog, 74 and 144 to 150
        nvidia-smi nvlink -s and -e
    """
    for shorts, group in by_cause(recording.facts(TopologyFact), _shortfalls).items():
        harmless = _may_be_display_card(group[0].fact)
        for short in shorts:
            names = " and ".join(short.gpus)
            have = f"share {short.links}" if len(short.gpus) > 1 else f"has {short.links or 'none'}"
            where = hosts_of(recording, group)
            text, peers = f"NVLinks of {names}", "the other GPUs of the same matrix"
            yield finding(
                (culprit(recording, node.node, [gpu]) for node in group for gpu in short.gpus),
                f"NVLinks are missing on {where}: {names} {have}, but others have {short.expected}",
                Evidence(text=text, value=short.links, expected=short.expected, expected_from=peers),
                look_at_nvlinks(short.gpus, none=not short.links),
                confidence=Confidence.LIKELY if short.links else Confidence.POSSIBLE,
                detail="An all-reduce is as slow as the slowest link, so every GPU on the node is slowed down.",
                severity=Severity.INFO if harmless and not short.links else None,
            )


def _shortfalls(fact: TopologyFact) -> tuple[Shortfall, ...] | None:
    pairs = {(gpu, peer): link_codes.nvlinks(code) for gpu, peer, code in fact.gpu_pairs()}
    reported = {down.gpu for down in links_down(fact.nvlinks)}  # DD406 reports it with the links
    left_out = reported.union(fact.mig_gpus)
    return tuple(short for short in shortfalls(fact.gpus, pairs) if not left_out & set(short.gpus)) or None


def without_nvlinks(fact: TopologyFact) -> set[str]:
    """Return the GPUs without any NVLink whose peers have some: a fault to repair, or a display card."""
    shorts = {gpu for short in _shortfalls(fact) or () if not short.links for gpu in short.gpus}
    return shorts | {down.gpu for down in links_down(fact.nvlinks) if not down.active} | set(fact.mig_gpus)


#: NVSwitch and HGX boards: 6 links per GPU (V100 behind NVSwitch, four H100) to 18. A DGX Station has 4, and a
#: display card without any (NVIDIA DGX Station A100 User Guide).
_LEAST_ON_A_BOARD = 6
_GPUS_OF_A_BOARD = (4, 8, 16)


def _may_be_display_card(fact: TopologyFact) -> bool:
    """Return True if GPUs without NVLink may be outside the board of the other GPUs."""
    models = {fact.models.get(gpu) for gpu in fact.gpus}
    if None not in models:
        return len(models) > 1
    links = max(link_codes.nvlinks(code) for _, _, code in fact.gpu_pairs())
    return links < _LEAST_ON_A_BOARD or len(fact.gpus) not in _GPUS_OF_A_BOARD
