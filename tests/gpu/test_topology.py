"""topology on a real machine: NVML and /sys, compared cell by cell with the output of nvidia-smi."""

import os
import time

import pytest

from ddp_doctor.checks.node.topology import probe
from ddp_doctor.checks.node.topology.formats.topo_matrix import parse_matrix
from ddp_doctor.facts.node.topology import TopologyFact, TopologyMatrix
from ddp_doctor.model.fact import Absent
from ddp_doctor.sources.machine import LiveContext

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def live() -> TopologyFact:
    try:
        fact = probe(LiveContext(dict(os.environ), time.monotonic() + 60))
    except Absent as reason:
        pytest.skip(f"needs an NVIDIA GPU: {reason}")
    assert isinstance(fact, TopologyFact)
    return fact


@pytest.fixture(scope="module")
def printed() -> TopologyMatrix:
    answer = LiveContext(dict(os.environ), time.monotonic() + 60).run(["nvidia-smi", "topo", "-m"])
    assert answer.ok, answer.stderr
    return parse_matrix(answer.stdout)


def test_the_installed_driver_prints_a_matrix_that_is_read_whole(printed: TopologyMatrix):
    listed = LiveContext(dict(os.environ), time.monotonic() + 60).run(["nvidia-smi", "-L"])
    gpus = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    assert len(printed.gpus) == len(gpus)
    assert printed.warnings == ()


def test_nvml_is_asked_and_not_nvidia_smi(live: TopologyFact):
    assert live.source == "nvml"
    assert live.warnings == ()


def test_every_path_between_gpus_equals_nvidia_smi(live: TopologyFact, printed: TopologyMatrix):
    assert live.gpus == printed.gpus
    for one in printed.gpus:
        for two in printed.gpus:
            if one != two:
                assert live.links[one][two] == printed.links[one][two], (one, two)


def test_every_path_to_a_nic_equals_nvidia_smi(live: TopologyFact, printed: TopologyMatrix):
    columns = {name: nic for nic, name in live.nics.items()}
    for nic, name in printed.hcas().items():
        assert name in columns, f"{name} is missing"
        for gpu in printed.gpus:
            assert live.links[gpu][columns[name]] == printed.links[gpu][nic], (gpu, name)


def test_cpus_and_numa_nodes_equal_nvidia_smi(live: TopologyFact, printed: TopologyMatrix):
    for gpu in printed.gpus:
        if printed.numa_affinity[gpu] not in (None, "N/A"):
            assert live.numa_affinity[gpu] == printed.numa_affinity[gpu]
        cpus = printed.cpu_affinity[gpu]
        if cpus not in (None, "N/A", "") and live.cpu_affinity[gpu] is not None:
            assert (live.cpu_affinity[gpu] or "").startswith(cpus.rstrip(",-"))  # nvidia-smi cuts long lists
