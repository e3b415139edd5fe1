"""NCCL's own diagnostics: what does the library itself say of the paths between the GPUs, and of what ranks differ in?

Raw input, on stdout of the ranks:

    node0:18 NCCL DIAG [INFO] p2p: write mismatch srcRank=0 srcCudaDev=0 srcNvmlDev=0 dstRank=1 … path=NVL …
    node0:18 NCCL DIAG [INFO] NVLink: inactive link(s) on rank(s) {3} across 8 ranks in comm 0x2dcf4ec33680ece5

Since 2.31.2 NCCL can write and read over each direct path between two GPUs while ranks meet, and compare their GPUs,
drivers, links and settings. It is a second opinion beside the doctor's own tests, and never a verdict. It has no
time-out: a dead link may hold it for ever. So its ranks run alone, after all others, and are killed at the deadline.
"""

import ctypes
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_doctor.facts.collectives import NcclDiagnostic, NcclDiagnosticsFact, P2pFact
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import P2P, Check
from ddp_doctor.model.choices import Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics, still_printing
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, possible
from ddp_doctor.wording.ranks import pair_culprit, rank_at

_OUTPUT = "/proc/self/fd/1"
_OUTPUT_READ = 1 << 20
#: For RAS to answer: it waits up to 5 s for a process that says nothing (NCCL user guide, RAS).
_ANSWERS_S = 10.0
_LOOK_S = 0.05
#: What NCCL found, of all that it tags [INFO]; the rest is what it could not look at (lspci or ib_write_bw is missing).
_FOUND = re.compile(
    r"mismatch|errors (?:at or above threshold \d+ )?on rank|inactive link|inconsistent link|off median"
    r"|^NCCL environment: \w+=.* on rank|tool run timed out|Xid \d+ detected(?!.*No user action)"
)


def probe(ctx: RankContext) -> NcclDiagnosticsFact:
    """Wait until rank 0 has printed all, while every rank lives to be asked; then read what this rank printed."""
    flush = ctypes.CDLL(None).fflush  # NCCL prints into C's own buffer
    flush(None)
    text, end = _printed(), ctx.clock() + min(_ANSWERS_S, ctx.remaining() / 2)
    while still_printing(text) and ctx.clock() < end:
        time.sleep(_LOOK_S)
        flush(None)
        text = _printed()
    with ctx.step("the control store"):
        ctx.exchange("printed", "")
    return NcclDiagnosticsFact(results=parse_nccl_diagnostics(text))


def _printed() -> str:
    with Path(_OUTPUT).open(encoding="utf-8", errors="replace") as output:
        return output.read(_OUTPUT_READ)


def _results(recording: Recording) -> list[NcclDiagnostic]:
    """What NCCL printed on all ranks, each once, but what is well."""
    facts = (at.fact for at in recording.facts(NcclDiagnosticsFact))
    return [result for result in dict.fromkeys(result for fact in facts for result in fact.results) if not result.ok]


@rule("DD626", "nccl-finds-a-path-between-gpus-at-fault", Severity.INFO, NcclDiagnosticsFact)
def nccl_finds_a_path_at_fault(recording: Recording) -> Iterator[Draft]:
    """A direct path between two GPUs over which NCCL's own diagnostics did not come through.

    Finds: Paths (P2P) that NCCL's diagnostics name, and beside them what the doctor's own exchange between the same
        ranks gave. It is NCCL's word and decides nothing: where the path is at fault, the doctor's own tests say so.
    Why: NCCL writes and reads over each path before the job sends anything. Where that fails and the doctor's own
        exchange does not, the exchange may have gone another way.
    Remedy: Look for errors of the links between these GPUs, and measure the pair again.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
        docs/explanation/measurements.md
    """
    named = grouped((tuple(sorted(result.ranks)), result) for result in _results(recording) if result.ranks)
    if not named:
        return
    first, *others = named
    fault, _, _ = named[first][0].text.removeprefix("p2p: ").partition(" srcRank=")
    more = f", and of {len(others)} pair{'s' if len(others) > 1 else ''} more" if others else ""
    kind = f" ({named[first][0].path})" if named[first][0].path else ""
    ends = " and ".join(rank_at(recording, rank) for rank in first)
    yield possible(
        (pair_culprit(recording, *pair) for pair in named),
        f"NCCL's own diagnostics say of the path{kind} between {ends}{more}: {fault}",
        (
            evidence
            for pair, results in list(named.items())[:LINES_OF_EVIDENCE]
            for evidence in (
                *(Evidence(text=result.text.partition(";")[0]) for result in results),
                *_own(recording, pair),
            )
        ),
        remedy(
            "Look for errors of the links between these GPUs; measure the pair again",
            "nvidia-smi nvlink -e",
            "nvidia-smi topo -p2p n",
            "ddp-doctor run --only p2p",
        ),
        detail="A second opinion: the verdict does not rest on it.",
    )


def _own(recording: Recording, ends: Sequence[int]) -> Iterator[Evidence]:
    """What the doctor measured between the same two ranks."""
    for at in recording.facts(P2pFact):
        for pair in at.fact.pairs:
            if (at.rank, pair.peer) in (tuple(ends), tuple(reversed(ends))):
                text = f"the doctor's own exchange, rank {pair.peer} to rank {at.rank}: {pair.wrong_bytes} bytes wrong"
                rate = pair.bandwidth_gb_per_s
                yield Evidence(check=P2P, text=text, value=round(rate, 3), unit="GB/s")


@rule("DD627", "nccl-diagnostics-did-not-end", Severity.INFO, NcclDiagnosticsFact)
def diagnostics_did_not_end(recording: Recording) -> Iterator[Draft]:
    """NCCL's own diagnostics in a trial that did not come to its end.

    Finds: The ranks of that trial hung until they were killed, or one of them died or raised. They ran alone, with
        NCCL_RUN_DIAGNOSTICS=1 and NCCL_RUN_RAS_DIAGNOSTICS=1, after all others.
    Why: The diagnostics have no time-out of their own. No rank, GPU or link is blamed for it, and the verdict is that
        of the doctor's own tests.
    Remedy: None, where those passed. Else begin with what they found.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
    """
    for at in recording.facts(NcclDiagnosticsFact):
        if at.fact.not_ended:
            yield possible(
                NOBODY,
                f"NCCL's own diagnostics did not end: {at.fact.not_ended}",
                Evidence(text="the trial of nothing but them, with fresh ranks: they have no time-out of their own"),
                detail="Nothing is concluded from it.",
            )


@rule("DD628", "nccl-finds-ranks-that-differ", Severity.INFO, NcclDiagnosticsFact)
def nccl_finds_ranks_that_differ(recording: Recording) -> Iterator[Draft]:
    """Differences and errors that NCCL's own diagnostics tell of, other than paths between GPUs.

    Finds: Other GPUs, drivers or NCCL_* settings on some ranks, ECC errors, NVLinks that are inactive or slower, Xids,
        an adapter far from the median bandwidth, by NCCL's word. What it could not look at is no finding.
    Why: They are what NCCL's makers look at first. What is a fault by the doctor's own tests is a finding of its own.
    Remedy: Compare with the doctor's own findings on the same GPUs, links and settings.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
    """
    found = [result.text for result in _results(recording) if result.ranks is None and _FOUND.search(result.text)]
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield possible(
            NOBODY,
            f"NCCL's own diagnostics: {found[0]}{more}",
            (Evidence(text=text) for text in found[:LINES_OF_EVIDENCE]),
            detail="A second opinion: the verdict does not rest on it.",
        )


CHECK = Check(
    id="nccl_diagnostics",
    title="NCCL's own diagnostics",
    where=Where.RANK,
    probe=probe,
    facts=(NcclDiagnosticsFact,),
    rules=(nccl_finds_a_path_at_fault, diagnostics_did_not_end, nccl_finds_ranks_that_differ),
    level=Level.THOROUGH,
    min_ranks=2,
    cost_s=5.0,
    deadline_s=FIRST_NCCL_S,
    environment={"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"},
)
