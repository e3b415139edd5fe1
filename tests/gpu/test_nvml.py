"""The check gpus reads from NVML the values that nvidia-smi prints."""

import os
import time

import pytest

from ddp_doctor.checks.node.gpus import probe
from ddp_doctor.facts.node.gpus import GpusFact, sysfs_bus_id
from ddp_doctor.sources.machine import LiveContext
from tests.gpu import smi

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def fact() -> GpusFact:
    return probe(LiveContext(dict(os.environ), time.monotonic() + 60))


def rows(fact: GpusFact, *fields: str) -> list[dict[str, str]]:
    found = smi.query(*fields)
    assert len(found) == len(fact.gpus)
    return found


def test_identities_equal_nvidia_smi(fact: GpusFact):
    for gpu, row in zip(fact.gpus, rows(fact, "index", "uuid", "pci.bus_id", "name", "compute_cap"), strict=True):
        assert str(gpu.index) == row["index"]
        assert gpu.uuid == row["uuid"]
        assert gpu.bus_id == sysfs_bus_id(row["pci.bus_id"])
        assert (gpu.name, gpu.compute_capability) == (row["name"], row["compute_cap"])


def test_memory_equals_nvidia_smi(fact: GpusFact):
    for gpu, row in zip(fact.gpus, rows(fact, "memory.total", "memory.used"), strict=True):
        assert gpu.memory_total_bytes is not None
        assert gpu.memory_total_bytes // smi.MIB == int(row["memory.total"])
        assert gpu.memory_used_bytes is not None
        assert abs(gpu.memory_used_bytes / smi.MIB - int(row["memory.used"])) < 1024  # others come and go


def test_ecc_equals_nvidia_smi(fact: GpusFact):
    fields = ("ecc.mode.current", "ecc.errors.uncorrected.volatile.total")
    for gpu, row in zip(fact.gpus, rows(fact, *fields), strict=True):
        enabled = {"Enabled": True, "Disabled": False}.get(row["ecc.mode.current"])
        assert gpu.ecc_enabled == enabled
        if enabled:
            assert gpu.ecc_volatile_uncorrected == smi.number(row["ecc.errors.uncorrected.volatile.total"])


def test_pcie_link_equals_nvidia_smi(fact: GpusFact):
    fields = ("pcie.link.gen.max", "pcie.link.width.max", "pcie.link.width.current", "pcie.link.gen.current")
    for gpu, row in zip(fact.gpus, rows(fact, *fields), strict=True):
        assert gpu.pcie_generation_max == smi.number(row["pcie.link.gen.max"])
        assert gpu.pcie_width_max == smi.number(row["pcie.link.width.max"])
        assert gpu.pcie_width == smi.number(row["pcie.link.width.current"])
        # An idle link changes its generation from one look to the next.
        assert 1 <= (gpu.pcie_generation or 0) <= (gpu.pcie_generation_max or 0)


def test_modes_limits_and_versions_equal_nvidia_smi(fact: GpusFact):
    fields = ("persistence_mode", "compute_mode", "enforced.power.limit", "clocks.max.sm", "driver_version")
    for gpu, row in zip(fact.gpus, rows(fact, *fields), strict=True):
        assert gpu.persistence_mode is (row["persistence_mode"] == "Enabled")
        assert gpu.compute_mode == row["compute_mode"].lower()
        limit = smi.number(row["enforced.power.limit"])
        assert gpu.power_limit_w == (None if limit is None else pytest.approx(limit, abs=0.02))
        assert gpu.sm_clock_max_mhz == smi.number(row["clocks.max.sm"])
        assert fact.driver_version == row["driver_version"]


def test_no_value_that_this_driver_provides_is_missing(fact: GpusFact):
    for gpu in fact.gpus:
        assert gpu.error is None
        assert not [name for name, why in gpu.unavailable.items() if why in ("unexpected", "binding_too_old")]
