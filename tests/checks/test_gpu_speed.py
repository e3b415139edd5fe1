"""gpu_speed: real timing loops on real ranks (on the CPU), NVML by the compiled stand-in, rules on recordings."""

from typing import Any

import pytest

from ddp_doctor.checks.collectives import gpu_speed
from ddp_doctor.checks.collectives.gpu_speed import Plan, Workload, measure, rate
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.knowledge.gpu import gpu_speed as known
from ddp_doctor.model.context import GpuWatched
from ddp_doctor.model.fact import Absent
from tests.nvml_stand_in import bound_to, environment, library_folder
from tests.rank_harness import HarnessContext, Ranks
from tests.waiting import LIMIT_S

SMALL = Workload(
    matrices=(256, 64),
    copy_bytes=1 << 20,
    host_copy_bytes=1 << 18,
    matmul=Plan(warm_up_s=0.01, aim_s=0.005, repetitions=3),
    copy=Plan(warm_up_s=0.005, aim_s=0.002, repetitions=3),
    host_copy=Plan(warm_up_s=0.005, aim_s=0.002, repetitions=3),
)
ROOM = 64 << 20


# --- the measurements, on real ranks --------------------------------------------------------------------


#: The world of the measurements.
THREE = (0, 1, 2)


def measured(ctx: HarnessContext, room: tuple[int, ...]) -> dict[str, Any]:
    ctx.gpu_memory_bytes = room[ctx.rank]
    return measure(ctx, SMALL).recorded()


def probed(ctx: HarnessContext) -> str:
    try:
        gpu_speed.probe(ctx)
    except Absent as reason:
        return str(reason)
    return "measured"


@pytest.mark.ranks
def test_every_rank_measures_every_rate_of_its_device(ranks: Ranks):
    for recorded in ranks.facts(measured, (ROOM,) * 3, on=THREE):
        fact = GpuSpeedFact.model_validate(recorded)
        rates = [
            fact.copy_gb_per_s,
            fact.matmul_tflop_per_s,
            fact.host_to_device_gb_per_s,
            fact.device_to_host_gb_per_s,
        ]
        for rate_of_rank in rates:
            assert rate_of_rank is not None
            assert 0 < rate_of_rank.least <= rate_of_rank.median <= rate_of_rank.most
            assert rate_of_rank.repetitions == 3
        assert (fact.matmul_dtype, fact.matmul_size, fact.not_measured) == ("float32", 256, {})


@pytest.mark.ranks
def test_rank_without_memory_gives_a_reason_and_blocks_no_rank(ranks: Ranks):
    full, *others = ranks.facts(measured, (0, ROOM, ROOM), on=THREE)
    assert full["matmul_tflop_per_s"] is None
    assert full["not_measured"] == {
        "matrix products": "ddp-doctor may use 0 MiB of GPU memory, too little for the smallest matrix product"
    }
    assert all(one["matmul_tflop_per_s"] for one in others)


@pytest.mark.ranks
def test_all_ranks_enter_the_same_steps(ranks: Ranks):
    steps = [result.steps for result in ranks.run(measured, (ROOM, 0, ROOM), on=THREE)]
    assert steps[0] == steps[1] == steps[2]
    assert [name for name, _ in steps[0]].count("host_copy") == 3  # a turn for each rank of the node


@pytest.mark.ranks
def test_ranks_on_the_cpu_have_no_gpu_to_measure(ranks: Ranks):
    results = ranks.run(probed, on=THREE)
    assert [result.value for result in results] == ["the ranks run on the CPU"] * 3
    assert all(result.steps == () for result in results)


class Clock(HarnessContext):
    """A context for a device whose calls take 0.01 s each; everything else takes no time."""

    now = 0.0

    def __init__(self, call_s: float = 0.01) -> None:
        super().__init__(rank=0, group_rank=0, world_size=1, ranks=(0,), local_rank=0, group=None)
        self.call_s, self.calls = call_s, 0

    def clock(self) -> float:
        return self.now

    def work(self) -> None:
        self.calls += 1
        self.now += self.call_s


def test_a_rate_is_the_amount_over_the_time_of_one_call():
    ctx = Clock()
    measured = rate(ctx, ctx.work, 5.0, Plan(warm_up_s=0.1, aim_s=0.05))
    assert measured.median == pytest.approx(500.0)
    assert measured.repetitions == 7


def test_very_slow_device_is_measured_only_a_few_times():
    ctx = Clock(call_s=2.0)
    measured = rate(ctx, ctx.work, 5.0, Plan(warm_up_s=0.1, aim_s=0.05))
    assert (measured.repetitions, ctx.calls) == (3, 5)


# --- NVML under load ------------------------------------------------------------------------------------

WATCH = (
    """
import contextlib, pynvml, threading
from ddp_doctor.sources import gpu_watch
from tests.waiting import wait_until
""",
    """
gpu_watch._PATIENCE_S = float(sys.argv[2])
watch = gpu_watch.NvmlWatch(sys.argv[1] or None)
with watch.during("matmul"), contextlib.suppress(AssertionError):  # one that hangs never satisfies it
    wait_until(lambda: len(watch._samples) >= 3 or not watch._thread.is_alive(), limit_s=float(sys.argv[2]))
threading.Event().wait(0.1)  # in which it must not sample
print(watch.stop().model_dump_json())
sys.exit()
""",
)


def watched(fault: str, uuid: str, *defines: str) -> GpuWatched:
    program = bound_to(library_folder(*defines), WATCH)
    done = program(uuid, "0.2" if fault == "hang_init" else str(LIMIT_S / 2), env=environment(fault, *defines))
    return GpuWatched.model_validate_json(done.stdout)


def test_gpu_is_sampled_only_while_it_works():
    seen = watched("throttled", "GPU-8932f933-d72c-4106-c12f-20bd9faed9f6")
    assert seen.reason is None
    assert len(seen.samples) >= 3
    assert {one.phase for one in seen.samples} == {"matmul"}
    assert seen.samples[-1].clock_events == ("hw_slowdown", "hw_thermal_slowdown")
    assert (seen.samples[-1].sm_clock_mhz, seen.samples[-1].temperature_c) == (345, 94)
    assert (seen.samples[-1].pcie_generation, seen.pcie_width_max, seen.sm_clock_max_mhz) == (5, 16, 1980)
    assert seen.mig_enabled is False


def test_peer_of_the_throttled_gpu_is_not_throttled():
    seen = watched("throttled", "GPU-8932f930-d72c-4106-c12f-20bd9faed9f6")
    assert seen.samples[-1].sm_clock_mhz == 1980
    assert seen.samples[-1].clock_events == ("gpu_idle",)


def test_older_driver_is_queried_by_its_older_names():
    seen = watched("throttled", "GPU-8932f933-d72c-4106-c12f-20bd9faed9f6", "OLD_DRIVER")
    assert seen.samples[-1].clock_events == ("hw_slowdown", "hw_thermal_slowdown")
    assert seen.mig_enabled is None


def test_slice_is_found_by_its_uuid_without_the_mig_prefix():
    seen = watched("mig", "GPU-5e7d0003-0000-4000-8000-000000000001")
    assert (seen.reason, seen.mig_enabled) == (None, True)


@pytest.mark.parametrize(
    ("fault", "uuid", "reason"),
    [
        ("healthy", "", "does not tell the GPU's UUID"),
        ("healthy", "GPU-00000000-d72c-4106-c12f-20bd9faed9f6", "NVML lists no GPU GPU-00000000-"),
        ("not_loaded", "GPU-8932f930-d72c-4106-c12f-20bd9faed9f6", "NVML: Driver Not Loaded"),
        ("hang_init", "GPU-8932f930-d72c-4106-c12f-20bd9faed9f6", "NVML had not answered in time"),
    ],
)
def test_failed_nvml_gives_a_reason_without_waiting(fault: str, uuid: str, reason: str):
    seen = watched(fault, uuid)  # waiting calls never return
    assert reason in (seen.reason or "")
    assert seen.samples == ()


# --- the rules ------------------------------------------------------------------------------------------


def test_hostile_uuid_is_not_put_into_a_command():
    assert known.as_argument("GPU-8932f930-d72c-4106-c12f-20bd9faed9f6").startswith("GPU-8932f930")
    assert known.as_argument("GPU-0; rm -rf /") == "INDEX"
    assert known.as_argument(None) == "INDEX"


def test_slowdown_events_have_the_names_of_the_driver_query():
    from ddp_doctor.sources.child_nvml import CLOCK_EVENTS

    assert set(known.SLOWDOWNS_UNDER_LOAD) <= set(CLOCK_EVENTS.values())
