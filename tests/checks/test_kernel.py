"""The kernel check: the probe on a machine of files and commands, and its rules on what it saw."""

import os
import time
from typing import Any

import pytest

from ddp_doctor.checks.node.gpus import CHECK as GPUS
from ddp_doctor.checks.node.kernel import CHECK, probe
from ddp_doctor.checks.node.kernel.kernel_log import parse_kernel_log
from ddp_doctor.facts.node.gpus import Gpu, GpusFact, NvmlError, PciGpu
from ddp_doctor.facts.node.kernel import KernelFact, StuckProcess
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Backend
from ddp_doctor.model.context import CommandResult
from ddp_doctor.model.fact import Absent, Fact
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.probing.kernel import read_log
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.readings import collected, plain_world, replayed
from tests.waiting import LIMIT_S

UPTIME_S = 1_000_000.0
DAY_S = 86400.0
XID = "NVRM: Xid (PCI:0000:61:00): "
REFUSED = CommandResult(("dmesg",), "ended", 1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")

PCI = "/sys/bus/pci/devices"
FILES: dict[str, str | OSError] = {
    f"{PCI}/0000:61:00.0/vendor": "0x10de\n",
    f"{PCI}/0000:61:00.0/class": "0x030200\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n",
    "/proc/uptime": "1000.00 4000.00\n",
    "/proc/stat": "cpu  1 2 3\nbtime 1714560000\n",
    "/sys/module/nvidia/version": "550.90.07\n",
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "/proc/sys/kernel/osrelease": "5.15.0-131-generic\n",
}
LINKS = {
    f"{PCI}/0000:61:00.0": "../../../devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:61:00.0",
    f"{PCI}/0000:61:00.0/driver": "../../../../bus/pci/drivers/nvidia",
    f"{PCI}/0000:17:00.0": "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0",
    "/sys/class/infiniband/mlx5_0/device": "../../../0000:17:00.0",
    "/sys/class/infiniband/mlx5_0/device/driver": "../../../../bus/pci/drivers/mlx5_core",
}


# --- the probe ------------------------------------------------------------------------------------------


def test_the_probe_tells_what_the_kernel_shows_of_gpus_and_nics():
    context = FakeContext(files=FILES, links=LINKS, commands={"dmesg": f"[  900.500000] {XID}79, lost\n"})
    fact = probe(context)
    assert (fact.driver_version, fact.driver_is_open, fact.log_source) == ("550.90.07", False, "dmesg")
    assert fact.bridges == {"0000:61:00.0": ("0000:5d:01.0", "0000:5e:00.0"), "0000:17:00.0": ("0000:16:01.0",)}
    assert fact.rdma_devices == {"0000:17:00.0": "mlx5_0"}
    assert [(one.code, fact.age_s(one)) for one in fact.events] == [(79, 99.5)]
    assert f"{XID}79, lost" in (context.raw or "")


def test_without_gpu_and_rdma_device_nothing_is_run():
    class Quiet(FakeContext):
        def run(self, argv, timeout_s=None):
            raise AssertionError(argv)

    with pytest.raises(Absent, match="no NVIDIA GPU and no RDMA device"):
        probe(Quiet(files={f"{PCI}/0000:00:02.0/vendor": "0x1a03\n"}))


def test_kernel_log_of_this_machine_is_read():
    try:
        fact = probe(LiveContext(os.environ, time.monotonic() + LIMIT_S))
    except Absent:
        fact = None
    assert fact is None or fact.log_source or fact.log_problem


def test_a_refused_dmesg_is_made_up_for_by_the_journal():
    journal = "1714560010.120000 node7 kernel: nvidia: loading out-of-tree module taints kernel.\n"
    log = read_log(FakeContext(commands={"dmesg": REFUSED, "journalctl": journal}))
    assert (log.source, log.text, log.problem) == ("journalctl", journal, None)


def test_a_file_of_syslog_is_the_last_resort():
    empty = CommandResult(("journalctl",), "ended", 0, "-- No entries --\n", "")
    text = "Dec  2 11:49:53 node7 kernel: [  885.242168] NVRM: …\n"
    log = read_log(FakeContext(commands={"dmesg": REFUSED, "journalctl": empty, "tail": text}))
    assert (log.source, log.text) == ("/var/log/kern.log", text)


def test_a_log_that_nobody_lets_us_read_has_a_reason():
    log = read_log(FakeContext(commands={"dmesg": REFUSED}))
    assert log.source is None
    assert (log.problem or "").startswith("dmesg: read kernel buffer failed: Operation not permitted")
    assert "journalctl: not installed" in (log.problem or "")


# --- the rules ------------------------------------------------------------------------------------------


def kernel(*lines: tuple[float, str], **fields: Any) -> KernelFact:
    text = "\n".join(f"[{UPTIME_S - age_s:.6f}] {line}" for age_s, line in sorted(lines, reverse=True))
    buses = ("0000:61:00.0", "0000:9d:00.0")
    standard: dict[str, Any] = {
        "gpus": tuple(PciGpu(bus_id=bus, driver="nvidia") for bus in buses),
        "uptime_s": UPTIME_S,
        "events": parse_kernel_log(text).events,
        "bridges": {"0000:61:00.0": ("0000:5d:01.0",), "0000:17:00.0": ("0000:16:01.0",)},
        "rdma_devices": {"0000:17:00.0": "mlx5_0"},
    }
    return KernelFact(**{**standard, **fields})


def nvml(gpu: dict[str, Any] | None = None, **fields: Any) -> GpusFact:
    """Two GPUs; ``gpu`` changes the first."""
    well: dict[str, Any] = {"memory_used_bytes": 4 << 20, "ecc_volatile_uncorrected": 0}
    first = Gpu(**{"index": 0, "bus_id": "0000:61:00.0", **well, **(gpu or {})})
    second = Gpu(index=1, bus_id="0000:9d:00.0", **well)
    return GpusFact(**{"gpus": (first, second), "used": (0, 1), "visible": (0, 1), **fields})


def judge(
    fact: KernelFact, gpus: GpusFact | None = None, software: Software | None = None, **options: Any
) -> list[Finding]:
    beside: dict[str, Fact | None] = {"gpus": gpus, "software": software}
    facts = [("kernel", fact), *((name, one) for name, one in beside.items() if one)]
    readings = tuple(collected(name, one) for name, one in facts)
    again = replayed(Recording(world=plain_world(1, backend="nccl"), options=Options(**options), readings=readings))
    return [finding for rule in (*CHECK.rules, *GPUS.rules) for finding in rule.apply(again)]


def verdicts(*arguments: Any, **options: Any) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in judge(*arguments, **options)]


LOST = f"{XID}79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OFF_BUS = (
    "NVRM: The NVIDIA GPU 0000:61:00.0\n   NVRM: (PCI ID: 10de:2330) installed in this system has"
    "\n   NVRM: fallen off the bus and is not responding to commands."
)
GSP = f"{XID}119, pid=4242, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
DBE = f"{XID}48, pid=4242, name=python3, DBE (double bit error)"


@pytest.mark.parametrize(
    ("line", "gpus", "expected"),
    [
        (LOST, nvml({"error": "gpu_is_lost"}), [("DD304", "error")]),
        (LOST, nvml(gpus=(Gpu(index=0, bus_id="0000:9d:00.0"),), used=(0,)), [("DD330", "error")]),
        (LOST, nvml(), [("DD330", "warning")]),  # it answers, so it was reset
        (LOST, nvml(nvml_error=NvmlError(code="timed_out"), gpus=()), [("DD302", "error")]),
        (
            LOST,
            nvml(nvml_error=NvmlError(code="lib_rm_version_mismatch"), gpus=()),
            [("DD330", "error"), ("DD301", "error")],
        ),
        (LOST, None, [("DD330", "error")]),
        (OFF_BUS, nvml(gpus=(Gpu(index=0, bus_id="0000:9d:00.0"),), used=(0,)), [("DD330", "error")]),
        (OFF_BUS, nvml(), [("DD330", "warning")]),
        (OFF_BUS, None, [("DD330", "error")]),
        (GSP, nvml({"recovery_action": "gpu_reset"}), [("DD304", "error")]),
        (GSP, nvml({"recovery_action": "none"}), [("DD330", "warning")]),
        (GSP, nvml({"memory_used_bytes": None}), [("DD330", "error")]),
        (GSP, nvml(), [("DD330", "warning")]),
        (DBE, nvml({"ecc_volatile_uncorrected": 2}), [("DD307", "error")]),
        (DBE, nvml(), [("DD330", "warning")]),
        (DBE, nvml({"ecc_volatile_uncorrected": None}), [("DD330", "error")]),
    ],
)
def test_how_grave_an_xid_that_stays_is_depends_on_what_nvml_says_now(
    line: str, gpus: GpusFact | None, expected: list[tuple[str, str]]
):
    assert verdicts(kernel((3600, line)), gpus) == expected


@pytest.mark.parametrize(
    ("gpus", "title"),
    [
        (None, "the GPU at 0000:61:00.0 on node0: fallen off the bus, without an Xid"),
        (nvml(), "GPU 0 (0000:61:00.0) on node0: was off the bus but works again"),
    ],
)
def test_a_gpu_off_the_bus_without_an_xid_is_told_without_one(gpus: GpusFact | None, title: str):
    (finding,) = judge(kernel((3600, OFF_BUS), (3599, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module")), gpus)
    assert finding.title == title
    assert finding.evidence[0].text.endswith("fallen off the bus and is not responding to commands.")


def test_a_gpu_off_the_bus_stands_with_its_xid_once():
    (finding,) = judge(kernel((60, OFF_BUS), (50, LOST)))
    assert finding.evidence[0].text.endswith("followed by Xid 79")


def test_an_xid_of_days_ago_on_a_gpu_that_is_well_again_is_silent():
    assert verdicts(kernel((2 * DAY_S, GSP)), nvml({"recovery_action": "none"})) == []


def test_an_xid_of_days_ago_is_still_an_error_where_the_gpu_is_still_lost():
    assert verdicts(kernel((9 * DAY_S, LOST)), nvml({"error": "gpu_is_lost"})) == [("DD304", "error")]


def test_with_gloo_a_lost_gpu_is_worth_knowing_only():
    found = verdicts(kernel((60, LOST)), nvml({"error": "gpu_is_lost"}), backend=Backend.GLOO)
    assert found == [("DD304", "info")]


def test_two_gpus_with_one_xid_are_one_finding_that_names_both():
    other = LOST.replace("61:00", "9d:00")
    bad: dict[str, Any] = {"error": "gpu_is_lost"}
    both = nvml(bad, gpus=(*nvml(bad).gpus[:1], Gpu(index=1, bus_id="0000:9d:00.0", **bad)))
    (finding,) = judge(kernel((60, LOST), (50, other)), both)
    assert finding.title == (
        "GPU 0 (0000:61:00.0) and GPU 1 (0000:9d:00.0) on node0: lost (it fell off the bus or does not respond)"
    )
    assert [one.text for one in finding.evidence if "Xid" in one.text] == [
        f"node0, 1 min ago: {LOST}",
        f"node0, 50 s ago: {other}",
    ]
    assert [(one.kind, one.gpu) for one in finding.culprits] == [("gpu", 0), ("gpu", 1)]


def test_what_the_log_has_stands_with_what_nvml_says():
    (finding,) = judge(kernel((60, GSP)), nvml({"recovery_action": "gpu_reset"}))
    assert finding.code == "DD304"
    assert finding.evidence[-1].text == f"node0, 1 min ago: {GSP}"


def test_a_gpu_set_aside_for_virtual_machines_is_not_ours():
    aside = (PciGpu(bus_id="0000:61:00.0", driver="vfio-pci"), PciGpu(bus_id="0000:9d:00.0", driver="nvidia"))
    assert verdicts(kernel((60, LOST), gpus=aside), nvml(gpus=(), used=())) == []


@pytest.mark.parametrize(
    ("age_s", "line", "gpus", "expected"),
    [
        (60, f"{XID}63, pid=1, name=x, Row Remapper: New row marked for remapping", nvml(), [("DD331", "info")]),
        (60, f"{XID}94, pid=1, name=x, Contained", nvml(), [("DD331", "info")]),
        (60, f"{XID}109, pid=1, name=x, Ch 8, errorString CTX SWITCH TIMEOUT", nvml(), [("DD331", "warning")]),
        (60, f"{XID}109, pid=1, name=x", nvml({"recovery_action": "none"}), [("DD331", "warning")]),
        (60, f"{XID}145, RLW_RXPIPE Nonfatal XC0 i0 Link 13", nvml(), [("DD331", "info")]),
        (60, f"{XID}149, NETIR Fatal XC0 i0 Link -1", nvml({"recovery_action": "gpu_reset"}), [("DD304", "error")]),
        (60, f"{XID}999, pid=1, name=x", nvml(), [("DD331", "info")]),
        (2 * DAY_S, f"{XID}94, pid=1, name=x, Contained", nvml(), []),
        (60, f"{XID}31, pid=1, name=x", nvml(), [("DD332", "info")]),
        (7200, f"{XID}31, pid=1, name=x", nvml(), []),
        (60, f"{XID}43, pid=1, name=x", nvml(), []),
        (60, f"{XID}45, pid=1, name=x, Ch 0000000a", nvml(), []),
    ],
)
def test_faults_that_may_be_over_and_crashes_are_told_while_they_are_news(
    age_s: float, line: str, gpus: GpusFact, expected: list[tuple[str, str]]
):
    assert verdicts(kernel((age_s, line)), gpus) == expected


def test_an_old_driver_names_no_gpu_that_failed_to_start_so_the_missing_one_is_named():
    line = "NVRM: RmInitAdapter failed! (0x26:0x38:1096)"
    pci = tuple(PciGpu(bus_id=bus, driver="nvidia") for bus in ("0000:61:00.0", "0000:9d:00.0"))
    one = nvml(gpus=(Gpu(index=0, bus_id="0000:9d:00.0"),), used=(0,), pci_gpus=pci)
    (finding,) = judge(kernel((60, line)), one)
    assert finding.title == "node0: the job can use only 1 of 2 GPUs; missing: 0000:61:00.0"
    assert finding.evidence[-1].text == f"node0, 1 min ago: {line}"


def test_corrected_pcie_errors_are_told_when_they_are_many():
    line = "pcieport 0000:5d:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    assert verdicts(kernel(*[(60, line)] * 999), nvml()) == []
    assert verdicts(kernel(*[(60, line)] * 1000), nvml()) == [("DD335", "info")]


def stuck(channel: str | None) -> StuckProcess:
    return StuckProcess(pid=5403, name="nvidia-smi", wait_channel=channel, device="/dev/nvidia0", watched_s=3.0)


HUNG = (60, "INFO: task nvidia-smi:5403 blocked for more than 120 seconds.")


@pytest.mark.parametrize(
    ("lines", "channel", "gpus", "severity"),
    [
        ((), "uvm_gpu_retain_by_uuid", nvml(), "warning"),
        ((HUNG,), "uvm_gpu_retain_by_uuid", nvml(), "error"),
        ((), None, nvml(), "info"),
    ],
)
def test_how_grave_a_stuck_process_is_depends_on_how_long_it_stands(
    lines: tuple[tuple[float, str], ...], channel: str | None, gpus: GpusFact, severity: str
):
    assert verdicts(kernel(*lines, stuck=(stuck(channel),)), gpus) == [("DD337", severity)]


def test_a_stuck_process_stands_with_the_hang_of_nvml():
    hangs = nvml(nvml_error=NvmlError(code="timed_out", call="nvmlInit"), gpus=())
    (finding,) = judge(kernel(stuck=(stuck("uvm_gpu_retain_by_uuid"),)), hangs)
    assert finding.code == "DD302"
    assert finding.evidence[-1].text.startswith("pid 5403 (nvidia-smi) in state D, in uvm_gpu_retain")


def test_gpudirect_rdma_is_a_warning_only_where_it_would_be_used():
    off = kernel(driver_version="550.90.07", driver_is_open=False, rdma_drivers={"mlx5_0": "mlx5_core"})
    assert verdicts(off) == [("DD339", "info")]
    for unused in ({"mlx5_0": "efa"}, {"rxe0": ""}, {}):
        assert verdicts(off.model_copy(update={"rdma_drivers": unused})) == []


def test_gpus_that_nouveau_holds_are_a_warning_unless_torch_is_a_build_for_cpus():
    held = kernel(gpus=(PciGpu(bus_id="0000:61:00.0", driver="nouveau"),))
    for cuda, severity in (("12.8", "warning"), (None, "info")):
        torch = Software(python="3.12.3", machine="x86_64", torch_version="2.9.1", torch_cuda=cuda)
        assert verdicts(held, software=torch) == [("DD340", severity)]


def test_a_library_that_some_folder_has_in_the_modules_version_is_well():
    both = {"/usr/lib64/libcuda.so.1": "535.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "550.90.07"}
    fact = kernel(driver_version="550.90.07", driver_is_open=True, libraries=both)
    assert verdicts(fact) == []
    old = fact.model_copy(update={"libraries": {"/usr/lib64/libcuda.so.1": "535.1"}})
    assert verdicts(old) == [("DD338", "error")]
    for said in (nvml(nvml_error=NvmlError(code="lib_rm_version_mismatch")), nvml(nvml_version="12.535.1")):
        assert "DD338" not in dict(verdicts(old, said))
