import pytest

from ddp_doctor.knowledge.network.path_quality import ALL_PAIRS, neighbors


@pytest.mark.parametrize("nnodes", [2, 3, 4, 7, 8, 63, 64])
def test_every_node_dials_every_other_once_up_to_64_nodes(nnodes):
    for node in range(nnodes):
        assert sorted(neighbors(node, nnodes)) == [other for other in range(nnodes) if other != node]


@pytest.mark.parametrize("nnodes", [2, 4, 8, 64])
def test_in_each_round_of_a_tournament_partners_dial_each_other(nnodes):
    rows = [neighbors(node, nnodes) for node in range(nnodes)]
    for turn in range(nnodes - 1):
        partner = [row[turn] for row in rows]
        assert all(partner[partner[node]] == node for node in range(nnodes))


@pytest.mark.parametrize("nnodes", [65, 100, 128, 129, 1000, 4096])
def test_each_node_of_a_large_run_dials_and_is_dialed_by_a_few(nnodes):
    rows = {node: neighbors(node, nnodes) for node in range(nnodes)}
    dialled = [0] * nnodes
    for node, row in rows.items():
        assert len(set(row)) == len(row) <= 2 * (nnodes - 1).bit_length()
        assert node not in row
        assert all(0 <= other < nnodes for other in row)
        for other in row:
            dialled[other] += 1
            assert node in rows[other]  # both directions of a path are tested
    assert set(dialled) == {len(rows[0])}


def test_single_node_has_no_node_to_dial():
    assert neighbors(0, 1) == []
    assert ALL_PAIRS == 64
