"""Rates of real GPUs: plausible for the hardware's specification, with little spread, and repeatable."""

from pathlib import Path

import pytest

from ddp_doctor.facts.collectives import GpuSpeedFact, Rate
from ddp_doctor.knowledge.gpu.gpu_speed import MOST_BYTES, link_gb_per_s, published_bf16
from tests.gpu import runs, smi

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CHECKS = runs.only("gpus", "process_group", "gpu_speed")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> runs.Outcome:
    return runs.run(tmp_path_factory.mktemp("speed"), *CHECKS)


@pytest.fixture(scope="module")
def facts(outcome: runs.Outcome) -> list[GpuSpeedFact]:
    found = [seen.fact for seen in outcome.recording.facts(GpuSpeedFact)]
    assert found, outcome.report
    if "DD806" in outcome.codes():
        pytest.skip("needs GPUs that nobody else uses")
    return found


def of(rate: Rate | None) -> Rate:
    assert rate is not None
    return rate


def test_all_rates_are_measured(facts: list[GpuSpeedFact]):
    for fact in facts:
        assert fact.not_measured == {}
        assert fact.load.reason is None
        assert fact.gpu_uuid in {row["uuid"] for row in smi.query("uuid")}


def test_repetitions_of_one_rate_agree(facts: list[GpuSpeedFact]):
    for fact in facts:
        for rate in (of(fact.matmul_tflop_per_s), of(fact.copy_gb_per_s)):
            assert rate.repetitions >= 3
            assert (rate.most - rate.least) / rate.median < 0.20, rate


def test_memory_copies_reach_a_good_share_of_the_bus_rate(facts: list[GpuSpeedFact]):
    import pynvml

    pynvml.nvmlInit()
    try:
        for fact in facts:
            gpu = pynvml.nvmlDeviceGetHandleByUUID((fact.gpu_uuid or "").encode())
            bits = pynvml.nvmlDeviceGetMemoryBusWidth(gpu)
            mhz = pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM)
            bus_gb_per_s = bits / 8 * 2 * mhz / 1e3  # two transfers a clock
            assert 0.4 < of(fact.copy_gb_per_s).median / bus_gb_per_s < 1.05, bus_gb_per_s
    finally:
        pynvml.nvmlShutdown()


def test_matrices_are_multiplied_at_a_plausible_rate(facts: list[GpuSpeedFact]):
    for fact in facts:
        rate, published = of(fact.matmul_tflop_per_s).median, published_bf16(fact.gpu_name)
        if published is not None and fact.matmul_dtype == "bfloat16":
            assert 0.6 < rate / published < 1.4
        assert 1 < rate < 10_000


def test_host_copies_stay_below_their_link_and_reach_a_good_part_of_it(facts: list[GpuSpeedFact]):
    for fact in facts:
        link = link_gb_per_s(fact.load.pcie_generation, fact.load.pcie_width)
        if link is None or fact.load.confidential:
            pytest.skip(f"the link of {fact.gpu_name} is not told, or copies are encrypted")
        for rate in (of(fact.host_to_device_gb_per_s), of(fact.device_to_host_gb_per_s)):
            assert link / 3 < rate.median < 1.01 * link, link


def test_state_under_load_matches_a_busy_gpu(facts: list[GpuSpeedFact]):
    rows = {row["uuid"]: row for row in smi.query("uuid", "clocks.max.sm", "pcie.link.gen.max")}
    for fact in facts:
        row, load = rows[fact.gpu_uuid or ""], fact.load
        assert load.looks >= 4
        assert load.sm_clock_max_mhz == smi.number(row["clocks.max.sm"])
        assert 0.2 < (load.sm_clock_mhz or 0) / (load.sm_clock_max_mhz or 1) <= 1.0
        assert "gpu_idle" not in [name for name, share in load.clock_events.items() if share > 0.5]
        assert (load.pcie_generation or 0) <= (smi.number(row["pcie.link.gen.max"]) or 99)
        assert load.power_w is None or load.power_w > 20


def test_a_second_run_measures_the_same(facts: list[GpuSpeedFact], tmp_path: Path):
    again = [seen.fact for seen in runs.run(tmp_path, *CHECKS).recording.facts(GpuSpeedFact)]
    for first, second in zip(facts, again, strict=True):
        for one, two in (
            (of(first.matmul_tflop_per_s), of(second.matmul_tflop_per_s)),
            (of(first.copy_gb_per_s), of(second.copy_gb_per_s)),
        ):
            assert two.median == pytest.approx(one.median, rel=0.10)


def test_rates_are_in_the_report_with_rank_and_gpu(outcome: runs.Outcome):
    measured = [one for one in outcome.report["measurements"] if "rank" in one["labels"]]
    names = {"hbm_copy_bandwidth", "matmul_rate", "pcie_h2d_bandwidth", "pcie_d2h_bandwidth"}
    assert {one["name"] for one in measured if one["labels"]["rank"] == 0} == names
    assert all("gpu" in one["labels"] for one in measured)


def test_rank_uses_no_more_memory_than_allowed(tmp_path: Path):
    before = smi.used_mib()
    with smi.peak_used_mib() as seen:
        outcome = runs.run(tmp_path, *CHECKS, *runs.only("allreduce"))
    fact = outcome.recording.first(GpuSpeedFact)
    assert fact is not None
    assert fact.memory_allowed_bytes <= MOST_BYTES
    # CUDA, its libraries and NCCL take up to 2 GiB per process in addition to the tensors.
    assert max(seen) - before < MOST_BYTES / smi.MIB + 2048


def test_gpus_of_one_healthy_machine_have_only_info_findings(outcome: runs.Outcome, facts: list[GpuSpeedFact]):
    above = [one for one in outcome.report["findings"] if one["severity"] != "info" and one["code"][:3] == "DD8"]
    assert above == []
