"""Every fault the stand-in for libnvidia-ml plays, to code, severity and verdict; and the rules' edges."""

from typing import Any

import pytest

from ddp_doctor.checks.node.gpus import CHECK
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.model.choices import Backend
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from tests.checks.test_gpus import fact_of, gpu
from tests.nvml_stand_in.fault_table import CASES, Case, play
from tests.readings import findings_of, of_nodes, plain_world

GIB = 2**30


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_played_fault_or_healthy_machine_gets_its_findings_and_verdict(case: Case) -> None:
    report = play(case)
    found = tuple((finding.code, finding.severity.value) for finding in report.findings)
    assert (found, report.verdict.value) == (case.expected, case.verdict)


# --- the rules alone ------------------------------------------------------------------------------------


def judge(*facts: GpusFact, **options: Any) -> list[Finding]:
    seen = Recording(world=plain_world(len(facts)), options=Options(**options), readings=of_nodes("gpus", facts))
    return findings_of(CHECK, seen)


def verdicts(*facts: GpusFact, **options: Any) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in judge(*facts, **options)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rows_remapped_corrected": 9, "rows_remapped_uncorrected": 400}, []),  # repaired is repaired
        ({"ecc_volatile_corrected": 100000, "ecc_aggregate_corrected": 9000000}, []),
        ({"pages_retired_single_bit": 40, "pages_retired_double_bit": 22}, []),
        ({"pages_retired_single_bit": 40, "pages_retired_double_bit": 23}, [("DD314", "warning")]),
        ({"spare_rows": {"max": 2000, "none": 0}}, []),
        ({"row_remap_failed": True, "spare_rows": {"none": 1}}, [("DD312", "error")]),
        ({"row_remap_failed": True, "row_remap_pending": True}, [("DD312", "error")]),
        ({"row_remap_failed": True, "ecc_volatile_uncorrected": 3}, [("DD312", "error")]),
        ({"row_remap_pending": True, "recovery_action": "gpu_reset"}, [("DD304", "error")]),
        ({"row_remap_pending": True, "ecc_volatile_uncorrected": 1}, [("DD307", "error")]),
        ({"page_retirement_pending": True}, [("DD313", "warning")]),
        ({"inforom_valid": None}, []),
        ({"persistence_mode": False, "display_active": True}, []),
        ({"virtualization": "passthrough"}, []),
        ({"virtualization": "host_vgpu"}, []),
        ({"fabric_state": "not_supported"}, []),
        ({"fabric_state": "in_progress", "mig_enabled": True}, [("DD309", "info")]),
        ({"fabric_state": "state_9"}, []),  # of a newer driver: nobody knows what it means
        ({"fabric_state": "in_progress", "fabric_faults": ("no_partition",)}, [("DD316", "error")]),
        ({"power_limit_w": 400.0, "power_limit_default_w": 700.0}, [("DD318", "info")]),
        ({"power_limit_w": 650.0, "power_limit_default_w": 700.0}, []),
        ({"power_limit_w": 60.0, "power_limit_default_w": 115.0, "name": "RTX 4090 Laptop GPU"}, []),
        ({"power_limit_w": 0.0, "power_limit_default_w": 700.0}, []),
        ({"sm_clock_mhz": 210, "sm_clock_max_mhz": 1980, "clock_events": ("gpu_idle",)}, []),
    ],
)
def test_one_gpu_is_judged_by_what_it_says(values: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert verdicts(fact_of(gpu(**values))) == expected


@pytest.mark.parametrize(
    ("states", "named"),
    [
        ((True, True, True), []),
        ((False, False, False), []),
        ((None, None, False), []),
        ((True, False, True), [1]),
        ((False, True, False), [1]),
        ((True, False), [1]),  # of two, the one without is named: its errors go unseen
    ],
)
def test_ecc_is_compared_among_gpus_of_one_model(states: tuple[bool | None, ...], named: list[int]) -> None:
    found = judge(fact_of(*(gpu(at, ecc_enabled=state) for at, state in enumerate(states))))
    assert [one.gpu for finding in found for one in finding.culprits] == named


def test_memory_sizes_of_one_model_are_compared_where_ecc_is_alike() -> None:
    small = {"memory_total_bytes": 75 * GIB}
    assert verdicts(fact_of(gpu(0), gpu(1, **small))) == [("DD321", "info")]
    assert verdicts(fact_of(gpu(0), gpu(1, memory_total_bytes=80 * GIB - 300 * 2**20))) == []
    mixed = fact_of(gpu(0, ecc_enabled=False), gpu(1, ecc_enabled=True, **small))
    assert verdicts(mixed) == [("DD315", "warning")]


def test_faults_of_gpus_are_information_for_a_job_on_gloo() -> None:
    fact = fact_of(gpu(fabric_state="in_progress", row_remap_failed=True))
    found = verdicts(fact, backend=Backend.GLOO)
    assert found == [("DD312", "info"), ("DD316", "info")]


# --- commands that name the GPU -------------------------------------------------------------------------

BUS = "0000:61:00.0"


def test_a_command_names_the_gpu_by_its_bus_id() -> None:
    lost = gpu(0), gpu(3, bus_id=BUS, recovery_action="gpu_reset")
    finding = judge(fact_of(*lost))[0]
    assert finding.title == f"GPU 3 ({BUS}) on node0: the driver requests a reset of the GPU"
    assert f"sudo nvidia-smi --gpu-reset -i {BUS}" in finding.remedies[0].commands


@pytest.mark.parametrize("bus_id", [None, "$(reboot)", "0000:61:00.0; reboot"])
def test_a_command_names_a_gpu_without_a_bus_id_by_its_index(bus_id: str | None) -> None:
    finding = judge(fact_of(gpu(0), gpu(3, bus_id=bus_id, recovery_action="gpu_reset")))[0]
    assert "sudo nvidia-smi --gpu-reset -i 3" in finding.remedies[0].commands


def test_a_command_for_gpus_of_several_nodes_names_none() -> None:
    finding = judge(*[fact_of(gpu(3, bus_id=BUS, recovery_action="gpu_reset"))] * 2)[0]
    assert "sudo nvidia-smi --gpu-reset -i INDEX" in finding.remedies[0].commands
