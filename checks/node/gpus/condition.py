"""DD304, DD307, DD308: a GPU that is lost, has lost data, or is slowed by its own hardware."""

from collections.abc import Callable, Iterator

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import COOL_DOWN
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import Hits, gpus_of_the_job
from ddp_doctor.wording.gpus import asked_for, gpu_draft
from ddp_doctor.wording.kernel_log import xids_of


def severity_of_use(recording: Recording, group: list[FactAt[GpusFact]]) -> Severity:
    """An error where the job wants GPUs; in a prolog information where CUDA_VISIBLE_DEVICES hides them from its job."""
    if recording.command.is_of_root and all(node.fact.hidden for node in group):
        return Severity.INFO
    return asked_for(recording, Severity.ERROR)


def by_severity(recording: Recording, severity_of: Callable[[Gpu], Severity | None]) -> dict[Severity, Hits]:
    """The job's GPUs with a fault, the worst first; a severity of None is no fault."""
    graded = [(severity_of(gpu), (node, gpu)) for node, gpu in gpus_of_the_job(recording)]
    found = {severity: [gpu_at for grade, gpu_at in graded if grade is severity] for severity in Severity}
    return {severity: hits for severity, hits in found.items() if hits}


RESET_GPU = by_operator(
    "Drain the node, then reset the GPU; where it does not come back, reboot, and if the fault returns, "
    "have the GPU replaced.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
    "sudo dmesg | grep -i xid",
    "sudo nvidia-smi --gpu-reset -i INDEX",
    cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
    undo=NOTHING_TO_UNDO,
    references=(nvml.MEMORY_ERRORS, nvml.XID_CATALOG),
)


@rule("DD304", "gpu-needs-recovery", Severity.ERROR, GpusFact)
def gpu_needs_recovery(recording: Recording) -> Iterator[Draft]:
    """A GPU that does not answer, or of which the driver itself asks to be reset.

    Finds: GPUs that NVML calls lost or in need of a reset, that fail as a whole, or whose recovery action is not
        "none".
    Why: CUDA fails on it, often for all GPUs of the node: ranks die at start or at the first kernel.
    Remedy: Drain the node and do what the driver asks: reset the GPU, or reboot. If the fault returns, the hardware is
        faulty.
    See: NVML API reference, nvmlReturn_t; NVIDIA GPU Memory Error Management, Error Recovery and Response
        Flags; NVIDIA Xid catalog, Xid 79 and 154
    """
    for severity, hits in by_severity(recording, recovery).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(_recovery_words(gpu) for _, gpu in hits)),
            lambda gpu: Evidence(text=_recovery_words(gpu) + _ecc_words(gpu), expected_from=nvml.MEMORY_ERRORS),
            RESET_GPU,
            detail="The driver says so itself. Other GPUs of the node may stop answering with it.",
            severity=severity,
            beside=xids_of(recording, hits),
        )


def recovery(gpu: Gpu) -> Severity | None:
    """How gravely the GPU as a whole fails."""
    if gpu.error not in (None, "no_permission"):
        return Severity.ERROR
    if gpu.recovery_action in (None, "none"):
        return None
    return Severity.WARNING if gpu.recovery_action in nvml.MILD_RECOVERY_ACTIONS else Severity.ERROR


def _recovery_words(gpu: Gpu) -> str:
    if gpu.error is None:
        action = gpu.recovery_action or ""
        return f"the driver asks for {nvml.RECOVERY_ACTIONS.get(action, action)}"
    return nvml.GPU_ERRORS.get(gpu.error, f"the driver cannot use it ({gpu.error})")


def _ecc_words(gpu: Gpu) -> str:
    count = gpu.ecc_volatile_uncorrected
    errors = f"; {count} uncorrected memory errors since the driver was loaded" if count else ""
    return errors + _pending_words(gpu)


def _pending_words(gpu: Gpu) -> str:
    return "; a reset will replace the bad memory" if repair_pending(gpu) else ""


def repair_pending(gpu: Gpu) -> bool:
    """Whether bad memory waits for a reset to be taken out of use."""
    return bool(gpu.row_remap_pending or gpu.page_retirement_pending)


@rule("DD307", "gpu-memory-errors-uncorrected", Severity.ERROR, GpusFact)
def gpu_memory_errors_uncorrected(recording: Recording) -> Iterator[Draft]:
    """A GPU whose memory lost data since its driver was loaded.

    Finds: Volatile uncorrected ECC errors. An error, as NVIDIA's own monitoring judges it; a warning where the driver
        says that no recovery is needed, which it does for errors that it contained (A100 and newer).
    Why: The process that touches the bad memory dies (Xid 48, 94, 95), and with it the whole DDP job.
    Remedy: Drain the node and reset the GPU. Contained errors: reset at the next chance, so that the row is remapped.
    See: DCGM, DCGM_FR_VOLATILE_DBE_DETECTED (drain the GPU and reset it); NVIDIA Xid catalog, 48, 63, 64, 94
        and 95; NVIDIA GPU Memory Error Management, Error Recovery and Response Flags
    """
    for severity, hits in by_severity(recording, _memory_errors).items():
        contained = severity is Severity.WARNING
        yield gpu_draft(
            recording,
            hits,
            "uncorrected memory errors" + (", contained by the driver" if contained else ""),
            _memory_error_evidence,
            RESET_GPU,
            detail="Counted since the driver was loaded; a reset clears them.",
            severity=severity,
            beside=xids_of(recording, hits),
        )


def _memory_errors(gpu: Gpu) -> Severity | None:
    if not gpu.ecc_volatile_uncorrected or recovery(gpu) is not None or gpu.row_remap_failed:
        return None  # DD304 or DD312 has named it with the errors
    return Severity.WARNING if gpu.recovery_action == "none" else Severity.ERROR


def _memory_error_evidence(gpu: Gpu) -> Evidence:
    action = gpu.recovery_action or "not reported by this driver"
    return Evidence(
        text=f"{gpu.ecc_volatile_uncorrected} uncorrected ECC errors since the driver was loaded, "
        f"{gpu.ecc_aggregate_uncorrected} in its life{_error_places(gpu)}; recovery action {action}"
        f"{_pending_words(gpu)}",
        value=gpu.ecc_volatile_uncorrected,
        unit="errors",
        expected=0,
        expected_from=nvml.MEMORY_ERRORS,
    )


def _error_places(gpu: Gpu) -> str:
    counts = (("DRAM", gpu.ecc_volatile_uncorrected_dram), ("SRAM", gpu.ecc_volatile_uncorrected_sram))
    places = [f"{count} in {place}" for place, count in counts if count]
    return f", of the former {' and '.join(places)}" if places else ""


@rule("DD308", "gpu-slowed-by-hardware", Severity.WARNING, GpusFact)
def gpu_slowed_by_hardware(recording: Recording) -> Iterator[Draft]:
    """A GPU whose hardware holds its clocks down.

    Finds: Hardware thermal slowdown or the power brake, in force at two looks half a second apart; information where
        the driver reduces the clocks for heat. Power caps, idle and set clocks are normal life.
    Why: The hardware reduces the clocks to half or less, and in DDP every rank waits for the slowest.
    Remedy: Have cooling and power supply of the node inspected.
    See: NVML API reference, nvmlClocksEventReasons
    """
    for severity, hits in by_severity(recording, _slowdown).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(nvml.SLOWDOWNS[name] for _, gpu in hits for name in _slowdowns(gpu))),
            _slowdown_evidence,
            COOL_DOWN,
            detail="In force at two looks half a second apart, before the job put any load on it.",
            severity=severity,
        )


def _slowdown(gpu: Gpu) -> Severity | None:
    names = _slowdowns(gpu)
    return None if not names else Severity.INFO if names == ["sw_thermal_slowdown"] else Severity.WARNING


def _slowdowns(gpu: Gpu) -> list[str]:
    return [name for name in nvml.SLOWDOWNS if name in (gpu.clock_events or ())]


def _slowdown_evidence(gpu: Gpu) -> Evidence:
    heat = f", {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    return Evidence(
        text=f"{', '.join(_slowdowns(gpu))}{heat}; SM clock",
        value=gpu.sm_clock_mhz,
        unit="MHz",
        expected=gpu.sm_clock_max_mhz,
        expected_from="the GPU's highest SM clock",
    )
