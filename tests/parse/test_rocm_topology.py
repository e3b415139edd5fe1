"""The parser of ``rocm-smi --showtopo`` and its parts."""

import re
from pathlib import Path

import pytest

from ddp_doctor.checks.node.topology.formats.gpu_tables import find_rocm_topologies
from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError
from ddp_doctor.facts.node.topology import RocmTopologyFact
from ddp_doctor.parse.text import plain_lines

WHOLE = (Path(__file__).parents[1] / "samples" / "topology" / "rocm-smi-showtopo.txt").read_text()
ACCESS = "===== Link accessibility between two GPUs =====\n      GPU0  GPU1\nGPU0  True  False\nGPU1  False True\n"


def read(text: str) -> list[RocmTopologyFact]:
    return [fact for _, fact in find_rocm_topologies(plain_lines(text))]


def test_tables_of_one_host_are_one_fact():
    (fact,) = read(WHOLE)

    assert fact.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert fact.link_type["GPU0"] == {"GPU1": "XGMI", "GPU2": "PCIE", "GPU3": "PCIE"}
    assert fact.weight["GPU3"]["GPU0"] == "72"
    assert fact.hops["GPU2"]["GPU3"] == "1"
    assert fact.access == {}
    assert fact.numa_node == fact.numa_affinity == {"GPU0": 0, "GPU1": 0, "GPU2": 1, "GPU3": 1}


def test_repeated_table_belongs_to_another_host():
    assert read(WHOLE + WHOLE) == read(WHOLE) * 2


def test_brackets_removed_by_an_editor_do_not_matter():
    altered = re.sub(r"GPU\[(\d)\]", r"GPU \1", WHOLE)
    assert altered != WHOLE
    assert read(altered) == read(WHOLE)


def test_access_table_without_others_is_read():
    (fact,) = read(ACCESS)

    assert fact.access == {"GPU0": {"GPU1": "False"}, "GPU1": {"GPU0": "False"}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WHOLE.replace("GPU3   PCIE         PCIE         XGMI         0", "", 1), "the row of GPU3 is missing"),
        (
            WHOLE.replace("XGMI         PCIE         PCIE", "XGMI         PCIE", 1),
            "3 cells, but the header has 4 columns",
        ),
        (WHOLE.replace("GPU1   15           0 ", "GPU1   PIX          0 ", 1), "PIX in row GPU1 is not a weight"),
        ("===== Hops between two GPUs =====\nnothing\n", "no table follows this title"),
    ],
)
def test_damaged_text_is_refused(text: str, says: str):
    with pytest.raises(TopologyError, match=says):
        read(text)
