"""Counts of NCCL's RAS in two answers, which say whether ranks stand still; the first is NCCL 2.27.5's own text."""

import pytest

from ddp_doctor.facts.live_job import Launched
from ddp_doctor.parse.job_log.ras import stand_still

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
        pytest.param(HEAD + BROADCAST + BEHIND, HEAD + BROADCAST + BEHIND, (ONE_MORE, ONE_FEWER), id="stands"),
        pytest.param(HEAD + BEHIND, HEAD + BEHIND.replace("5", "9").replace("n 4", "n 8"), (), id="moves"),
        pytest.param(HEAD + BROADCAST + BEHIND, HEAD + BROADCAST, (), id="has caught up"),
        pytest.param(HEAD + BEHIND, "", (), id="answered once"),
        pytest.param(HEAD + LISTED, HEAD + LISTED,
                     (Launched(operation="AllReduce", by_rank=((1, 4), (2, 4)), others=5),), id="several behind"),
        pytest.param(*[HEAD + BEHIND.replace("AllReduce", "Send")] * 2, (), id="a pair's"),
        pytest.param(*[HEAD + OF_A_PART] * 2, (), id="of a part of the ranks, which numbers them anew"),
    ],
)  # fmt: skip
def test_counts_that_differ_and_are_the_same_in_both_answers_are_kept(first, last, still):
    assert stand_still(first, last) == still
