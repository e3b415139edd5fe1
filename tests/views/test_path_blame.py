"""The nodes and paths that are blamed for bad paths: never a healthy node, whatever is broken."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.views.path_blame import Blame, Path, blame, both_ways


def every(nodes: int) -> set[Path]:
    return {(one, other) for one in range(nodes) for other in range(nodes) if one != other}


def judge(nodes: int, bad: Collection[Path], **options: bool) -> Blame:
    return blame(bad, every(nodes) - set(bad), **options)


def inbound(nodes: int, node: int) -> set[Path]:
    return {path for path in every(nodes) if path[1] == node}


def outbound(nodes: int, node: int) -> set[Path]:
    return {path for path in every(nodes) if path[0] == node}


def test_healthy_paths_blame_no_node():
    assert judge(4, set()) == Blame()


nodes_and_one = st.integers(3, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1)))


@given(nodes_and_one)
def test_only_a_node_that_cannot_dial_or_be_dialed_is_blamed(case):
    nodes, node = case
    into, out = inbound(nodes, node), outbound(nodes, node)
    assert judge(nodes, into) == Blame(inbound=(node,))
    assert judge(nodes, out) == Blame(outbound=(node,))
    assert judge(nodes, into | out) == Blame(inbound=(node,), outbound=(node,))


@given(nodes_and_one, st.data())
def test_a_single_bad_path_is_that_path(case, data):
    nodes, node = case
    path = data.draw(st.sampled_from(sorted(outbound(nodes, node))))
    assert judge(nodes, {path}) == Blame(paths=(path,))
    assert judge(nodes, {path, path[::-1]}) == Blame(paths=tuple(sorted((path, path[::-1]))))


@given(nodes_and_one, st.data())
def test_missing_rows_blame_the_bad_node_or_its_paths(case, data):
    nodes, node = case
    rows = data.draw(st.sets(st.integers(0, nodes - 1)))
    seen = {path for path in every(nodes) if path[0] in rows}
    bad = seen & inbound(nodes, node)
    found = blame(bad, seen - bad, one_of_two=True)
    assert set(found.nodes) <= {node}
    assert all(node in path for path in found.paths)
    assert not found.everyone


@given(st.integers(3, 12))
def test_all_paths_bad_blames_all_nodes(nodes):
    assert judge(nodes, every(nodes)) == Blame(everyone=True)


def test_bad_node_next_to_a_bad_path_leaves_only_that_path():
    bad = inbound(6, 5) | {(0, 1), (1, 0)}
    assert judge(6, bad) == Blame(inbound=(5,), paths=((0, 1), (1, 0)))


def test_single_row_blames_only_its_paths():
    # node 0 reached no node, and nothing else is known: its fault or theirs?
    assert blame(outbound(4, 0), ()) == Blame(paths=((0, 1), (0, 2), (0, 3)))


def test_one_observer_among_three_blames_the_path():
    assert blame({(2, 0)}, {(0, 1), (0, 2), (2, 1)}) == Blame(paths=((2, 0),))


@pytest.mark.parametrize(
    ("bad", "one_of_two", "expected"),
    [
        ({(0, 1)}, True, Blame(inbound=(1,))),
        ({(0, 1)}, False, Blame(paths=((0, 1),))),
        ({(0, 1), (1, 0)}, True, Blame(paths=((0, 1), (1, 0)))),
    ],
)
def test_one_of_two_nodes_is_blamed_if_it_can_dial_but_not_be_dialed(bad, one_of_two, expected):
    assert judge(2, bad, one_of_two=one_of_two) == expected


def test_path_is_blamed_if_only_one_of_two_nodes_reported():
    assert blame({(0, 1)}, (), one_of_two=True) == Blame(paths=((0, 1),))


def test_pairs_without_direction_blame_a_node_on_both_sides():
    bad, good = both_ways({(0, 2), (1, 2)}), both_ways({(0, 1)})
    assert blame(bad, good).nodes == (2,)
    assert blame(bad, good).paths == ()


@given(st.integers(2, 9), st.data())
def test_every_bad_path_is_explained_without_blaming_working_nodes(nodes, data):
    bad = data.draw(st.sets(st.sampled_from(sorted(every(nodes)))))
    found = judge(nodes, bad)
    for source, target in bad:
        assert found.everyone or source in found.outbound or target in found.inbound or (source, target) in found.paths
    for node in found.nodes:
        assert any(node in path for path in bad)
