"""Counts of NCCL's RAS in two answers, which show whether ranks make progress; the first is NCCL 2.27.5's own text."""

import json
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.facts import Launched
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.features.jobs.reading.ras import stand_still

HEAD = """
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH
    1         1         1         2         2         2   RUNNING  MISMATCH
Errors
======

#0-0 (f0deda4f124521e4) MISMATCH
"""
OF_RANK_1 = " -- GPU 1 managed by process 23375 on node 192.0.2.2"
BROADCAST = f"""  Communicator ranks have different Broadcast operation counts
  3 ranks have not launched any operations
  Rank 1 has launched up to operation 1{OF_RANK_1}

"""
BEHIND = f"""  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 5
  Rank 1 has launched up to operation 4{OF_RANK_1}
"""
LISTED = f"""  Communicator ranks have different AllReduce operation counts
  5 ranks have launched up to operation 5
  2 ranks have launched up to operation 4
  Rank 1{OF_RANK_1}
  Rank 2{OF_RANK_1}
"""
OF_A_PART = f"#1-0 (a0deda4f124521e4) MISMATCH\n{BEHIND}"
ONE_MORE = Launched(operation="Broadcast", by_rank=((1, 1),), others=0)
ONE_FEWER = Launched(operation="AllReduce", by_rank=((1, 4),), others=5)


@pytest.mark.parametrize(
    ("first", "last", "still"),
    [
        pytest.param(HEAD + BROADCAST + BEHIND, HEAD + BROADCAST + BEHIND, (ONE_MORE, ONE_FEWER), id="stalled"),
        pytest.param(HEAD + BEHIND, HEAD + BEHIND.replace("5", "9").replace("n 4", "n 8"), (), id="makes progress"),
        pytest.param(HEAD + BROADCAST + BEHIND, HEAD + BROADCAST, (), id="has caught up"),
        pytest.param(HEAD + BEHIND, "", (), id="answered once"),
        pytest.param(HEAD + LISTED, HEAD + LISTED,
                     (Launched(operation="AllReduce", by_rank=((1, 4), (2, 4)), others=5),), id="several behind"),
        pytest.param(*[HEAD + BEHIND.replace("AllReduce", "Send")] * 2, (), id="point-to-point"),
        pytest.param(*[HEAD + OF_A_PART] * 2, (), id="a subgroup with its own rank numbers"),
    ],
)  # fmt: skip
def test_unequal_counts_that_do_not_change_between_answers_are_kept(first, last, still):
    assert stand_still(first, last) == still


TABLE = """Job summary
===========

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH
    1         2         1         4         4         8   RUNNING  MISMATCH

"""
DIFFERENT = "#{}-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different {}\n"
COUNTS = DIFFERENT.format(0, "AllReduce operation counts")
OF_RANK = " -- GPU 0 managed by process 81000 on node n1"
SEVEN_BEHIND = f"{COUNTS}  7 ranks have launched up to operation 8\n  Rank 0 has launched up to operation 9{OF_RANK}\n"
HALF_BEHIND = f"{COUNTS}  4 ranks have launched up to operation 9\n  4 ranks have launched up to operation 8\n"
TWO_BEHIND = (
    f"{COUNTS}  6 ranks have launched up to operation 9\n  2 ranks have launched up to operation 8\n"
    f"  Rank 3{OF_RANK}\n  Rank 6{OF_RANK}\n"
)
PART_BEHIND = (
    f"{DIFFERENT.format(1, 'AllReduce operation counts')}  3 ranks have launched up to operation 9\n"
    f"  Rank 3 has launched up to operation 8{OF_RANK}\n"
)
STATUS = f"{DIFFERENT.format(0, 'status')}  7 ranks have status RUNNING\n  Rank 3 has status INIT{OF_RANK}\n"
JSON = {
    "communicators": [
        {
            "size": 8,
            "missing_ranks": [],
            "ranks": [
                {
                    "rank": rank,
                    "host": "n1",
                    "pid": 9,
                    "cuda_dev": 0,
                    "collective_counts": {"AllReduce": 9 - (rank > 0)},
                }
                for rank in range(8)
            ],
        }
    ]
}
FEWER = "launched fewer collectives than other ranks: 8 of 9"


@pytest.mark.parametrize(
    ("answer", "title", "ranks"),
    [
        pytest.param(TABLE + SEVEN_BEHIND, f"7 of 8 ranks {FEWER}", [], id="one rank is ahead"),
        pytest.param(TABLE + HALF_BEHIND, f"4 of 8 ranks {FEWER}", [], id="half of the ranks are behind"),
        pytest.param(TABLE + TWO_BEHIND, f"Ranks 3, 6 {FEWER}", [3, 6], id="two ranks are behind"),
        pytest.param(
            TABLE + PART_BEHIND,
            f"Process 81000 on node n1 of communicator #1-0 {FEWER}",
            [],
            id="a smaller communicator with its own rank numbers",
        ),
        pytest.param(json.dumps(JSON), f"7 of 8 ranks {FEWER}", [], id="JSON"),
    ],
)
def test_two_equal_answers_show_a_stall_and_blame_only_a_minority(
    answer: str, title: str, ranks: list[int], tmp_path: Path
):
    (tmp_path / "one").write_text(answer)
    (tmp_path / "two").write_text(answer + "\n" + answer)
    (tmp_path / "again").write_text(answer)
    once, twice, in_two_files = (
        logs([str(tmp_path / name) for name in names]).report for names in (["one"], ["two"], ["one", "again"])
    )

    assert (once.exit_code, once.findings[0].name) == (3, "end-not-shown")
    for report in (twice, in_two_files):
        assert (report.exit_code, report.findings[0].title) == (1, title)
        assert [culprit.rank for culprit in report.findings[0].culprits] == ranks


GROUPS = {
    "communicators": [
        {
            "size": size,
            "missing_ranks": [],
            "ranks": [
                {
                    "rank": rank,
                    "host": "n1",
                    "pid": first + rank,
                    "cuda_dev": 0,
                    "collective_counts": {"AllReduce": count},
                }
                for rank, count in enumerate(counts)
            ],
        }
        for size, first, counts in ((16, 0, [9] * 16), (4, 0, [6, 6, 5, 5]), (4, 4, [6, 6, 5, 5]))
    ]
}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(json.dumps(GROUPS), id="two communicators of subgroups"),
        pytest.param(json.dumps({"communicators": GROUPS["communicators"][1:]}), id="no communicator of all ranks"),
    ],
)  # fmt: skip
def test_equal_counts_of_two_communicators_are_not_two_answers(answer: str, tmp_path: Path):
    (tmp_path / "ras.json").write_text(answer)

    report = logs([str(tmp_path / "ras.json")]).report

    assert (report.exit_code, report.findings[0].name) == (3, "end-not-shown")


def test_one_answer_with_different_status_is_not_healthy(tmp_path: Path):
    (tmp_path / "ras.txt").write_text(TABLE + STATUS)

    report = logs([str(tmp_path / "ras.txt")]).report

    assert report.exit_code == 3
    assert "different status (7 ranks have status RUNNING; Rank 3 has status INIT" in report.findings[0].title
