"""NCCL's topology files: dumps, files of providers and RCCL's, whole, broken and hostile."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.node.topology.formats.nccl_xml import find_nccl_topologies
from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError
from ddp_doctor.facts.node.topology import RocmTopologyFact, TopologyFact

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def read(text: str) -> TopologyFact:
    ((_, found),) = find_nccl_topologies(text.split("\n"))
    assert isinstance(found, TopologyFact)
    return found


DUMP = sample("nccl-dump-four-gpus.xml")


def test_a_dump_is_a_matrix_of_nvlink_and_pcie() -> None:
    matrix = read(DUMP)
    assert matrix.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert [code for _, _, code in matrix.gpu_pairs()] == ["NV18", "NV18", "NV16", "NV18", "NV16", "NV16"]
    assert matrix.nics == {"NIC0": "mlx5_0"}
    assert [matrix.links[gpu]["NIC0"] for gpu in matrix.gpus] == ["PIX", "PXB", "SYS", "SYS"]
    assert matrix.links["NIC0"]["GPU1"] == "PXB"
    assert (matrix.cpu_affinity["GPU0"], matrix.numa_affinity["GPU3"]) == ("0-31,64-95", "1")
    assert (matrix.cpu_vendor, matrix.warnings, matrix.c2c_gpus) == ("GenuineIntel", (), ())
    on_c2c = '<gpu dev="1" sm="90" rank="1" gdr="1"><c2c bw="44712" count="10"/>'
    assert read(DUMP.replace('<gpu dev="1" sm="90" rank="1" gdr="1">', on_c2c)).c2c_gpus == ("GPU1",)


def test_devices_of_a_dump_are_in_the_tree() -> None:
    devices = {device.name: device for device in read(DUMP).pci}
    assert set(devices) == {"GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "eno1"}
    assert devices["GPU1"].bridges[-2::-2] == ("0000:1b:00.0", "0000:16:00.0")  # its switches
    assert (devices["eno1"].kind, devices["eno1"].numa_node) == ("net", 0)
    assert (devices["GPU0"].link_speed, devices["GPU0"].link_width) == ("32.0 GT/s PCIe", 16)


def test_rccls_file_is_known_by_its_gpus_and_xgmi() -> None:
    ((_, found),) = find_nccl_topologies(sample("rccl-file-with-xgmi.xml").split("\n"))
    assert isinstance(found, RocmTopologyFact)
    assert found.link_type["GPU0"]["GPU1"] == found.link_type["GPU1"]["GPU0"] == "XGMI"


def test_several_hosts_in_one_file_and_several_files_are_distinguished() -> None:
    two = DUMP.replace("0x5d3c2a1908f7e6b4", "0x1", 1)
    assert [host.gpus for _, host in find_nccl_topologies(two.split("\n"))] == [("GPU0", "GPU1"), ("GPU2", "GPU3")]
    twice = list(find_nccl_topologies(f"$ cat a.xml b.xml\n{DUMP}\nand\n{DUMP}".split("\n")))
    assert [lines.start for lines, _ in twice] == [1, 1 + DUMP.count("\n") + 2]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('version="1"', 'version="3"', "line 1: version '3' of NCCL's topology file is not known"),
        ("</system>", "", "line 1: the topology file that starts here is truncated"),
        ('busid="0000:18:00.0"', "", "line 4: '' is not a PCI address"),
        ('busid="0000:18:00.0"', 'busid="$(reboot)"', "line 4: '.*' is not a PCI address"),
        ('busid="0000:18:00.0"', 'busid="0000:19:00.0"', "line 10: PCI address 0000:19:00.0 appears twice"),
        ('count="10"', 'count="-1"', "line 6: '-1' is not a link count; expected an integer from 0 to 999"),
        ('numaid="0"', 'numaid="x"', "line 2: 'x' is not a NUMA node"),
        ("</cpu>", "", "the file is not XML"),
        (
            '<system version="1">',
            '<system version="1"><!DOCTYPE a>',
            "line 1: the file has a DOCTYPE or ENTITY declaration",
        ),
    ],
)
def test_invalid_file_is_refused_with_the_line(old: str, new: str, reason: str) -> None:
    with pytest.raises(TopologyError, match=reason):
        read(DUMP.replace(old, new, 1))


def test_a_file_that_names_no_gpu_is_refused() -> None:
    bare = '<system version="1">\n<cpu numaid="0">\n<pci busid="0000:00:16.0"/>\n</cpu>\n</system>'
    with pytest.raises(TopologyError, match="line 3: the file does not show which of its PCI devices are GPUs"):
        read(bare)
    with pytest.raises(TopologyError, match="line 1: the topology file has no <cpu> tag"):
        read('<system version="1"></system>')


def test_hostile_names_are_not_used() -> None:
    matrix = read(DUMP.replace('name="mlx5_0"', 'name="mlx5_0; reboot"'))
    assert matrix.nics == {"NIC0": "NIC0"}
    assert "not a device name" in matrix.warnings[0]
    assert read(DUMP.replace("GenuineIntel", "$(reboot)")).cpu_vendor is None
    assert all(device.link_speed is None for device in read(DUMP.replace(" GT/s", "\u202e GT/s")).pci)


def test_much_junk_is_refused_quickly() -> None:
    started = time.process_time()
    with pytest.raises(TopologyError):
        read('<system version="1">' + "<pci>" * 500_000 + "</system>")
    assert list(find_nccl_topologies(["<system " * 1_000_000, "</system>"])) == []
    assert time.process_time() - started < 10


@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(DUMP)))
    to = data.draw(st.integers(at, min(len(DUMP), at + 200)))
    put = data.draw(st.text(st.sampled_from('<>/=" 0x1aé\n'), max_size=12))
    try:
        found = list(find_nccl_topologies((DUMP[:at] + put + DUMP[to:]).split("\n")))
    except TopologyError:
        return
    for _, host in found:
        assert isinstance(host, TopologyFact)
        names = set(host.links)
        assert all(set(row) == names - {name} for name, row in host.links.items())
