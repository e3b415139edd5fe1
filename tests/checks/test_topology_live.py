"""topology on a live machine: real child, real pynvml, a compiled NVML, a tree for /sys; then the rules."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ddp_doctor.checks.node.topology import CHECK, probe
from ddp_doctor.facts.node.topology import TopologyFact, TopologyHangFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import CommandResult
from ddp_doctor.model.fact import Absent, Fact, Failed, TookTooLong
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.sources.machine import LiveContext
from tests.checks.sysfs_tree import SysfsTree, nvswitch_board
from tests.fakes import FakeContext
from tests.nvml_stand_in import answer
from tests.readings import findings_of, of_nodes, replayed
from tests.waiting import LIMIT_S, limits_s

OUR_CPUS = "Cpus_allowed:\tff\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1\n"
MATRIX = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-15\t0\t\tN/A\nGPU1\tPHB\t X \t0-15\t0\t\tN/A\n"
)


class StandInContext(LiveContext):
    def child(self, name: str, *args: str) -> CommandResult:
        assert name == "nvml_topology"
        env = self.env
        more = {"NVML_STAND_IN_TOPOLOGY": env["TOPOLOGY"]}
        return answer(name, env.get("LIMIT", args[0]), env["FAULT"], *env["DEFINES"].split(), **more)


Look = Callable[..., Fact]


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path)
    tree.file("/proc/self/status", OUR_CPUS)
    return tree


@pytest.fixture
def look(tree: SysfsTree) -> Look:
    def probe_it(topology: str = "nvswitch", fault: str = "healthy", *defines: str, **more: str) -> Fact:
        env = {"FAULT": fault, "TOPOLOGY": topology, "DEFINES": " ".join(defines), "PATH": "/nowhere", **more}
        return probe(StandInContext(env, time.monotonic() + 1000, root=str(tree.root)))

    return probe_it


def wired(fact: Fact) -> TopologyFact:
    assert isinstance(fact, TopologyFact)
    assert TopologyFact.model_validate(fact.recorded()) == fact
    return fact


def recorded(*facts: Fact, **more: object) -> Recording:
    readings = of_nodes("topology", facts)
    return Recording.model_validate({"readings": readings, **more})


def judge(recording: Recording) -> list[Finding]:
    return findings_of(CHECK, replayed(recording))


# --- the matrix ----------------------------------------------------------------------------------


def test_matrix_of_eight_gpus_behind_nvswitch_equals_nvidia_smi(tree: SysfsTree, look: Look) -> None:
    nvswitch_board(tree)
    fact = wired(look())
    assert fact.gpus == tuple(f"GPU{at}" for at in range(8))
    assert {code for _, _, code in fact.gpu_pairs()} == {"NV18"}
    assert fact.nics == {f"NIC{at}": f"mlx5_{at}" for at in range(8)}
    assert [fact.links["GPU5"][f"NIC{at}"] for at in range(8)] == ["SYS"] * 4 + ["NODE", "PIX", "NODE", "NODE"]
    assert fact.links["NIC5"]["GPU5"] == "PIX"
    assert (fact.cpu_affinity["GPU7"], fact.numa_affinity["GPU7"]) == ("32-63,96-127", "1")
    assert set(fact.gpu_numa_id.values()) == {"N/A"}
    assert fact.warnings == ()


def test_values_outside_of_the_matrix_are_in_the_fact(tree: SysfsTree, look: Look) -> None:
    nvswitch_board(tree)
    fact = wired(look())
    assert fact.source == "nvml"
    assert fact.pci_links["GPU0"] == {
        **{f"GPU{at}": "NODE" for at in (1, 2, 3)},
        **{f"GPU{at}": "SYS" for at in (4, 5, 6, 7)},
    }
    assert fact.p2p["read"]["GPU0"]["GPU7"] == "OK"
    (link, *_), name = fact.nvlinks[2].links, fact.nvlinks[2].name
    assert (name, len(fact.nvlinks[2].links), fact.nvlinks[2].active()) == ("NVIDIA H100 80GB HBM3", 18, 18)
    assert (link.gb_per_s, link.remote, link.remote_bus_id) == (26.562, "switch", "0000:05:00.0")
    assert (fact.near_cpus["GPU0"], fact.allowed_cpus) == ("0-31,64-95", "0-15")
    card = fact.pci[-1]
    assert (card.name, card.kind, card.root, card.bridges) == ("eno1", "net", "pci0000:00", ("0000:00:1c.0",))


def test_two_pairs_of_gpus_by_pcie_have_no_nvlink(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look("pcie", "half_ours"))
    assert fact.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert [code for _, _, code in fact.gpu_pairs()] == ["PIX", "NODE", "NODE", "NODE", "NODE", "PIX"]
    assert fact.nvlinks == ()


def test_bridged_pairs_are_nv12_and_other_pairs_use_pcie(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look("nvl", "half_ours"))
    assert [code for _, _, code in fact.gpu_pairs()] == ["NV12", "NODE", "NODE", "NODE", "NODE", "NV12"]
    assert [gpus.active() for gpus in fact.nvlinks] == [12] * 4
    assert fact.nvlinks[0].links[-1].remote_bus_id == "0000:43:00.0"


def test_inactive_links_do_not_connect_gpus(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look("unbridged", "two"))
    assert [code for _, _, code in fact.gpu_pairs()] == ["NODE"]


def test_links_of_an_old_driver_have_no_target_but_connect_gpus(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look("nvswitch", "healthy", "OLD_DRIVER"))
    assert {code for _, _, code in fact.gpu_pairs()} == {"NV18"}
    assert fact.numa_affinity["GPU0"] == "N/A"


def test_a_gpu_in_mig_mode_has_no_links_and_its_rows_agree(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look("nvswitch", "mig"))
    assert fact.links["GPU3"]["GPU0"] == fact.links["GPU0"]["GPU3"] == "NODE"
    assert fact.links["GPU0"]["GPU1"] == "NV18"
    assert "GPU3" not in {gpu.gpu for gpu in fact.nvlinks}


def test_p2p_refused_by_the_chipset_has_the_status_of_nvidia_smi(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look("no_p2p", "half_ours"))
    assert fact.p2p["read"]["GPU0"]["GPU1"] == fact.p2p["write"]["GPU3"]["GPU0"] == "CNS"


def test_inaccessible_and_lost_gpus_are_omitted(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    assert wired(look("nvswitch", "half_ours")).gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert "GPU3" not in wired(look("nvswitch", "gpu_lost")).gpus


def test_gpus_of_the_job_are_recorded(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    assert wired(look(CUDA_VISIBLE_DEVICES="2,0")).job_gpus == ("GPU2", "GPU0")


def test_gpus_stay_and_nics_are_omitted_if_sys_is_hidden(look: Look, tree: SysfsTree) -> None:
    tree.file("/dev/nvidia0", "")
    fact = wired(look())
    assert (fact.nics, fact.warnings, fact.pci) == ({}, (), ())
    tree.nic("pci0000:00/0000:00:1c.0/0000:02:00.0", 0, "infiniband/mlx5_0")
    fact = wired(look())
    assert fact.nics == {}
    assert "GPU0, GPU1" in fact.warnings[0]


def test_gpus_without_a_numa_node_have_no_affinity(look: Look, tree: SysfsTree) -> None:
    for bus in ("1b", "43"):
        tree.plug(f"pci0000:00/0000:{bus}:00.0", -1)
    fact = wired(look("no_numa", "two"))
    assert set(fact.cpu_affinity.values()) == set(fact.numa_affinity.values()) == {"N/A"}
    assert {device.numa_node for device in fact.pci} == {-1}


# --- who is asked, and who does not answer -------------------------------------------------------


def gpu_on_the_bus(tree: SysfsTree) -> None:
    tree.plug("pci0000:00/0000:1b:00.0", 0)


def test_no_process_starts_without_a_gpu(tree: SysfsTree) -> None:
    class Untouched(LiveContext):
        def child(self, name: str, *args: str) -> CommandResult:
            raise AssertionError(name)

    context = Untouched({}, time.monotonic() + 60, root=str(tree.root))
    started = time.process_time()
    with pytest.raises(Absent, match="no NVIDIA GPU found"):
        probe(context)
    assert time.process_time() - started < 0.5


def test_hanging_nvml_is_a_fact_that_names_the_call(look: Look, tree: SysfsTree) -> None:
    gpu_on_the_bus(tree)
    for limit_s in limits_s(0.1):
        with suppress(Absent):  # it had no time to reach the driver
            fact = look("hang_ancestor", "two", LIMIT=str(limit_s))
            assert isinstance(fact, TopologyHangFact)
            assert (fact.asked, fact.call) == ("NVML", "nvmlDeviceGetTopologyCommonAncestor")
            assert fact.waited_s >= limit_s
            return
    pytest.fail("the driver was never reached")


def context_with(tree: SysfsTree, script: str) -> LiveContext:
    """The stand-in's machine with this script for nvidia-smi, and no binding for NVML."""
    folder = tree.root / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)

    class NoBinding(LiveContext):
        def child(self, name: str, *args: str) -> CommandResult:
            text = '{"error": "pynvml_missing", "call": "import pynvml", "text": "No module named pynvml"}'
            return CommandResult((name, *args), "ended", 0, text)

    env = {"PATH": f"{folder}:/usr/bin:/bin"}
    return NoBinding(env, time.monotonic() + LIMIT_S, root=str(tree.root))


def test_nvidia_smi_is_asked_if_nvml_is_not_available(tree: SysfsTree) -> None:
    gpu_on_the_bus(tree)
    (tree.root / "matrix").write_text(MATRIX)
    fact = wired(probe(context_with(tree, f'[ "$*" = "topo -m" ] && cat {tree.root}/matrix')))
    assert (fact.source, fact.gpus, fact.links["GPU0"]["GPU1"]) == ("nvidia-smi", ("GPU0", "GPU1"), "PHB")


def test_hanging_nvidia_smi_is_stopped_and_reported(tree: SysfsTree) -> None:
    gpu_on_the_bus(tree)
    context = context_with(tree, "exec sleep infinity")
    context.deadline = time.monotonic() + 0.7
    fact = probe(context)
    assert isinstance(fact, TopologyHangFact)
    assert (fact.asked, fact.call) == ("nvidia-smi", "nvidia-smi topo -m")


def test_gpu_without_an_answer_from_both_fails_with_the_message_of_nvml(look: Look, tree: SysfsTree) -> None:
    gpu_on_the_bus(tree)
    tree.file("/dev/nvidia0", "")
    with pytest.raises(Failed, match="driver_not_loaded"):
        look("nvswitch", "not_loaded")


def test_a_gpu_that_no_driver_serves_has_no_topology(look: Look, tree: SysfsTree) -> None:
    gpu_on_the_bus(tree)
    with pytest.raises(Absent, match="driver_not_loaded"):
        look("nvswitch", "not_loaded")


def test_gpus_reserved_for_virtual_machines_have_no_topology() -> None:
    device = "/sys/bus/pci/devices/0000:61:00.0"
    files = {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030200\n"}
    with pytest.raises(Absent, match="virtual machines only"):
        probe(FakeContext(files=files, links={f"{device}/driver": "../../../../bus/pci/drivers/vfio-pci"}))


def test_program_without_timely_output_took_too_long(tree: SysfsTree) -> None:
    hung = CommandResult(("nvml_topology",), "timed_out")
    with pytest.raises(TookTooLong, match="timed out without output"):
        probe(FakeContext(files={"/dev/nvidia0": ""}, children={"nvml_topology": hung}))


# --- the rules -----------------------------------------------------------------------------------


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in findings]


@pytest.mark.parametrize(
    ("topology", "fault"),
    [
        ("nvswitch", "healthy"),
        ("nvswitch", "half_ours"),
        ("nvswitch", "two"),
        ("nvswitch", "mig"),
        ("pcie", "half_ours"),
        ("nvl", "half_ours"),
        ("nvl", "two"),
        ("unbridged", "healthy"),
        ("unbridged", "two"),
        ("no_p2p", "half_ours"),
        ("no_numa", "healthy"),
    ],
)
def test_correct_machine_has_no_finding(look: Look, tree: SysfsTree, topology: str, fault: str) -> None:
    nvswitch_board(tree)
    tree.file("/proc/self/status", "Cpus_allowed_list:\t0-127\n")
    recording = recorded(look(topology, fault))
    worth_knowing = {"DD415", "DD411"} if topology == "no_p2p" else {"DD415"}
    findings = [finding for finding in judge(recording) if finding.code not in worth_knowing]
    assert findings == []
    assert all(finding.severity is Severity.INFO for finding in judge(recording))


def short_of_links(fact: TopologyFact, keep: tuple[int, ...], active: int, name: str | None = None) -> TopologyFact:
    gpus = [fact.nvlinks[at] for at in keep]
    links = tuple(link.model_copy(update={"active": link.index < active}) for link in gpus[-1].links)
    gpus[-1] = gpus[-1].model_copy(update={"links": links, "name": name or gpus[-1].name})
    return fact.model_copy(update={"nvlinks": tuple(gpus), "gpus": (), "near_cpus": {}})


@pytest.mark.parametrize(
    ("keep", "active", "expected"),
    [
        ((0, 1, 2, 3), 0, [("DD406", "warning")]),
        ((0, 1, 2, 3), 17, [("DD406", "warning")]),
        ((0, 1), 17, [("DD406", "info")]),
        ((0,), 12, []),
    ],
)
def test_confidence_in_links_that_are_down_depends_on_the_peers(
    look: Look, tree: SysfsTree, keep: tuple[int, ...], active: int, expected: list[tuple[str, str]]
) -> None:
    nvswitch_board(tree)
    fact = short_of_links(wired(look()), keep, active)
    assert told(judge(recorded(fact))) == expected


def test_crc_errors_are_a_fault_at_100_per_second(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    fact = wired(look(CUDA_VISIBLE_DEVICES="0"))
    for rate, expected in ((99.0, []), (100.0, [("DD407", "warning")])):
        gpu = fact.nvlinks[0]
        stained = gpu.links[0].model_copy(update={"errors": {"crc": 70}, "errors_per_s": {"crc": rate}})
        links = (gpu.model_copy(update={"links": (stained, *gpu.links[1:])}), *fact.nvlinks[1:])
        assert told(judge(recorded(fact.model_copy(update={"nvlinks": links})))) == expected


def test_job_gets_findings_about_its_own_gpus_only(look: Look, tree: SysfsTree) -> None:
    nvswitch_board(tree)
    near = look(CUDA_VISIBLE_DEVICES="0,1")
    far = look(CUDA_VISIBLE_DEVICES="6,7")
    some = look(CUDA_VISIBLE_DEVICES="0,7")
    assert told(judge(recorded(near))) == []
    assert told(judge(recorded(far))) == [("DD409", "warning")]
    assert told(judge(recorded(some))) == [("DD409", "info")]
    assert told(judge(recorded(far, options={"command": "prolog"}))) == []
    assert told(judge(recorded(far, options={"backend": "gloo"}))) == [("DD409", "info")]
