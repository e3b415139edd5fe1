"""DD403: a GPU with fewer NVLinks than its peers."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.topology.culprits import culprit, hosts_of
from ddp_doctor.checks.node.topology.links import links_down
from ddp_doctor.checks.node.topology.nvlink_peers import Shortfall, shortfalls
from ddp_doctor.checks.node.topology.p2p_wording import look_at_nvlinks
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology import link_codes as codes
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import by_cause


@rule("DD403", "nvlinks-missing", Severity.WARNING, TopologyFact)
def nvlinks_missing(recording: Recording) -> Iterator[Draft]:
    """A GPU has fewer NVLinks than its peers.

    What it finds
        Among GPUs that are wired alike (all behind NVSwitch, or bridged in pairs), one that the matrix
        gives a smaller NV number than the others. A GPU with none at all is an info only: it may be a
        display card.

    Why it matters
        Every step of an all-reduce waits for the slowest link, so all GPUs lose what one of them lacks.
        A link that is down is often the first sign of a failing one.

    Remedy
        Look at the links' state and errors, and at Xid 74 in the kernel log; reset the GPU, reseat the
        bridge, or hand the board to service.

    References
        NVIDIA Xid catalog, 74 and 144 to 150
        nvidia-smi nvlink -s and -e
    """
    for shorts, group in by_cause(recording.facts(TopologyFact), _shortfalls).items():
        for short in shorts:
            yield _shortfall_draft(recording, group, short)


def _shortfalls(fact: TopologyFact) -> tuple[Shortfall, ...] | None:
    pairs = {(one, two): codes.nvlinks(code) for one, two, code in fact.gpu_pairs()}
    told = {down.gpu for down in links_down(fact)}  # DD406 says it, and which links
    left_out = told.union(fact.mig_gpus)
    return tuple(short for short in shortfalls(fact.gpus, pairs) if not left_out & set(short.gpus)) or None


def _shortfall_draft(recording: Recording, group: Sequence[FactAt[TopologyFact]], short: Shortfall) -> Draft:
    names = " and ".join(short.gpus)
    have = f"share {short.links}" if len(short.gpus) > 1 else f"has {short.links or 'none'}"
    where = hosts_of(recording, group)
    text, peers = f"NVLinks of {names}", "the other GPUs of the same matrix"
    evidence = Evidence(text=text, value=short.links, expected=short.expected, expected_from=peers)
    return finding(
        (culprit(recording, seen.node, [gpu]) for seen in group for gpu in short.gpus),
        f"NVLinks are missing on {where}: {names} {have} where the others have {short.expected}",
        evidence,
        look_at_nvlinks(short.gpus),
        confidence=Confidence.LIKELY if short.links else Confidence.POSSIBLE,
        detail="All-reduce goes at the pace of the slowest link, so every GPU of the node loses by it.",
        severity=None if short.links else Severity.INFO,
    )
