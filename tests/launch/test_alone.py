"""NCCL's own diagnostics in a separate trial: its result never blames a rank or changes the verdict.

The ranks are real gloo ranks; the recording declares them as NCCL ranks.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.checks.collectives import nccl_diagnostics
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.alone import run_alone
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.facts.collectives import NcclDiagnosticsFact
from ddp_doctor.model.choices import CheckStatus, Verdict
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.ranks.node_ranks import Run
from tests.launch import misbehaving
from tests.launch.conftest import _descendants
from tests.recordings import load
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

#: Two NCCL ranks that passed all checks.
WELL = load("process_group/two-gpu-ranks-healthy")
PATH = (
    "n:1 NCCL DIAG [INFO] p2p: write mismatch srcRank=1 srcCudaDev=1 srcNvmlDev=1 dstRank=0 dstCudaDev=0 dstNvmlDev=0"
    " path=NVL handle=CUMEM_POSIX_FD expected=0x4 got=0x0 verify=0x0; check"
)


def prints_late(ctx: Any) -> Fact:
    """Print as NCCL does: rank 0 into C's own buffer, the last lines after the first read."""
    libc = ctypes.CDLL(None)

    def printed(*lines: str) -> None:
        for line in lines:
            libc.puts(line.encode())

    def read_and_print(read: Callable[[], str] = nccl_diagnostics._printed) -> str:
        text = read()
        if "completed" not in text:
            printed(PATH, "n:1 NCCL DIAG RAS diagnostics completed in 1 ms across 2 ranks")
        return text

    assert os.environ["NCCL_RUN_DIAGNOSTICS"] == os.environ["NCCL_RUN_RAS_DIAGNOSTICS"] == "1"
    if ctx.rank == 0:
        printed("n:1 NCCL DIAG === RAS Diagnostics ===", "n:1 NCCL DIAG [OK]   Paths: self+NVL across 2 ranks")
        nccl_diagnostics._printed = read_and_print
    return nccl_diagnostics.probe(ctx)


def prints_a_path_and_dies(ctx: Any) -> Fact:
    if ctx.rank == misbehaving.BAD:
        os.write(1, f"{PATH}\n".encode())
    return misbehaving.segfaults(ctx)


@pytest.fixture(scope="module")
def agent(session: Session) -> Agent:
    session.start_control()
    assert WELL.world is not None
    world = WELL.world.model_copy(update={"backend": "gloo"})
    agent = session.agent(Run(Options(), os.environ, lambda _text: None, world))
    agent.attempts = 500  # of the numbers in the session's store
    agent.partial.trials.clear()  # the session's: other modules leave theirs
    return agent


Came = tuple[app.Outcome, PartialRecording]


def ask(
    probe: Callable[[Any], Fact],
    agent: Agent | None,
    recording: Recording = WELL,
    until: float = 9e9,
    deadline_s: float = LIMIT_S,
) -> Came:
    assert recording.world is not None
    partial = PartialRecording()
    check = replace(nccl_diagnostics.CHECK, probe=probe, deadline_s=deadline_s)
    run = Run(Options(), {}, lambda _text: None, recording.world, until=until)
    run_alone((check,), recording, run, agent, partial)
    return app.judge(partial.added_to(recording)), partial


def status(outcome: app.Outcome) -> tuple[CheckStatus, str | None]:
    [check] = [check for check in outcome.report.checks if check.id == "nccl_diagnostics"]
    return check.status, check.reason


@pytest.mark.parametrize(
    ("probe", "deadline_s", "how"),
    [
        (misbehaving.never_enters, 2.0, r"they were stopped after \d+ s"),
        (misbehaving.segfaults, LIMIT_S, "rank 1 was killed by SIGSEGV"),
        (misbehaving.raises, LIMIT_S, "ValueError: the data set is empty"),
    ],
)
def test_diagnostics_that_do_not_end_are_untested_without_effect_on_the_verdict(
    agent: Agent, probe, deadline_s, how: str
):
    before = {process.pid for process in _descendants()}

    outcome, partial = ask(probe, agent, deadline_s=deadline_s)

    assert outcome.report.findings == ()
    assert outcome.report.verdict is Verdict.HEALTHY
    skipped, reason = status(outcome)
    assert skipped is CheckStatus.SKIPPED
    assert re.fullmatch(f"NCCL's diagnostics did not end: {how}", reason or "")
    assert (partial.trials, partial.experiments) == ([], [])
    wait_until(lambda: {process.pid for process in _descendants()} <= before)


def test_path_named_before_the_diagnostics_died_is_reported(agent: Agent):
    outcome, _ = ask(prints_a_path_and_dies, agent)

    [path] = outcome.report.findings
    assert path.code == "DD626"
    assert path.title.startswith("NCCL's own diagnostics report: p2p write mismatch from rank 1 (")
    assert path.title.endswith("), path NVL")
    assert [(evidence.check, evidence.value) for evidence in path.evidence] == [
        ("nccl_diagnostics", None),
        ("p2p", 12.4),  # one way; the exchange both ways at once gave 11.8
    ]
    assert outcome.report.verdict is Verdict.UNSURE


def test_late_output_of_nccl_is_awaited(agent: Agent):
    outcome, partial = ask(prints_late, agent)

    facts = [NcclDiagnosticsFact.model_validate(reading.fact) for reading in partial.readings]
    assert [[result.ok for result in fact.results] for fact in facts] == [[True, False], []]
    assert [finding.code for finding in outcome.report.findings] == ["DD626"]
    assert status(outcome) == (CheckStatus.FOUND, None)


def test_ranks_that_print_nothing_have_not_been_diagnosed(agent: Agent):
    outcome, _ = ask(nccl_diagnostics.probe, agent)

    assert status(outcome) == (CheckStatus.PASSED, "NCCL printed nothing of its diagnostics")
    assert outcome.report.findings == ()


def _of(release: str) -> Recording:
    logged = RankEvidence(rank=0, output_tail=f"NCCL version {release}+cuda13.0")
    return WELL.model_copy(update={"trials": (TrialRecord(trial="t0", backend="nccl", evidence=(logged,)),)})


def _on(**world: object) -> Recording:
    assert WELL.world is not None
    return WELL.model_copy(update={"world": WELL.world.model_copy(update=world)})


@pytest.mark.parametrize(
    ("recording", "until", "why"),
    [
        (_on(backend="gloo"), 9e9, "the ranks of this run do not use NCCL"),
        (_of("2.30.7"), 9e9, "NCCL 2.30.7 has no diagnostics: they came with 2.31.2"),
        (_of("2.31.2"), 0.0, "the time budget was used up"),
    ],
)
def test_missing_diagnostics_are_not_run_and_the_report_gives_the_reason(
    agent: Agent, recording: Recording, until: float, why: str
):
    before = agent.attempts

    outcome, _ = ask(misbehaving.never_enters, agent, recording, until)

    assert status(outcome) == (CheckStatus.SKIPPED, why)
    assert agent.attempts == before


def test_no_rank_is_started_if_none_could_be_before():
    outcome, _ = ask(misbehaving.never_enters, None)

    assert status(outcome) == (CheckStatus.SKIPPED, "this run could start no more ranks")


@pytest.fixture(autouse=True)
def _of_its_own(agent: Agent) -> Iterator[None]:
    before = list(agent.partial.trials)  # of other modules, which share the session
    yield
    assert agent.partial.trials == before
