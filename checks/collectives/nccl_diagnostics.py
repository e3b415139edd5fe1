"""NCCL's own diagnostics: what the library reports about paths between GPUs and differences between ranks.

Raw input, on stdout of the ranks:

    node0:18 NCCL DIAG [INFO] p2p: write mismatch srcRank=0 srcCudaDev=0 srcNvmlDev=0 dstRank=1 … path=NVL …
    node0:18 NCCL DIAG [INFO] NVLink: inactive link(s) on rank(s) {3} across 8 ranks in comm 0x2dcf4ec33680ece5

Since 2.31.2, NCCL can write and read over each direct path between two GPUs while ranks connect, and compare their
GPUs, drivers, links and settings. Its results add to ddp-doctor's own tests, but are never a verdict. It has no
timeout, and a dead link may block it forever. Therefore its ranks run separately, after all others, and are killed at
the deadline.
"""

import ctypes
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ddp_doctor.facts.collectives import NcclDiagnosticsFact, P2pFact
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S
from ddp_doctor.model.check import P2P, Check
from ddp_doctor.model.choices import Consequence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics, still_printing
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, possible
from ddp_doctor.wording.ranks import pair_culprit, rank_at

#: For answers through RAS, which waits up to 5 s for a process that does not respond (NCCL user guide, RAS).
_ANSWERS_S = 10.0
#: NCCL's findings in its [INFO] lines; other lines report missing tools for its tests (lspci or ib_write_bw).
_FOUND = re.compile(
    r"mismatch|errors (?:at or above threshold \d+ )?on rank|inactive link|inconsistent link|off median"
    r"|^NCCL environment: \w+=.* on rank|tool run timed out|Xid \d+ detected(?!.*No user action)"
)
#: The value of a setting on some ranks, in a line below the mismatch.
_VALUE = re.compile(r"^NCCL environment: \w+=")


def probe(ctx: RankContext) -> NcclDiagnosticsFact:
    """Wait until rank 0 has printed everything, with every rank still alive to answer; then read this rank's output."""
    end = ctx.clock() + min(_ANSWERS_S, ctx.remaining() / 2)
    while still_printing(text := _printed()) and ctx.clock() < end:
        time.sleep(0.05)
    with ctx.step("the control store"):
        ctx.exchange("printed", "")
    return NcclDiagnosticsFact(results=parse_nccl_diagnostics(text))


def _printed() -> str:
    ctypes.CDLL(None).fflush(None)  # NCCL prints into C's own buffer
    with Path("/proc/self/fd/1").open(encoding="utf-8", errors="replace") as output:
        return output.read(1 << 20)


@rule("DD626", "nccl-diagnostics-name-a-fault", Consequence.RISK, NcclDiagnosticsFact)
def nccl_diagnostics_name_a_fault(recording: Recording) -> Iterator[Draft]:
    """NCCL's own diagnostics report a fault.

    Finds: Reports direct paths between two GPUs (P2P) that failed in NCCL's diagnostics, along with the result of
        ddp-doctor's own exchange between the same ranks. Also reports GPUs, drivers and NCCL_* settings that differ,
        ECC errors, inactive or slower NVLinks, Xids, and adapters far from the median. Tests that NCCL could not run
        are not listed. A path makes the run unsure; everything else is a warning.
    Why: This is NCCL's result, and only a possible cause: faults that ddp-doctor's own tests show are separate
        findings. If only NCCL names a path, ddp-doctor's exchange may have used a different one.
    Remedy: Check the links between these GPUs for errors, and measure the pair again.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
        docs/explanation/measurements.md
    """
    results = dict.fromkeys(result for at in recording.facts(NcclDiagnosticsFact) for result in at.fact.results)
    told = [result for result in results if not result.ok and (result.ranks or _FOUND.search(result.text))]
    told.sort(key=lambda result: result.ranks is None)
    if not told:
        return
    pairs = [result.ranks for result in told if result.ranks]
    first, others = told[0], sum(not _VALUE.search(result.text) for result in told[1:])
    more = f" (and {others} more)" if others else ""
    fault = first.text
    if first.ranks:
        source, target = (rank_at(recording, rank) for rank in first.ranks)
        fault = f"{fault.partition(' srcRank=')[0]} from {source} to {target}, path {first.path or 'not named'}"
    yield possible(
        (pair_culprit(recording, *pair) for pair in dict.fromkeys((min(pair), max(pair)) for pair in pairs)),
        f"NCCL's own diagnostics report: {fault.replace(': ', ' ', 1)}{more}",
        (
            *(Evidence(text=result.text.partition(";")[0]) for result in told[:LINES_OF_EVIDENCE]),
            *(evidence for pair in pairs[:LINES_OF_EVIDENCE] for evidence in _own(recording, pair)),
        ),
        *([_LOOK_AT_LINKS] if pairs else []),
        detail="NCCL says this. The doctor reports its own measurements separately.",
        severity=Severity.ERROR if pairs else Severity.WARNING,
    )


_LOOK_AT_LINKS = remedy(
    "Look for errors of the links between these GPUs; measure the pair again",
    "nvidia-smi nvlink -e",
    "ddp-doctor run --only p2p",
)


def _own(recording: Recording, ends: tuple[int, int]) -> Iterator[Evidence]:
    """Yield what the second of two ranks received from the first in ddp-doctor's own exchange."""
    sender, receiver = ends
    for pair in (pair for at in recording.facts(P2pFact) if at.rank == receiver for pair in at.fact.pairs):
        if pair.peer == sender:
            text = f"the doctor's own exchange, rank {sender} to rank {receiver}: {pair.wrong_bytes} bytes wrong"
            received = pair.received_gb_per_s and round(pair.received_gb_per_s, 3)
            yield Evidence(check=P2P, text=text, value=received, unit="GB/s")


CHECK = Check(
    id="nccl_diagnostics",
    title="NCCL's own diagnostics",
    where=Where.RANK,
    probe=probe,
    facts=(NcclDiagnosticsFact,),
    rules=(nccl_diagnostics_name_a_fault,),
    level=Level.THOROUGH,
    min_ranks=2,
    cost_s=5.0,
    deadline_s=FIRST_NCCL_S,
    environment={"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"},
)
