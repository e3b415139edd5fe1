"""Real jobs with an injected fault, their traces, and the findings of the rules."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.features.trace.evaluate import Judged, judged_in
from tests.features.trace.situations import CASES

#: Committed real traces: of two gloo ranks, and of two NCCL ranks that shared an H100 (torch 2.11).
KEPT = Path(__file__).parent / "kept"


def test_injected_faults_are_found_in_real_traces_and_no_other_rank_is_blamed():
    judged = [*judged_in(KEPT / "cpu"), *judged_in(KEPT / "h100")]

    assert {one.name for one in judged} == {"slow_compute_mlp", "data_mlp", "slow_data", "healthy"}
    assert [one.name for one in judged if one.missed or one.innocents or one.surplus] == []


def _made(folder: Path, names: Sequence[str], tries: int) -> list[Judged]:
    """Make the traces in separate processes, because torch must not be imported here."""
    argv = [sys.executable, "-m", "tests.features.trace.make", str(folder), *names, "--tries", str(tries)]
    subprocess.run(argv, check=True, capture_output=True)
    return list(judged_in(folder))


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_nine_of_ten_causes_are_found_and_no_healthy_rank_is_blamed(tmp_path: Path):
    judged = _made(tmp_path, tuple(CASES), tries=4)
    truths = sum(len(one.case.truth) for one in judged)
    missed = {one.name: one.missed for one in judged if one.missed}
    innocents = {one.name: one.innocents for one in judged if one.innocents}
    right = truths - sum(map(len, missed.values()))
    print(f"\n  {len(judged)} of {len(CASES)} cases: {right} of {truths} causes; missed {json.dumps(missed)}")

    assert innocents == {}
    assert right >= 0.9 * truths
