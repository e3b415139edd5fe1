"""The parser of ``nvidia-smi nvlink -s``."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.node.topology.formats.nvlink_table import find_nvlinks
from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError
from ddp_doctor.facts.node.topology import NvlinksFact
from ddp_doctor.parse.text import plain_lines

STATES = (Path(__file__).parents[1] / "samples" / "topology" / "nvlink-states.txt").read_text()


def read(text: str) -> list[NvlinksFact]:
    return [fact for _, fact in find_nvlinks(plain_lines(text))]


def test_active_inactive_and_missing_links_are_distinguished():
    (fact,) = read(STATES)

    assert [(gpu.gpu, gpu.name, len(gpu.links), gpu.active()) for gpu in fact.gpus] == [
        ("GPU0", "NVIDIA RTX A6000", 4, 3),
        ("GPU1", "NVIDIA RTX A6000", 4, 3),
        ("GPU2", "NVIDIA RTX A6000", 0, 0),
        ("GPU3", "NVIDIA RTX A4000", 0, 0),
    ]
    assert [link.gb_per_s for link in fact.gpus[0].links] == [14.062, 14.062, None, 14.062]
    assert fact.warnings == ()


def test_a_link_that_peers_list_and_this_gpu_does_not_is_marked():
    (fact,) = read(STATES.replace("\t Link 3: 14.062 GB/s\nGPU 1", "GPU 1"))

    assert fact.warnings == ("GPU0 does not list its link 3, so nothing is known of it",)


def test_link_below_a_title_without_uuid_is_an_error_if_others_have_uuids():
    with pytest.raises(TopologyError, match="line 4: no line that starts with `GPU N:` comes before this NVLink state"):
        read(STATES.replace("\t Link 2", "GPU 7: 45C\n\t Link 2", 1).replace("\t Link 1: 14.062 GB/s\n", "", 1))


def test_omitted_links_are_reported():
    (fact,) = read("GPU 0: NVIDIA H100\n\t Link 0: <inactive>\n\t Link 1: <inactive>\n\t ...\n")

    assert fact.warnings == ("the links of GPU0 are not all there: the text leaves some out",)


def test_two_gpus_without_links_on_a_line_each_are_both_read():
    (fact,) = read(
        "GPU 0: RTX A4000 (UUID: GPU-a) Device does not have or support Nvlink\n"
        "GPU 1: Quadro RTX 5000 (UUID: GPU-b) NVML: Unable to retrieve Nvlink information\n"
    )

    assert [gpu.gpu for gpu in fact.gpus] == ["GPU0", "GPU1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (STATES.replace("Link 1: 14.062 GB/s", "Link 1: 14.0", 1), "line 3: the state of this link of GPU0"),
        (STATES.replace("Link 1: 14.062 GB/s", "Link 1: dormant", 1), "line 3: .* cut off or not known"),
        (
            STATES.replace("RTX A6000", "RTX \u202eA6000"),
            "line 2: no line that starts with `GPU N:` comes before this NVLink state",
        ),
        (STATES.replace("Link 1: 14.062 GB/s", "Link 0: 9 GB/s", 1), "GPU0 has two different states for link 0"),
        (STATES.partition("\n")[2], "line 1: no line that starts with `GPU N:` comes before this NVLink state"),
    ],
)
def test_damaged_text_is_refused(text: str, says: str):
    with pytest.raises(TopologyError, match=says):
        read(text)


@given(st.lists(st.sampled_from([*STATES.splitlines(), "", "Link 7:", "\t Link 1: 5", "GPU 0:"]), max_size=12))
def test_any_order_of_lines_is_read_or_refused(lines: list[str]):
    try:
        found = read("\n".join(lines))
    except TopologyError:
        return
    assert all(len({gpu.gpu for gpu in fact.gpus}) == len(fact.gpus) for fact in found)
