"""GPUs that make no progress over P2P, and others that do although a trial got stuck."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.topology.formats.topo_matrix import parse_matrix
from ddp_doctor.model.trial import FlightEntry, Raised, RankEvidence, Step
from ddp_doctor.views.failed_trials import find_stalls, logs_by_node, nodes_nccl_ran_on
from tests.readings import trial_of

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"
PAIR = parse_matrix((SAMPLES / "classic-two-socket.txt").read_text())
EIGHT = parse_matrix((SAMPLES / "pcie-two-sockets-eight-gpus.txt").read_text())


def channel(one: int, two: int, via: str = "P2P/CUMEM", bracket: bool = True) -> str:
    ends = f"{one}[{one}] -> {two}[{two}]" if bracket else f"{one}[1c000] -> {two}[88000]"
    return f"node:1:2 [{one}] NCCL INFO Channel 00/0 : {ends} via {via}\n"


def waiting(rank: int, peers: tuple[int, ...] = (), check: str = "allreduce", **more) -> RankEvidence:
    step = Step(check=check, name="send_recv" if peers else "all_reduce", seq=1, detail="float32 [8]", peers=peers)
    fields: dict[str, Any] = {
        "began": True,
        "check": check,
        "steps": (step,),
        "state": "R",
        "output_tail": channel(rank, rank ^ 1),
    }
    return RankEvidence(rank=rank, **(fields | more))


stuck = partial(trial_of, backend="nccl")


def test_two_ranks_in_one_all_reduce_over_p2p_stall():
    (stall,) = find_stalls({0: PAIR}, [stuck(waiting(0), waiting(1))])
    assert (stall.ranks, stall.gpus, stall.code, stall.via) == ((0, 1), ("GPU0", "GPU1"), "SYS", "P2P/CUMEM")
    assert not stall.isolated


def test_only_the_pair_isolated_by_the_p2p_check_is_reported():
    ring = [waiting(rank, output_tail=channel(rank, (rank + 1) % 8)) for rank in range(8)]
    pair = [waiting(2, (3,), "p2p"), waiting(3, (2,), "p2p"), waiting(4, (2,), "p2p")]
    alone = stuck(*pair, judged_check="p2p", ranks=tuple(range(8)))
    assert len(find_stalls({0: EIGHT}, [stuck(*ring)])) == 8
    (stall,) = find_stalls({0: EIGHT}, [stuck(*ring), alone])
    assert stall.gpus == ("GPU2", "GPU3")


def test_bus_ids_are_sufficient_with_two_gpus():
    ranks = [waiting(rank, output_tail=channel(rank, 1 - rank, bracket=False)) for rank in (0, 1)]
    assert len(find_stalls({0: PAIR}, [stuck(*ranks)])) == 1
    assert find_stalls({0: EIGHT}, [stuck(*ranks)]) == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(waiting(1, state="T"), id="stopped"),
        pytest.param(waiting(1, exit_code=-9), id="killed"),
        pytest.param(waiting(1, raised=Raised(type="ValueError", message="x")), id="raised"),
        pytest.param(waiting(1, steps=()), id="never entered"),
        pytest.param(waiting(1, began=False), id="never began"),
        pytest.param(waiting(1, node=1), id="on another node"),
        pytest.param(
            waiting(1, steps=(Step(check="allreduce", name="all_reduce", seq=2, detail="float32 [8]"),)),
            id="at another step",
        ),
        pytest.param(
            waiting(1, steps=(Step(check="allreduce", name="all_reduce", seq=1, detail="float32 [9]"),)),
            id="with another shape",
        ),
        pytest.param(waiting(1, flight=(FlightEntry(seq=1, op="broadcast"),)), id="in another call"),
    ],
)
def test_other_cause_is_not_a_p2p_stall(other: RankEvidence):
    first = waiting(0, flight=(FlightEntry(seq=1, op="all_reduce"),))
    assert find_stalls({0: PAIR}, [stuck(first, other)]) == []


@pytest.mark.parametrize(
    "changed", [{"backend": "gloo"}, {"outcome": "broken"}, {"judged_check": "buffers"}, {"outcome": "finished"}]
)
def test_other_trial_is_not_a_p2p_stall(changed: dict[str, str]):
    assert find_stalls({0: PAIR}, [stuck(waiting(0), waiting(1), **changed)]) == []


def test_p2p_that_passed_later_was_not_the_cause():
    passed = stuck(waiting(0), waiting(1), outcome="finished", checks=("p2p",))
    assert find_stalls({0: PAIR}, [stuck(waiting(0), waiting(1)), passed]) == []


def test_a_node_that_nccl_ran_on_and_its_log():
    ended = stuck(waiting(0), waiting(1), waiting(2, node=1), outcome="finished")
    assert nodes_nccl_ran_on([ended]) == {0}
    assert [one.via for one in logs_by_node([ended])[1].transports] == ["P2P/CUMEM"]


def met(rank: int, name: str = "all_reduce", **more) -> RankEvidence:
    """A rank in the first check, whose all-reduce is the first collective of a run."""
    steps = (
        Step(check="process_group", name="init_process_group", seq=1, detail="nccl", left_at=0.2),
        Step(check="process_group", name=name, seq=1, detail="float32 [1]"),
    )
    return waiting(rank, check="process_group", steps=steps, **more)


def test_first_all_reduce_of_the_run_over_p2p_stalls():
    (stall,) = find_stalls({0: PAIR}, [stuck(met(0), met(1), judged_check="process_group")])
    assert (stall.ranks, stall.via, stall.isolated) == ((0, 1), "P2P/CUMEM", False)


def test_ranks_that_have_not_met_do_not_stall_over_p2p():
    name = "init_process_group"
    assert find_stalls({0: PAIR}, [stuck(met(0, name), met(1, name), judged_check="process_group")]) == []
    assert find_stalls({0: PAIR}, [stuck(met(0), met(1, name), judged_check="process_group")]) == []


def test_rank_of_the_log_outside_of_the_trial_is_ignored():
    ranks = [waiting(rank, output_tail=channel(6, 7)) for rank in (0, 1)]
    assert find_stalls({0: EIGHT}, [stuck(*ranks)]) == []
