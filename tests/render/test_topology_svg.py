"""The picture of a topology: it is complete, nothing overlaps, and text stays text."""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.node.topology import CHECK
from ddp_doctor.checks.node.topology.formats.topo_matrix import parse_matrices, parse_matrix
from ddp_doctor.checks.node.topology.pasted import read_pasted
from ddp_doctor.facts.node.topology import TopologyMatrix
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.topology.layout import Rect, lay_out
from ddp_doctor.render.topology.picture import Picture, topology_svg
from ddp_doctor.render.topology.tree import machine_of
from tests.readings import findings_of
from tests.recordings import load

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS / "samples" / "topology"
MATRICES = sorted(path.name for path in SAMPLES.glob("*.txt") if not path.name.startswith(("nvlink-", "p2p-", "rocm-")))
SVG = "{http://www.w3.org/2000/svg}"


def read(name: str) -> TopologyMatrix:
    return parse_matrix((SAMPLES / name).read_text())


def judged(text: str) -> tuple[Finding, ...]:
    recording = Recording(readings=read_pasted(text))
    return tuple(findings_of(CHECK, recording))


def drawn(name: str) -> ET.Element:
    text = (SAMPLES / name).read_text()
    findings = judged(text)
    return ET.fromstring(topology_svg([Picture("host", matrix, findings) for matrix in parse_matrices(text)]))


def texts(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def classes(svg: ET.Element) -> list[str]:
    return [element.get("class", "") for element in svg.iter() if element.get("class")]


# --- what is on it --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRICES)
def test_every_gpu_and_nic_is_on_the_picture(name: str):
    shown = texts(drawn(name))
    for matrix in parse_matrices((SAMPLES / name).read_text()):
        assert {*matrix.gpus, *matrix.nics} <= set(shown)


def test_fully_connected_fabric_is_one_bar_instead_of_28_lines():
    svg = drawn("nvswitch-eight-gpus-raw.txt")

    assert "NVSwitch: all 8 GPUs reach each other over NV18" in texts(svg)
    short = texts(drawn("nvswitch-one-link-down.txt"))
    assert "NVSwitch: all 8 GPUs reach each other over NV17 to NV18" in short
    assert "NV17" in short
    assert len(svg.findall(f"{SVG}path")) == 0
    assert classes(svg).count("nvlink") == 8 + 1  # one per GPU, one in the legend


def test_fully_connected_gpus_without_a_switch_have_no_switch():
    matrix = read("grace-gpu-numa-ids.txt")
    links = {
        one: {two: "NV6" if two in matrix.gpus else code for two, code in row.items()} if one in matrix.gpus else row
        for one, row in matrix.links.items()
    }
    svg = ET.fromstring(topology_svg([Picture("a", matrix.model_copy(update={"links": links}))]))
    assert any(text.startswith("NVLink: all 4 GPUs") for text in texts(svg))


def test_a_mesh_is_drawn_link_by_link_the_stronger_the_wider():
    svg = drawn("driver-450-nvlink-mesh.txt")
    widths = {path.get("style") for path in svg.findall(f"{SVG}path")}
    assert len(widths) == 2


def test_switches_are_frames_and_frames_within_frames():
    svg = drawn("pcie-two-sockets-eight-gpus.txt")
    frames = [element for element in svg.findall(f"{SVG}rect") if element.get("class") in {"pix", "pxb"}]
    assert len(frames) == 4 + 2 + 2  # two of them are samples in the legend


def test_numa_nodes_are_titled_and_unknown_values_are_noted():
    assert {"NUMA node 0", "NUMA node 1"} <= set(texts(drawn("classic-two-socket.txt")))
    assert "unknown NUMA node" in texts(drawn("wsl2-blank-affinities.txt"))
    assert any("unknown host bridges" in text for text in texts(drawn("nvswitch-eight-gpus-raw.txt")))


def test_gpus_of_a_container_with_one_cpu_list_are_separated_by_their_paths():
    text = (SAMPLES / "driver-375-soc.txt").read_text()
    alike = re.sub(r"\t\d[\d,-]+$", "\t1-1", text, flags=re.MULTILINE)
    assert len(machine_of(parse_matrix(alike)).boxes) == 2


def test_finding_is_red_and_described_below():
    svg = drawn("classic-two-socket.txt")

    assert "SYS · DD402" in texts(svg)
    assert any(text.startswith("DD402 NCCL may copy directly") for text in texts(svg))
    assert "bad" in classes(svg)


def test_a_gpu_short_of_links_is_red_with_its_number():
    assert "NV17" in texts(drawn("nvswitch-one-link-down.txt"))


def test_picture_without_a_finding_has_no_red():
    svg = ET.fromstring(topology_svg([Picture("a", read("classic-two-socket.txt"))]))
    assert not any(name.startswith("bad") for name in classes(svg))


def test_several_hosts_are_one_picture_each_below_each_other():
    one, two = parse_matrices((SAMPLES / "two-hosts.txt").read_text())
    svg = ET.fromstring(topology_svg([Picture("first", one), Picture("second", two)]))

    titles = [element for element in svg.findall(f"{SVG}text") if element.text in {"first", "second"}]
    heights = [float(element.get("y", "0")) for element in titles]
    assert heights[0] < heights[1]
    assert [name for name in texts(svg) if name == "GPU0"] == ["GPU0", "GPU0"]


# --- text stays text ------------------------------------------------------------------------------

HOSTILE = "</title><script>alert(1)</script>&amp;\x00\x1b]0;x\x07\ud800\ufffe\"'"


def test_hostile_names_are_only_text():
    matrix = read("classic-two-socket.txt")
    nics = dict.fromkeys(matrix.nics, HOSTILE)
    hostile = matrix.model_copy(update={"nics": nics, "cpu_affinity": dict.fromkeys(matrix.gpus, HOSTILE)})
    text = topology_svg([Picture(HOSTILE, hostile)])

    svg = ET.fromstring(text.encode())
    assert not list(svg.iter(f"{SVG}script"))
    assert "<script" not in text


def test_picture_is_self_contained():
    text = topology_svg([Picture("a", read("classic-two-socket.txt"))]).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\(|href|@import", text)


# --- nothing stands on anything else --------------------------------------------------------------

CODES = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "NV4", "NV18"])


@st.composite
def matrices(draw: st.DrawFn) -> TopologyMatrix:
    gpus = [f"GPU{number}" for number in range(draw(st.integers(1, 20)))]
    nics = [f"NIC{number}" for number in range(draw(st.sampled_from([0, 1, 3, 9, 42])))]
    names = [*gpus, *nics]
    choice = draw(st.lists(CODES, min_size=1, max_size=7))
    seed = draw(st.integers(0, 10**6))
    pairs = {pair: choice[(seed + 7 * index) % len(choice)] for index, pair in enumerate(combinations(names, 2))}
    pairs = {pair: "SYS" if pair[1] in nics and code.startswith("NV") else code for pair, code in pairs.items()}
    links = {one: {two: pairs.get((one, two)) or pairs[two, one] for two in names if two != one} for one in names}
    numa = {gpu: draw(st.sampled_from(["0", "1", "N/A", None])) for gpu in gpus}
    return TopologyMatrix(
        gpus=tuple(gpus),
        nics={nic: nic for nic in nics},
        links=links,
        cpu_affinity=dict.fromkeys(gpus, "0-31"),
        numa_affinity=numa,
        gpu_numa_id=dict.fromkeys(gpus),
    )


def overlap(one: Rect, two: Rect) -> bool:
    return one.x < two.right and two.x < one.right and one.y < two.bottom and two.y < one.bottom


def holds(outer: Rect, inner: Rect) -> bool:
    return outer.x <= inner.x and inner.right <= outer.right and outer.y <= inner.y and inner.bottom <= outer.bottom


def check_places(matrix: TopologyMatrix) -> None:
    machine = machine_of(matrix)
    layout = lay_out(machine, matrix.nics, 0)

    assert set(layout.devices) == {*matrix.gpus, *matrix.nics}
    assert not any(overlap(one, two) for one, two in combinations(layout.devices.values(), 2))
    assert not any(overlap(one, two) for (_, one), (_, two) in combinations(layout.boxes, 2))
    for box, place in layout.boxes:
        assert all(holds(place, layout.devices[name]) for name in box.devices())
        assert place.right <= layout.right


@pytest.mark.parametrize("name", MATRICES)
def test_devices_do_not_overlap_and_are_inside_their_boxes(name: str):
    check_places(parse_matrices((SAMPLES / name).read_text())[0])


@given(matrices())
def test_devices_of_any_matrix_do_not_overlap_and_the_picture_is_well_formed(matrix: TopologyMatrix):
    check_places(matrix)
    ET.fromstring(topology_svg([Picture("host", matrix)]))


def frames_of(names: Sequence[str], matrix: TopologyMatrix) -> list[str]:
    groups = [group for box in machine_of(matrix).boxes for bridge in box.bridges for group in bridge.groups]
    return [group.code for group in groups if set(names) <= {*group.gpus, *group.nics}]


def test_devices_below_one_bridge_share_its_frame():
    assert frames_of(["NIC0", "NIC1"], read("classic-two-socket.txt")) == ["PIX"]
    assert frames_of(["GPU0", "GPU3"], read("pcie-two-sockets-eight-gpus.txt")) == ["PXB"]
    assert frames_of(["GPU0", "GPU1"], read("classic-two-socket.txt")) == []


def test_a_recorded_fault_of_p2p_is_drawn_between_its_gpus():
    text = load("topology/nvlink-without-p2p").readings[0].raw or ""
    findings = judged(text)
    svg = ET.fromstring(topology_svg([Picture("a", parse_matrix(text), findings)]))
    assert texts(svg).count("NV18 · DD410") == 2
