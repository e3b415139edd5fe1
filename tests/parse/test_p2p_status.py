"""The parser of ``nvidia-smi topo -p2p``."""

import re

import pytest

from ddp_doctor.checks.node.topology.formats.gpu_tables import find_p2p_tables
from ddp_doctor.facts.node.topology import P2pStatusFact
from ddp_doctor.parse.text import plain_lines

LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
THREE = " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n GPU1\tOK\tX\tNS\t\n GPU2\tCNS\tNS\tX\t\n" + LEGEND


def read(text: str) -> list[P2pStatusFact]:
    return [fact for _, fact in find_p2p_tables(plain_lines(text))]


@pytest.mark.parametrize("asked", ["r", "w", "n", "a", "p", "rw"])
def test_capability_is_taken_from_the_command_above(asked: str):
    (fact,) = read(f"root@a:~# nvidia-smi topo -p2p {asked}\n{THREE}")

    assert fact.capability == asked


def test_command_of_another_table_is_not_used():
    tables = read(f"$ nvidia-smi topo -p2p r\n{THREE}\n{THREE}")

    assert [fact.capability for fact in tables] == ["r", None]


def test_pair_has_two_statuses_if_its_directions_differ():
    (fact,) = read(THREE.replace("GPU1\tOK\tX", "GPU1\tU\tX"))

    assert list(fact.pairs()) == [("GPU0", "GPU1", ("OK", "U")), ("GPU0", "GPU2", ("CNS",)), ("GPU1", "GPU2", ("NS",))]


@pytest.mark.parametrize(
    "altered",
    [
        THREE.expandtabs(8),
        THREE.replace("\n", "\r\n"),
        THREE.replace("OK\tCNS", "OKCNS"),
        "\n".join(f"INFO 10:0{n % 10} {line}" for n, line in enumerate(THREE.split("\n"))),
        "\n".join(f"> {line}" for line in THREE.split("\n")),
        re.sub(r"[ \t]+", " ", THREE),
    ],
)
def test_lossless_changes_do_not_matter(altered: str):
    assert read(altered) == read(THREE)


def test_one_gpu_is_a_table_if_its_legend_follows():
    (fact,) = read(" \tGPU0\t\n GPU0\tX\t\n" + LEGEND)

    assert fact.statuses == {"GPU0": {}}
    assert read(" \tGPU0\t\n GPU0\tX\t\n") == []
