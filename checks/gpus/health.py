"""Is each GPU of the job well, free and of the same kind? The rules of check ``gpus`` about single GPUs.

They stand beside the tables they rest on (nvml.py, thresholds.py); checks/gpus.py lists them. One finding
names all GPUs with the same fault.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from ddp_doctor.knowledge import nvml as known
from ddp_doctor.knowledge import thresholds as limits
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.gpu_facts import Gpu, GpusFact
from ddp_doctor.phrases.gpus import Hits, Sight, gpu_draft


def _hits(recording: Recording, is_hit: Callable[[Gpu], object]) -> Hits:
    seen = recording.facts(GpusFact)
    return [(one.node, gpu) for one in seen for gpu in one.fact.of_the_job() if is_hit(gpu)]


def _by_severity(recording: Recording, judge: Callable[[Gpu], Severity | None]) -> dict[Severity, Hits]:
    """The job's GPUs that ``judge`` finds fault with, the worst first."""
    judged = [(judge(gpu), (node, gpu)) for node, gpu in _hits(recording, judge)]
    found = {severity: [hit for verdict, hit in judged if verdict is severity] for severity in Severity}
    return {severity: hits for severity, hits in found.items() if hits}


@rule("DD304", "gpu-needs-recovery", Severity.ERROR, GpusFact)
def needs_recovery(recording: Recording) -> Iterator[Draft]:
    """A GPU that does not answer, or of which the driver itself asks to be reset.

    What it finds
        GPUs that NVML calls lost or in need of a reset, that fail as a whole, or whose recovery action is
        not "none".

    Why it matters
        CUDA fails on it, often for all GPUs of the node: ranks die at start or at the first kernel.

    Remedy
        Drain the node and do what the driver asks: reset the GPU, or reboot. What returns is hardware.

    References
        NVML API reference, nvmlReturn_t; NVIDIA GPU Memory Error Management, Error Recovery and Response
        Flags; NVIDIA Xid catalog, Xid 79 and 154
    """
    for severity, hits in _by_severity(recording, _recovery).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(_recovery_words(gpu) for _, gpu in hits)),
            lambda gpu: Sight(_recovery_words(gpu) + _ecc_words(gpu), expected_from=known.MEMORY_ERRORS),
            known.RESET_GPU,
            detail="The driver says so itself. Other GPUs of the node may stop answering with it.",
            severity=severity,
        )


def _recovery(gpu: Gpu) -> Severity | None:
    if gpu.error not in (None, "no_permission"):
        return Severity.ERROR
    if gpu.recovery_action in (None, "none"):
        return None
    return Severity.WARNING if gpu.recovery_action in known.MILD_RECOVERY_ACTIONS else Severity.ERROR


def _recovery_words(gpu: Gpu) -> str:
    if gpu.error is None:
        return f"the driver asks for {(gpu.recovery_action or '').replace('_', ' ')}"
    return known.GPU_ERRORS.get(gpu.error, f"the driver cannot use it ({gpu.error})")


def _ecc_words(gpu: Gpu) -> str:
    count = gpu.ecc_volatile_uncorrected
    return f"; {count} uncorrected memory errors since the driver was loaded" if count else ""


@rule("DD305", "gpu-memory-in-use", Severity.WARNING, GpusFact)
def memory_in_use(recording: Recording) -> Iterator[Draft]:
    """A GPU of the job in whose memory somebody else's data lie before it starts.

    What it finds
        More than 1 GiB or a tenth of the memory in use: a warning, an error from nine tenths on, information
        where only a desktop draws. GPUs in MIG mode, whose other slices are others' right, do not count.

    Why it matters
        The job runs out of memory, or shares the GPU's time: every rank waits for the slowest one.

    Remedy
        End what is left over from an earlier job, or take other GPUs.

    References
        NVML API reference, nvmlDeviceGetMemoryInfo and nvmlDeviceGetComputeRunningProcesses
    """
    for severity, hits in _by_severity(recording, _memory).items():
        full = "nearly all " if severity is Severity.ERROR else ""
        yield gpu_draft(
            recording,
            hits,
            f"{full}memory in use by other processes",
            _memory_sight,
            known.FREE_MEMORY,
            detail="Read before the doctor started anything on the GPU. A pid may be another container's.",
            severity=severity,
            confidence=Confidence.PROVED if hits[0][1].processes else Confidence.LIKELY,
        )


def _memory(gpu: Gpu) -> Severity | None:
    if gpu.mig_enabled or not gpu.memory_total_bytes or gpu.memory_used_bytes is None:
        return None
    used = _memory_of_others(gpu)
    share = used / gpu.memory_total_bytes
    if share >= limits.GPU_MEMORY_FULL_SHARE:
        return Severity.ERROR
    if used <= limits.GPU_MEMORY_IN_USE_BYTES and share <= limits.GPU_MEMORY_IN_USE_SHARE:
        return None
    if gpu.computing():
        return Severity.WARNING
    if any(model in (gpu.name or "") for model in known.OS_MANAGED_MEMORY):
        return None
    return Severity.INFO if gpu.processes else Severity.WARNING


def _memory_of_others(gpu: Gpu) -> int:
    reserved = limits.GPU_MEMORY_RESERVED_BYTES if gpu.memory_used_counts_reserved else 0
    return max((gpu.memory_used_bytes or 0) - reserved, 0)


def _memory_sight(gpu: Gpu) -> Sight:
    used, total = _memory_of_others(gpu) / limits.GIB, (gpu.memory_total_bytes or 0) / limits.GIB
    return Sight(
        f"{used:.1f} of {total:.1f} GiB in use, {_process_words(gpu)}",
        round(used, 3),
        "GiB",
        limits.GPU_MEMORY_IN_USE_BYTES / limits.GIB,
        "an idle GPU holds some MiB, a bare CUDA context less than 1 GiB",
    )


def _process_words(gpu: Gpu) -> str:
    if not gpu.processes:
        return "by no process that can be seen from here"
    named = [f"pid {process.pid} ({process.name or 'name unknown'})" for process in gpu.processes[:4]]
    return f"by {', '.join(named)}" + (f" and {len(gpu.processes) - 4} more" if gpu.processes[4:] else "")


@rule("DD306", "gpu-compute-mode-refuses-ranks", Severity.ERROR, GpusFact)
def compute_mode_refuses(recording: Recording) -> Iterator[Draft]:
    """A GPU of the job on which no rank can open a CUDA context.

    What it finds
        Compute mode "prohibited"; or "exclusive process" while another process holds the GPU. Exclusive mode
        alone is well: DDP has one rank a GPU; so is an MPS server, which shares the GPU among its clients.

    Why it matters
        The rank dies with "CUDA-capable device(s) is/are busy or unavailable", or takes another rank's GPU.

    Remedy
        Set the mode to default, or end the process that holds the GPU.

    References
        NVML API reference, nvmlComputeMode_t; CUDA C++ Programming Guide, Compute Modes
    """
    for severity, hits in _by_severity(recording, _mode).items():
        yield gpu_draft(
            recording,
            hits,
            "the compute mode lets no rank in",
            lambda gpu: Sight(_mode_words(gpu), expected_from="one rank a GPU needs one CUDA context"),
            known.DEFAULT_MODE,
            detail="Opening the GPU fails with cudaErrorDevicesUnavailable.",
            severity=severity,
            confidence=Confidence.PROVED if severity is Severity.ERROR else Confidence.POSSIBLE,
        )


def _mode(gpu: Gpu) -> Severity | None:
    if gpu.compute_mode == "prohibited":
        return Severity.ERROR
    holders = gpu.computing()
    if gpu.compute_mode not in ("exclusive_process", "exclusive_thread") or not holders:
        return None
    if any((process.name or "").startswith("nvidia-cuda-mps") for process in holders):
        return None
    # A process of another pid namespace has no name here: it may be the MPS server.
    return Severity.ERROR if all(process.name for process in holders) else Severity.WARNING


def _mode_words(gpu: Gpu) -> str:
    mode = f"compute mode {(gpu.compute_mode or '').replace('_', ' ')}"
    return f"{mode}, held {_process_words(gpu)}" if gpu.computing() else mode


@rule("DD307", "gpu-memory-errors-uncorrected", Severity.ERROR, GpusFact)
def memory_errors(recording: Recording) -> Iterator[Draft]:
    """A GPU whose memory lost data since its driver was loaded.

    What it finds
        Volatile uncorrected ECC errors. An error, as NVIDIA's own monitoring judges it; a warning where the
        driver says that no recovery is needed, which it does for errors that it contained (A100 and newer).

    Why it matters
        The process that touches the bad memory dies (Xid 48, 94, 95), and with it the whole DDP job.

    Remedy
        Drain the node and reset the GPU. Contained errors: reset at the next chance, so that the row is
        remapped.

    References
        DCGM, DCGM_FR_VOLATILE_DBE_DETECTED (drain the GPU and reset it); NVIDIA Xid catalog, 48, 63, 64, 94
        and 95; NVIDIA GPU Memory Error Management, Error Recovery and Response Flags
    """
    for severity, hits in _by_severity(recording, _memory_errors).items():
        contained = severity is Severity.WARNING
        yield gpu_draft(
            recording,
            hits,
            "uncorrected memory errors" + (", contained by the driver" if contained else ""),
            _memory_error_sight,
            known.RESET_GPU,
            detail="Counted since the driver was loaded; a reset clears them.",
            severity=severity,
        )


def _memory_errors(gpu: Gpu) -> Severity | None:
    if not gpu.ecc_volatile_uncorrected or _recovery(gpu) is not None:  # DD304 has named it with the errors
        return None
    return Severity.WARNING if gpu.recovery_action == "none" else Severity.ERROR


def _memory_error_sight(gpu: Gpu) -> Sight:
    action = gpu.recovery_action or "not told by this driver"
    return Sight(
        f"{gpu.ecc_volatile_uncorrected} uncorrected ECC errors since the driver was loaded, "
        f"{gpu.ecc_aggregate_uncorrected} in its life; recovery action {action}",
        gpu.ecc_volatile_uncorrected,
        "errors",
        0,
        known.MEMORY_ERRORS,
    )


@rule("DD308", "gpu-slowed-by-hardware", Severity.WARNING, GpusFact)
def slowed(recording: Recording) -> Iterator[Draft]:
    """A GPU whose hardware holds its clocks down.

    What it finds
        Hardware thermal slowdown or the power brake, in force at two looks half a second apart; information
        where the driver lowers the clocks for heat. Power caps, idle and set clocks are normal life.

    Why it matters
        The hardware halves the clock or worse, and in DDP every rank waits for the slowest.

    Remedy
        Have cooling and power supply of the node inspected.

    References
        NVML API reference, nvmlClocksEventReasons
    """
    for severity, hits in _by_severity(recording, _slowdown).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(known.SLOWDOWNS[name] for _, gpu in hits for name in _slowdowns(gpu))),
            _slowdown_sight,
            known.COOL_DOWN,
            detail="In force at two looks half a second apart, before the job put any load on it.",
            severity=severity,
        )


def _slowdown(gpu: Gpu) -> Severity | None:
    names = _slowdowns(gpu)
    return None if not names else Severity.INFO if names == ["sw_thermal_slowdown"] else Severity.WARNING


def _slowdowns(gpu: Gpu) -> list[str]:
    return [name for name in known.SLOWDOWNS if name in (gpu.clock_events or ())]


def _slowdown_sight(gpu: Gpu) -> Sight:
    heat = f", {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    return Sight(
        f"{', '.join(_slowdowns(gpu))}; SM clock {gpu.sm_clock_mhz} MHz{heat}",
        gpu.sm_clock_mhz,
        "MHz",
        gpu.sm_clock_max_mhz,
        "the GPU's highest SM clock",
    )


@rule("DD309", "gpu-in-mig-mode", Severity.INFO, GpusFact)
def mig_mode(recording: Recording) -> Iterator[Draft]:
    """A GPU that is cut into slices (MIG).

    What it finds
        GPUs of the job with MIG mode on, with or without slices.

    Why it matters
        A process is shown one slice only, slices have no peer-to-peer path to each other, and in MIG mode
        without slices CUDA shows nothing. One rank on one slice is well.

    Remedy
        For DDP over several GPUs use whole ones.

    References
        NVIDIA MIG User Guide, CUDA Device Enumeration and Application Considerations
    """
    hits = _hits(recording, lambda gpu: gpu.mig_enabled)
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "in MIG mode, so a process is shown one slice of it",
            lambda gpu: Sight(f"MIG mode on, {len(gpu.mig_uuids)} slices", expected_from=known.MIG_GUIDE),
            known.WHOLE_GPUS,
            detail="NCCL has no peer-to-peer path between slices.",
            severity=Severity.INFO,
        )


@rule("DD310", "gpu-models-differ", Severity.WARNING, GpusFact)
def models_differ(recording: Recording) -> Iterator[Draft]:
    """Ranks that cannot but run on GPUs of different models.

    What it finds
        More ranks on a node than it has GPUs of one model, or nodes with different models. A small card for
        the display beside the job's GPUs is no finding.

    Why it matters
        Every rank waits for the slowest, and the smallest memory limits the batch.

    Remedy
        Choose GPUs of one model, or ask the scheduler for one type.

    References
        PyTorch docs, DistributedDataParallel: gradients are synchronised in every backward pass
    """
    hits = [(one.node, gpu) for one in recording.facts(GpusFact) for gpu in _taking_part(recording, one)]
    models = Counter(gpu.name or "unknown" for _, gpu in hits)
    if len(models) > 1:
        usual, count = models.most_common(1)[0]
        few = [(node, gpu) for node, gpu in hits if gpu.name != usual] if 2 * count > len(hits) else hits
        yield gpu_draft(
            recording,
            few,
            f"different models, {' and '.join(sorted(models))}",
            lambda gpu: Sight(f"{gpu.name}", expected_from=f"one model is best; most are {usual}"),
            known.SAME_MODEL,
            detail="The job will run at the speed, and with the memory, of the weakest.",
            severity=Severity.WARNING,
        )


def _taking_part(recording: Recording, seen: Seen[GpusFact]) -> list[Gpu]:
    """The GPUs of a node that its ranks use: those of one model where there are enough of them."""
    shown = [gpu for gpu in seen.fact.gpus if gpu.index in seen.fact.visible and gpu.name]
    if seen.fact.hidden or not shown:
        return []
    usual, count = Counter(gpu.name for gpu in shown).most_common(1)[0]
    ranks = len(recording.world.ranks_of(seen.node)) if recording.world else len(shown)
    return shown if count < min(ranks, len(shown)) else [gpu for gpu in shown if gpu.name == usual]


RULES = (needs_recovery, memory_in_use, compute_mode_refuses, memory_errors, slowed, mig_mode, models_differ)
