"""NCCL's own diagnostics as libnccl 2.32.3 printed them on planted GPUs (tests/samples/nccl_diagnostics)."""

import time
from pathlib import Path

import pytest

from ddp_doctor.facts.collectives import NcclDiagnostic
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics, still_printing

SAMPLES = Path(__file__).parent.parent / "samples/nccl_diagnostics"
WELL = "p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)"


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text()


def test_each_failed_direct_path_names_both_ranks_on_any_host():
    results = parse_nccl_diagnostics(sample("two-hosts"))

    named = [(result.ranks, result.path, result.ok) for result in results if result.ranks]
    assert named == [((one, two), "NVL", False) for one, two in ((0, 1), (1, 0), (2, 3), (3, 2))]


def test_results_keep_their_tags_without_the_communicators_address():
    results = parse_nccl_diagnostics(sample("all-well-without-p2p"))

    assert NcclDiagnostic(ok=True, text="ECC: no uncorrected volatile errors across 2 ranks") in results
    assert NcclDiagnostic(ok=False, text="ATS state: lspci unavailable on rank(s) {0,1}") in results
    assert not any("0x" in result.text for result in results)
    assert parse_nccl_diagnostics(f"n:9 NCCL DIAG [OK]   {WELL}\n" * 3) == (NcclDiagnostic(ok=True, text=WELL),)


def test_job_without_ras_has_no_report_of_it():
    line = "node0:120 NCCL DIAG INFO RAS diagnostics skipped: NCCL_RAS_ENABLE=0\n"

    assert parse_nccl_diagnostics(line)[0].text == "RAS diagnostics skipped: NCCL_RAS_ENABLE=0"
    assert not still_printing(line)


@pytest.mark.parametrize("name", [path.stem for path in sorted(SAMPLES.iterdir())])
def test_a_report_is_being_printed_from_its_head_to_its_last_line(name: str):
    text = sample(name)
    end = text.index("NCCL DIAG RAS diagnostics completed")

    assert not still_printing("")
    assert [still_printing(text[:cut]) for cut in (text.index("\n"), end, len(text))] == [True, True, False]


@pytest.mark.parametrize(
    "junk",
    [
        "NCCL DIAG [INFO] " * 100_000,
        "NCCL DIAG [INFO] p2p: x srcRank=1 " + "dstRank= path=" * 100_000,
        "".join(f"NCCL DIAG [OK] {number}\n" for number in range(100_000)),
        "NCCL DIAG [INFO] p2p: a srcRank=99999999999 dstRank=1 path=NVL\n",
    ],
    ids=["one line", "nothing named", "many lines", "no rank"],
)
def test_junk_is_parsed_quickly_and_truncated(junk: str):
    began = time.process_time()
    results = parse_nccl_diagnostics(junk)

    assert time.process_time() - began < 1.0
    assert len(results) <= 200
    assert all(len(result.text) <= 500 and result.ranks is None for result in results)
