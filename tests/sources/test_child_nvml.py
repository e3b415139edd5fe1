"""child_nvml.py as a program: the real pynvml over the compiled stand-in for the driver's library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.sources import child_nvml
from tests.nvml_stand_in import environment
from tests.waiting import LIMIT_S, limits_s

SCRIPT = Path(child_nvml.__file__)


PAGES = (
    "pages_retired_single_bit",
    "pages_retired_double_bit",
    "page_retirement_pending",
    "page_retirement_pending_double_bit",
)


def ask(fault: str = "healthy", *defines: str, limit_s: float = LIMIT_S, **more: str) -> dict[str, Any]:
    done = run(environment(fault, *defines, **more), limit_s)
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run(env: dict[str, str], limit_s: float = LIMIT_S) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(SCRIPT), str(limit_s)]
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_healthy_node_gives_eight_whole_gpus() -> None:
    answer = ask()
    assert (answer["error"], answer["driver_version"], answer["cuda_driver_version"]) == (None, "550.90.07", "12.4")
    assert [gpu["index"] for gpu in answer["gpus"]] == list(range(8))
    gpu = answer["gpus"][3]
    assert gpu == {
        "index": 3,
        "error": None,
        "unavailable": dict.fromkeys(PAGES, "not_supported"),  # since Ampere rows are replaced
        "uuid": "GPU-8932f933-d72c-4106-c12f-20bd9faed9f6",
        "name": "NVIDIA H100 80GB HBM3",
        "bus_id": "00000000:61:00.0",
        "minor_number": 3,
        "compute_capability": "9.0",
        "compute_mode": "default",
        "persistence_mode": True,
        "mig_enabled": False,
        "mig_uuids": [],
        "memory_total_bytes": 80 * 2**30,
        "memory_used_bytes": 4 * 2**20,
        "memory_used_counts_reserved": False,
        "processes": [],
        "ecc_enabled": True,
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_uncorrected": 0,
        "recovery_action": "none",
        "clock_events": ["gpu_idle"],
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 31,
        "power_w": 71.5,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "ecc_volatile_corrected": 0,
        "ecc_aggregate_corrected": 0,
        "ecc_volatile_uncorrected_dram": 0,
        "ecc_volatile_uncorrected_sram": 0,
        "sram_threshold_exceeded": False,
        "rows_remapped_corrected": 0,
        "rows_remapped_uncorrected": 0,
        "row_remap_pending": False,
        "row_remap_failed": False,
        "spare_rows": {"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0},
        **dict.fromkeys(PAGES),
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "application_clock_mhz": 1980,
        "application_clock_default_mhz": 1980,
        "vbios_version": "96.00.74.00.01",
        "gsp_firmware_version": "550.90.07",
        "display_active": False,
        "virtualization": "none",
        "fabric_state": "completed",
        "fabric_status": None,
        "fabric_faults": [],
        "inforom_valid": True,
    }
    assert (answer["nvml_version"], answer["confidential_compute"]) == ("12.550.90.07", False)


def test_old_driver_lacks_only_its_missing_values() -> None:
    gpu = ask("healthy", "OLD_DRIVER")["gpus"][0]
    since_then = ("sram_threshold_exceeded", "spare_rows", "row_remapping", "gsp_firmware_version")
    lacking = ("mig_enabled", "recovery_action", *PAGES, *since_then, "fabric_state")
    assert gpu["unavailable"] == dict.fromkeys(lacking, "function_not_found")
    assert gpu["mig_enabled"] is None
    assert gpu["clock_events"] == ["gpu_idle"]  # by its former name
    assert gpu["processes"] == []  # by the former version of the call
    assert gpu["memory_used_counts_reserved"] is True
    assert gpu["memory_used_bytes"] == 604 * 2**20


def test_a_value_that_nvml_does_not_support_is_null_with_nvmls_reason() -> None:
    gpu = ask("ecc")["gpus"][3]
    assert gpu["recovery_action"] is None
    assert gpu["unavailable"] == dict.fromkeys(("recovery_action", *PAGES), "not_supported")
    assert (gpu["ecc_volatile_uncorrected"], gpu["ecc_aggregate_uncorrected"]) == (2, 5)


def test_all_retired_pages_of_a_card_are_reported() -> None:
    gpu = ask("retired_pending")["gpus"][3]
    assert [gpu[name] for name in PAGES] == [0, 1, True, True]


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        (0, []),
        (2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8, []),
        (1 | 1 << 2 | 1 << 4 | 1 << 6 | 6 << 8, ["degraded_bandwidth", "route_recovery", "route_unhealthy"]),
        (15 << 8, []),  # a value that a newer driver may bring
    ],
)
def test_a_fabric_health_mask_is_read_bit_by_bit(mask: int, faults: list[str]) -> None:
    assert child_nvml.fabric_faults(mask)[:3] == faults


def test_missing_library_is_reported() -> None:
    done = run({"LD_LIBRARY_PATH": "/nowhere"})
    answer = json.loads(done.stdout)
    if answer["error"] is None:
        pytest.skip("this machine has an NVIDIA driver")
    assert answer["error"] in ("library_not_found", "driver_not_loaded")
    assert done.returncode == 0


def test_lost_gpu_does_not_affect_others() -> None:
    gpus = ask("gpu_lost")["gpus"]
    assert gpus[3] == {"index": 3, "error": "gpu_is_lost", "unavailable": {}}
    assert [gpu["error"] for gpu in gpus].count(None) == 7


def test_gpu_lost_during_the_query_keeps_its_earlier_values() -> None:
    gpu = ask("lost_later")["gpus"][3]
    assert (gpu["error"], gpu["uuid"]) == ("gpu_is_lost", "GPU-8932f933-d72c-4106-c12f-20bd9faed9f6")
    assert gpu["unavailable"]["memory_used_bytes"] == "gpu_is_lost"


def test_mig_slices_are_listed_by_uuid() -> None:
    gpu = ask("mig")["gpus"][3]
    assert gpu["mig_enabled"] is True
    assert [uuid[:12] for uuid in gpu["mig_uuids"]] == ["MIG-5e7d0003"] * 2


def test_process_on_a_gpu_is_reported_by_pid_name_and_memory() -> None:
    gpu = ask("busy", NVML_STAND_IN_PID=str(os.getpid()))["gpus"][3]
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    expected = {"pid": os.getpid(), "kind": "compute", "name": name, "memory_used_bytes": 12 * 2**30}
    assert gpu["processes"] == [expected]


@pytest.mark.parametrize(
    ("fault", "call", "gpu", "answered"),
    [("hang_init", "nvmlInit", None, 0), ("hang_gpu", "nvmlDeviceGetMemoryInfo", 3, 3)],
)
def test_hanging_driver_is_reported_with_the_call_within_the_limit(
    fault: str, call: str, gpu: int | None, answered: int
) -> None:
    asked = ((limit_s, ask(fault, limit_s=limit_s)) for limit_s in limits_s(0.2))
    limit_s, answer = next((limit_s, answer) for limit_s, answer in asked if answer["call"])
    assert (answer["error"], answer["call"], answer["gpu"]) == ("timed_out", call, gpu)
    assert len(answer["gpus"]) == answered
    assert answer["text"] == f"no answer within {limit_s:g} s"


def test_time_without_a_processor_does_not_count_against_the_driver() -> None:
    calls = f"runpy.run_path({str(SCRIPT.with_name('nvml_calls.py'))!r})['_watch']"
    watch = f"import runpy, time; watch = {calls}; watch.__globals__['_queued_s'] = lambda: 0.1"
    code = f"{watch}; watch(dict(call='nvmlInit'), 0.1, time.monotonic())"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["elapsed_s"] >= 0.2) == ("no answer within 0.1 s", True)


def test_child_imports_no_module_of_ddp_doctor() -> None:
    code = f"import sys, runpy; runpy.run_path({str(SCRIPT)!r}); print([m for m in sys.modules if 'ddp' in m])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
