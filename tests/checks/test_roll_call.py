"""The roll call: who is named for silent nodes, whoever reports them; recordings show the other rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.cluster.roll_call import probe
from ddp_doctor.checks.cluster.roll_call.lost_nodes import node_fell_silent
from ddp_doctor.checks.cluster.roll_call.wording import same_host
from ddp_doctor.facts.cluster import Answer, RollCallFact, SilenceFact
from ddp_doctor.model.fact import Reading, Skip
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.views.silence_causes import silent_nodes
from tests.fakes import FakeContext
from tests.readings import collected
from tests.recordings import load


def recorded(name: str) -> Recording:
    return load(f"roll_call/{name}")


def reading(fact: RollCallFact | SilenceFact, node: int = 0) -> Reading:
    return collected("roll_call", fact, node)


def test_probe_itself_has_nothing_to_do():
    with pytest.raises(Skip, match="did not take part in the node check-in"):
        probe(FakeContext())  # type: ignore[arg-type]  # it dials nobody


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("node0", "NODE0", True),
        ("node0", "node0.cluster", True),
        ("node0.a", "node0.b", False),
        ("node0", "node00", False),
    ],
)
def test_host_names_match_with_and_without_their_domain(one: str, other: str, same: bool):
    assert same_host(one, other) is same


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


def test_silent_nodes_are_nodes_reported_singly_or_in_a_pair():
    assert silent_nodes(recorded("node-frozen")) == {2}
    assert silent_nodes(recorded("node-one-sided-silence")) == {1}
    assert silent_nodes(recorded("node-cut-off-from-all")) == {0, 1, 2, 3}
    assert silent_nodes(recorded("all-met")) == frozenset()


# --- one culprit, seen from everywhere ------------------------------------------------------------

MODES = ("frozen", "killed", "dark", "unplugged", "dead port")


@st.composite
def one_culprit(draw: st.DrawFn) -> tuple[int, int, Recording]:
    """Return the culprit, the reporting node, and the readings of that node and the nodes that it hears."""
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
    missed = range(nodes) if culprit == 0 else [0]  # a follower hears only the head, and dials the others
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
def test_culprit_that_all_nodes_see_is_the_only_one_reported(case: tuple[int, int, Recording]):
    culprit, _, recording = case

    assert named(recording) == [f"node{culprit}"]
    assert pairs(recording) == set()


@given(one_culprit(), st.data())
def test_missing_reports_never_blame_a_healthy_node(case: tuple[int, int, Recording], data: st.DataObject):
    culprit, nodes, recording = case
    kept = data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes))
    readings = [one for at, one in enumerate(recording.readings) if at == 0 or kept[at]]

    fewer = recording.model_copy(update={"readings": tuple(readings)})

    assert set(named(fewer)) <= {f"node{culprit}"}
    assert all(f"node{culprit}" in pair for pair in pairs(fewer))
    assert named(fewer) or pairs(fewer)
