"""The parser of ``nvidia-smi topo -m``: samples of every generation, made-up matrices, and hostile text."""

import re
import time
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddp_doctor.checks.node.topology.formats.topo_matrix import TopologyError, parse_matrices, parse_matrix
from ddp_doctor.facts.node.topology import TopologyMatrix

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"
CODES = ("NV1", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS")


def sample(name: str) -> str:
    with (SAMPLES / name).open(newline="") as file:
        return file.read()


def read(name: str) -> TopologyMatrix:
    return parse_matrix(sample(name))


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        parse_matrices(text)
    return str(caught.value)


# --- samples -------------------------------------------------------------------------------------


def test_classic_two_socket_machine_is_read_cell_by_cell():
    matrix = read("classic-two-socket.txt")
    assert matrix.gpus == ("GPU0", "GPU1")
    assert matrix.nics == {"NIC0": "mlx5_2", "NIC1": "mlx5_3", "NIC2": "mlx5_bond_0"}
    assert matrix.links["GPU0"] == {"GPU1": "SYS", "NIC0": "SYS", "NIC1": "SYS", "NIC2": "NODE"}
    assert matrix.links["GPU1"] == {"GPU0": "SYS", "NIC0": "NODE", "NIC1": "NODE", "NIC2": "SYS"}
    assert matrix.links["NIC0"]["NIC1"] == "PIX"
    assert matrix.cpu_affinity == {"GPU0": "0-31,64-95", "GPU1": "32-63,96-127"}
    assert matrix.numa_affinity == {"GPU0": "0", "GPU1": "1"}
    assert matrix.gpu_numa_id == {"GPU0": "N/A", "GPU1": "N/A"}
    assert matrix.warnings == ()


def test_gpus_with_their_own_memory_have_a_numa_id():
    assert read("grace-gpu-numa-ids.txt").gpu_numa_id["GPU3"] == "26"


@pytest.mark.parametrize("name", ["log-prefixed.txt", "mail-quoted.txt"])
def test_prefixed_lines_are_read(name: str):
    matrix = read(name)
    assert matrix.links == {"GPU0": {"GPU1": "PHB"}, "GPU1": {"GPU0": "PHB"}}
    assert matrix.cpu_affinity["GPU1"] == "0-15"


def test_markdown_table_is_read():
    matrix = read("markdown-table.txt")
    assert matrix.links["GPU0"] == {"GPU1": "NODE"}
    assert matrix.numa_affinity == {"GPU0": "0", "GPU1": "0"}


# --- refusals ------------------------------------------------------------------------------------

PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-7\t0\nGPU1\tPIX\t X \t8-15\t0\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" \r\n\ufeff", "empty"),
        ("GPU prices are up 12 % in this NODE", "no matrix"),
        (sample("p2p-capabilities.txt"), "topo -p2p"),
        (PAIR.split("\n", 1)[1], "without its header"),
        (PAIR.partition("\n")[0], "no matrix row follows"),
        (PAIR.replace("\tGPU1\t", "\tGPU0\t", 1), "GPU0 appears twice in the header"),
        ("\n".join(PAIR.split("\n")[:2]), "line 2: the row of GPU1 is missing"),
        (PAIR.replace("\nGPU1", "\nTraceback: boom\nGPU1"), "the row of GPU1 is missing"),
        (PAIR + "GPU2\tPIX\tPIX\n", "the header has no column for row GPU2"),
        (PAIR.replace("GPU1\tPIX", "GPU1\tNV#"), "no number of links"),
        (PAIR.replace("GPU1\tPIX", "GPU1\tCNS"), "topo -p2p"),
        (PAIR.replace("GPU1\tPIX\t", "GPU1\t\t"), "1 link cells, but the header has 2 columns"),
        (PAIR.replace("PIX\t0-7", "NV40-7"), "line 2: the end of row GPU0 is cut or garbled, and GPU0-GPU1 is NV40"),
        (PAIR.replace("\tPIX\t0-7\t0", "\tPX"), "GPU0-GPU1 is PX there, PIX in row GPU1"),
        (PAIR.replace("PIX", "NV0"), "NV0 in row GPU0 is no link code"),
        (repr(PAIR), "escaped"),
        (PAIR.replace("\t", ","), "the text has a row of GPU names"),
        (PAIR.replace("\tGPU0", "\tG\0PU0"), "NUL"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "could not reach"),
        ("Failed to initialize NVML: Driver/library version mismatch", "different versions"),
        ("Failed to initialize NVML: Unknown Error", "NVML could not be initialized"),
        ("No devices were found", "no GPU"),
        ("bash: nvidia-smi: command not found", "not installed"),
        ("  X    = Self\n  SYS  = Connection", "only the legend"),
        ("=== ROCm System Management Interface ===\n GPU0 GPU1\nGPU0 0 72\nGPU1 72 0", "rocm-smi"),
        ('<system version="1">', "topology file of NCCL"),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0a1b)", "nvidia-smi -L; run nvidia-smi topo -m"),
        ("=====NVSMI LOG=====\nAttached GPUs : 1", "nvidia-smi -q; run nvidia-smi topo -m"),
        ("CA 'mlx5_1'\n\tCA type: MT4125\n\tPort 1:\n\t\tState: Down", "ibstat (mlx5_1 is Down)"),
        ("CA 'mlx5_1'\n\tCA type: MT4125\n\tPort 1:\n\t\tState: Active", "ibstat (no port is down)"),
        ("hca_id:\tmlx5_7\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_DOWN (1)", "ibv_devinfo (mlx5_7 is DOWN)"),
        ("Infiniband device 'ib0' port 1 status:\n\tstate:\t 1: DOWN\n", "ibstatus (ib0 is DOWN)"),
        ("link mlx5_0/1 state ACTIVE physical_state LINK_UP", "rdma link (no port is down)"),
        ("link mlx5_0/1 state DOWN physical_state DISABLED", "rdma link (mlx5_0 is DOWN)"),
        ("mlx5_0 port 1 ==> ib0 (Up)\nmlx5_1 port 1 ==> ib1 (Down)", "ibdev2netdev (mlx5_1 is Down)"),
    ],
)
def test_unknown_text_is_refused(text: str, says: str):
    assert says in refusal(text)


def test_other_output_after_the_matrix_is_ignored():
    behind = "\nGPU0 is an L4, GPU1 too.\n$ nvidia-smi topo -p2p r\n" + sample("p2p-capabilities.txt")
    assert parse_matrices(PAIR + behind) == parse_matrices(PAIR)


def test_glued_affinity_that_can_be_cut_in_one_way_only_is_read():
    assert parse_matrix(PAIR.replace("\t", "  ").replace("8-15  0", "8-150")).cpu_affinity["GPU1"] == "8-15"


# --- read in part --------------------------------------------------------------------------------


def test_truncated_matrix_keeps_its_links():
    (matrix,) = parse_matrices(sample("cut-off.txt"))
    assert matrix.links["GPU6"] == dict.fromkeys(matrix.gpus[:6], "NV18")
    assert matrix.links["NIC0"]["GPU5"] == "SYS"
    assert matrix.unknown_links() == 15
    assert matrix.warnings[0] == "15 of 66 links cannot be read from this matrix"
    assert len(list(matrix.gpu_pairs())) == 27
    assert matrix.nearest_hcas("GPU6") == ("", ())
    with pytest.raises(TopologyError, match="line 8: the row of GPU6 is cut off"):
        parse_matrix(sample("cut-off.txt"))


WIDE = PAIR.replace("\t", "  ")
PAIR_OF_4 = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t8-15\n"


@pytest.mark.parametrize(
    ("text", "link", "says"),
    [
        (PAIR.replace("8-15", "15-8"), "PIX", "line 3: the affinity cells of GPU1 cannot be told apart: 15-8  0"),
        (PAIR.replace("8-15\t0", ""), "PIX", "affinity cells of GPU1 are cut off before NUMA Affinity"),
        (WIDE.replace("8-15  0", "5-150"), "PIX", "affinity cells of GPU1 cannot be told apart: 5-150"),
        (
            PAIR.replace("0-7\t0", "0-70").replace("8-15\t0", "8-150"),
            "PIX",
            "line 2: the affinity cells of GPU0 (and of 1 more) are cut off",
        ),
        (PAIR.replace("8-15\t0", "N/A0N/A"), "PIX", "affinity cells of GPU1 cannot be told apart: N/A0  N/A"),
        (PAIR.replace("NUMA Affinity", "Power Affinity"), "PIX", "have no title that is understood"),
        (PAIR.replace("CPU Affinity\tNUMA Affinity", "CPU Aff"), "PIX", "have no title that is understood"),
        (PAIR.replace("GPU1\tPIX\t X \t8-15\t0", "GPU1\tPI"), "PIX", "line 3: the row of GPU1 is cut off"),
        (PAIR_OF_4.replace("NV4\t0-7", "NV424-47"), "NV4", "affinity cells of GPU0 cannot be told apart"),
        (PAIR_OF_4.replace("NV4", "NV18").replace("NV18\t0-7", "NV1"), "NV18", "affinity cells of GPU0 are cut off"),
    ],
)
def test_certain_links_are_read_if_the_rest_of_a_row_is_not(text: str, link: str, says: str):
    (matrix,) = parse_matrices(text)
    assert matrix.links == {"GPU0": {"GPU1": link}, "GPU1": {"GPU0": link}}
    (warning,) = matrix.warnings
    assert says in warning


def test_truncated_row_and_row_without_a_cell_are_distinguished():
    """A lost cell shifts the cells after it; contradictions with another row are refused."""
    rows = ("GPU0\t X \tNV4\tPHB\tSYS", "GPU1\tNV4\t X \tSYS\tPHB", "GPU2\tPHB\tSYS\t X \tNV4")
    text = "\n".join(("\tGPU0\tGPU1\tGPU2\tGPU3", *rows, "GPU3\tSYS\tPHB\tNV4\t X "))
    (matrix,) = parse_matrices(text)
    (cut,) = parse_matrices(text.replace("\tSYS\tPHB\n", "\tSYS\tPH\n"))
    assert cut.links == matrix.links
    assert "GPU1-GPU2 is PHB there, SYS in row GPU2" in refusal(text.replace("\tSYS\tPHB\n", "\tPHB\n"))


def test_duplicate_row_is_reported():
    text = PAIR + PAIR.split("\n")[2] + "\n"
    with_links_only = text.replace("\t0-7\t0", "").replace("\t8-15\t0", "").replace("\tCPU Affinity\tNUMA Affinity", "")
    assert parse_matrix(with_links_only).warnings == ("row GPU1 appears twice",)


# --- made-up matrices ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A matrix and the way it is printed."""

    matrix: TopologyMatrix
    text: str


#: Lists of two sockets do not overlap; truncated ends do, and are marked.
CPU_LISTS = st.sampled_from(["0-15", "16", "20-31,64-95", "32,34,36,38,40,42", "112-127,240-255", "N/A"])
NUMA_LISTS = st.sampled_from(["0", "1", "7", "0-1", "0-7", "N/A"])
GPU_NUMA_IDS = st.sampled_from(["N/A", "2", "26"])
DEVICES = st.sampled_from(["mlx5_{}", "mlx5_bond_{}", "mlx4_{}", "rocep{}s0f0", "ibp{}s0", "bnxt_re{}"])


@st.composite
def made(draw: st.DrawFn) -> Made:
    gpus = [f"GPU{number}" for number in range(draw(st.integers(1, 6)))]
    device = draw(DEVICES)
    numbered = draw(st.booleans())
    devices = [device.format(number) for number in range(draw(st.integers(0, 4)))]
    nics = {f"NIC{number}" if numbered else name: name for number, name in enumerate(devices)}
    columns = [*gpus, *nics]
    pairs = {pair: draw(st.sampled_from(CODES)) for pair in combinations(columns, 2)}
    links = {one: {two: pairs.get((one, two)) or pairs[two, one] for two in columns if two != one} for one in columns}
    width = draw(st.integers(1, 3))
    cpus = {gpu: draw(CPU_LISTS if width < 3 else st.none() | CPU_LISTS) for gpu in gpus}
    numas = {gpu: draw(NUMA_LISTS) if width > 1 else None for gpu in gpus}
    ids = {gpu: draw(GPU_NUMA_IDS) if width > 2 else None for gpu in gpus}
    matrix = TopologyMatrix(
        gpus=tuple(gpus), nics=nics, links=links, cpu_affinity=cpus, numa_affinity=numas, gpu_numa_id=ids
    )
    return Made(matrix, _printed(draw, matrix, width, numbered))


def _printed(draw: st.DrawFn, matrix: TopologyMatrix, width: int, numbered: bool) -> str:
    """Print the matrix as nvidia-smi does, then alter it as terminals, browsers and people do."""
    underline = draw(st.sampled_from([("", ""), ("\x1b[4m", "\x1b[0m"), ("\ufffd[4m", "\ufffd[0m")]))
    titles = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:width]
    lines = ["\t" + underline[0] + "\t".join([*matrix.links, *titles]) + underline[1]]
    for name, row in matrix.links.items():
        cells = [" X " if other == name else row[other] for other in matrix.links]
        lines.append("\t".join([name, *cells]) + _tail(matrix, name, width))
    rows = draw(st.permutations(lines[1:])) if draw(st.booleans()) else lines[1:]
    text = "\n".join([lines[0], *rows]) + "\n"
    if draw(st.booleans()) and max(map(len, matrix.links)) < 8:
        text = text.replace(underline[0], "").replace(underline[1], "").expandtabs(8)
    if numbered and matrix.nics:
        text += "\nNIC Legend:\n\n" + "".join(f"  {nic}: {name}\n" for nic, name in matrix.nics.items())
    before = draw(st.sampled_from(["", "\ufeff", "$ nvidia-smi topo -m\n", "GPU Topology:\n\n", "```\n"]))
    after = draw(st.sampled_from(["", "\n$ \n", "```\n", "\nGPU0 is slow\n"]))
    return (before + text + after).replace("\n", draw(st.sampled_from(["\n", "\r\n", "\r"])))


def _tail(matrix: TopologyMatrix, name: str, width: int) -> str:
    if name not in matrix.gpus:
        return ""
    numa = matrix.numa_affinity[name] or ""
    tail = "\t" + (matrix.cpu_affinity[name] or "")
    if width > 1:
        tail += ("\t\t" if numa == "N/A" else "\t") + numa
    return tail + (f"\t\t{matrix.gpu_numa_id[name]}" if width > 2 else "")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made(), st.data())
def test_any_printed_matrix_is_read_back_even_without_a_separator_per_row(one: Made, data: st.DataObject):
    assert parse_matrices(one.text) == (one.matrix,)
    _check_separator_lost_in_every_row(one, data)


def _check_separator_lost_in_every_row(one: Made, data: st.DataObject) -> None:
    columns = len(one.matrix.links)
    column = data.draw(st.integers(1, columns))
    if "\t" not in one.text or columns < 2 or column == columns or not set(one.matrix.nics) <= {"NIC0", "NIC1"}:
        return
    glued = re.sub(rf"^((?:GPU|NIC)\d(?:\t[^\t\r\n]*){{{column}}})\t", r"\1", one.text, flags=re.MULTILINE)
    assert parse_matrices(glued)[0].links == one.matrix.links


# --- bounded time --------------------------------------------------------------------------------

HEADER = "\tGPU0\tGPU1\tCPU Affinity\n"


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x9 GPU SYS\n" * 75_000, id="lines"),
        pytest.param("GPU0 " * 150_000, id="one line"),
        pytest.param("GPU0 GPU1\n" * 25_000, id="headers"),
        pytest.param("\r" * 250_000, id="carriage returns"),
        pytest.param("\x1b[" * 250_000 + "\x1b]" * 250_000, id="escapes"),
        pytest.param("<br" + "<" * 500_000, id="tags"),
        pytest.param(HEADER + "GPU0\t X \tSYS\t" + "1," * 250_000, id="list"),
        pytest.param(HEADER + "GPU0\t X \tSYS\t" + "1" * 500_000, id="number"),
        pytest.param(HEADER + "GPU0\t X \tSYS\t0-3\n" * 12_500, id="same row"),
        pytest.param("GPU0 " + " ".join(f"mlx5_{n}" for n in range(2_000)) + " CPU Affinity", id="wide"),
    ],
)
def test_huge_text_is_refused_in_bounded_time(text: str):
    started = time.process_time()  # other work on the machine does not count
    refusal(text)
    assert time.process_time() - started < 2.0  # under coverage; quadratic time would take minutes
