"""The roll call's rules: what keeps a node from the endpoint, who did not come, who fell silent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.cluster.roll_call import CHECK, probe
from ddp_doctor.checks.cluster.roll_call.lost_nodes import node_fell_silent
from ddp_doctor.checks.cluster.roll_call.wording import same_host
from ddp_doctor.facts.cluster import Answer, ConnectivityFact, PeerConnectivity, Present, RollCallFact, SilenceFact
from ddp_doctor.model.choices import Confidence, Severity, Status
from ddp_doctor.model.fact import Reading, Skip
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.views.silence_causes import silent_nodes
from tests.fakes import FakeContext
from tests.readings import collected, finding_of
from tests.recordings import load

NODES = ("node0", "node1", "node2", "node3")
only = partial(finding_of, CHECK)


def recorded(name: str) -> Recording:
    return load(f"roll_call/{name}")


def reading(fact: RollCallFact | SilenceFact, node: int = 0) -> Reading:
    return collected("roll_call", fact, node)


def blamed(found: Finding) -> list[tuple[str, str | None, str | None]]:
    return [(one.kind, one.node, one.peer_node) for one in found.culprits]


# --- recorded situations --------------------------------------------------------------------------


def test_nothing_is_left_for_the_probe_itself():
    with pytest.raises(Skip, match="did not take part in the node check-in"):
        probe(FakeContext())  # type: ignore[arg-type]  # it dials nobody


# --- the way to the endpoint ----------------------------------------------------------------------


def follower(outcome: str, **fields: Any) -> RollCallFact:
    given: dict[str, Any] = {
        "role": "follower",
        "outcome": outcome,
        "endpoint_host": "node0",
        "endpoint_port": 29400,
        "endpoint_addresses": ("10.77.0.1",),
        "hostname": "node1",
        "nnodes": 2,
        "waited_s": 12.0,
    }
    return RollCallFact(**{**given, **fields})


def met_by(*facts: RollCallFact, **world: Any) -> Recording:
    shape: dict[str, Any] = {"nnodes": 2, "world_size": 2, **world}
    return Recording(world=World(**shape), readings=tuple(reading(fact, 1) for fact in facts))


def node1(**addresses: tuple[str, ...]) -> dict[str, Any]:
    return {"nodes": (Node(node_rank=1, hostname="node1", addresses=addresses),)}


def absent(found: Finding) -> list[tuple[str | None, int | None]]:
    return [(node.node, node.node_rank) for node in found.missing]


def test_a_port_that_is_held_on_a_node_alone_is_told_with_what_was_tested_instead():
    found = only(met_by(head("held", (), nnodes=1, error="Address already in use", held_by="nc (pid 7)", waited_s=0)))

    assert (found.code, blamed(found)) == ("DD514", [("node", "node0", None)])
    assert "used another port" in found.detail
    assert found.evidence[0].value is None


def test_a_node_that_takes_itself_for_the_head_is_told_why_it_waits_alone():
    fact = follower("missing", role="head", endpoint_addresses=("127.0.1.1",), missing=(1,))
    present = {"present": (Present(hostname="node1", claimed_rank=0, nnodes=2),)}

    assert only(met_by(fact.model_copy(update=present))).code == "DD519"
    itself = fact.model_copy(update={**present, "hostname": "node0.cluster"})
    assert only(met_by(itself)).code == "DD516"  # on the head the name may mean itself
    ranked = fact.model_copy(update={**present, "claimed_rank": 0})
    assert only(met_by(ranked)).code == "DD516"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"outcome": "held", "role": "head", "error": "Address already in use"}, "is in use by another program"),
        ({"outcome": "held", "role": "head", "error": "Permission denied"}, "cannot listen on port 29400: Perm"),
        (
            {"outcome": "foreign", "error": "a store without a head"},
            "Another program, or the store of another job, listens",
        ),
    ],
    ids=["unknown holder", "not allowed", "another store"],
)
def test_a_port_that_is_not_ours_is_told_apart(fields: dict[str, Any], words: str):
    found = only(met_by(follower(**fields)))

    assert found.code == "DD514"
    assert words in found.title


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("node0", "NODE0", True),
        ("node0", "node0.cluster", True),
        ("node0.a", "node0.b", False),
        ("node0", "node00", False),
    ],
)
def test_names_mean_one_host_with_and_without_their_domain(one: str, other: str, same: bool):
    assert same_host(one, other) is same


# --- who came -------------------------------------------------------------------------------------


def head(outcome: str, present: Sequence[Present], **fields: Any) -> RollCallFact:
    given: dict[str, Any] = {
        "role": "head",
        "hostname": "node0",
        "present": tuple(present),
        "nnodes": 4,
        "waited_s": 60.0,
        "command": "ddp-doctor run --nnodes 4 --rdzv-endpoint node0:29400",
    }
    return follower(outcome, **{**given, **fields})


def came(*ranks: int | None, nnodes: int = 4) -> list[Present]:
    return [Present(hostname=f"node{at}", claimed_rank=rank, nnodes=nnodes) for at, rank in enumerate(ranks)]


def test_missing_nodes_are_named_by_number_where_ranks_are_given_by_hand():
    found = only(met_by(head("missing", came(0, 1, 3), claimed_rank=0, missing=(2,))))

    assert found.title.startswith("node rank 2 did not check in (not started or cannot reach node0:29400): 3 of 4")
    assert (found.culprits, absent(found)) == ((), [(None, 2)])
    assert found.remedies[0].commands == (
        "ddp-doctor run --nnodes 4 --node-rank 2 --rdzv-endpoint node0:29400   # on node rank 2",
    )


def test_nobody_is_named_where_any_host_may_be_the_missing_one():
    found = only(met_by(head("missing", came(0, None, None), missing=(3,))))

    assert found.title == (
        "Only 3 of 4 nodes checked in within 60 s (node0, node1 and node2); the other was"
        " not started or cannot reach node0:29400"
    )
    assert (found.culprits, found.missing) == ((), ())
    assert found.remedies[0].commands == ("ddp-doctor run --nnodes 4 --rdzv-endpoint node0:29400",)


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("slurm", "scontrol show node node2"),
        ("ssh", "ssh -o BatchMode=yes node2 true"),
        ("kubernetes", "kubectl describe pod node2"),
    ],
)
def test_where_a_launcher_starts_all_nodes_nobody_is_told_to_type_on_them(launcher: str, command: str):
    hosts = ("node0", "node1", "node2.cluster", "node3") if launcher == "kubernetes" else NODES

    here = [one for one in came(0, 1, 2, 3) if one.claimed_rank != 2]
    absent = only(met_by(head("missing", here, missing=(2,)), expected_hosts=hosts, launcher=launcher))
    refused = only(met_by(follower("refused", endpoint_host="node2"), launcher=launcher))

    for found in (absent, refused):
        assert command in found.remedies[0].commands
        assert not any("ddp-doctor run" in one for one in found.remedies[0].commands)


def test_one_host_started_twice_is_told_so():
    here = [*came(0, 1), Present(hostname="node1", claimed_rank=1, nnodes=4)]

    found = only(met_by(head("duplicate", here, claimed_rank=0)))

    assert found.title == "2 starts on node1 have the same node rank 1"
    assert found.remedies[0].summary == "Start the command once on node1"


def test_node_rank_0_on_another_host_than_the_endpoint_is_misplaced():
    fact = head("misplaced", (), hostname="node1", claimed_rank=0)

    found = only(met_by(fact))

    assert found.title == "node1 has node rank 0, but the endpoint node0:29400 is another host"
    assert [(one.node, one.node_rank) for one in found.culprits] == [("node1", 0)]


# --- who fell silent ------------------------------------------------------------------------------


def company(nodes: int, *readings: Reading, **fields: Any) -> Recording:
    names = tuple(
        Node(node_rank=at, hostname=f"node{at}", addresses={"eth0": (f"10.77.0.{at + 1}",), "docker0": ("172.17.0.1",)})
        for at in range(nodes)
    )  # fmt: skip
    return Recording(world=World(nnodes=nodes, world_size=nodes, nodes=names), readings=readings, **fields)


def sees(
    observer: int, node: int, answer: Answer, heartbeat: bool = False, silent: float = 6.2, **more: Any
) -> Reading:
    fact = SilenceFact(
        node=node,
        head=node == 0,
        heartbeat=heartbeat,
        answer=answer,
        silent_s=silent if heartbeat else 0.0,
        since_s=9.0 if heartbeat and answer != "not_asked" else None,
        **more,
    )
    return reading(fact, observer)


def misses(observer: int, node: int, answer: Answer, **more: Any) -> Reading:
    return sees(observer, node, answer, heartbeat=True, **more)


def named(recording: Recording) -> list[str]:
    return [
        one.node or "" for found in node_fell_silent.apply(recording) for one in found.culprits if one.kind == "node"
    ]


def pairs(recording: Recording) -> set[tuple[str | None, str | None]]:
    return {
        (one.node, one.peer_node)
        for found in node_fell_silent.apply(recording)
        for one in found.culprits
        if one.kind == "pair"
    }


@pytest.mark.parametrize("answer", ["silent", "refused"])
def test_of_two_nodes_one_is_named_alone_by_what_its_own_kernel_answers(answer: Answer):
    recording = company(2, misses(0, 1, answer))

    assert named(recording) == ["node1"]
    assert only(recording).confidence is Confidence.LIKELY


@pytest.mark.parametrize("link", ["docker0", "veth12ab", "lo"])
def test_a_link_that_leads_to_containers_only_explains_nothing(link: str):
    assert named(company(2, misses(0, 1, "timed_out", links_down=(link,)))) == []


def test_a_node_that_others_hear_is_not_to_blame_for_an_observers_dead_link():
    recording = company(3, misses(0, 2, "unreachable", links_down=("eth0",)), sees(1, 2, "answers"))

    assert named(recording) == ["node0"]


def test_an_observer_without_a_link_is_no_second_witness():
    recording = company(3, misses(0, 2, "timed_out", links_down=("eth0",)), sees(1, 2, "timed_out"))

    assert named(recording) == []
    assert pairs(recording) == {("node1", "node2")}


def test_an_address_that_cannot_be_read_is_no_address():
    nodes = (Node(node_rank=0, hostname="node0", addresses={"eth0": ("?",)}),)
    world = World(nnodes=2, world_size=2, nodes=nodes)
    recording = Recording(world=world, readings=(misses(0, 1, "timed_out", links_down=("eth0",)),))

    assert named(recording) == []


def test_two_nodes_that_go_dark_together_are_one_finding():
    dark = [(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4)]
    recording = company(5, *(sees(one, other, "timed_out", heartbeat=one == 0) for one, other in dark))

    assert only(recording).title.startswith(
        "Contact with node3 and node4 was lost 9.0 s after all nodes had joined: node0, node1"
    )
    assert named(recording) == ["node3", "node4"]


def test_two_halves_of_a_split_network_blame_no_node():
    recording = company(
        4, misses(0, 2, "timed_out"), misses(0, 3, "timed_out"), sees(1, 2, "timed_out"), sees(1, 3, "timed_out")
    )

    assert named(recording) == []
    assert len(pairs(recording)) == 4
    assert len(node_fell_silent.apply(recording)) == 1


def test_a_survivor_that_ended_with_what_it_saw_is_not_blamed_when_the_head_is_lost():
    recording = company(
        3, misses(1, 0, "timed_out"), sees(1, 2, "refused")
    )  # node2 was quicker, and its listener is closed

    assert named(recording) == []
    assert pairs(recording) == {("node1", "node0")}


def test_a_head_whose_store_alone_died_is_named_by_two_who_miss_its_beats():
    recording = company(3, misses(1, 0, "answers"), misses(2, 0, "not_asked", silent=6.0))

    assert named(recording) == ["node0"]
    assert "no longer serves other nodes" in only(recording).title


def test_a_node_that_answers_when_asked_is_a_warning_about_the_path_of_its_beats():
    found = only(company(2, misses(0, 1, "answers")))

    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert blamed(found) == [("pair", "node0", "node1")]


def blocked_lines(observer: int, *peers: int) -> Reading:
    dialled = [PeerConnectivity(node=peer, address="10.0.0.1", port=1, outcome="timed_out") for peer in peers]
    fact = ConnectivityFact(peers=tuple(dialled)).recorded()
    return Reading(check="connectivity", status=Status.COLLECTED, node=observer, fact=fact)


def test_lines_that_never_worked_are_no_news():
    """Only the endpoint's port is open: the direct lines time out from the beginning."""
    alone = company(
        4, blocked_lines(1, 0, 2, 3), misses(1, 0, "timed_out"), sees(1, 2, "timed_out"), sees(1, 3, "timed_out")
    )  # fmt: skip

    assert named(alone) == []
    assert pairs(alone) == {("node1", "node0")}


def test_silent_nodes_are_those_named_alone_or_in_a_pair():
    assert silent_nodes(recorded("node-frozen")) == {2}
    assert silent_nodes(recorded("node-one-sided-silence")) == {1}
    assert silent_nodes(recorded("node-cut-off-from-all")) == {0, 1, 2, 3}
    assert silent_nodes(recorded("all-met")) == frozenset()


# --- one culprit, seen from everywhere ------------------------------------------------------------

MODES = ("frozen", "killed", "dark", "unplugged", "dead port")


@st.composite
def one_culprit(draw: st.DrawFn) -> tuple[int, int, Recording]:
    """The culprit, whose report this is, and what that node and those that it hears have seen."""
    nodes = draw(st.integers(3, 8))
    culprit = draw(st.integers(0, nodes - 1))
    mode = draw(st.sampled_from(MODES))
    reports = [0] if culprit else list(range(1, nodes))
    if mode in ("unplugged", "dead port"):
        reports.append(culprit)
    reporter = draw(st.sampled_from(reports))
    if reporter == culprit:
        return culprit, nodes, company(nodes, *_own_report(draw, culprit, nodes, mode == "unplugged"))
    others = [node for node in range(nodes) if node not in (culprit, reporter)]
    answers: dict[str, Answer] = {"frozen": "silent", "killed": "refused"}
    answer = answers.get(mode, "timed_out")
    return culprit, nodes, company(nodes, *_report(draw, reporter, culprit, others, answer))


def _own_report(draw: st.DrawFn, culprit: int, nodes: int, knows: bool) -> Iterable[Reading]:
    links = ("eth0",) if knows else ()
    missed = range(nodes) if culprit == 0 else [0]  # a follower hears the head alone, and dials the rest
    for node in range(nodes):
        if node != culprit:
            answer: Answer = draw(st.sampled_from(("timed_out", "unreachable")))
            yield sees(culprit, node, answer, heartbeat=node in missed, links_down=links)


def _report(draw: st.DrawFn, reporter: int, culprit: int, others: Sequence[int], answer: Answer) -> Iterable[Reading]:
    yield misses(reporter, culprit, answer)
    for node in others:
        if culprit == 0:
            yield misses(node, 0, "not_asked", silent=draw(st.floats(4.5, 9.0)))
        else:
            yield sees(node, culprit, answer)


@given(one_culprit())
def test_one_culprit_that_all_see_alike_is_the_only_one_named(case: tuple[int, int, Recording]):
    culprit, _, recording = case

    assert named(recording) == [f"node{culprit}"]
    assert pairs(recording) == set()


@given(one_culprit(), st.data())
def test_where_reports_are_missing_no_innocent_is_named_alone(case: tuple[int, int, Recording], data: st.DataObject):
    culprit, nodes, recording = case
    kept = data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes))
    readings = [one for at, one in enumerate(recording.readings) if at == 0 or kept[at]]

    fewer = recording.model_copy(update={"readings": tuple(readings)})

    assert set(named(fewer)) <= {f"node{culprit}"}
    assert all(f"node{culprit}" in pair for pair in pairs(fewer))
    assert named(fewer) or pairs(fewer)
