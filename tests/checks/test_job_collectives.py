"""job_collectives: real gloo ranks replay a job's calls, and stop where the job stopped or finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ddp_doctor.app.job_collectives import load_job_collectives
from ddp_doctor.checks import CHECKS
from ddp_doctor.checks.collectives import job_collectives
from ddp_doctor.engine.plan import make_plan
from ddp_doctor.facts.job_collectives import JobCollectivesFact
from ddp_doctor.knowledge import job_collectives as knowledge
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.job_collectives import JobCall, JobCollectives, JobGroup
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import Report
from ddp_doctor.probing.job_collectives import largest_bytes
from tests.app.test_job_collectives import dump, entry
from tests.features.jobs.logs.dumps import DUMPS, as_json
from tests.rank_harness import HarnessContext, Ranks
from tests.readings import of_ranks, plain_world

GROUPS = (JobGroup(words="the default group", ranks=(0, 1, 2, 3)), JobGroup(words="group 1", ranks=(0, 1)))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4, preload=(__name__,)) as started:
        yield started


def replayed(ctx: HarnessContext, job: JobCollectives) -> JobCollectivesFact:
    knowledge.HUNG_S = 1.0
    ctx.options = Options(replay=job)
    return job_collectives.probe(ctx)


def judged(job: JobCollectives, facts: Sequence[JobCollectivesFact]) -> Report:
    from ddp_doctor import app

    readings = of_ranks("job_collectives", facts)
    world = plain_world(1, 4)
    recording = Recording(options=Options(replay=job), world=world, readings=readings)
    return app.judge(Recording.model_validate_json(recording.as_json())).report


def job_of(calls: Sequence[Sequence[JobCall]], **more: object) -> JobCollectives:
    fields = {"path": "dumps", "source": "the dumps", "groups": GROUPS, "ranks": calls, **more}
    return JobCollectives.model_validate(fields)


def found(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("situation", "code", "culprits", "stands"),
    [
        (
            "missing",
            "DD650",
            [3],
            "Rank 3 never entered the collective; the replay hangs at the same place as the job: ranks 0-2 wait in all",
        ),
        (
            "sub-group",
            "DD650",
            [1],
            "rank 0 waits in all_reduce 2 of group 1; ranks 2, 3 wait in all_reduce 3 of the d",
        ),
        ("crossed-groups", "DD650", [3], "Rank 3 made mismatched calls; the replay hangs"),
        ("one-more", "DD650", [0], "rank 0 waits in broadcast 3 of the default group"),
        (
            "other-operation",
            "DD650",
            [3],
            "is all_reduce of 4 float32 on ranks 0-2, but broadcast of 4 float32 on rank 3",
        ),
        ("skipped-backward", "DD650", [3], "is all_reduce of 10 float32 on ranks 0-2, but barrier on rank 3"),
        ("at-rest", "DD652", [], "The job's 3 collectives of 2 groups finished in"),
    ],
)
def test_replay_hangs_where_the_job_hung_and_reports_the_rank(
    ranks: Ranks, tmp_path, situation, code, culprits, stands
):
    for rank, content in DUMPS[situation].items():
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(content))
    job = load_job_collectives(str(tmp_path))

    report = judged(job, ranks.facts(replayed, job))

    finding = found(report)
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (code, culprits)
    assert stands in finding.title
    assert report.verdict.value == ("healthy" if code == "DD652" else "unhealthy")


@pytest.mark.ranks
def test_tensor_of_another_size_on_one_rank_is_reported_without_ending_a_rank(ranks: Ranks, tmp_path):
    for rank in range(4):
        calls = [entry(1), entry(2, sizes=[[5 if rank == 2 else 4]], retired=False)]
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(dump(*calls, groups={"0": "[0, 1, 2, 3]"})))
    job = load_job_collectives(str(tmp_path))

    finding = found(judged(job, ranks.facts(replayed, job)))

    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("DD650", [2])
    assert "all_reduce of 4 float32 on ranks 0, 1, 3, but all_reduce of 5 float32 on rank 2" in finding.title


@pytest.mark.ranks
def test_rank_of_another_hang_is_not_blamed_for_different_calls(ranks: Ranks, tmp_path):
    """Rank 1 gave another size once, and all went on; later rank 2 did not come."""
    for rank in range(4):
        calls = [entry(seq, sizes=[[5 if (rank, seq) == (1, 1) else 4]]) for seq in range(1, 31)]
        calls += [entry(31, retired=False)] * (rank != 2)
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(dump(*calls, groups={"0": "[0, 1, 2, 3]"})))
    job = load_job_collectives(str(tmp_path))
    assert job.blamed == (2,)

    finding = found(judged(job, ranks.facts(replayed, job)))

    assert (finding.code, finding.culprits) == ("DD650", ())
    assert "all_reduce of 5 float32 on rank 1" in finding.title


@pytest.mark.ranks
def test_one_differing_coalesced_call_reports_all_of_them(ranks: Ranks, tmp_path):
    for rank in range(4):
        calls = [entry(1, sizes=[[5 if rank == 2 else 4]], retired=False), entry(1, sizes=[[8]], retired=False)]
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(dump(*calls, groups={"0": "[0, 1, 2, 3]"})))
    job = load_job_collectives(str(tmp_path))

    finding = found(judged(job, ranks.facts(replayed, job)))

    assert finding.code == "DD650"
    assert "all_reduce of 5 float32 and all_reduce of 8 float32 on rank 2" in finding.title


@pytest.mark.ranks
def test_hang_of_assumed_calls_is_not_a_fault_of_the_job(ranks: Ranks, tmp_path):
    """Ranks 1 and 3 have no dumps, and rank 2 has a group with rank 3 that rank 0 does not call."""
    groups = {"0": "[0, 1, 2, 3]", "1": "[2, 3]"}
    for rank in (0, 2):
        calls = [entry(1), *[entry(1, group="1")] * (rank == 2)]
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(dump(*calls, groups=groups)))
    job = load_job_collectives(str(tmp_path))

    report = judged(job, ranks.facts(replayed, job))

    assert (report.verdict.value, report.findings) == ("unsure", ())
    assert "the dumps do not show the calls of ranks 1, 3, so they were assumed" in report.summary


@pytest.mark.ranks
def test_calls_of_a_rank_without_a_dump_are_not_reported(ranks: Ranks, tmp_path):
    for rank in (0, 1):
        calls = [entry(1, sizes=[[4 + rank]], retired=False)]
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(dump(*calls, groups={"0": "[0, 1, 2, 3]"})))
    job = load_job_collectives(str(tmp_path))

    finding = found(judged(job, ranks.facts(replayed, job)))

    assert (finding.code, finding.culprits) == ("DD650", ())
    assert "all_reduce of 4 float32 on rank 0, but all_reduce of 5 float32 on rank 1" in finding.title


@pytest.mark.ranks
def test_rank_without_an_answer_makes_the_run_unsure(ranks: Ranks):
    job = job_of([[JobCall(group=0, seq=1, op="barrier")]] * 4)

    report = judged(job, [JobCollectivesFact(issued=1)] * 3)

    assert (report.verdict.value, report.findings) == ("unsure", ())
    assert "--collectives-of dumps (nothing came back from rank 3)" in report.summary


@pytest.mark.ranks
def test_every_kind_of_collective_finishes(ranks: Ranks):
    kinds = sorted(set(knowledge.OPERATIONS.values()))
    calls = [JobCall(group=0, seq=number, op=kind, elements=10) for number, kind in enumerate(kinds, 1)]
    inner = [JobCall(group=1, seq=1, op="all_gather", elements=3, dtype="bfloat16")]
    job = job_of([calls + inner, calls + inner, calls, calls])

    facts = ranks.facts(replayed, job)

    assert [fact.stopped for fact in facts] == [""] * 4
    finding = found(judged(job, facts))
    assert finding.code == "DD652"
    assert f"{len(kinds) + 1} collectives of 2 groups finished in" in finding.title


@pytest.mark.ranks
def test_hang_at_a_call_that_the_job_completed_blames_no_rank(ranks: Ranks):
    first, second = JobCall(group=0, seq=1, op="barrier"), JobCall(group=0, seq=2, op="barrier")
    job = job_of([[first, second]] * 3 + [[first]], blamed=[0])

    finding = found(judged(job, ranks.facts(replayed, job)))

    assert (finding.code, finding.culprits) == ("DD653", ())
    assert finding.title.startswith(
        "The replay hangs, although the job did not hang: in the replay, ranks 0-2 wait in barrier 2"
    )


@pytest.mark.ranks
def test_call_refused_by_torch_makes_the_run_unsure(ranks: Ranks):
    job = job_of([[JobCall(group=0, seq=1, op="barrier")]] * 4)
    facts = ranks.facts(replayed, job)
    refused = [fact.model_copy(update={"stopped": "raised", "error": "Invalid scalar type"}) for fact in facts]

    report = judged(job, refused)

    assert report.verdict.value == "unsure"
    assert "rank 0 stopped after 1 calls: Invalid scalar type" in report.summary


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"left_out": {"send 0->1": 2}}, "not run: send 0->1 (2)"),
        ({"unknown": [3]}, "the dumps do not show the calls of rank 3, so they were assumed"),
    ],
)
def test_unrecorded_or_skipped_calls_are_never_healthy(more, says):
    call = JobCall(group=0, seq=1, op="barrier", is_open=True)
    job = job_of([[call]] * 4, **more)

    report = judged(job, [JobCollectivesFact(issued=1)] * 4)

    assert (report.verdict.value, [finding.code for finding in report.findings]) == ("unsure", ["DD652"])
    assert says in report.summary


@pytest.mark.ranks
def test_large_tensors_are_cut_equally_on_all_ranks_with_a_note(ranks: Ranks, monkeypatch):
    calls = [JobCall(group=0, seq=seq, op="all_gather", elements=1 << 40) for seq in range(1, 101)]
    job = job_of([calls] * 4)

    most, busiest = largest_bytes(job, on_gpu=False)

    assert most == 4 << 20
    assert busiest == 100 * most <= knowledge.MOST_BYTES_ON_CPU
    fact = JobCollectivesFact(issued=100, largest_bytes=most)
    assert "Tensors larger than 4096 KiB were cut to that." in found(judged(job, [fact] * 4)).detail


@pytest.mark.ranks
def test_a_job_of_another_size_is_not_run(ranks: Ranks):
    job = job_of([[JobCall(group=0, seq=1, op="barrier")]] * 4)
    with pytest.raises(Failed, match="the job of --collectives-of has 4 ranks, but this run has 2"):
        job_collectives.probe(HarnessContext(0, 0, 2, (0, 1), 0, None, options=Options(replay=job)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"skip": ("job_collectives",)},
            "--collectives-of has no effect without the check job_collectives; remove job_collectives from --skip",
        ),
        (
            {"only": ("p2p",)},
            "--collectives-of has no effect without the check job_collectives; add job_collectives to --only",
        ),
    ],
)
def test_replay_that_would_be_skipped_is_refused(options, says):
    job = job_of([[JobCall(group=0, seq=1, op="barrier")]] * 4)
    with pytest.raises(UsageError) as refused:
        make_plan(Options(replay=job, **options), CHECKS)

    assert str(refused.value) == says
