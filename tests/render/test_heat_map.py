"""One grid for the terminal and the page: slow pairs are visible without color."""

import random
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from ddp_doctor.model.report import Measurement, Report
from ddp_doctor.render import heat_map
from tests.render.reports import report, world
from tests.render.test_html import EVIL

SVG = "{http://www.w3.org/2000/svg}"


def measured(
    ranks: int, rate: Callable[[int, int], float], hosts: int = 1, *more: Measurement, backend: str = "nccl"
) -> Report:
    pairs = [(one, other) for one in range(ranks) for other in range(ranks) if one != other and rate(one, other)]
    found = [
        Measurement(name="p2p_one_way", value=rate(*pair) * 1e9, unit="B/s", labels={"rank": pair[0], "peer": pair[1]})
        for pair in pairs
    ]
    on = world(*(f"node{number}" for number in range(hosts))).model_copy(
        update={"nproc_per_node": ranks // hosts, "world_size": ranks, "backend": backend}
    )
    return report(on=on).model_copy(update={"measurements": (*found, *more)})


def grid(of: Report, width: int | None = None) -> list[str]:
    (heat,) = heat_map.heat_maps(of)
    return heat_map.lines(heat, width)


def test_a_rank_that_receives_slowly_is_a_column_of_marks():
    assert grid(measured(3, lambda _, peer: 1.0 if peer == 2 else 12.0)) == [
        " Bandwidth from the row to the column, between ranks, GB/s:",
        "      0    1    2",
        " 0        12  1!!",
        " 1   12       1!!",
        " 2   12   12",
        " !! less than a third of the typical rate, 12 GB/s; ! less than two thirds.",
        " Slowest: rank 0 to rank 2: 1 GB/s.",
    ]


def test_unmeasured_pair_is_an_empty_cell_with_a_note():
    left = Measurement(name="p2p_not_measured", value=1, unit="pairs")
    shown = grid(measured(3, lambda one, other: 0.0 if {one, other} == {0, 1} else 12.0, 1, left))
    assert shown[2] == " 0          12"
    assert shown[-1] == " Not measured because time ran out: 1 pair."


def test_many_ranks_are_single_letters_and_usual_rows_are_omitted():
    shown = grid(measured(20, lambda one, other: 1.0 if one == 7 or (one, other) == (3, 12) else 12.0), 80)
    assert shown[1:4] == ["    01234567890123456789", " 3  ... ........#.......", " 7  ####### ############"]
    assert all(len(line) <= 80 for line in shown)


def test_a_healthy_grid_of_many_ranks_is_one_sentence():
    assert grid(measured(20, lambda *_: 12.0))[1:] == [
        " All reach at least two thirds of the typical rate, 12 GB/s.",
        " Slowest: rank 0 to rank 1: 12 GB/s.",
    ]


def test_very_many_ranks_are_shown_by_the_worst_pair_of_their_nodes():
    (heat,) = heat_map.heat_maps(measured(40, lambda one, other: 2.0 if (one, other) == (9, 30) else 12.0, 5))
    assert list(heat.labels.values()) == ["node0", "node1", "node2", "node3", "node4"]
    assert (heat.values[1, 3], heat.values[3, 1]) == (2e9, 12e9)


def test_narrow_terminal_shows_the_columns_in_blocks():
    shown = grid(measured(8, lambda *_: 12.0), 30)
    assert all(len(line) <= 30 for line in shown)
    assert sum(line.startswith(" 7") for line in shown) > 1


def test_an_older_recording_shows_its_exchanges_both_ways():
    one = Measurement(name="p2p_bandwidth", value=12e9, unit="B/s", labels={"rank": 0, "peer": 1, "bytes": 9})
    (heat,) = heat_map.heat_maps(report().model_copy(update={"measurements": (one,)}))
    assert heat.values == {(0, 1): 12e9, (1, 0): 12e9}


def test_each_pair_is_compared_with_pairs_of_its_kind():
    shown = grid(measured(4, lambda a, b: 40.0 if a // 2 != b // 2 else 50.0 if a + b == 1 else 300.0, hosts=2))
    assert shown[2:4] == [" 0        50!!    40    40", " 1  50!!          40    40"]


def test_processes_of_one_node_over_gloo_are_not_marked():
    assert grid(measured(4, lambda a, _: 0.2 if a == 3 else 2.0, backend="gloo"))[-3:] == [
        " 3  0.2  0.2  0.2",
        " Slowest: rank 3 to rank 0: 200 MB/s.",
        " Pairs within a node are not evaluated: processes of one node share cores.",
    ]


def test_shown_nodes_of_many_are_compared_with_all():
    some_slow = measured(40, lambda *ends: 6.0 if min(ends) < 10 else 20.0, 40)
    assert "# less than a third of the typical rate, 20 GB/s" in " ".join(grid(some_slow))
    assert not any(line.endswith(":") or "Shown" in line for line in grid(measured(70, lambda *_: 20.0, 70)))


def test_separate_and_concurrent_rates_of_pairs_are_one_sentence():
    rates = [
        Measurement(name=f"p2p_{name}", value=rate, unit="B/s", labels={"rank": 0, "peer": 1})
        for name, rate in (("alone", 24e9), ("together", 12e9))
    ]
    assert grid(measured(3, lambda *_: 12.0, 1, *rates))[-1] == (
        " Exchanges both ways, median: 24 GB/s alone, 12 GB/s with all pairs of a round at once."
    )


@pytest.mark.parametrize("ranks", [2, 8, 16, 17, 32])
def test_picture_has_every_cell_with_a_text_alternative(ranks: int):
    chance = random.Random(ranks)
    of = measured(ranks, lambda one, _: chance.uniform(0.5, 1.0) if one == 1 else chance.uniform(11.0, 12.0))
    (heat,) = heat_map.heat_maps(of)
    tree = ET.fromstring(heat_map.svg(heat))
    cells = [title.text or "" for title in tree.iterfind(f"{SVG}g/{SVG}title")]
    assert len(cells) == ranks * (ranks - 1)
    assert all(re.fullmatch(r"rank \d+ to rank \d+: [\d.]+ [GM]B/s", cell) for cell in cells)
    assert tree.findtext(f"{SVG}title") == "Bandwidth from the row to the column, between ranks"
    assert "Slowest: rank 1 to rank" in (tree.findtext(f"{SVG}desc") or "")
    marked = [text for text in tree.iter(f"{SVG}text") if (text.text or "").startswith("▼▼")]
    assert len(marked) >= (ranks - 1 if ranks > 2 else 0)


def test_hostile_names_are_text_in_the_picture_and_the_terminal():
    of = measured(40, lambda *_: 12.0, 2)
    hostile = of.model_copy(update={"world": world(EVIL, "node1").model_copy(update={"nproc_per_node": 20})})
    for heat in heat_map.heat_maps(hostile):
        ET.fromstring(heat_map.svg(heat))
    assert "\x1b" not in "".join(grid(hostile))
