"""The groups, order and sizes that ``run --collectives-of`` reads from a job's dumps and traces; and refused inputs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app.job_collectives import load_job_collectives
from ddp_doctor.features.trace.facts import TraceCall, TraceFact
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.job_collectives import JobCall, JobCollectives
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.render.reproducer import render
from tests.features.jobs.logs.dumps import DUMPS, as_json, as_pickle
from tests.readings import collected


def entry(seq: int, op: str = "all_reduce", group: str = "0", sizes: Any = ((4,),), **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": seq,
        "process_group": [group, ""],
        "profiling_name": f"nccl:{op}",
        "input_sizes": sizes,
        "output_sizes": sizes,
        "input_dtypes": ["Float"],
        "retired": True,
        "time_created_ns": 10**18 + seq,
        **more,
    }


def dump(*entries: dict[str, Any], groups: dict[str, Any] | None = None, first: int = 0) -> dict[str, Any]:
    """Return a dump as NCCL's recorder writes it; ``first`` is the number of its first entry, above 0 after losses."""
    numbered = [{"record_id": first + place, **each} for place, each in enumerate(entries)]
    config = {name: {"ranks": ranks} for name, ranks in (groups or {"0": "[0, 1]"}).items()}
    return {"version": "2.10", "pg_config": config, "entries": numbered}


def loaded(folder: Path, *dumps: dict[str, Any]) -> JobCollectives:
    for rank, each in enumerate(dumps):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_json(each))
    return load_job_collectives(str(folder))


def made(job: JobCollectives, rank: int) -> list[tuple[str, int]]:
    return [(call.op, call.seq) for call in job.ranks[rank]]


@pytest.mark.parametrize("form", [as_json, as_pickle])
def test_directory_of_all_ranks_has_groups_order_and_the_blamed_rank(tmp_path, form):
    for rank, each in DUMPS["sub-group"].items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(form(copy.deepcopy(each)))

    job = load_job_collectives(str(tmp_path))

    assert (len(job.ranks), job.blamed, job.unknown, job.left_out) == (4, (1,), (), {})
    assert [group.words for group in job.groups] == ["the default group", "group 1"]
    assert job.groups[1].ranks == (0, 1)
    assert [(call.group, call.seq, call.is_open) for call in job.ranks[0]][-1] == (1, 2, True)
    assert [call.is_open for call in job.ranks[1]] == [False] * 3


def test_all_ranks_start_at_the_first_call_that_every_recorder_kept(tmp_path):
    whole = dump(*(entry(seq) for seq in range(1, 9)))
    job = loaded(tmp_path, whole, dump(*(entry(seq) for seq in range(5, 9)), first=4))

    assert made(job, 0) == made(job, 1) == [("all_reduce", seq) for seq in range(5, 9)]


def test_calls_that_ended_after_another_ranks_last_record_are_skipped(tmp_path):
    job = loaded(tmp_path, dump(*(entry(seq) for seq in range(1, 9))), dump(*(entry(seq) for seq in range(1, 4))))

    assert made(job, 0) == made(job, 1) == [("all_reduce", seq) for seq in range(1, 4)]


def test_ranks_with_different_calls_are_marked_at_that_number(tmp_path):
    job = loaded(tmp_path, dump(entry(1), entry(2)), dump(entry(1), entry(2, sizes=[[5]])))

    assert [[call.differs for call in job.ranks[rank]] for rank in (0, 1)] == [[False, True]] * 2


def test_largest_share_of_an_uneven_all_to_all_counts_without_difference(tmp_path):
    job = loaded(tmp_path, dump(entry(1, "all_to_all", sizes=[[6]])), dump(entry(1, "all_to_all", sizes=[[2]])))

    assert [(call.elements, call.differs) for call in (*job.ranks[0], *job.ranks[1])] == [(6, False)] * 2


def test_coalesced_calls_share_a_number_and_transfers_are_listed_as_skipped(tmp_path):
    calls = (entry(1), entry(1, sizes=[[8]]), entry(0, "send 0->1", is_p2p=True), entry(1, "coalesced"))
    job = loaded(tmp_path, dump(*calls), dump(*calls))

    assert [(call.seq, call.elements) for call in job.ranks[0]] == [(1, 4), (1, 8)]
    assert job.left_out == {"send 0->1": 2}


def test_root_of_a_gather_is_the_receiving_rank(tmp_path):
    takes, gives = entry(1, "gather"), entry(1, "gather", output_sizes=[])
    job = loaded(tmp_path, dump(gives), dump(takes))

    assert [call.root for call in (*job.ranks[0], *job.ranks[1])] == [1, 1]


def test_dump_of_one_rank_applies_to_all_ranks_of_its_groups(tmp_path):
    groups = {"0": "[0, 1, 2]", "1": "[0, 2]"}
    job = loaded(tmp_path, dump(entry(1), entry(1, "broadcast", "1"), entry(2, retired=False), groups=groups))

    assert (len(job.ranks), job.unknown) == (3, (1, 2))
    assert made(job, 1) == [("all_reduce", 1), ("all_reduce", 2)]
    assert made(job, 2) == made(job, 0)
    assert not any(call.is_open for call in job.ranks[2])


def test_group_without_known_members_is_skipped_if_all_its_ranks_wait(tmp_path):
    """gloo's dumps tell no members: here rank 1 may be in group 1, and has never called it."""
    of_gloo = {"": "[]"}
    calls = [entry(1, process_group=["0", "default_pg"])], [entry(1, group="1", retired=False)]
    job = loaded(tmp_path, dump(*calls[0], *calls[1], groups=of_gloo), dump(*calls[0], groups=of_gloo))

    assert job.left_out == {"group 1, in which all ranks wait that ever called it": 1}


def test_hostile_sizes_are_bounded(tmp_path):
    job = loaded(tmp_path, *[dump(entry(1, sizes=[[10**15, 10**15]]), entry(2, sizes=[[-7]]))] * 2)

    assert [call.elements for call in job.ranks[0]] == [1 << 40, 0]


def test_recording_of_trace_has_the_calls_of_its_ranks(tmp_path):
    call = TraceCall(kind="all_reduce", begin_us=2.0, end_us=3.0, size_bytes=4096, dtype="float", ranks=2, group="0")
    late = call.model_copy(update={"kind": "broadcast", "begin_us": 1.0})
    facts = [TraceFact(file=f"rank{rank}.json", rank=rank, world_size=2, calls=(call, late)) for rank in (0, 1)]
    readings = tuple(collected("trace", fact) for fact in facts)
    path = tmp_path / "recording.json"
    path.write_text(Recording(run_id="1", options=Options(command="trace"), readings=readings).as_json())

    job = load_job_collectives(str(path))

    assert (len(job.ranks), job.source) == (2, "the trace")
    assert made(job, 0) == made(job, 1) == [("broadcast", 1), ("all_reduce", 2)]
    assert {call.elements for call in job.ranks[0]} == {1024}


def test_coalesced_calls_of_several_kinds_do_not_differ(tmp_path):
    calls = (entry(1), entry(1, "broadcast", sizes=[[8]]), entry(1, "coalesced"))
    job = loaded(tmp_path, dump(*calls), dump(*calls))

    assert [(call.op, call.differs) for call in job.ranks[1]] == [("all_reduce", False), ("broadcast", False)]


def test_default_group_is_skipped_if_the_last_rank_may_have_no_dump(tmp_path):
    """gloo's dumps of a job with several groups do not list its ranks: these may be waiting for a rank 2."""
    calls = [entry(1, group="1"), entry(1, process_group=["0", "default_pg"], retired=False)]
    job = loaded(tmp_path, *[dump(*calls, groups={"": "[]"})] * 2)

    assert job.left_out == {"the default group, in which all ranks wait that ever called it": 1}


def test_one_dump_without_the_size_of_its_job_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not show how many ranks the job had; give the dumps of all ranks"):
        loaded(tmp_path, dump(entry(1, process_group=["0", "default_pg"]), groups={"": "[]"}))


def test_calls_of_a_rank_outside_of_the_group_are_skipped(tmp_path):
    groups = {"0": "[0, 1, 2]", "1": "[0, 1]"}
    calls = entry(1), entry(1, "broadcast", "1")
    job = loaded(tmp_path, *[dump(*calls, groups=groups)] * 3)

    assert made(job, 2) == [("all_reduce", 1)]
    assert job.left_out == {"broadcast of rank 2, which is not in group 1": 1}


def test_group_of_ranks_outside_of_the_job_is_skipped(tmp_path):
    groups = {"0": "[0, 1]", "1": "[7, 8]"}
    job = loaded(tmp_path, *[dump(entry(1), entry(1, group="1"), groups=groups)] * 2)

    assert made(job, 0) == made(job, 1) == [("all_reduce", 1)]
    assert sum(job.left_out.values()) == 2


def test_rank_with_an_empty_recorder_skips_calls_that_others_ended(tmp_path):
    groups = {"0": "[0, 1, 2]", "1": "[0, 1]"}
    whole = dump(*(entry(seq) for seq in range(1, 4)), entry(1, group="1"), groups=groups)
    job = loaded(tmp_path, whole, whole, dump(groups=groups))

    assert made(job, 0) == [("all_reduce", 1)]
    assert job.left_out == {"calls of the default group, which not all its ranks have kept": 6}


@pytest.mark.fuzz
def test_dump_that_claims_very_many_ranks_is_read_in_seconds(tmp_path):
    calls = [entry(seq) for seq in range(1, 2001)]
    job = loaded(tmp_path, dump(*calls, groups={"0": list(range(100_000)), "1": "[0, 999999]"}))

    assert len(job.ranks) == 100_000
    assert job.left_out == {"calls before the last 2 of each rank": 1998}


def test_groups_with_waiting_ranks_are_kept_if_there_are_very_many(tmp_path):
    names = [str(number) for number in range(300)]
    calls = [entry(1, group=name, retired=name != "299") for name in names]
    job = loaded(tmp_path, *[dump(*calls, groups=dict.fromkeys(names, "[0, 1]"))] * 2)

    assert len(job.ranks[0]) == len(job.ranks[1]) == 256
    assert job.ranks[0][-1].is_open
    assert job.left_out == {"calls of all groups but 256": 88}


def test_traces_that_begin_at_different_calls_are_refused(tmp_path):
    """All calls of a trace have ended, so the ranks met."""
    calls = [
        TraceCall(kind=kind, begin_us=at, end_us=at + 1, size_bytes=4096, dtype="float", ranks=2, group="0")
        for at, kind in enumerate(("broadcast", "all_reduce", "all_gather"))
    ]
    facts = [TraceFact(file=f"{rank}", rank=rank, world_size=2, calls=tuple(calls[rank:])) for rank in (0, 1)]
    readings = tuple(collected("trace", fact) for fact in facts)
    path = tmp_path / "recording.json"
    path.write_text(Recording(run_id="1", options=Options(command="trace"), readings=readings).as_json())

    with pytest.raises(UsageError, match="do not start at the same collective"):
        load_job_collectives(str(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"epoch 1\n", "has no collective to replay; expected dumps"),
        (b"", "has no collective to replay"),
        (as_json({"verdict": "healthy", "exit_code": 0, "findings": []}), "ddp-doctor trace PATH --record FILE"),
        (as_pickle(DUMPS["missing"][0])[:-40], "has no collective to replay (the file is truncated)"),
        (as_json({"pg_config": {"0": {"ranks": "[0]"}}, "entries": []}), "no rank's flight recorder contains one"),
        (as_json(dump(entry(1, "send 0->1", is_p2p=True))), "no collective in it was recorded by all ranks of a group"),
    ],
    ids=["text", "empty", "report", "cut-off", "no-entries", "transfers-alone"],
)
def test_input_without_collectives_is_refused(tmp_path, content, says):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)

    with pytest.raises(UsageError) as refused:
        load_job_collectives(str(path))

    assert says in str(refused.value)


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        load_job_collectives(str(tmp_path / "nowhere"))


def test_ranks_of_two_jobs_are_refused(tmp_path):
    for job in ("a", "b"):
        for rank in (0, 1):
            (tmp_path / job).mkdir(exist_ok=True)
            (tmp_path / job / f"rank{rank}.json").write_bytes(as_json(dump(entry(1))))

    with pytest.raises(UsageError, match="has ranks of 2 jobs; give the files of only one job"):
        load_job_collectives(str(tmp_path))


def test_dumps_without_ranks_in_their_names_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(as_json(dump(entry(1))))

    with pytest.raises(UsageError, match="do not show the rank; name the files rank0"):
        load_job_collectives(str(tmp_path))


def test_half_overwritten_coalesced_calls_do_not_differ(tmp_path):
    whole = dump(entry(1), entry(2), entry(2), entry(3))
    job = loaded(tmp_path, whole, dump(entry(2), entry(3), first=2))

    assert made(job, 0) == made(job, 1) == [("all_reduce", 3)]


def test_reproducer_keeps_open_calls_and_does_not_run_text_as_code(tmp_path):
    call = JobCall(group=0, seq=1, op="all_reduce", elements=4)
    calls = tuple(call.model_copy(update={"seq": seq, "is_open": seq == 2}) for seq in range(1, 21))
    job = JobCollectives.model_validate(
        {
            "path": "dumps",
            "source": "the dumps",
            "ranks": [calls, calls],
            "groups": [{"words": "group 1 (x)\nimport os\r\nos.abort()", "ranks": [0, 1]}],
            "says": 'it hangs """\nraise SystemExit(1)\n"""\\',
        }
    )
    recording = Recording(options=Options(replay=job), world=World(world_size=2))
    text = render(None, recording)  # type: ignore[arg-type]  # of the report nothing is read

    names = compile(text, "reproducer.py", "exec").co_names
    assert "abort" not in names
    assert "SystemExit" not in names
    assert "(0, 2, 'all_reduce'" in text
    assert "(0, 1, 'all_reduce'" not in text


def test_dumps_survive_a_round_trip_through_a_recording(tmp_path):
    job = loaded(tmp_path, dump(entry(1)), dump(entry(1)))

    assert Options.model_validate(json.loads(Options(replay=job).model_dump_json())).replay == job
