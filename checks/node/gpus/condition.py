"""DD304, DD307, DD308, DD312-DD314, DD324: a GPU that is lost, slowed by its hardware, or whose memory fails."""

from collections.abc import Callable, Iterator

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import COOL_DOWN, REBOOT_NODE
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import Hits, gpus_of_the_job, hits_of
from ddp_doctor.wording.gpus import asked_for, gpu_draft
from ddp_doctor.wording.kernel_log import xids_of


def severity_of_use(recording: Recording, group: list[FactAt[GpusFact]]) -> Severity:
    """Return error if the job wants GPUs; in a prolog, info if CUDA_VISIBLE_DEVICES hides them from its job."""
    if recording.command.is_of_root and all(node.fact.hidden for node in group):
        return Severity.INFO
    return asked_for(recording, Severity.ERROR)


def by_severity(recording: Recording, severity_of: Callable[[Gpu], Severity | None]) -> dict[Severity, Hits]:
    """Return the job's faulty GPUs by severity, worst first; a severity of None means no fault."""
    graded = [(severity_of(gpu), (node, gpu)) for node, gpu in gpus_of_the_job(recording)]
    found = {severity: [gpu_at for grade, gpu_at in graded if grade is severity] for severity in Severity}
    return {severity: hits for severity, hits in found.items() if hits}


RESET_GPU = by_operator(
    "Drain the node and reset the GPU; reboot if that does not help, and replace the GPU if the fault returns",
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
    "sudo dmesg | grep -i xid",
    "sudo nvidia-smi --gpu-reset -i INDEX",
    cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
    references=(nvml.MEMORY_ERRORS, nvml.XID_CATALOG),
)


@rule("DD304", "gpu-needs-recovery", Consequence.FAILS, GpusFact)
def gpu_needs_recovery(recording: Recording) -> Iterator[Draft]:
    """A GPU does not answer, or the driver asks for its reset.

    Finds: GPUs that NVML reports as lost or in need of a reset, that fail completely, or whose recovery action is
        not "none".
    Why: CUDA fails on it, often for all GPUs of the node: ranks die at start or at the first kernel.
    Remedy: Drain the node and do what the driver asks: reset the GPU, or reboot. If the fault returns, the hardware
        is faulty.
    See: NVML API reference, nvmlReturn_t; NVIDIA GPU Memory Error Management, Error Recovery and Response
        Flags; NVIDIA Xid catalog, Xid 79 and 154
    """
    for severity, hits in by_severity(recording, recovery).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(_recovery_words(gpu) for _, gpu in hits)),
            _recovery_evidence,
            REBOOT_NODE if any(_needs_reboot(gpu) for _, gpu in hits) else RESET_GPU,
            detail="The driver reports it. Other GPUs of the node may also stop responding.",
            severity=severity,
            beside=xids_of(recording, hits),
        )


def recovery(gpu: Gpu) -> Severity | None:
    """Return the severity of a fault of the entire GPU, or None."""
    if gpu.error not in (None, "no_permission"):
        return Severity.ERROR
    if gpu.recovery_action in (None, "none"):
        return None
    return Severity.WARNING if gpu.recovery_action in nvml.MILD_RECOVERY_ACTIONS else Severity.ERROR


def _needs_reboot(gpu: Gpu) -> bool:
    return gpu.error == "gpu_is_lost" or gpu.recovery_action in ("node_reboot", "system_reboot")


def _recovery_words(gpu: Gpu) -> str:
    if gpu.error is None:
        action = gpu.recovery_action or ""
        return f"the driver requests {nvml.RECOVERY_ACTIONS.get(action, action)}"
    return nvml.GPU_ERRORS.get(gpu.error, f"the driver cannot use it ({gpu.error})")


def _recovery_evidence(gpu: Gpu) -> Evidence:
    count = gpu.ecc_volatile_uncorrected
    errors = f"; {count} uncorrected memory errors since the driver was loaded" if count else ""
    return Evidence(text=f"{_recovery_words(gpu)}{errors}{_pending_words(gpu)}", expected_from=nvml.MEMORY_ERRORS)


def _pending_words(gpu: Gpu) -> str:
    return "; a reset will replace the bad memory" if repair_pending(gpu) else ""


def repair_pending(gpu: Gpu) -> bool:
    """Return True if a reset is needed to retire bad memory."""
    return bool(gpu.row_remap_pending or gpu.page_retirement_pending)


@rule("DD307", "gpu-memory-errors-uncorrected", Consequence.WRONG, GpusFact)
def gpu_memory_errors_uncorrected(recording: Recording) -> Iterator[Draft]:
    """A GPU's memory lost data since its driver was loaded.

    Finds: Volatile uncorrected ECC errors. An error, as in NVIDIA's own monitoring; a warning if the driver reports
        that no recovery is needed, as it does for contained errors (A100 and newer).
    Why: The process that touches the bad memory dies (Xid 48, 94, 95), and the entire DDP job fails with it.
    Remedy: Drain the node and reset the GPU. Contained errors: reset at the next chance to remap the row.
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
        return None  # DD304 or DD312 reports it with the errors
    return Severity.WARNING if gpu.recovery_action == "none" else Severity.ERROR


def _memory_error_evidence(gpu: Gpu) -> Evidence:
    action = gpu.recovery_action or "not reported by this driver"
    counts = (("DRAM", gpu.ecc_volatile_uncorrected_dram), ("SRAM", gpu.ecc_volatile_uncorrected_sram))
    places = " and ".join(f"{count} in {place}" for place, count in counts if count)
    of_these = f", of the former {places}" if places else ""
    return Evidence(
        text=f"{gpu.ecc_volatile_uncorrected} uncorrected ECC errors since the driver was loaded, "
        f"{gpu.ecc_aggregate_uncorrected} in its life{of_these}; recovery action {action}"
        f"{_pending_words(gpu)}",
        value=gpu.ecc_volatile_uncorrected,
        unit="errors",
        expected=0,
        expected_from=nvml.MEMORY_ERRORS,
    )


@rule("DD308", "gpu-slowed-by-hardware", Consequence.COST, GpusFact)
def gpu_slowed_by_hardware(recording: Recording) -> Iterator[Draft]:
    """A GPU's hardware reduces its clocks.

    Finds: Hardware thermal slowdown or the power brake, active in two samples half a second apart; information if
        the driver reduces the clocks for heat. Power caps, idle and set clocks are normal.
    Why: The hardware reduces the clocks to half or less, and in DDP every rank waits for the slowest.
    Remedy: Have the node's cooling and power supply inspected.
    See: NVML API reference, nvmlClocksEventReasons
    """
    for severity, hits in by_severity(recording, _slowdown).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(nvml.SLOWDOWNS[name] for _, gpu in hits for name in _slowdowns(gpu))),
            _slowdown_evidence,
            COOL_DOWN,
            detail="Seen in two samples half a second apart, before the job put any load on it.",
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


REPLACE_GPU = by_operator(
    "Drain the node and run NVIDIA's field diagnostic on the GPU; replace the GPU if it confirms the fault",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    "nvidia-bug-report.sh",
    cost="node unavailable until fixed",
    references=(nvml.MEMORY_ERRORS,),
)

WATCH_GPU = by_operator(
    "Watch the counters; have the GPU inspected when they grow, or at the next maintenance",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    references=(nvml.MEMORY_ERRORS, nvml.PAGE_RETIREMENT),
)


@rule("DD312", "gpu-memory-repair-failed", Consequence.FAILS, GpusFact)
def gpu_memory_repair_failed(recording: Recording) -> Iterator[Draft]:
    """A GPU could not replace a bad row of its memory.

    Finds: NVML's flag for a failed row remapping (Ampere and newer). Remapped rows, in any number, are repaired and
        not reported.
    Why: The bad row stays in use after a reset: the next process that touches it dies (Xid 48, 64, 94, 95), and the
        entire DDP job fails with it.
    Remedy: Take the GPU out of service. NVIDIA replaces GPUs with this flag.
    See: NVIDIA GPU Memory Error Management, RMA Policy Thresholds for Row-Remapping; DCGM,
        DCGM_FR_ROW_REMAP_FAILURE
    """
    hits = hits_of(recording, lambda gpu: gpu.row_remap_failed)
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "a bad memory row could not be replaced",
            lambda gpu: Evidence(text=f"row remapping failed; {_rows(gpu)}", expected_from=nvml.MEMORY_ERRORS),
            REPLACE_GPU,
            detail="A reset does not fix it, because the memory bank has no spare row or the ROM accepted no entry.",
            beside=xids_of(recording, hits),
        )


def _rows(gpu: Gpu) -> str:
    """Return "2 rows replaced, 1 after an uncorrected error, 1 bank without spare rows"."""
    unsafe = gpu.rows_remapped_uncorrected or 0
    rows = (gpu.rows_remapped_corrected or 0) + unsafe
    words = f"{rows} {'row' if rows == 1 else 'rows'} replaced, {unsafe} after an uncorrected error"
    banks = (gpu.spare_rows or {}).get("none", 0)
    errors = gpu.ecc_volatile_uncorrected
    words += f", {banks} {'bank' if banks == 1 else 'banks'} without spare rows" if banks else ""
    return words + (f", {errors} uncorrected errors since the driver was loaded" if errors else "")


@rule("DD313", "gpu-memory-repair-pending", Consequence.RISK, GpusFact)
def gpu_memory_repair_pending(recording: Recording) -> Iterator[Draft]:
    """A GPU needs a reset to take bad memory out of use.

    Finds: A pending row remapping (Ampere and newer) or page retirement (older): a warning. An error if the
        retirement is for an uncorrected error: the driver then opens no further CUDA context.
    Why: Before the reset, the driver can only avoid the bad memory; its data is lost.
    Remedy: Reset the GPU when the node is idle, or reboot.
    See: NVML API reference, nvmlDeviceGetRemappedRows and nvmlDeviceGetRetiredPagesPendingStatus; NVIDIA
        Dynamic Page Retirement, Use Case 1; DCGM, DCGM_FR_PENDING_ROW_REMAP
    """
    for severity, hits in by_severity(recording, _pending).items():
        yield gpu_draft(
            recording,
            hits,
            "a reset is needed to disable bad memory",
            lambda gpu: Evidence(text=_repair_words(gpu), expected_from=nvml.MEMORY_ERRORS),
            by_operator(
                "Reset the GPU when the node is idle, or reboot, to disable the bad memory",
                "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT",
                "sudo nvidia-smi --gpu-reset -i INDEX",
                cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
                references=(nvml.MEMORY_ERRORS, nvml.PAGE_RETIREMENT),
            ),
            detail="Until then, the driver lets no program use it."
            if severity is Severity.ERROR
            else "Jobs can run until then, because the driver keeps them off the bad memory.",
            severity=severity,
            beside=xids_of(recording, hits),
        )


def _pending(gpu: Gpu) -> Severity | None:
    reported = recovery(gpu) is not None or gpu.ecc_volatile_uncorrected or gpu.row_remap_failed
    if reported or not repair_pending(gpu):
        return None  # DD304, DD307 and DD312 report that a reset is due, or does not help
    return Severity.ERROR if gpu.page_retirement_pending_double_bit else Severity.WARNING


def _repair_words(gpu: Gpu) -> str:
    if gpu.row_remap_pending:
        return f"row remapping pending; {_rows(gpu)}"
    return f"page retirement pending; {_pages(gpu)}"


def _pages(gpu: Gpu) -> str:
    return f"{_retired(gpu)} pages retired, {gpu.pages_retired_double_bit or 0} after an uncorrected error"


def _retired(gpu: Gpu) -> int:
    return (gpu.pages_retired_single_bit or 0) + (gpu.pages_retired_double_bit or 0)


@rule("DD314", "gpu-memory-wears-out", Consequence.RISK, GpusFact)
def gpu_memory_wears_out(recording: Recording) -> Iterator[Draft]:
    """A GPU has had so many memory errors that the next one may not be repairable.

    Finds: The flag of NVIDIA's policy for SRAM errors, or 63 of at most 64 retired pages: a warning. Information if
        a memory bank has no spare row left. Fewer repairs are normal.
    Why: The GPU works, but the job is at risk: the next bad cell in that place stays in use.
    Remedy: Have the GPU inspected at the next maintenance.
    See: NVIDIA GPU Memory Error Management, RMA Policy Thresholds for SRAM Failure Modes; DCGM,
        DCGM_FR_SRAM_THRESHOLD and DCGM_FR_RETIRED_PAGES_LIMIT; NVML API reference,
        nvmlDeviceGetRowRemapperHistogram
    """
    for severity, hits in by_severity(recording, lambda gpu: _wear(gpu)[0]).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(_wear(gpu)[1] for _, gpu in hits)),
            lambda gpu: Evidence(text=_wear(gpu)[2], expected_from=nvml.MEMORY_ERRORS),
            WATCH_GPU if severity is Severity.INFO else REPLACE_GPU,
            detail="All errors so far are handled, but the next one may not be.",
            severity=severity,
        )


def _wear(gpu: Gpu) -> tuple[Severity | None, str, str]:
    """Return severity, kind and counts of the wear of a GPU's memory; a severity of None means no wear."""
    if gpu.row_remap_failed:
        return None, "", ""  # DD312
    if gpu.sram_threshold_exceeded:
        return Severity.WARNING, "more errors in its SRAM than NVIDIA's policy allows", "SRAM threshold exceeded"
    if _retired(gpu) >= thresholds.GPU_RETIRED_PAGES:
        return Severity.WARNING, "the table of retired memory pages is full", _pages(gpu)
    if (gpu.spare_rows or {}).get("none"):
        return Severity.INFO, "a bank of its memory has no spare row left", _rows(gpu)
    return None, "", ""


@rule("DD324", "gpu-inforom-corrupted", Consequence.RISK, GpusFact)
def gpu_inforom_corrupted(recording: Recording) -> Iterator[Draft]:
    """A GPU's InfoROM fails its checksum.

    Finds: nvmlDeviceValidateInforom reports a corrupted InfoROM.
    Why: The GPU works, but may lose the error counts, bad rows and settings stored in it.
    Remedy: Return the GPU to its vendor at the next maintenance.
    See: NVML API reference, nvmlDeviceValidateInforom; DCGM, DCGM_FR_CORRUPT_INFOROM
    """
    hits = hits_of(recording, lambda gpu: gpu.inforom_valid is False)
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "its InfoROM is corrupted",
            lambda _: Evidence(text="the InfoROM fails its checksum", expected_from="the driver verifies it"),
            by_operator(
                "Have the vendor inspect the GPU",
                "nvidia-smi -q | grep -i -A 6 inforom",
                "nvidia-bug-report.sh",
                references=("DCGM, DCGM_FR_CORRUPT_INFOROM",),
            ),
            detail="The InfoROM keeps the list of bad memory rows and the error counts, which are not reliable now.",
        )
