"""GPU speed: how fast each rank's GPU works, and its state during that work.

Raw input: none; it is measured on every rank on its own GPU, which NVML samples at the same time:

    rank 3 cuda:3 NVIDIA H100 80GB HBM3: copies 2541 GB/s, bfloat16 products 702 TFLOP/s, host to device 55.2,
    device to host 54.9 GB/s; SM clock 1560 of 1980 MHz, sw_power_cap, 697 of 700 W, 61 °C, PCIe 5 x16

Why it matters: in DDP, every rank waits for the slowest in every step. The slow rank looks like all others; only its
peers wait longer. An idle GPU shows little, because it lowers power, clocks and PCIe lanes. All GPUs multiply and copy
at the same time, as in a job. Copies to and from the host take turns on each node, because GPUs below one switch share
its link. The memory use is bounded (knowledge/gpu/gpu_speed.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median, median_low
from typing import Any, TypeVar

from ddp_doctor.checks.collectives.gpu_speed import comparison, host_links, slow_gpus
from ddp_doctor.facts.collectives import GpuLoad, GpuSpeedFact, Rate
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import GpuWatch, GpuWatched, RankContext
from ddp_doctor.model.fact import Absent, Skip
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.all_reduces import agreed, meet
from ddp_doctor.probing.rank_identity import finish, gpu_identity, moment, seconds_between, training_dtype
from ddp_doctor.views.gpus import gpus_by_rank

Work = Callable[[], object]

#: The time of a clock that is read twice within its own resolution.
_LEAST_S = 1e-9


@dataclass(frozen=True)
class Plan:
    """The duration of a measurement: repetitions of ``aim_s`` each, after a warm-up."""

    warm_up_s: float
    aim_s: float
    repetitions: int = 7
    fewest: int = 3  # minimum, whatever their duration


def rate(ctx: RankContext, once: Work, amount: float, plan: Plan) -> Rate:
    """Return ``amount`` per second of the work ``once``, repeated. Call inside a step."""
    seconds(ctx, once, 1)  # loads libraries and kernels
    started, calls = ctx.clock(), 1
    spent = seconds(ctx, once, calls)
    while ctx.clock() - started < plan.warm_up_s:
        calls = _calls(plan.aim_s, spent / calls)
        spent = seconds(ctx, once, calls)
    calls = _calls(plan.aim_s, spent / calls)
    until = ctx.clock() + 2 * plan.aim_s * plan.repetitions
    rates: list[float] = []
    while len(rates) < plan.repetitions and (len(rates) < plan.fewest or ctx.clock() < until):
        rates.append(amount * calls / seconds(ctx, once, calls))
    return Rate(median=median(rates), least=min(rates), most=max(rates), repetitions=len(rates))


def _calls(aim_s: float, one_s: float) -> int:
    return max(round(aim_s / one_s), 1)


def seconds(ctx: RankContext, once: Work, calls: int) -> float:
    """Return the device's time for ``calls`` calls that are queued at once."""
    began = moment(ctx)
    for _ in range(calls):
        once()
    ended = moment(ctx)
    finish(ctx.device)
    return max(seconds_between(began, ended), _LEAST_S)


N = TypeVar("N", int, float)

#: The phases of work during which a GPU's state is read.
MATMUL, COPY, HOST_COPY = "matmul", "copy", "host_copy"


def summed_up(watched: GpuWatched) -> GpuLoad:
    """Return clocks and their limits during the matrix products, and the PCIe link at its best in any phase.

    A copy within the GPU leaves the link idle, which then saves power, so the highest value counts.
    """
    busy = [sample for sample in watched.samples if sample.phase == MATMUL]
    recorded = [reading.clock_events for reading in busy if reading.clock_events is not None]
    in_force = Counter(name for names in recorded for name in names)
    clocks = [reading.sm_clock_mhz for reading in busy if reading.sm_clock_mhz is not None]
    return GpuLoad(
        **dict(watched),
        looks=len(busy),
        sm_clock_mhz=median_low(clocks) if clocks else None,
        clock_events={name: round(count / len(recorded), 2) for name, count in in_force.items()},
        temperature_c=_highest(sample.temperature_c for sample in watched.samples),
        power_w=_highest(reading.power_w for reading in busy),
        pcie_generation=_highest(sample.pcie_generation for sample in watched.samples),
        pcie_width=_highest(sample.pcie_width for sample in watched.samples),
    )


def _highest(values: Iterable[N | None]) -> N | None:
    return max((value for value in values if value is not None), default=None)


_MIB = 1 << 20
#: One step's own deadline: several times what its repetitions take on a shared GPU.
_STEP_S = 10.0
#: cuBLAS's own workspace, in addition to three matrices (32 MiB on Hopper, torch.backends.cuda).
_WORKSPACE_BYTES = 48 * _MIB
#: 8192 rows in 16 bits; a GPU without such a type is old and would need long for as many in fp32.
_LARGEST_MATRIX_BYTES = 128 * _MIB
#: For a torch that does not report the L2 cache: 40 MiB on an A100, 50 on an H100, 72 on an RTX 4090.
_CACHE_BYTES = 72 * _MIB

#: A GPU needs about 0.2 s from its idle clocks to its clocks under load.
_MATMUL = Plan(warm_up_s=0.25, aim_s=0.05)
_COPY = Plan(warm_up_s=0.03, aim_s=0.02)
#: The PCIe link wakes up within milliseconds. Each rank of a node has its turn, so this is short.
_HOST_COPY = Plan(warm_up_s=0.02, aim_s=0.01, repetitions=5)


@dataclass(frozen=True)
class Workload:
    """The work to measure: small enough for a second, large enough to reach the hardware's rate."""

    matrices: tuple[int, ...] = (8192, 4096, 2048)  # rows and columns; the first that fits in memory
    copy_bytes: int = 256 * _MIB  # at most; from one buffer to another
    host_copy_bytes: int = 64 * _MIB
    matmul: Plan = _MATMUL
    copy: Plan = _COPY
    host_copy: Plan = _HOST_COPY


_WHOLE = Workload()


def measure(ctx: RankContext, workload: Workload = _WHOLE) -> GpuSpeedFact:
    """Measure all rates of this rank's device, and record what the driver reported during that time."""
    uuid, name = gpu_identity(ctx.device)
    fields: dict[str, Any] = {"device": ctx.device, "gpu_uuid": uuid, "gpu_name": name}
    if ctx.device.startswith("cuda"):
        import torch

        free, total = torch.cuda.mem_get_info()
        fields |= {"memory_free_bytes": free, "memory_total_bytes": total}
    fields |= {"memory_allowed_bytes": ctx.gpu_memory_bytes}
    missing: dict[str, str] = {}

    def step(name: str, what: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run work that may run out of memory, which must not keep this rank from meeting the others."""
        import torch

        with ctx.step(name, deadline_s=_STEP_S):
            try:
                fields.update(work())
            except Skip as reason:
                missing[what] = str(reason)
            except torch.cuda.OutOfMemoryError:
                missing[what] = "the GPU's memory is in use"
        if ctx.device.startswith("cuda"):
            torch.cuda.empty_cache()  # other processes may need it

    watch = ctx.watch_gpu(uuid)
    try:
        turns = int(agreed(ctx, ctx.local_rank + 1))  # of the fullest node; all ranks start at the same moment
        step("matmul", "matrix products", partial(_matmul, ctx, watch, workload))
        step("copy", "copies within the GPU", partial(_copy, ctx, watch, workload))
        for turn in range(turns):
            meet(ctx)
            # Idle ranks enter the step too, because steps of ranks are matched by number.
            mine = turn == ctx.local_rank
            work = partial(_host, ctx, watch, workload) if mine else dict[str, Any]
            step("host_copy", "copies from and to the host", work)
        meet(ctx)
    finally:
        watched = watch.stop()
    return GpuSpeedFact(**fields, not_measured=missing, load=summed_up(watched))


def _matmul(ctx: RankContext, watch: GpuWatch, workload: Workload) -> dict[str, Any]:
    """Multiply random matrices: zeros would use less power, and so allow a higher clock."""
    import torch

    dtype = training_dtype(ctx.device)
    room = min((ctx.gpu_memory_bytes - _WORKSPACE_BYTES) // 3, _LARGEST_MATRIX_BYTES)
    fitting = [size for size in workload.matrices if size * size * dtype.itemsize <= room]
    if not fitting:
        raise Skip(
            f"ddp-doctor may use {ctx.gpu_memory_bytes >> 20} MiB of GPU memory, too little for the smallest matrix"
            " product"
        )
    size = fitting[0]
    # The same numbers on every rank: the power that a product takes depends on them.
    generator = torch.Generator(ctx.device).manual_seed(1)
    left, right = (torch.randn(size, size, device=ctx.device, dtype=dtype, generator=generator) for _ in range(2))
    out = torch.empty_like(left)
    with watch.during(MATMUL):
        measured = rate(ctx, lambda: torch.mm(left, right, out=out), 2 * size**3 / 1e12, workload.matmul)
    name = str(dtype).removeprefix("torch.")
    return {"matmul_tflop_per_s": measured, "matmul_dtype": name, "matmul_size": size}


def _copy(ctx: RankContext, watch: GpuWatch, workload: Workload) -> dict[str, Any]:
    """Copy between two buffers that are larger than the cache, to measure memory and not the cache."""
    import torch

    size = min(workload.copy_bytes, ctx.gpu_memory_bytes // 2)
    if ctx.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(ctx.device)
        cache = getattr(properties, "L2_cache_size", 0) or _CACHE_BYTES
        if size < cache:
            raise Skip(
                f"ddp-doctor may use {ctx.gpu_memory_bytes >> 20} MiB of GPU memory, too little for a copy larger than"
                " the L2 cache"
            )
    source = torch.ones(size, dtype=torch.uint8, device=ctx.device)
    target = torch.empty_like(source)
    with watch.during(COPY):
        measured = rate(ctx, lambda: target.copy_(source), 2 * size / 1e9, workload.copy)
    return {"copy_gb_per_s": measured, "copy_bytes": size}


def _host(ctx: RankContext, watch: GpuWatch, workload: Workload) -> dict[str, Any]:
    """Copy from pinned memory to the GPU and back, one direction at a time."""
    import torch

    size = min(workload.host_copy_bytes, ctx.gpu_memory_bytes // 2)
    try:
        host = torch.ones(size, dtype=torch.uint8, pin_memory=ctx.device.startswith("cuda"))
    except RuntimeError as error:
        raise Skip(f"cannot allocate pinned memory: {str(error).partition(chr(10))[0]}") from None
    there = torch.empty(size, dtype=torch.uint8, device=ctx.device)
    with watch.during(HOST_COPY):
        into = rate(ctx, lambda: there.copy_(host, non_blocking=True), size / 1e9, workload.host_copy)
        back = rate(ctx, lambda: host.copy_(there, non_blocking=True), size / 1e9, workload.host_copy)
    return {"host_to_device_gb_per_s": into, "device_to_host_gb_per_s": back, "host_copy_bytes": size}


def probe(ctx: RankContext) -> GpuSpeedFact:
    """Measure this rank's GPU. Raises Absent if the ranks run on the CPU."""
    if not ctx.device.startswith("cuda"):
        raise Absent("the ranks run on the CPU")
    return measure(ctx)


#: The report's names of the fact's rates, and the report's unit.
_RATES = (
    ("hbm_copy_bandwidth", "copy_gb_per_s", 1e9, "B/s"),
    ("matmul_rate", "matmul_tflop_per_s", 1e12, "FLOP/s"),
    ("pcie_h2d_bandwidth", "host_to_device_gb_per_s", 1e9, "B/s"),
    ("pcie_d2h_bandwidth", "device_to_host_gb_per_s", 1e9, "B/s"),
)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the median of each rate, for each rank and its GPU."""
    indices = gpus_by_rank(recording)
    for rank in recording.facts(GpuSpeedFact):
        labels: dict[str, str | int | float] = {"rank": rank.rank or 0, "node": rank.node}
        if (index := indices.get(rank.rank or 0)) is not None:
            labels["gpu"] = index
        for name, rate_field, factor, unit in _RATES:
            measured = getattr(rank.fact, rate_field)
            if measured is not None:
                yield Measurement(name=name, value=measured.median * factor, unit=unit, labels=labels)


CHECK = Check(
    id="gpu_speed",
    title="Each GPU at work is as fast as its peers",
    where=Where.RANK,
    probe=probe,
    facts=(GpuSpeedFact,),
    rules=rules_in(comparison, host_links, slow_gpus),
    level=Level.STANDARD,
    cost_s=1.5,
    deadline_s=20.0,
    measurements=measurements,
)
