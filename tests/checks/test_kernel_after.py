"""The kernel log after the ranks: only what is new, and never what the doctor's own kills leave there."""

import pytest

from ddp_doctor.checks.node.kernel.afterwards import CHECK, probe
from ddp_doctor.checks.node.kernel.kernel_log import parse_kernel_log
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.kernel import KernelAfterFact, KernelFact
from ddp_doctor.model.fact import Absent, Skip
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from tests.checks.test_kernel import FILES, LINKS, REFUSED, XID, kernel, nvml
from tests.fakes import FakeContext
from tests.readings import collected, findings_of, plain_world, replayed

LOST = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def after(*lines: tuple[float, str], source: str = "dmesg") -> KernelAfterFact:
    text = "\n".join(f"[{at:.6f}] {line}" for at, line in lines)
    return KernelAfterFact(log_source=source, events=parse_kernel_log(text).events)


def before(*lines: tuple[float, str], source: str | None = "dmesg") -> KernelFact:
    text = "\n".join(f"[{at:.6f}] {line}" for at, line in lines)
    return kernel(events=parse_kernel_log(text).events, log_source=source)


def judge(first: KernelFact, then: KernelAfterFact, gpus: GpusFact | None = None) -> list[Finding]:
    facts = [("kernel", first), ("kernel_after", then), *([("gpus", gpus)] if gpus else [])]
    readings = tuple(collected(name, one) for name, one in facts)
    return findings_of(CHECK, replayed(Recording(world=plain_world(1, backend="nccl"), readings=readings)))


def verdicts(first: KernelFact, then: KernelAfterFact, gpus: GpusFact | None = None) -> list[tuple[str, str]]:
    return [(one.code, one.severity.value) for one in judge(first, then, gpus)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{XID}{LOST}", [("DD342", "error")]),
        ("NVRM: GPU 0000:61:00.0: GPU has fallen off the bus.", [("DD342", "error")]),
        (f"{XID}{LOST}\nNVRM: GPU 0000:61:00.0: GPU has fallen off the bus.", [("DD342", "error")]),
        (f"{XID}74, pid='<unknown>', NVLink: fatal error detected on link 5", [("DD342", "warning")]),
        (f"{XID}94, pid=1, name=python3, Contained", [("DD342", "warning")]),
        (f"{XID}63, pid=1, name=python3, Row Remapper", [("DD342", "info")]),
        (f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", [("DD342", "error")]),
        (f"{XID}154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", []),
        (f"{XID}31, pid=1, name=python3, MMU Fault", []),
        (f"{XID}45, pid=1, name=python3, Ch 00000008", []),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 32 egress", [("DD342", "error")]),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", []),
        ("mlx5_core 0000:17:00.0: poll_health:739:(pid 0): Fatal error 1 detected", [("DD343", "error")]),
        ("pcieport 0000:5d:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=X", [("DD343", "warning")]),
        ("pcieport 0000:00:1c.5: PCIe Bus Error: severity=Uncorrected (Fatal), type=X", []),
        ("pcieport 0000:5d:01.0: PCIe Bus Error: severity=Corrected, type=X", []),
    ],
)
def test_what_the_log_did_not_have_before_is_judged_by_its_kind(line: str, expected: list[tuple[str, str]]):
    assert verdicts(before(), after((10.0, line)), nvml()) == expected


def test_a_gpu_off_the_bus_takes_a_reboot_and_others_a_reset():
    (lost,) = judge(before(), after((10.0, f"{XID}{LOST}")), nvml())
    (silent,) = judge(before(), after((10.0, f"{XID}119, pid=1, name=python3, Timeout")), nvml())
    assert lost.remedies[0].commands == ("sudo reboot",)
    assert silent.remedies[0].commands == ("sudo nvidia-smi --gpu-reset -i 0000:61:00.0",)


def test_what_the_driver_asks_for_is_named_and_advised():
    asks = f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    (found,) = judge(before(), after((10.0, asks)), nvml())
    assert "Xid 154, the driver requests: Node Reboot Required" in found.title
    assert found.remedies[0].commands == ("sudo reboot",)


def test_what_stood_there_before_is_not_new_and_the_same_again_is():
    line = f"{XID}{LOST}"
    assert verdicts(before((10.0, line)), after((10.0, line))) == []
    assert verdicts(before((10.0, line)), after((10.0, line), (20.0, line))) == [("DD342", "error")]


def test_two_logs_of_different_places_are_not_compared():
    line = f"{XID}{LOST}"
    assert verdicts(before(source="journalctl"), after((10.0, line))) == []
    assert verdicts(before(source=None), after((10.0, line))) == []


def test_faults_of_gpus_that_others_use_are_nobodys_business():
    assert verdicts(before(), after((10.0, f"{XID}{LOST}")), nvml(used=(1,))) == []


def test_the_probe_reads_the_last_hour_of_the_log():
    uptime: dict[str, str | OSError] = {**FILES, "/proc/uptime": "9000.00 1.00\n"}
    lines = f"[  100.000000] {XID}{LOST}\n[ 8000.000000] {XID}{LOST}\n"
    fact = probe(FakeContext(files=uptime, links=LINKS, commands={"dmesg": lines}))
    assert [(one.code, one.count) for one in fact.events] == [(79, 1)]


def test_a_log_that_cannot_be_read_is_a_reason_and_no_fact():
    with pytest.raises(Skip, match="cannot read the kernel log: dmesg"):
        probe(FakeContext(files=FILES, links=LINKS, commands={"dmesg": REFUSED}))
    with pytest.raises(Absent):
        probe(FakeContext())
