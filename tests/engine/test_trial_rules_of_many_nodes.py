"""What the rules over trials say where ranks are on several nodes: the right host, one finding per cause."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_doctor.checks.cluster.consistency.versions import nodes_run_different_versions
from ddp_doctor.engine.hang.rules import failed_starts, hangs, links, slowness
from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Raised, RankEvidence, Step
from ddp_doctor.ranks.rank_state import late_steps
from tests.readings import collected, only, trial_of, uneven_world


def _step(seq: int = 3, *, entered: float = 1.0, left: float | None = None, **fields: Any) -> Step:
    given: dict[str, Any] = {"check": "allreduce", "name": "all_reduce", "detail": "float32 [8]"}
    return Step(seq=seq, entered_at=entered, left_at=left, where="a.py:1", **{**given, **fields})


def _run(counts: list[int], steps: Mapping[int, Sequence[Step]], backend: str = "gloo", **fields: Any) -> Recording:
    """A trial of all ranks of these nodes; ``of`` changes the evidence of single ranks."""
    world, of = uneven_world(counts, backend), fields.pop("of", {})
    evidence = tuple(
        RankEvidence(
            rank=rank, node=world.node_of(rank), pid=100 + rank, began=True, state="S", steps=tuple(steps.get(rank, ()))
        ).model_copy(update=of.get(rank, {}))
        for rank in range(world.world_size)
    )  # fmt: skip
    return Recording(world=world, trials=(trial_of(*evidence, **{"backend": backend, **fields}),))


def _pair(one: int, other: int) -> dict[int, list[Step]]:
    return {rank: [_step(check="p2p", name="send_recv", peers=(peer,))] for rank, peer in ((one, other), (other, one))}


def _hosts(culprits: tuple[Culprit, ...]) -> set[str | None]:
    return {one.node for one in culprits}


def test_the_ranks_of_a_whole_node_that_never_enter_are_one_finding_with_its_host():
    steps = {rank: [_step()] for rank in range(16)}
    late = {rank: [_step(2, left=1.1)] for rank in range(4, 8)}

    found = only(hangs.never_entered.apply(_run([4, 4, 4, 4], steps | late)))

    assert found.title.startswith("All 4 ranks of node1 never entered all_reduce #3")
    assert found.detail.startswith("Ranks 0-3, 8-15 wait for them in check allreduce.")
    assert _hosts(found.culprits) == {"node1"}
    assert found.evidence[0].text.startswith("rank 4 (node1, pid 104): ")


def test_thousands_of_suspects_are_counted_and_a_few_shown():
    counts = [8] * 512
    steps = {rank: [_step(2 if rank % 2 else 3, left=1.1 if rank % 2 else None)] for rank in range(8 * 512)}

    found = only(hangs.never_entered.apply(_run(counts, steps)))

    assert len(found.title) < 400
    assert len(found.evidence) < 12
    assert len(found.culprits) == 2048


def test_pairs_between_two_nodes_name_the_path_between_them():
    stuck = _pair(0, 2) | _pair(1, 3)
    done = {rank: {"done": True} for rank in (4, 5)}

    found = only(links.pair.apply(_run([2, 2, 2], stuck, judged_check="p2p", of=done)))

    assert found.title.startswith("Links between node0 and node1 hang: 2 pairs of ranks")
    assert [(one.kind, one.node, one.peer_node) for one in found.culprits] == [("pair", "node0", "node1")]
    assert [one.text for one in found.evidence] == [
        "rank 0 (node0) and rank 2 (node1)",
        "rank 1 (node0) and rank 3 (node1)",
    ]


def test_pairs_that_share_a_node_and_no_rank_name_the_node():
    stuck = _pair(2, 0) | _pair(3, 4)
    done = {rank: {"done": True} for rank in (1, 5)}

    found = only(links.pair.apply(_run([2, 2, 2], stuck, judged_check="p2p", of=done)))

    assert found.title.startswith("Links between node1 and the other nodes hang")
    assert [(one.kind, one.node, one.node_rank) for one in found.culprits] == [("node", "node1", 1)]


def test_pairs_all_over_the_world_name_nobody_in_one_finding():
    stuck: dict[int, list[Step]] = {}
    for low in range(32):
        stuck |= _pair(low, 63 - low)

    found = only(links.pair.apply(_run([1] * 64, stuck, judged_check="p2p")))

    assert (found.title, found.culprits) == ("32 pairs of ranks are stuck in a transfer", ())
    assert found.evidence[-1].text == "and 24 more pairs"


def test_between_nodes_the_remedy_for_a_gpu_pair_is_not_to_disable_peer_to_peer():
    done = {"done": True}
    across, within = (
        links.pair.apply(_run([2, 2], _pair(*ends), "nccl", judged_check="p2p", of=dict.fromkeys(others, done)))
        for ends, others in (((1, 2), (0, 3)), ((0, 1), (2, 3)))
    )
    unknown = hangs.nobody_left.apply(_run([2, 2], {rank: [_step()] for rank in range(4)}, "nccl"))

    named = [[setting.name for one in only(found).remedies for setting in one.settings] for found in (across, within)]
    assert named == [[], ["NCCL_P2P_DISABLE"]]
    assert len(only(unknown).remedies) == 2


def test_different_collectives_are_grouped_by_call_and_not_told_rank_by_rank():
    steps = {rank: [_step(detail="float32 [8]" if rank < 32 else "float32 [16]")] for rank in range(64)}

    found = only(links.mismatch.apply(_run([8] * 8, steps)))

    assert found.title == (
        "Ranks call different collectives in check allreduce: ranks 0-31 called all_reduce float32 [8];"
        " ranks 32-63 called all_reduce float32 [16]"
    )


def _walk(ahead: float, late: float = 0.0) -> list[Step]:
    """Three all-reduces on a node whose clock is ``ahead``, before the second of which a rank lost time."""
    return [
        _step(seq, entered=ahead + seq + (late if seq == 2 else 0.0), left=ahead + seq + (4.01 if seq == 2 else 0))
        for seq in (1, 2, 3)
    ]  # fmt: skip


def test_a_late_rank_is_named_whatever_its_nodes_clock_says():
    steps = {0: _walk(0.0), 1: _walk(0.0), 2: _walk(60.0), 3: _walk(60.0, late=4.0), 4: _walk(0), 5: _walk(0)}

    found = only(slowness.late.apply(_run([2, 2, 2], steps, outcome="finished", judged_check=None)))

    assert found.title.startswith("Rank 3 (node1) entered all_reduce #2 of check allreduce 4.0 s after")


def test_a_node_whose_count_cannot_be_compared_is_not_late():
    steps = {rank: [_step(name="send_recv", entered=5.0 if rank < 2 else 0.0, left=6.0)] for rank in range(6)}

    assert slowness.late.apply(_run([2, 2, 2], steps, outcome="finished", judged_check=None)) == []


def test_a_rank_that_is_late_once_more_after_a_slow_link_is_late_by_its_own_time_alone():
    def steps(left: float, entered: float) -> list[Step]:
        first = _step(1, name="all_reduce", entered=0.0, left=0.1)
        wrap = _step(2, name="ddp_construct", entered=0.2, left=left)
        return [first, wrap, _step(3, name="forward", entered=entered, left=entered + 0.1)]

    seen = {0: steps(0.3, 0.4), 1: steps(0.3, 0.4), 2: steps(3.3, 6.4)}
    run = _with_late_steps_only(_run([3], seen, outcome="finished", judged_check=None))

    assert " 3.0 s after the other ranks" in only(slowness.late.apply(run)).title


def _with_late_steps_only(run: Recording) -> Recording:
    trials = (one.model_copy(update={"evidence": tuple(late_steps(one.evidence))}) for one in run.trials)
    return run.model_copy(update={"trials": tuple(trials)})


def test_late_ranks_on_many_nodes_are_one_finding():
    steps = {rank: _walk(0.0, late=4.0 if rank % 8 == 0 else 0.0) for rank in range(512)}

    found = only(slowness.late.apply(_run([8] * 64, steps, outcome="finished", judged_check=None)))

    assert len(found.culprits) == 64
    assert len(found.title) < 300


def test_the_path_between_the_hosts_of_a_stuck_pair_can_be_pasted():
    done = {rank: {"done": True} for rank in (0, 3)}

    found = only(links.pair.apply(_run([2, 2], _pair(1, 2), judged_check="p2p", of=done)))

    assert found.remedies[0].commands[-1] == "tracepath node1   # on node0"


def _refusing(message: str, *nccl: str) -> Recording:
    raised = Raised(type="DistBackendError", message=message, where="worker.py:9")
    steps = (_step(1, check="process_group", name="all_reduce"),)
    of = {rank: {"raised": raised, "steps": steps} for rank in range(len(nccl))}
    facts = [
        (check, node, fact)
        for node, version in enumerate(nccl)
        for check, fact in (
            ("consistency", ConsistencyFact(tool_version="0.1.0")),
            ("software", NCCL_BUILD.model_copy(update={"nccl_loaded": version})),
        )
    ]
    readings = tuple(collected(check, fact, node) for check, node, fact in facts)
    run = _run([1] * len(nccl), {}, "nccl", outcome="broken", judged_check="process_group", of=of)
    return run.model_copy(update={"readings": readings})


NCCL_BUILD = Software(python="3.11.7", machine="x86_64", torch_version="2.9.1+cu128", torch_cuda="12.8")
OTHER_VERSION = (
    "NCCL error in: NCCLUtils.cpp:77\nLast error:\n"
    "Mismatched NCCL version detected : rank 0 version 22705 rank 2 version 22703"
)


def test_another_nccl_version_is_one_finding_the_one_that_names_the_node():
    recording = _refusing(OTHER_VERSION, "2.27.5", "2.27.5", "2.27.3")

    assert failed_starts.everywhere.apply(recording) == []
    assert only(nodes_run_different_versions.apply(recording)).title.startswith("node2 runs NCCL 2.27.3")


def test_another_nccl_version_that_no_node_told_is_said_in_the_words_of_nccl():
    found = only(failed_starts.everywhere.apply(_refusing(OTHER_VERSION, "2.27.5", "2.27.5")))

    assert found.title.startswith("The nccl process group cannot start: Mismatched NCCL version detected")
    assert (found.remedies[0].summary, found.remedies[0].commands) == (
        "Start all nodes from the same image, module or virtual environment",
        (),
    )
