from pathlib import Path

import pytest

from ddp_doctor.checks.node.topology.formats.cpus import cpu_kind
from tests.fakes import FakeContext


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n", "AuthenticAMD"),
        ("processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n", "ARM"),
        ("processor\t: 0\ncpu\t\t: POWER9\n", None),
    ],
)
def test_vendor_is_read_from_cpuinfo(text: str, vendor: str | None):
    assert cpu_kind(FakeContext(files={"/proc/cpuinfo": text}))["cpu_vendor"] == vendor


def test_vendor_is_unknown_without_cpuinfo():
    assert cpu_kind(FakeContext())["cpu_vendor"] is None


def test_this_machine_has_the_vendor_it_prints():
    path = Path("/proc/cpuinfo")
    if not path.exists():
        pytest.skip("no /proc/cpuinfo on this system")
    text = path.read_text()
    vendor = cpu_kind(FakeContext(files={"/proc/cpuinfo": text}))["cpu_vendor"]
    assert vendor is None or str(vendor if vendor != "ARM" else "CPU implementer") in text


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\n", 143),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n", None),
        ("cpu family\t: 6\nmodel\t\t: x\n", None),
        ("", None),
    ],
)
def test_model_is_intels_number_in_family_6(text: str, model: int | None):
    assert cpu_kind(FakeContext(files={"/proc/cpuinfo": text}))["cpu_model"] == model


def test_family_distinguishes_the_generations_of_amd():
    amd = FakeContext(files={"/proc/cpuinfo": "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n"})
    assert cpu_kind(amd)["cpu_family"] == 25
    assert cpu_kind(FakeContext())["cpu_family"] is None
