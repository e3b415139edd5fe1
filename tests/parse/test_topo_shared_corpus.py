"""Real pasted topologies with their ground truth, if a directory of them is next to the checkout.

The project neither ships nor needs them; they show that no real output is misread.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.topology.formats.gpu_tables import find_p2p_tables, find_rocm_topologies
from ddp_doctor.checks.node.topology.formats.nccl_xml import find_nccl_topologies
from ddp_doctor.checks.node.topology.formats.nvlink_table import find_nvlinks
from ddp_doctor.checks.node.topology.formats.topo_matrix import TopologyError, parse_matrices, parse_matrix
from ddp_doctor.facts.node.topology import RocmTopologyFact, TopologyMatrix
from ddp_doctor.parse.text import plain_lines

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
REAL, NASTY = CORPUS / "topology", CORPUS / "topology-nasty"
MATRIX = "nvidia-smi topo -m"
LEAST_READ = 0.85


def entries(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "index.jsonl").exists():
        pytest.skip(f"no folder of real topologies beside the checkout ({folder})")
    with (folder / "index.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def text_of(folder: Path, entry: dict[str, Any]) -> str:
    return (folder / str(entry["file"])).read_bytes().decode("utf-8", "replace")


def read_or_none(text: str) -> tuple[TopologyMatrix, ...] | None:
    try:
        return parse_matrices(text)
    except TopologyError:
        return None


def as_expected(matrix: TopologyMatrix) -> dict[str, Any]:
    gpus = matrix.gpus
    return {
        "matrix": [["X" if one == two else matrix.links[one].get(two) for two in gpus] for one in gpus],
        "gpu_names": list(gpus),
        "nic_columns": list(matrix.nics),
        "nic_names": list(matrix.nics.values()),
        "gpu_nic": {gpu: {nic: matrix.links[gpu].get(nic) for nic in matrix.nics} for gpu in gpus},
        "cpu_affinity": list(matrix.cpu_affinity.values()),
        "numa_affinity": list(matrix.numa_affinity.values()),
        "gpu_numa_id": list(matrix.gpu_numa_id.values()),
    }


def wrong_fields(matrix: TopologyMatrix, expected: dict[str, Any]) -> list[str]:
    found = as_expected(matrix)
    return [name for name, value in expected.items() if name in found and found[name] != value]


def test_real_matrices_are_read_exactly_or_refused():
    count: Counter[str] = Counter()
    for entry in entries(REAL):
        if entry["kind"] != MATRIX:
            continue
        try:
            wrong = wrong_fields(parse_matrix(text_of(REAL, entry)), entry["expected"])
        except TopologyError as error:
            print(f"{entry['id']} refused: {error}")
            count["refused"] += 1
            continue
        assert wrong == [], f"{entry['id']} is misread"
        count["right"] += 1
    print(dict(count))
    assert count["right"] >= LEAST_READ * count.total()


def relatives(kind: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    for entry in entries(REAL):
        if entry["kind"].startswith(kind):
            yield entry, plain_lines(text_of(REAL, entry))


def square(gpus: tuple[str, ...], cells: dict[str, dict[str, str]], own: str) -> list[list[str]]:
    return [[own if one == two else cells[one][two] for two in gpus] for one in gpus]


def test_outputs_related_to_the_matrix_are_refused():
    for entry in entries(REAL):
        if entry["kind"] != MATRIX:
            with pytest.raises(TopologyError):
                parse_matrices(text_of(REAL, entry))


def test_real_tables_of_p2p_are_read_exactly():
    for entry, lines in relatives("nvidia-smi topo -p2p"):
        ((_, fact),) = find_p2p_tables(lines)
        assert square(fact.gpus, fact.statuses, "X") == entry["expected"]["matrix"], entry["id"]
        assert fact.capability in {entry["kind"].rpartition(" ")[2], None}


def test_real_states_of_nvlinks_are_read_exactly():
    for entry, lines in relatives("nvidia-smi nvlink"):
        ((_, fact),) = find_nvlinks(lines)
        expected = {f"GPU{gpu['index']}": gpu["links"] for gpu in entry["expected"]["gpus"]}
        found = {gpu.gpu: {str(link.index): link.gb_per_s for link in gpu.links} for gpu in fact.gpus}
        assert found == expected, entry["id"]


def test_real_tables_of_rocm_smi_are_read_exactly():
    for entry, lines in relatives("rocm-smi"):
        ((_, fact),) = find_rocm_topologies(lines)
        expected = entry["expected"]
        for part in ("link_type", "weight", "hops"):
            if part in expected:
                cells = square(fact.gpus, getattr(fact, part), "0")
                assert cells == [[str(cell) for cell in row] for row in expected[part]], entry["id"]
        for part in ("numa_node", "numa_affinity"):
            assert list(getattr(fact, part).values()) == expected.get(part, []), entry["id"]


def test_real_topology_files_of_nccl_are_read_exactly_or_refused():
    read = 0
    for entry, lines in relatives("NCCL topology XML"):
        expected = entry["expected"]
        if not expected["gpus"]:
            with pytest.raises(TopologyError, match="does not show which of its PCI devices are GPUs"):
                list(find_nccl_topologies(lines))
            continue
        ((_, host),) = find_nccl_topologies(lines)
        if isinstance(host, RocmTopologyFact):
            assert sorted(map(str, host.numa_node.values())) == sorted(one["numa"] for one in expected["gpus"])
            read += 1
            continue
        for kind in ("gpu", "nic"):
            found = {(one.bus_id, str(one.numa_node)) for one in host.pci if one.kind == kind}
            assert found == {(one["busid"], one["numa"]) for one in expected[f"{kind}s"]}, entry["id"]
        named = {name for name in host.nics.values() if not name.startswith("NIC")}
        assert named | {one.name for one in host.pci if one.kind == "net"} <= set(expected["nets"]), entry["id"]
        read += 1
    print(f"{read} read")


def test_hostile_inputs_are_read_exactly_or_refused():
    count: Counter[str] = Counter()
    for entry in entries(NASTY):
        if not (NASTY / str(entry["file"])).exists():
            continue
        matrices = read_or_none(text_of(NASTY, entry))
        count["refused" if matrices is None else "read"] += 1
        if matrices is None:
            assert entry["status"] != "ok", f"{entry['id']} should be read"
            continue
        assert entry["status"] != "error" or len(matrices) > 1, f"{entry['id']} should be refused"
        expected = entry["expected"] or {}
        allowed = {"nic_names"} if entry["reason"] == "suspicious_nic_name" else set()
        assert set(wrong_fields(matrices[0], expected)) <= allowed, f"{entry['id']} is misread"
        assert matrices[0].warnings or entry["status"] == "ok" or len(matrices) > 1
    print(dict(count))
