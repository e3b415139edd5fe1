"""DD315, DD318, DD319, DD321: GPUs of one model whose settings or hardware differ."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import Hits, by_model, far_below
from ddp_doctor.wording.gpus import gpu_draft


@rule("DD315", "ecc-differs-between-gpus", Consequence.RISK, GpusFact)
def ecc_differs_between_gpus(recording: Recording) -> Iterator[Draft]:
    """Only some GPUs of one model have ECC enabled.

    Finds: ECC on and off on the job's GPUs of one model. Off on all is the site's choice, and the default of gaming
        cards.
    Why: Without ECC, a flipped bit spreads unnoticed into the gradients of all ranks. With ECC, cards without HBM
        have less memory and bandwidth, and every rank waits for them.
    Remedy: Set ECC to the same value on all GPUs.
    See: nvidia-smi manual, --ecc-config; NVML API reference, nvmlDeviceGetEccMode
    """
    for model, hits in by_model(recording).items():
        off = [(node, gpu) for node, gpu in hits if gpu.ecc_enabled is False]
        on = [(node, gpu) for node, gpu in hits if gpu.ecc_enabled]
        if off and on:
            few, state = (off, "off") if len(off) <= len(on) else (on, "on")
            yield gpu_draft(
                recording,
                few,
                f"ECC is {state}, but not on other GPUs of this model",
                lambda gpu: Evidence(
                    text=f"ECC {'on' if gpu.ecc_enabled else 'off'}", expected_from="the same on all GPUs"
                ),
                by_operator(
                    "Set ECC the same on all GPUs of one model (on, to detect memory errors), and reboot",
                    "sudo nvidia-smi -i INDEX -e 1",
                    cost="root access and a reset or reboot; memory and bandwidth on cards without HBM",
                    undo="sudo nvidia-smi -i INDEX -e 0, then reset",
                    references=("nvidia-smi manual, --ecc-config",),
                ),
                detail=f"{len(off)} of {len(off) + len(on)} GPUs of model {model} run without ECC.",
            )


@dataclass(frozen=True)
class _Limit:
    """A value that an operator can lower on a GPU."""

    words: str
    unit: str
    value_of: Callable[[Gpu], float | None]
    default: Callable[[Gpu], float | None]
    remedy: Remedy

    def remedy_for(self, hits: Hits, expected: float) -> Remedy:
        """Return the fix with the value to set, and with the previous value if it was the same on all GPUs."""
        was = {self.value_of(gpu) for _, gpu in hits}
        undo = self.remedy.undo.replace("with the previous limit", f"{was.pop():g}") if len(was) == 1 else None
        commands = tuple(line.replace("WATTS", f"{expected:g}") for line in self.remedy.commands)
        return self.remedy.model_copy(update={"commands": commands, "undo": undo or self.remedy.undo})


_POWER = _Limit(
    "power limit",
    "W",
    lambda gpu: gpu.power_limit_w,
    lambda gpu: gpu.power_limit_default_w,
    by_operator(
        "Set the same power limit on all GPUs, or find out what lowered it: a script, a power budget, the BMC",
        "nvidia-smi -q -d POWER",
        "sudo nvidia-smi -i INDEX -pl WATTS",
        cost="root access; more power and heat for the node",
        undo="sudo nvidia-smi -i INDEX -pl with the previous limit",
        references=("nvidia-smi manual, --power-limit",),
    ),
)
_CLOCK = _Limit(
    "application clock",
    "MHz",
    lambda gpu: gpu.application_clock_mhz,
    lambda gpu: gpu.application_clock_default_mhz,
    by_operator(
        "Reset the application clocks",
        "nvidia-smi -q -d CLOCK",
        "sudo nvidia-smi -i INDEX -rac",
        cost="root access; more power and heat",
        undo="sudo nvidia-smi -i INDEX -ac with the previous clocks",
        references=("nvidia-smi manual, --reset-applications-clocks",),
    ),
)


@rule("DD318", "gpu-power-limit-lowered", Consequence.COST, GpusFact)
def gpu_power_limit_lowered(recording: Recording) -> Iterator[Draft]:
    """A GPU has a lower power limit than its peers.

    Finds: A power limit below nine tenths of the value on most of the job's GPUs of that model: a warning.
        Information if all are below nine tenths of the default, which is a site's choice.
    Why: Under load, it reduces its clocks first, and in DDP every rank waits for the slowest.
    Remedy: Set the same limit on all, or find out who lowered it.
    See: NVML API reference, nvmlDeviceGetEnforcedPowerLimit; nvidia-smi manual, --power-limit
    """
    yield from _lowered(recording, _POWER)


@rule("DD319", "gpu-clocks-set-lower", Consequence.COST, GpusFact)
def gpu_clocks_set_lower(recording: Recording) -> Iterator[Draft]:
    """A GPU's application clocks are set lower than its peers'.

    Finds: A core application clock below nine tenths of the value on most of the job's GPUs of that model: a
        warning. Information if all are below nine tenths of the default. Idle clocks do not count.
    Why: The GPU runs at that clock under load, and in DDP every rank waits for the slowest.
    Remedy: Reset the application clocks.
    See: NVML API reference, nvmlDeviceGetApplicationsClock; nvidia-smi manual, --applications-clocks
    """
    yield from _lowered(recording, _CLOCK)


def _lowered(recording: Recording, limit: _Limit) -> Iterator[Draft]:
    for model, peers in by_model(recording).items():
        low, hits, expected = far_below(peers, limit.value_of)
        alike = not low
        if low:
            least = min(limit.value_of(gpu) or 0.0 for _, gpu in low)
            words = f"lowered to {least:g} {limit.unit}; most GPUs of this model have {expected:g} {limit.unit}"
        else:
            # A laptop's limit goes up and down with its battery and its processor.
            compared = [] if "Laptop" in model else [(node, gpu, limit.default(gpu) or 0.0) for node, gpu in hits]
            least = thresholds.GPU_LIMIT_SHARE
            low = [(node, gpu) for node, gpu, usual in compared if (limit.value_of(gpu) or 0.0) < least * usual]
            expected = next((limit.default(gpu) or 0.0 for _, gpu in low), 0.0)
            words = f"below its default of {expected:g} {limit.unit}"
        if low:
            source = "the GPU's default" if alike else "most GPUs of the same model"
            yield gpu_draft(
                recording,
                low,
                f"{limit.words} {words}",
                partial(_limit_evidence, limit, expected, source),
                limit.remedy_for(low, expected),
                detail=(
                    "All GPUs of the model have it, so no GPU waits for another, but the job is slower than possible."
                )
                if alike
                else "The other ranks wait for the slowest GPU in every step.",
                severity=Severity.INFO if alike else Severity.WARNING,
            )


def _limit_evidence(limit: _Limit, expected: float, source: str, gpu: Gpu) -> Evidence:
    value = limit.value_of(gpu)
    return Evidence(text=limit.words, value=value, unit=limit.unit, expected=expected, expected_from=source)


@rule("DD321", "gpus-of-one-model-differ", Consequence.KNOWN, GpusFact)
def gpus_of_one_model_differ(recording: Recording) -> Iterator[Draft]:
    """GPUs of one model have different VBIOS versions or memory sizes.

    Finds: More than one VBIOS version, or memory sizes more than 2% apart with the same ECC mode, among the job's
        GPUs of one model.
    Why: This is not necessarily a fault: GPUs bought at different times differ. But limits and faults may also
        differ, and the smallest memory limits the batch.
    Remedy: No change is needed; consider it if one GPU or node behaves unlike the others.
    See: NVML API reference, nvmlDeviceGetVbiosVersion
    """
    for hits in by_model(recording).values():
        by_vbios = _minority(hits, lambda gpu: gpu.vbios_version)
        few = by_vbios or _odd_sizes(hits)
        if few:
            yield gpu_draft(
                recording,
                few,
                f"{'different VBIOS' if by_vbios else 'less memory'} than other GPUs of this model",
                _firmware_evidence,
                by_operator(
                    "Install one VBIOS on the GPUs at the next maintenance; no action is needed now",
                    "nvidia-smi --query-gpu=index,name,vbios_version,memory.total --format=csv",
                ),
                detail="Useful to know if one GPU or node behaves differently.",
            )


def _minority(hits: Hits, value_of: Callable[[Gpu], str | None]) -> Hits:
    """Return the GPUs that differ from the majority; all GPUs without a majority."""
    known = [(node, gpu) for node, gpu in hits if value_of(gpu)]
    values = Counter(value_of(gpu) for _, gpu in known)
    if len(values) < 2:
        return []
    usual, count = values.most_common(1)[0]
    return [(node, gpu) for node, gpu in known if value_of(gpu) != usual] if 2 * count > len(known) else known


def _odd_sizes(hits: Hits) -> Hits:
    if len({gpu.ecc_enabled for _, gpu in hits}) > 1:
        return []  # ECC uses memory on some cards, and DD315 reports them
    largest = max(gpu.memory_total_bytes or 0 for _, gpu in hits)
    least = (1 - thresholds.GPU_MEMORY_SIZE_SHARE) * largest
    return [(node, gpu) for node, gpu in hits if 0 < (gpu.memory_total_bytes or 0) < least]


def _firmware_evidence(gpu: Gpu) -> Evidence:
    size = (gpu.memory_total_bytes or 0) / thresholds.GIB
    gsp = f", GSP firmware {gpu.gsp_firmware_version}" if gpu.gsp_firmware_version else ""
    return Evidence(
        text=f"VBIOS {gpu.vbios_version}, {size:.1f} GiB{gsp}", expected_from="usually one version on all GPUs"
    )
