"""The results that are reported from NCCL's [INFO] lines: formats from libnccl 2.32.3 with values added here."""

import pytest

from ddp_doctor.checks.collectives import nccl_diagnostics
from ddp_doctor.facts.collectives import NcclDiagnosticsFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics
from tests.readings import collected

FOUND = (
    "GPU inventory: count mismatch across 8 ranks in comm 0x1, rank(s) {4,5} differ from rank 0 (8)",
    "CUDA driver version: mismatch across 8 ranks in comm 0x1, rank(s) {4} differ from rank 0 (13000)",
    "ECC: uncorrected volatile errors on rank(s) {3} (worst=2) across 8 ranks in comm 0x1",
    "ECC: corrected volatile errors at or above threshold 9 on rank(s) {3} (worst=12) across 8 ranks in comm 0x1",
    "NVLink: inactive link(s) on rank(s) {3} across 8 ranks in comm 0x1",
    "NVLink: inconsistent link speeds on rank(s) {3} across 8 ranks in comm 0x1",
    "Xid 79 detected 1 minute ago on host node0. For the recommended response, see the NVIDIA Xid documentation: x",
    "net bw: cross-nic rank 3 (node0): 265.1 Gbit/s, >30% off median 391.5 Gbit/s in comm 0x7a3f9b2c41d05e88",
)
NOT_LOOKED = (
    "GPU inventory: unavailable via NVML across 8 ranks in comm 0x1",
    "ECC: unavailable via NVML across 8 ranks in comm 0x1",
    "ATS state: lspci unavailable on rank(s) {0,1} in comm 0x1",
    "ATS state: network device selection incomplete on rank(s) {0,1} in comm 0x1",
    "Xid/SXid: no kernel-log source was available on host node0",
    "Xid 43 detected 1 minute ago on host node0. No user action or further investigation is required for this Xid.",
    "NCCL environment: 1 NCCL_* env var(s) differ across ranks in comm 0x1",
    "net bw: required external tool missing in comm 0x1",
    "p2p: resource cleanup failed rank=3 result=1; some temporary resources may remain",
)


def told(line: str) -> list[str]:
    fact = NcclDiagnosticsFact(results=parse_nccl_diagnostics(f"node0:9 NCCL DIAG {line}"))
    reading = collected("nccl_diagnostics", fact, rank=0)
    recording = Recording(readings=(reading,))
    return [found.title for rule in nccl_diagnostics.CHECK.rules for found in rule.apply(recording)]


@pytest.mark.parametrize("text", FOUND)
def test_result_of_nccl_is_reported_unless_it_is_ok(text: str):
    [title] = told(f"[INFO] {text}")

    assert title.startswith(f"NCCL's own diagnostics report: {text.partition(' in comm')[0].replace(': ', ' ', 1)}")
    assert told(f"[OK]   {text}") == []


@pytest.mark.parametrize("text", NOT_LOOKED)
def test_untested_or_harmless_result_of_nccl_is_not_reported(text: str):
    assert told(f"[INFO] {text}") == []
