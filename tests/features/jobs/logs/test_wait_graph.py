"""The rank at fault according to the flight recorder's dumps: the culprit or none, and never a rank that only waits."""

import copy
import pickle
from collections.abc import Callable

import pytest

from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features.jobs.causes.findings import filled
from ddp_doctor.features.jobs.facts import JobLogFact, RankSeen
from ddp_doctor.parse.flight_recorder import read_dump
from tests.features.jobs.logs.dumps import DUMPS, Dump, as_json, as_pickle, facts, named, verdicts
from tests.features.jobs.logs.make_dumps import SITUATIONS

_WORLD = 4
_HOUR_NS = 3600 * 10**9


def _innocent(situation: str) -> set[int]:
    culprits = SITUATIONS[situation].culprits(_WORLD)
    return set(range(_WORLD)) - culprits if SITUATIONS[situation].cause else set(range(_WORLD))


def moved(dump: Dump, by_ns: int) -> Dump:
    """Return the same dump for a job at another time."""
    entries = [{**entry, "time_created_ns": entry["time_created_ns"] + by_ns} for entry in dump["entries"]]
    return {**dump, "entries": entries}


@pytest.mark.parametrize("situation", list(SITUATIONS))
def test_cause_and_culprits_are_found_from_json_and_from_pickles(situation: str):
    dumps = DUMPS[situation]
    pickled = [read_dump(as_pickle(dump), f"dumps/trace_rank_{rank}", None) for rank, dump in dumps.items()]
    expected = (SITUATIONS[situation].cause, SITUATIONS[situation].culprits(_WORLD))

    assert named(facts(dumps)) == expected
    assert named(pickled) == expected
    assert named([*facts(dumps), *pickled]) == expected, "both forms of each rank"


@pytest.mark.parametrize("situation", list(SITUATIONS))
def test_missing_damaged_or_old_dump_does_not_blame_a_healthy_rank(situation: str):
    dumps = DUMPS[situation]
    for rank, dump in dumps.items():
        file = f"dumps/rank{rank}.json"
        others = facts({other: dumps[other] for other in dumps if other != rank})
        for put in (
            [],
            [read_dump(b"", file, None)],
            [read_dump(as_json(dump)[:87], file, None)],
            [read_dump(as_pickle(dump)[:-87], file, None)],
            facts({rank: moved(dump, -_HOUR_NS)}),
        ):
            assert not named([*put, *others])[1] & _innocent(situation), (rank, put)


@pytest.mark.parametrize("situation", list(SITUATIONS))
def test_dumps_of_an_earlier_job_in_the_same_directory_are_ignored(situation: str):
    expected = (SITUATIONS[situation].cause, SITUATIONS[situation].culprits(_WORLD))
    earlier = [
        read_dump(as_json(moved(dump, -600 * 10**9)), f"dumps/old_trace_rank_{rank}", None)
        for rank, dump in DUMPS["crossed-groups"].items()
    ]

    assert named([*earlier, *facts(DUMPS[situation])]) == expected


def test_job_is_starting_if_most_ranks_called_no_collective():
    dumps = {rank: {**dump, "entries": [], "pg_status": {}} for rank, dump in DUMPS["missing"].items()}

    (found,) = verdicts(facts(dumps))
    assert (found.cause.name, found.confidence.value, found.culprits) == ("job-starting", "possible", ())
    assert named(facts({**DUMPS["missing"], 3: dumps[3]}))[0] != "job-starting", "one alone never came"


def test_rank_without_a_dump_is_the_likely_cause():
    dumps = DUMPS["missing"]
    others = facts({rank: dumps[rank] for rank in (0, 1, 2)})
    for put in ([], [read_dump(b"\0", "dumps/rank3.json", 1.0)], facts({3: moved(dumps[3], -_HOUR_NS)})):
        (found,) = verdicts([*others, *put])
        assert found.cause.name == "rank-unreachable"
        assert (found.who, found.confidence.value) == ("rank 3", "likely")


def test_last_group_of_gloo_is_not_mistaken_for_the_default_group():
    """torch 2.15: the only entry of pg_config has the ranks of a sub-group, on the ranks that are in it."""
    for situation, dumps in DUMPS.items():
        newer = copy.deepcopy(dumps)
        for dump in newer.values():
            if dump["pg_config"][""]["ranks"] == "[]":
                dump["pg_config"][""]["ranks"] = "[0, 1]"
        assert named(facts(newer)) == named(facts(dumps)), situation
        newer = copy.deepcopy(dumps)
        for dump in newer.values():
            dump["pg_config"][""]["ranks"] = "[0, 1]"
        assert named(facts(newer))[1] <= SITUATIONS[situation].culprits(_WORLD), situation


def test_several_ranks_without_a_dump_are_blamed_only_if_on_one_host():
    dumps = {rank: dump(entry(1, done=True), entry(2), world=8) for rank in range(5)}
    ranks = tuple(RankSeen(rank=rank, host="node0" if rank < 5 else "node1") for rank in range(8))
    scattered = tuple(RankSeen(rank=rank, host=f"node{rank % 2}") for rank in range(8))

    assert named(facts(dumps)) == ("rank-unreachable", set())
    assert named([*facts(dumps), JobLogFact(files=(), ranks=ranks)]) == ("rank-unreachable", {5, 6, 7})
    assert named([*facts(dumps), JobLogFact(files=(), ranks=scattered)]) == ("rank-unreachable", set())


def test_missing_dumps_of_most_ranks_blame_no_rank():
    (found,) = verdicts(facts({0: DUMPS["missing"][0]}))

    assert (found.cause.name, found.culprits) == ("collective-stalled", ())


def test_two_jobs_in_one_directory_are_distinguished_by_their_start_times():
    later = {rank: moved(dump, 30 * 10**9) for rank, dump in DUMPS["crossed-groups"].items()}
    for rank, dump in DUMPS["missing"].items():  # it continues while the later job begins
        dump["entries"][-1]["time_created_ns"] += 60 * 10**9 if rank != 3 else 0
    found = verdicts([*facts(DUMPS["missing"]), *facts(later, "dumps/.")])

    assert {judged.cause.name for judged in found} == {"stuck-outside-collective", "cross-group-deadlock"}


# --- what gloo does not show: dumps written by hand after torch 2.15, FlightRecorder.hpp and ProcessGroupNCCL.cpp


def entry(
    seq: int, op: str = "all_reduce", group: str = "0", *, done: bool = False, at: int = 0, **more: object
) -> Dump:
    """Return one entry as in NCCL's recorder. ``at`` counts all entries of the rank."""
    return {
        "record_id": at or seq,
        "pg_id": int(group),
        "process_group": [group, "default_pg" if group == "0" else "tp"],
        "collective_seq_id": seq,
        "profiling_name": f"nccl:{op}",
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "retired": done,
        "is_p2p": False,
        "time_created_ns": 1_800_000_000 * 10**9 + (at or seq) * 10**6,
        **more,
    }


def dump(*entries: Dump, world: int = 4, **groups: str) -> Dump:
    members = {"0": str(list(range(world))), **{name.strip("g"): ranks for name, ranks in groups.items()}}
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "", "ranks": ranks} for name, ranks in members.items()},
        "entries": list(entries),
    }


def _all(of: Callable[[int], Dump], ranks: int = 4) -> list[FlightDumpFact]:
    return facts({rank: of(rank) for rank in range(ranks)})


def test_no_rank_is_blamed_if_all_members_entered_the_collective():
    (found,) = verdicts(_all(lambda _rank: dump(entry(1, done=True), entry(2))))

    assert (found.cause.name, found.culprits, found.confidence.value) == ("collective-stalled", (), "possible")
    assert "all members have entered it" in found.detail


def test_rank_that_alone_does_not_complete_a_collective_has_a_stuck_gpu():
    def behind(rank: int) -> Dump:
        return dump(entry(1, done=True), entry(2, done=rank != 2), entry(3))

    assert named(_all(behind)) == ("gpu-stuck", {2})


def test_matched_transfers_are_not_part_of_a_deadlock():
    def pipeline(rank: int) -> Dump:
        there = entry(0, f"send {rank}->{1 - rank}", group="1", at=2, is_p2p=True)
        back = entry(0, f"recv {rank}<-{1 - rank}", group="1", at=3, is_p2p=True)
        return dump(entry(1, done=True), *([there, back] if rank < 2 else []), entry(2, at=4), g1="[0, 1]")

    assert named(_all(pipeline)) == ("collective-stalled", set())


def test_rank_that_orders_two_groups_differently_causes_the_deadlock():
    def crossed(rank: int) -> Dump:
        first, second = ("0", "1") if rank != 2 else ("1", "0")
        return dump(entry(1, group=first, at=1), entry(1, group=second, at=2), g1="[0, 1, 2, 3]")

    assert named(_all(crossed)) == ("cross-group-deadlock", {2})


def test_rank_whose_only_partner_is_in_another_group_is_not_blamed():
    def skipped(rank: int) -> Dump:
        return dump(entry(1, group="1" if rank == 0 else "0", record_id=0), g1="[0, 1]")

    assert named(_all(skipped)) == ("cross-group-deadlock", set())


def test_groups_with_one_name_and_different_members_are_kept_apart():
    def halves(rank: int) -> Dump:
        mine = "[0, 1]" if rank < 2 else "[2, 3]"
        return dump(entry(1, group="1", op="all_reduce" if rank < 2 else "broadcast", done=rank > 1), g1=mine)

    assert named(_all(halves)) == ("collective-stalled", set())


@pytest.mark.parametrize(
    ("op", "sizes", "cause"),
    [
        ("all_reduce", [[9]], "collective-mismatch"),
        ("all_reduce", [[2, 4]], "collective-stalled"),
        ("all_to_all", [[9]], "collective-stalled"),
        ("scatter", [], "collective-stalled"),
    ],
)
def test_element_counts_are_compared_only_if_they_must_be_equal(op: str, sizes: list[list[int]], cause: str):
    found = named(_all(lambda rank: dump(entry(1, op, input_sizes=sizes if rank == 1 else [[8]]))))

    assert found == (cause, {1} if cause == "collective-mismatch" else set())


def test_different_dtypes_of_two_ranks_are_a_mismatch_without_blame():
    def typed(rank: int) -> Dump:
        return dump(entry(1, input_dtypes=["Half" if rank == 1 else "Float"]), world=2)

    assert named(_all(typed, 2)) == ("collective-mismatch", set())


def test_rank_that_waits_for_a_transfer_is_not_idle():
    def pipeline(rank: int) -> Dump:
        receives = entry(1, op="recv 1<-3", at=5, is_p2p=True)
        return dump(entry(1, done=True), *([receives] if rank == 1 else [entry(2)] if rank != 3 else []))

    assert named(_all(pipeline)) == ("stuck-outside-collective", {3})


def test_overwritten_ring_buffer_does_not_make_a_rank_absent():
    def ring(rank: int) -> Dump:
        if rank == 1:  # its entries of group 1 are gone
            return dump(entry(900, done=True, at=4000), entry(901, at=4001), g1="[0, 1]")
        return dump(
            entry(900, done=True, at=4000), entry(901, at=4001), *([entry(3, group="1", at=9)] if rank == 0 else [])
        )

    assert named(_all(ring)) == ("collective-stalled", set())


def test_recent_entry_that_is_not_yet_retired_is_not_a_wait():
    dumps = {rank: dump(entry(1, profiling_name="nccl2:all_reduce")) for rank in range(4)}
    at_s = 1_800_000_000.5
    early = [read_dump(as_json(dump), f"rank{rank}.json", at_s) for rank, dump in dumps.items()]
    late = [read_dump(as_json(dump), f"rank{rank}.json", at_s + 60) for rank, dump in dumps.items()]

    assert (named(early), named(late)) == ((None, set()), ("collective-stalled", set()))


def test_dumps_of_hundreds_of_ranks_are_analyzed():
    dumps = [
        read_dump(
            pickle.dumps(dump(entry(1, done=True), *([entry(2)] if rank != 7 else []), world=300)),
            f"r/trace_rank_{rank}",
            None,
        )
        for rank in range(300)
    ]

    assert named(dumps) == ("stuck-outside-collective", {7})


def test_detail_shows_where_ranks_wait_and_the_culprits_last_call():
    dumps = DUMPS["sub-group"]
    (found,) = verdicts(
        [read_dump(as_pickle(copy.deepcopy(dump)), f"trace_rank_{rank}", None) for rank, dump in dumps.items()]
    )

    assert found.detail == (
        "Rank 0 waits in all-reduce 2 of group 1; ranks 2, 3 wait in all-reduce 3 of the default group. Rank 1 never"
        " entered and has no collective open. Rank 1 called its last collective at /home/me/train.py:31 in main."
    )


def test_title_of_mismatched_calls_shows_both_in_readable_form():
    (found,) = verdicts(facts(DUMPS["other-operation"]))

    assert filled(found.cause.title, found.values).endswith(
        "models: rank 3 called broadcast of [4] Float, rank 1 all-reduce of [4] Float"
    )


def test_next_check_does_not_ask_for_dumps_that_exist():
    (found,) = verdicts(facts(DUMPS["barrier-alone"]))

    assert "condition on the rank" in found.next_check
