"""The gpus check end to end: real child, real pynvml, a compiled NVML, a tree for /sys."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.gpus import CHECK, probe
from ddp_doctor.facts.node.gpus import Gpu, GpuProcess, GpusFact, NvmlError
from ddp_doctor.model.choices import Backend, Severity
from ddp_doctor.model.context import CommandResult
from ddp_doctor.model.fact import Absent, Failed, TookTooLong
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.nvml_stand_in import environment
from tests.nvml_stand_in.machine import BUSES, Machine, bare_machine, plug_eight
from tests.readings import findings_of, of_nodes, plain_world, replayed

GIB = 2**30


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    return bare_machine(tmp_path)


@pytest.fixture
def node(bare: Machine) -> Machine:
    return plug_eight(bare)


NO_LIBRARY = {"LD_LIBRARY_PATH": "/nowhere"}


def recorded(*facts: GpusFact, world: World | None = None, **options: Any) -> Recording:
    return Recording(world=world, options=Options(**options), readings=of_nodes("gpus", facts))


def judge(recording: Recording) -> list[Finding]:
    return findings_of(CHECK, replayed(recording))


def verdicts(recording: Recording) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in judge(recording)]


def look(machine: Machine, fault: str = "healthy", *defines: str, **more: str) -> GpusFact:
    return probe(machine.stand_in(fault, *defines, **more))


def world(nproc: int = 8, backend: str = "nccl", nodes: int = 1) -> World:
    return plain_world(nodes, nproc, backend)


# --- the probe and the rules on a whole machine ---------------------------------------------------------


def test_healthy_node_has_eight_gpus_and_no_finding(node: Machine) -> None:
    fact = look(node)
    assert [gpu.bus_id for gpu in fact.gpus] == [f"0000:{bus}:00.0" for bus in BUSES]
    assert [gpu.bus_id for gpu in fact.pci_gpus or ()] == sorted(f"0000:{bus}:00.0" for bus in BUSES)
    assert (fact.driver_version, fact.visible, fact.used) == ("550.90.07", tuple(range(8)), tuple(range(8)))
    assert verdicts(recorded(fact, world=world())) == []


def test_healthy_node_with_an_old_driver_has_no_finding(node: Machine) -> None:
    fact = look(node, "healthy", "OLD_DRIVER")
    assert fact.gpus[0].unavailable
    assert verdicts(recorded(fact, world=world())) == []


def test_the_answer_of_nvml_is_kept_as_raw_text(node: Machine) -> None:
    context = node.context(environment())
    probe(context)
    assert '"GPU-8932f930-' in (context.raw or "")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("exclusive_taken", [("DD305", "warning"), ("DD306", "warning")]),  # the holder's name is not known
        ("mig", [("DD309", "info"), ("DD311", "error")]),  # a prolog does not report on ranks
    ],
)
def test_run_reports_an_injected_fault(node: Machine, fault: str, expected: list[tuple[str, str]]) -> None:
    """tests/nvml_stand_in/fault_table.py has the findings of a prolog for all faults."""
    assert verdicts(recorded(look(node, fault), world=world())) == expected


def test_a_gpu_lost_at_once_is_named_by_its_index(node: Machine) -> None:
    finding = judge(recorded(look(node, "gpu_lost"), world=world()))[0]
    assert finding.title == "GPU 3 on node0: lost (it fell off the bus or does not respond)"


def test_memory_in_use_names_the_process(node: Machine) -> None:
    fact = probe(node.context(environment("busy", NVML_STAND_IN_PID=str(os.getpid()))))
    text = judge(recorded(fact, world=world()))[0].evidence[0].text
    assert f"12.0 of 80.0 GiB in use, by pid {os.getpid()} (" in text


def test_an_exclusive_gpu_held_by_a_named_process_is_an_error(node: Machine) -> None:
    fact = probe(node.context(environment("exclusive_taken", NVML_STAND_IN_PID=str(os.getpid()))))
    assert ("DD306", "error") in verdicts(recorded(fact, world=world()))


def test_mps_server_in_exclusive_mode_has_no_finding(node: Machine) -> None:
    fact = look(node, "exclusive_mps")
    server = GpuProcess(pid=7, kind="compute", name="nvidia-cuda-mps", memory_used_bytes=30 << 20)
    gpus = tuple(gpu.model_copy(update={"processes": (server,)}) if gpu.processes else gpu for gpu in fact.gpus)
    assert verdicts(recorded(fact.model_copy(update={"gpus": gpus}), world=world())) == []


@pytest.mark.parametrize(
    ("fault", "title"),
    [
        ("hang_init", "NVIDIA driver hangs on node0: no answer to nvmlInit"),
        ("hang_gpu", "NVIDIA driver hangs on node0: no answer to nvmlDeviceGetMemoryInfo of GPU 3"),
    ],
)
def test_hanging_driver_is_an_error_and_does_not_block(node: Machine, fault: str, title: str) -> None:
    finding, *rest = judge(recorded(node.seen_to_hang(probe, fault), world=world()))
    assert (finding.code, finding.severity, finding.title, rest) == ("DD302", Severity.ERROR, title, [])


def test_hanging_driver_is_reported_without_a_gpu_on_the_bus(bare: Machine) -> None:
    assert verdicts(recorded(bare.seen_to_hang(probe, "hang_init"))) == [("DD302", "error")]


# --- GPUs that are there, or granted, and no driver -----------------------------------------------------


def amd(machine: Machine) -> Machine:
    machine.file("/dev/kfd")
    machine.file(
        "/sys/class/kfd/kfd/topology/nodes/1/properties",
        "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nlocation_id 18176\ndomain 0\n",
    )
    return machine


STEP_0 = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
NO_GPU_OF_A_JOB: dict[str, tuple[Callable[[Machine], object], dict[str, str], str]] = {
    "no GPU and no driver": (bool, {}, r"no NVIDIA GPU found: no NVIDIA PCI device \(vendor 10de\), no driver"),
    "passed through": (lambda bare: bare.plug("0000:61:00.0", "vfio-pci"), {}, "set aside for virtual machines"),
    "a container that was given none": (
        lambda bare: plug_eight(bare).file("/.dockerenv"),
        {},
        "no NVIDIA GPU was given to this container; the machine has 8",
    ),
    **{
        f"the default of CUDA images, {value}": (
            lambda bare: plug_eight(bare).file("/run/.containerenv"),
            {"NVIDIA_VISIBLE_DEVICES": value},
            "no NVIDIA GPU",
        )
        for value in ("all", "void")
    },
    "AMD GPUs granted by SLURM": (lambda bare: bare.file("/dev/kfd"), {"SLURM_JOB_GPUS": "0,1,2,3"}, "no NVIDIA GPU"),
    "AMD GPUs, and a step without any": (amd, STEP_0, "no NVIDIA GPU"),
    "CUDA_VISIBLE_DEVICES alone": (bool, {"CUDA_VISIBLE_DEVICES": "0,1"}, "no NVIDIA GPU"),
    "a CPU step of SLURM on a GPU node": (plug_eight, STEP_0, "no NVIDIA GPU was given to this SLURM step"),
}


@pytest.mark.parametrize("situation", NO_GPU_OF_A_JOB)
def test_a_machine_without_a_gpu_for_the_job_is_absent(bare: Machine, situation: str) -> None:
    prepare, env, reason = NO_GPU_OF_A_JOB[situation]
    prepare(bare)
    with pytest.raises(Absent, match=reason):
        probe(bare.context({**NO_LIBRARY, **env}))


def test_probe_describes_this_machine() -> None:
    try:
        fact = probe(LiveContext(os.environ, time.monotonic() + 60))
    except Absent as absent:
        reason = str(absent)
    else:
        reason = "" if fact.gpus or fact.nvml_error is not None or fact.gpus_expected() else "a fact about nothing"
    assert not reason or "NVIDIA GPU" in reason


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", None])
def test_gpus_on_the_bus_without_a_working_driver_are_an_error(bare: Machine, driver: str | None) -> None:
    bare.plug("0000:61:00.0", driver)
    fact = probe(bare.context(NO_LIBRARY))
    finding, *rest = judge(recorded(fact, world=world(1, "gloo")))
    assert (finding.code, finding.severity, rest) == ("DD301", Severity.ERROR, [])
    assert finding.title == ("GPUs of node0 are unusable: the driver library libnvidia-ml.so.1 is missing")
    assert finding.detail == f"NVIDIA GPUs: 1 on the PCI bus (kernel driver: {driver or 'none'})."


def test_virtual_functions_of_a_vgpu_host_are_not_gpus(node: Machine) -> None:
    function = node.plug("0000:61:00.4")
    (function / "physfn").symlink_to("../0000:61:00.0")
    assert verdicts(recorded(look(node), world=world())) == []


def test_a_container_that_was_given_gpus_but_no_driver_is_an_error(node: Machine) -> None:
    node.file("/.dockerenv")
    fact = probe(node.context({**NO_LIBRARY, "NVIDIA_VISIBLE_DEVICES": "0,1"}))
    finding = judge(recorded(fact))[0]
    assert (finding.code, finding.severity) == ("DD301", Severity.ERROR)
    assert "missing in this container" in finding.title
    assert finding.detail == "NVIDIA GPUs: 2 granted by the scheduler or container runtime."


def test_container_with_two_of_eight_gpus_has_no_finding(node: Machine) -> None:
    node.file("/proc/1/cgroup", "0::/kubepods/besteffort/pod3c0f\n")
    fact = look(node, "two", NVIDIA_VISIBLE_DEVICES="GPU-8932f930,GPU-8932f931")
    assert fact.in_container
    assert verdicts(recorded(fact, world=world(2))) == []


def test_gpus_granted_by_slurm_on_a_machine_without_any_are_an_error(bare: Machine) -> None:
    fact = probe(bare.context({**NO_LIBRARY, "SLURM_JOB_GPUS": "0,1,2,3"}))
    assert verdicts(recorded(fact)) == [("DD301", "error")]


def test_amd_gpus_that_a_job_would_use_make_the_verdict_unsure(bare: Machine) -> None:
    with pytest.raises(Failed, match=r"^ddp-doctor does not support this hardware yet: 1 AMD GPU \(0000:47:00.0\)"):
        probe(amd(bare).context(NO_LIBRARY))
    with pytest.raises(Failed):
        probe(bare.context({**NO_LIBRARY, "SLURM_JOB_GPUS": "0", "SLURM_PROCID": "0"}))


def test_amd_gpus_next_to_nvidia_gpus_do_not_affect_the_verdict(node: Machine) -> None:
    assert verdicts(recorded(look(amd(node)), world=world())) == []


def test_slurm_step_bound_to_two_of_eight_gpus_has_no_finding(node: Machine) -> None:
    slurm = {"SLURM_STEP_GPUS": "4,5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "CUDA_VISIBLE_DEVICES": "0,1"}
    fact = look(node, "two", **slurm)
    assert verdicts(recorded(fact, world=world(2))) == []


def test_slurm_granted_eight_and_the_driver_shows_two_is_an_error(bare: Machine) -> None:
    fact = look(bare, "two", SLURM_JOB_GPUS="0-7")
    finding, *rest = judge(recorded(fact))
    assert (finding.code, finding.title, rest) == ("DD303", "node rank 0: the job can use only 2 of 8 GPUs", [])


def test_gpu_without_kernel_driver_next_to_working_gpus_is_a_warning(node: Machine) -> None:
    node.plug("0000:e5:00.0", None)
    assert verdicts(recorded(look(node), world=world())) == [("DD303", "warning")]


def test_faulty_gpu_of_another_job_is_ignored(node: Machine) -> None:
    fact = look(node, "busy", SLURM_JOB_GPUS="0,1")
    assert verdicts(recorded(fact)) == []
    fact = look(node, "ecc", CUDA_VISIBLE_DEVICES="4,5")
    assert verdicts(recorded(fact, world=world(2))) == []
    fact = look(node, "half_ours")
    assert fact.visible == (0, 1, 2, 3)
    assert verdicts(recorded(fact, world=world(4))) == []


def test_broken_driver_is_info_if_the_job_does_not_use_gpus(node: Machine) -> None:
    fact = look(node, "mismatch")
    assert verdicts(recorded(fact, backend=Backend.GLOO)) == [("DD301", "info")]
    hidden = look(node, "mismatch", CUDA_VISIBLE_DEVICES="")
    assert verdicts(recorded(hidden, command="prolog")) == [("DD301", "info")]
    assert verdicts(recorded(hidden)) == [("DD301", "error")]


def test_loaded_kernel_module_is_shown_with_a_version_mismatch(node: Machine) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
    node.file("/proc/driver/nvidia/version", f"{line}\nGCC version: 11\n")
    finding = judge(recorded(look(node, "mismatch")))[0]
    assert finding.evidence[0].text.endswith(f"; loaded: {line}")


# --- a helper that gives no answer is never a healthy machine -------------------------------------------


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (CommandResult((), "timed_out"), TookTooLong, "timed out without output"),
        (CommandResult((), "missing", stderr="python: not found"), Failed, "python: not found"),
        (CommandResult((), "ended", 1, "", "Traceback\nKeyError: 3"), Failed, "KeyError: 3"),
        (CommandResult((), "ended", 0, '{"gpus": 3}'), Failed, "ended"),
        (CommandResult((), "ended", 0, '{"error": "pynvml_missing", "text": "no pynvml"}'), Failed, "nvidia-ml-py"),
        (
            CommandResult((), "ended", 0, '{"error": "timed_out", "call": ""}'),
            TookTooLong,
            "timed out before it reached the driver",
        ),
    ],
)
def test_child_without_an_answer_raises_an_error(result: CommandResult, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        probe(FakeContext(children={"nvml": result}))


def test_an_answer_printed_before_the_child_got_stuck_counts() -> None:
    text = '{"error": "timed_out", "call": "nvmlInit", "text": "no answer within 10 s"}\n'
    fact = probe(FakeContext(children={"nvml": CommandResult((), "timed_out", None, text)}))
    assert fact.nvml_error == NvmlError(code="timed_out", call="nvmlInit", text="no answer within 10 s")


@pytest.mark.parametrize(("gpus", "limit"), [(0, "10.0"), (8, "50.0")])
def test_driver_gets_more_time_if_it_may_have_to_start_more_gpus(gpus: int, limit: str) -> None:
    asked: list[str] = []

    class Context(FakeContext):
        def child(self, name: str, *args: str) -> CommandResult:
            asked.extend(args)
            return CommandResult((), "ended", 0, '{"gpus": [{"index": 0}]}')

    files = {
        f"/sys/bus/pci/devices/0000:{at}:00.0/{name}": text
        for at in range(gpus)
        for name, text in (("vendor", "0x10de"), ("class", "0x030200"))
    }
    probe(Context(files=files))
    assert asked == [limit]


# --- the rules alone ------------------------------------------------------------------------------------


def test_one_fault_on_thousands_of_gpus_shows_a_few_and_names_all_as_culprits() -> None:
    gpus = tuple(
        Gpu(index=at, uuid=f"GPU-{at:08x}", bus_id=f"0000:{at:02x}:00.0", error="gpu_is_lost") for at in range(8)
    )
    lost = GpusFact(gpus=gpus, visible=tuple(range(8)), used=tuple(range(8)))
    finding = judge(recorded(*(lost for _ in range(64)), world=world(8, nodes=64)))[0]
    assert finding.title.startswith("512 GPUs on 64 nodes: ")
    assert len(finding.culprits) == 512
    assert finding.evidence[0].text.startswith("GPU 0 (GPU-00000000, 0000:00:00.0) on node0: ")
    assert finding.evidence[-1].text == "and 496 more GPUs, listed in the JSON report"
    assert len(finding.evidence) == 17


def test_ranks_without_a_gpu_are_counted_if_a_gpu_only_lacks_a_driver(node: Machine) -> None:
    node.plug("0000:e5:00.0", None)
    assert verdicts(recorded(look(node), world=world(9))) == [("DD303", "warning"), ("DD311", "error")]


def test_a_wrong_entry_in_cuda_visible_devices_is_the_culprit(node: Machine) -> None:
    fact = look(node, CUDA_VISIBLE_DEVICES="0,1,9,2")
    finding, *rest = judge(recorded(fact, world=world(4)))
    assert (finding.code, finding.severity, rest) == ("DD311", Severity.ERROR, [])
    assert finding.title == (
        'node0: 4 ranks, but only 2 GPUs are visible with CUDA_VISIBLE_DEVICES="0,1,9,2"; CUDA stops at entry "9"'
    )
    assert (finding.culprits[0].kind, finding.culprits[0].name) == ("setting", "CUDA_VISIBLE_DEVICES")
    assert finding.remedies[0].undo == "export CUDA_VISIBLE_DEVICES=0,1,9,2"
    assert verdicts(recorded(fact, world=world(2))) == [("DD311", "warning")]


ONE_HIDES_ALL = ["0,0", "9", "", "-1", "NoDevFiles", "GPU-0a1b2c3d-1111", "MIG-0a1b2c3d-1111", "abc", " ", "-1,0"]


@pytest.mark.parametrize("value", ONE_HIDES_ALL)
def test_job_that_sees_no_gpu_is_unhealthy_unless_meant_for_the_cpu(node: Machine, value: str) -> None:
    fact = look(node, CUDA_VISIBLE_DEVICES=value)
    (finding,) = judge(recorded(fact, world=world(2, "gloo")))
    assert (finding.code, finding.severity) == ("DD311", Severity.ERROR)
    assert finding.title.startswith(f'node0: the job sees none of the 8 GPUs there with CUDA_VISIBLE_DEVICES="{value}"')
    assert [setting.name for setting in finding.remedies[0].settings] == ["CUDA_VISIBLE_DEVICES"]
    assert "--backend gloo" in finding.remedies[-1].summary
    meant = recorded(fact, world=world(2, "gloo"), backend=Backend.GLOO)
    assert Severity.ERROR not in [told.severity for told in judge(meant)]
    prolog = recorded(fact, world=world(2, "gloo"), command="prolog")
    assert Severity.ERROR not in [told.severity for told in judge(prolog)]  # a CPU job must not drain a node


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_gpus_hidden_on_purpose_have_no_finding_with_gloo(node: Machine, value: str) -> None:
    fact = look(node, CUDA_VISIBLE_DEVICES=value)
    assert verdicts(recorded(fact, world=world(2, "gloo"), backend=Backend.GLOO)) == []


@pytest.mark.parametrize("value", ["0", "7,", "0,-1,1", "GPU-8932f933", "1,0"])
def test_job_that_sees_one_gpu_of_the_machine_has_no_finding(node: Machine, value: str) -> None:
    assert verdicts(recorded(look(node, CUDA_VISIBLE_DEVICES=value), world=world(1))) == []


def test_slurm_step_without_granted_gpus_is_unhealthy_unless_meant_for_cpu(node: Machine) -> None:
    node.file("/dev/nvidia0")
    node.file("/dev/nvidia1")
    fact = look(node, "none", SLURM_PROCID="0", SLURM_STEP_ID="0")
    (finding,) = judge(recorded(fact, world=world(2, "gloo")))
    assert (finding.code, finding.title) == ("DD311", "node0: the job sees none of the 2 GPUs there")
    assert finding.detail == "SLURM granted this step none. The job would run on the CPU."
    assert verdicts(recorded(fact, world=world(2, "gloo"), backend=Backend.GLOO)) == []


def test_container_with_a_device_but_no_driver_library_has_gpus(node: Machine) -> None:
    node.file("/.dockerenv")
    node.file("/dev/nvidia0")  # NVIDIA_DRIVER_CAPABILITIES=compute, which leaves NVML out
    fact = probe(node.context({**NO_LIBRARY, "NVIDIA_VISIBLE_DEVICES": "all"}))
    assert verdicts(recorded(fact, world=world(2, "gloo"))) == [("DD301", "error")]
    assert verdicts(recorded(fact, world=world(2, "gloo"), backend=Backend.GLOO)) == [("DD301", "info")]


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_amd_gpus_that_a_setting_hides_are_not_overlooked(bare: Machine, name: str) -> None:
    fact = probe(amd(bare).context({**NO_LIBRARY, name: "-1"}))
    (finding,) = judge(recorded(fact, world=world(2, "gloo")))
    assert finding.code == "DD311"
    assert finding.title == f'node0: the job sees none of 1 AMD GPU (0000:47:00.0) with {name}="-1"'
    assert verdicts(recorded(fact, world=world(2, "gloo"), backend=Backend.GLOO)) == []


def test_required_gpus_are_counted_among_the_visible_ones(node: Machine) -> None:
    fact = look(node, CUDA_VISIBLE_DEVICES="0,1")
    assert verdicts(recorded(fact, require_gpus=2)) == []
    assert verdicts(recorded(fact, require_gpus=8, backend=Backend.GLOO)) == [("DD303", "error")]


def test_prolog_requires_gpus_of_the_node_not_of_its_job(node: Machine) -> None:
    of_two = look(node, CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_GPUS="0,1")
    assert verdicts(recorded(of_two, require_gpus=8, command="prolog")) == []
    assert verdicts(recorded(of_two, require_gpus=9, command="prolog")) == [("DD303", "error")]
