"""GPUs that lack NVLinks: real wirings that are correct, and others that are not."""

from itertools import combinations
from pathlib import Path

import pytest

from ddp_doctor.checks.node.topology.formats.topo_matrix import parse_matrix
from ddp_doctor.checks.node.topology.nvlinks import Shortfall, shortfalls
from ddp_doctor.knowledge.topology.link_codes import nvlinks

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"
GPUS = [f"GPU{number}" for number in range(8)]


def full(gpus: list[str], links: int, **own: int) -> dict[tuple[str, str], int]:
    """Behind a switch: each pair has as many links as the poorer of both."""
    return {(a, b): min(own.get(a, links), own.get(b, links)) for a, b in combinations(gpus, 2)}


def bridges(*links: int) -> dict[tuple[str, str], int]:
    pairs = dict.fromkeys(combinations(GPUS[: 2 * len(links)], 2), 0)
    return pairs | {(GPUS[2 * n], GPUS[2 * n + 1]): count for n, count in enumerate(links)}


def test_one_gpu_behind_a_switch_is_short():
    assert shortfalls(GPUS, full(GPUS, 18, GPU3=17)) == [Shortfall(("GPU3",), 17, 18)]


def test_two_gpus_behind_a_switch_have_separate_shortfalls():
    found = shortfalls(GPUS, full(GPUS, 18, GPU3=17, GPU5=12))
    assert found == [Shortfall(("GPU3",), 17, 18), Shortfall(("GPU5",), 12, 18)]


def test_one_gpu_without_any_link_is_reported():
    pairs = full(GPUS, 18) | {pair: 0 for pair in combinations(GPUS, 2) if "GPU7" in pair}
    assert shortfalls(GPUS, pairs) == [Shortfall(("GPU7",), 0, 18)]


def test_one_bridge_of_four_is_short():
    assert shortfalls(GPUS, bridges(18, 17, 18, 18)) == [Shortfall(("GPU2", "GPU3"), 17, 18)]


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(full(GPUS, 18), id="all alike"),
        pytest.param(full(GPUS, 12, GPU0=11, GPU1=11, GPU2=11, GPU3=11), id="half and half"),
        pytest.param(full(GPUS, 0), id="none"),
        pytest.param(bridges(4, 4, 4, 4), id="bridges"),
        pytest.param(bridges(4, 4, 0, 0), id="two bridges among eight"),
        pytest.param(bridges(4, 4, 2, 2), id="bridges of two kinds"),
    ],
)
def test_correct_wirings_have_no_shortfall(pairs: dict[tuple[str, str], int]):
    assert shortfalls(GPUS, pairs) == []


def test_small_groups_are_inconclusive():
    assert shortfalls(GPUS[:3], full(GPUS[:3], 2, GPU0=1)) == []
    assert shortfalls(GPUS[:4], bridges(4, 3)) == []
    assert shortfalls(GPUS[:1], {}) == []


def test_mesh_of_single_and_double_links_has_no_shortfall_in_any_part():
    matrix = parse_matrix((SAMPLES / "driver-450-nvlink-mesh.txt").read_text())
    pairs = {(one, two): nvlinks(code) for one, two, code in matrix.gpu_pairs()}
    for size in range(2, 9):
        for gpus in combinations(matrix.gpus, size):
            assert shortfalls(gpus, {pair: pairs[pair] for pair in combinations(gpus, 2)}) == []


def test_rows_that_disagree_are_inconclusive():
    pairs = full(GPUS, 18, GPU3=17)
    del pairs["GPU0", "GPU1"]
    assert shortfalls(GPUS, pairs) == []
