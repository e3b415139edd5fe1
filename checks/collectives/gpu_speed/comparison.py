"""GPUs that may be compared, GPUs that may not (DD806, DD807), the typical GPU, and slow GPUs in findings."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from ddp_doctor.facts.collectives import GpuLoad, GpuSpeedFact, Rate
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.knowledge.gpu.nvml import CLOCK_EVENTS_API
from ddp_doctor.knowledge.severity import ERROR_TIMES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import BusyGpu, busy_gpus
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, proved
from ddp_doctor.wording.gpus import process_list
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprit, rank_of, ranks_at

Measured = FactAt[GpuSpeedFact]
_GIB = 1024**3


@dataclass(frozen=True)
class Metric:
    """A rate of the fact. ``conditions`` returns what must be equal between GPUs to compare it."""

    field: str
    words: str
    unit: str
    conditions: Callable[[GpuSpeedFact], Hashable] = lambda _: None

    def of(self, gpu: Measured) -> Rate | None:
        """Return the rate that the rank measured."""
        rate: Rate | None = getattr(gpu.fact, self.field)
        return rate


MATMUL = Metric("matmul_tflop_per_s", "matrix products", "TFLOP/s", lambda fact: (fact.matmul_dtype, fact.matmul_size))
COPY = Metric("copy_gb_per_s", "copies within its memory", "GB/s", lambda fact: fact.copy_bytes)
INTO = Metric("host_to_device_gb_per_s", "copies from the host", "GB/s")
BACK = Metric("device_to_host_gb_per_s", "copies to the host", "GB/s")


@dataclass(frozen=True)
class Compared:
    """A rank's rate compared with the median of the others, or with a typical rate if ``others`` is 0."""

    gpu: Measured
    metric: Metric
    rate: Rate
    typical: float
    others: int

    @property
    def factor(self) -> float:
        """The slowdown compared with the others."""
        return self.typical / max(self.rate.median, 1e-9)

    def is_below(self, share: float) -> bool:
        """Return True if it is slower by this share and never reached the typical rate."""
        return self.rate.median <= self.typical * (1 - share) and self.rate.most < self.typical


@once_a_recording
def busy(recording: Recording) -> Mapping[int, BusyGpu | None]:
    """Return the ranks whose GPU another program used before the run; None if NVML did not show the program."""
    found: dict[int, BusyGpu | None] = {}
    gpus_by_node = {node.node: node.fact for node in recording.facts(GpusFact) if node.fact.gpus}
    by_uuid = {(node, gpu.uuid): gpu for node, fact in gpus_by_node.items() for gpu in busy_gpus(fact)}
    for gpu in recording.facts(GpuSpeedFact):
        if gpu.node in gpus_by_node:
            if (gpu.node, gpu.fact.gpu_uuid) in by_uuid:
                found[rank_of(gpu)] = by_uuid[gpu.node, gpu.fact.gpu_uuid]
        else:
            total = gpu.fact.memory_total_bytes
            own_use = max(gpu_speed.OWN_USE_BYTES, gpu_speed.OWN_USE_SHARE * total)
            if total - gpu.fact.memory_free_bytes > own_use:
                found[rank_of(gpu)] = None
    return found


@once_a_recording
def judged(recording: Recording) -> Sequence[Measured]:
    """Return the ranks with a full GPU to themselves: no other program, no other rank, no other slice."""
    everyone = recording.facts(GpuSpeedFact)
    ranks = Counter(gpu.fact.gpu_uuid or gpu.rank for gpu in everyone)  # GPU UUIDs are unique worldwide
    crowded = busy(recording)
    return [
        gpu
        for gpu in everyone
        if rank_of(gpu) not in crowded and ranks[gpu.fact.gpu_uuid or gpu.rank] < 2 and not gpu.fact.load.mig_enabled
    ]


def model(gpu: Measured) -> Hashable:
    """Return the model of a GPU: its name and memory, because cards of 8 GB and 12 GB share a name."""
    return gpu.fact.gpu_name, round(gpu.fact.memory_total_bytes / _GIB)


def groups(
    gpus: Sequence[Measured], metric: Metric, key: Callable[[Measured], Hashable] = model
) -> list[list[Compared]]:
    """Return GPUs that measured the metric under equal conditions, with the median of the others; slowest first."""
    by_key = grouped(
        ((key(gpu), metric.conditions(gpu.fact)), (rate.median, gpu, rate))
        for gpu in gpus
        if gpu.fact.gpu_name and (rate := metric.of(gpu)) is not None
    )
    found = []
    for group in by_key.values():
        group.sort(key=lambda with_rate: with_rate[0])
        rates, others = [median for median, _, _ in group], len(group) - 1
        compared = (
            Compared(gpu, metric, rate, median_without(rates, at), others) for at, (_, gpu, rate) in enumerate(group)
        )
        found += [list(compared)] if others else []
    return found


@once_a_recording
def beside_others(recording: Recording, metric: Metric) -> list[list[Compared]]:
    """Return the comparable GPUs of one model, as ``groups`` does; cached for several rules."""
    return groups(judged(recording), metric)


def median_without(ordered: Sequence[float], left_out: int) -> float:
    """Return the median of all but one of two or more sorted values, without sorting them again for each."""
    last = len(ordered) - 2

    def at(place: int) -> float:
        return ordered[place + (place >= left_out)]

    return (at(last // 2) + at((last + 1) // 2)) / 2


def culprits(recording: Recording, gpus: Iterable[Measured]) -> list[Culprit]:
    """Return the GPUs of these ranks as culprits."""
    ranks = ((rank_culprit(recording, rank_of(gpu)), gpu) for gpu in gpus)
    return [culprit.model_copy(update={"kind": "gpu", "name": gpu.fact.gpu_uuid}) for culprit, gpu in ranks]


def slower(factor: float) -> str:
    """Return the slowdown by ``factor``: "41 % slower", "3.4 times slower"."""
    return f"{factor:.1f} times slower" if factor >= ERROR_TIMES else f"{1 - 1 / factor:.0%} slower"


def reasons(names: Iterable[str]) -> str:
    """Return the meaning of slowdowns, without the general hardware slowdown if a specific one is given."""
    given = [name for name in gpu_speed.SLOWDOWNS_UNDER_LOAD if name in set(names)]
    special = [name for name in given if name != "hw_slowdown"]
    return " and ".join(gpu_speed.SLOWDOWNS_UNDER_LOAD[name] for name in special or given)


COMPARE = by_operator(
    "Compare its clocks, power limit, temperature and ECC errors with its peers under load;"
    " if they are the same, reset the GPU, and replace it if it stays slow",
    "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE,ECC",
    cost="node unavailable until fixed",
    references=(CLOCK_EVENTS_API,),
)
RESEAT = by_operator(
    "Check slot, riser and cable of the GPU and the slot's lanes in the firmware, then reseat the GPU",
    "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max --format=csv",
    "sudo lspci -vv -d 10de: | grep -e LnkCap: -e LnkSta:",
    cost="node unavailable until fixed",
)
FOLLOW_THE_PATH = by_operator(
    "Compare every PCIe link between CPU and GPU with its capability; a switch above the GPU"
    " may run with fewer lanes, at a lower speed, or be shared with other busy devices",
    "nvidia-smi topo -m",
    "lspci -tv",
    "sudo lspci -vv | grep -e '^[0-9a-f]' -e LnkCap: -e LnkSta:",
)


def evidence(recording: Recording, gpus: Sequence[Measured], besides: Sequence[Measured]) -> Iterator[Evidence]:
    """Yield one line per GPU, compared with the typical GPU of its model, which excludes ``besides``."""
    usual = _usual_load(recording, besides)
    for gpu in gpus[:LINES_OF_EVIDENCE]:
        text = f"{rank_at(recording, rank_of(gpu))} under load: {_load_text(gpu.fact.load, usual)}"
        yield Evidence(text=text)


def remedies(recording: Recording, gpus: Sequence[Measured]) -> tuple[Remedy, ...]:
    """Return fixes for differences from other GPUs of the model, or a comparison if nothing differs."""
    usual, found, set_clocks = _usual_load(recording, gpus), [], []
    for gpu in gpus[:LINES_OF_EVIDENCE]:
        load, index = gpu.fact.load, gpu_speed.as_argument(gpu.fact.gpu_uuid)
        own_w, peers_w = load.power_limit_w, usual.power_limit_w
        if own_w and peers_w and _is_lower(own_w, peers_w, gpu_speed.POWER_LIMIT_LOWER_SHARE):
            raise_limit = by_operator(
                f"Raise its power limit from {own_w:.0f} W to {peers_w:.0f} W, the limit of its peers",
                f"sudo nvidia-smi -i {index} -pl {peers_w:.0f}",
                cost="root access; more load on power supply and cooling",
                undo=f"sudo nvidia-smi -i {index} -pl {own_w:.0f}",
            )
            found.append(raise_limit)
        due_mhz = usual.sm_clock_mhz or load.sm_clock_max_mhz
        if "applications_clocks_setting" in load.clock_events and _is_lower(
            load.sm_clock_mhz, due_mhz, gpu_speed.SLOWER_SHARE
        ):
            set_clocks.append(index)
    if set_clocks:
        free_clocks = by_operator(
            f"Reset the application clocks of {'this GPU' if len(set_clocks) == 1 else 'these GPUs'}",
            "nvidia-smi -q -d CLOCK",
            *(f"sudo nvidia-smi -i {index} {option}" for index in set_clocks for option in ("-rgc", "-rac")),
            cost="root access; may undo a deliberate limit, such as one for power",
            undo="sudo nvidia-smi -lgc or -ac with the clocks from the first command",
        )
        found.append(free_clocks)
    return tuple(found) or (COMPARE,)


def _is_lower(own: float | None, usual: float | None, share: float) -> bool:
    return own is not None and usual is not None and own <= usual * (1 - share)


def _usual_load(recording: Recording, besides: Sequence[Measured]) -> GpuLoad:
    out = {rank_of(gpu) for gpu in besides}
    others = [gpu for gpu in judged(recording) if rank_of(gpu) not in out and model(gpu) == model(besides[0])]
    clocks = [gpu.fact.load.sm_clock_mhz for gpu in others if gpu.fact.load.sm_clock_mhz is not None]
    limits = [gpu.fact.load.power_limit_w for gpu in others if gpu.fact.load.power_limit_w is not None]
    return GpuLoad(
        sm_clock_mhz=median_low(clocks) if clocks else None, power_limit_w=median_low(limits) if limits else None
    )


def _load_text(load: GpuLoad, usual: GpuLoad) -> str:
    """Return "SM clock 1095 of 1980 MHz (others 1560), 349 of 350 W (others' limit 700), 51 °C, sw_power_cap"."""
    if load.reason is not None:
        return f"the driver reports nothing ({load.reason})"
    parts = []
    if load.sm_clock_mhz is not None:
        others = f" (others {usual.sm_clock_mhz})" if usual.sm_clock_mhz is not None else ""
        parts.append(f"SM clock {_of(load.sm_clock_mhz, load.sm_clock_max_mhz)} MHz{others}")
    if load.power_w is not None:
        others = f" (limit of others {usual.power_limit_w:.0f})" if usual.power_limit_w is not None else ""
        parts.append(f"{_of(load.power_w, load.power_limit_w)} W{others}")
    if load.temperature_c is not None:
        parts.append(f"{load.temperature_c} °C")
    parts.append(", ".join(sorted(load.clock_events)) or "no clock throttling")
    return ", ".join(parts)


def _of(value: float, most: float | None) -> str:
    return f"{value:.0f}" if most is None else f"{value:.0f} of {most:.0f}"


@rule("DD806", "gpu-measured-beside-another-program", Consequence.KNOWN, GpuSpeedFact)
def gpu_measured_beside_another_program(recording: Recording) -> Iterator[Draft]:
    """Another program used a GPU while ddp-doctor measured it.

    Finds: Reports ranks whose GPU was busy before the run began. ddp-doctor uses a tenth of the free memory, and at
        most 1 GiB, and does not compare the results with other GPUs.
    Why: The measured rates are lower than the GPU's own, and so are the rates of every collective in which it takes
        part.
    Remedy: Repeat the run when the GPU is free, or without that GPU.
    See: docs/explanation/measurements.md
    """
    crowded = busy(recording)
    shared = {rank_of(gpu): gpu for gpu in recording.facts(GpuSpeedFact) if rank_of(gpu) in crowded}
    if shared:
        yield likely(
            culprits(recording, (gpu for _, gpu in sorted(shared.items()))),
            f"{capital(ranks_at(recording, shared))}: measured while another program used the GPU",
            (
                Evidence(text=f"{rank_at(recording, rank)}: {_holders(crowded[rank], gpu)}")
                for rank, gpu in sorted(shared.items())[:LINES_OF_EVIDENCE]
            ),
            detail="Its rates are shown but not evaluated.",
        )


def _holders(busy_gpu: BusyGpu | None, gpu: Measured) -> str:
    """Return the processes that held memory before the run; without NVML, how much memory was not free."""
    if busy_gpu is None:
        used = (gpu.fact.memory_total_bytes - gpu.fact.memory_free_bytes) / _GIB
        return f"{used:.1f} GiB in use, more than CUDA and NCCL need, by an unknown process"
    names = process_list(busy_gpu.holders) or "no visible process"
    held = f"{busy_gpu.used_bytes / _GIB:.1f} GiB" if busy_gpu.used_bytes is not None else "memory"
    return f"{held} in use before the run, by {names}"


@rule("DD807", "gpu-rate-not-measured", Consequence.KNOWN, GpuSpeedFact)
def gpu_rate_not_measured(recording: Recording) -> Iterator[Draft]:
    """A rate of a GPU could not be measured.

    Finds: Reports ranks that measured their GPU only partly, and the reason.
    Why: Rates that were not measured were not compared, so a slow GPU may be missed.
    Remedy: Repeat the run when the GPU's memory is free.
    See: docs/explanation/measurements.md
    """
    reasons = grouped(
        ((what, why), rank_of(gpu))
        for gpu in recording.facts(GpuSpeedFact)
        for what, why in gpu.fact.not_measured.items()
    )
    if reasons:
        ranks = {rank for those in reasons.values() for rank in those}
        parts = dict.fromkeys(what for what, _ in reasons)
        yield proved(
            NOBODY,
            f"{capital(ranks_at(recording, ranks))}: {' and '.join(parts)} not measured",
            (
                Evidence(text=f"{ranks_at(recording, those)}, {what}: {why}")
                for (what, why), those in list(reasons.items())[:LINES_OF_EVIDENCE]
            ),
            detail="They are not compared with other GPUs.",
        )
