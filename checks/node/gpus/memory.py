"""DD312, DD313, DD314, DD324: what became of a GPU's bad memory, and of the ROM that remembers it."""

from collections.abc import Iterator

from ddp_doctor.checks.node.gpus.condition import by_severity, recovery, repair_pending
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import hits_of
from ddp_doctor.wording.gpus import gpu_draft
from ddp_doctor.wording.kernel_log import xids_of

REPLACE_GPU = by_operator(
    "Drain the node and run NVIDIA's field diagnostic on the GPU: if it confirms the fault, replace the GPU.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    "nvidia-bug-report.sh",
    cost="the node cannot be used meanwhile",
    undo=NOTHING_TO_UNDO,
    references=(nvml.MEMORY_ERRORS,),
)

WATCH_GPU = by_operator(
    "Watch the counters; have the GPU looked at when they grow, or at the next maintenance.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    undo=NOTHING_TO_UNDO,
    references=(nvml.MEMORY_ERRORS, nvml.PAGE_RETIREMENT),
)


@rule("DD312", "gpu-memory-repair-failed", Severity.ERROR, GpusFact)
def gpu_memory_repair_failed(recording: Recording) -> Iterator[Draft]:
    """A GPU that could not replace a bad row of its memory.

    Finds: NVML's flag that a row remapping has failed (Ampere and newer). Rows that were remapped, however many, are
        repaired and no finding.
    Why: The bad row stays in use after a reset: the next process that touches it dies (Xid 48, 64, 94, 95), and with it
        the whole DDP job.
    Remedy: Take the GPU out; the flag is what NVIDIA replaces GPUs for.
    See: NVIDIA GPU Memory Error Management, RMA Policy Thresholds for Row-Remapping; DCGM,
        DCGM_FR_ROW_REMAP_FAILURE
    """
    hits = hits_of(recording, lambda gpu: gpu.row_remap_failed)
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "a bad row of its memory could not be replaced",
            lambda gpu: Evidence(text=f"row remapping failed; {_rows(gpu)}", expected_from=nvml.MEMORY_ERRORS),
            REPLACE_GPU,
            detail="A reset does not fix it: the bank of memory has no spare row left, or the ROM took no entry.",
            beside=xids_of(recording, hits),
        )


def _rows(gpu: Gpu) -> str:
    """ "2 rows replaced, 1 after an uncorrected error, 1 bank without spare rows"."""
    unsafe = gpu.rows_remapped_uncorrected or 0
    rows = (gpu.rows_remapped_corrected or 0) + unsafe
    words = f"{rows} {'row' if rows == 1 else 'rows'} replaced, {unsafe} after an uncorrected error"
    banks = (gpu.spare_rows or {}).get("none", 0)
    errors = gpu.ecc_volatile_uncorrected
    words += f", {banks} {'bank' if banks == 1 else 'banks'} without spare rows" if banks else ""
    return words + (f", {errors} uncorrected errors since the driver was loaded" if errors else "")


@rule("DD313", "gpu-memory-repair-pending", Severity.WARNING, GpusFact)
def gpu_memory_repair_pending(recording: Recording) -> Iterator[Draft]:
    """A GPU whose bad memory waits for a reset to be taken out of use.

    Finds: A pending row remapping (Ampere and newer) or page retirement (older): a warning. An error where the
        retirement is for an uncorrected error: the driver then opens no further CUDA context.
    Why: Until the reset the driver can only avoid the bad memory; what was in it is lost.
    Remedy: Reset the GPU when the node is idle, or reboot.
    See: NVML API reference, nvmlDeviceGetRemappedRows and nvmlDeviceGetRetiredPagesPendingStatus; NVIDIA
        Dynamic Page Retirement, Use Case 1; DCGM, DCGM_FR_PENDING_ROW_REMAP
    """
    for severity, hits in by_severity(recording, _pending).items():
        yield gpu_draft(
            recording,
            hits,
            "needs a reset to take bad memory out of use",
            lambda gpu: Evidence(text=_pending_words(gpu), expected_from=nvml.MEMORY_ERRORS),
            by_operator(
                "Reset the GPU when the node is idle, or reboot: only then is the bad memory taken out of use.",
                "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT",
                "sudo nvidia-smi --gpu-reset -i INDEX",
                cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
                undo=NOTHING_TO_UNDO,
                references=(nvml.MEMORY_ERRORS, nvml.PAGE_RETIREMENT),
            ),
            detail="Until then the driver lets no program use it."
            if severity is Severity.ERROR
            else "Jobs can run meanwhile: the driver keeps the bad memory away from them.",
            severity=severity,
            beside=xids_of(recording, hits),
        )


def _pending(gpu: Gpu) -> Severity | None:
    reported = recovery(gpu) is not None or gpu.ecc_volatile_uncorrected or gpu.row_remap_failed
    if reported or not repair_pending(gpu):
        return None  # DD304, DD307 and DD312 say that a reset is due, or does not help
    return Severity.ERROR if gpu.page_retirement_pending_double_bit else Severity.WARNING


def _pending_words(gpu: Gpu) -> str:
    if gpu.row_remap_pending:
        return f"row remapping pending; {_rows(gpu)}"
    return f"page retirement pending; {_pages(gpu)}"


def _pages(gpu: Gpu) -> str:
    return f"{_retired(gpu)} pages retired, {gpu.pages_retired_double_bit or 0} after an uncorrected error"


def _retired(gpu: Gpu) -> int:
    return (gpu.pages_retired_single_bit or 0) + (gpu.pages_retired_double_bit or 0)


@rule("DD314", "gpu-memory-wears-out", Severity.WARNING, GpusFact)
def gpu_memory_wears_out(recording: Recording) -> Iterator[Draft]:
    """A GPU with so many memory errors behind it that the next one may not be repairable.

    Finds: The flag by which NVIDIA's policy judges errors of the SRAM, or 63 retired pages of the 64 there is room for:
        a warning. Information where a bank of memory has no spare row left. Fewer repairs are normal life.
    Why: The GPU works, but the job is at risk: the next bad cell in that place stays in use.
    Remedy: Have the GPU looked at, at the next maintenance.
    See: NVIDIA GPU Memory Error Management, RMA Policy Thresholds for SRAM Failure Modes; DCGM,
        DCGM_FR_SRAM_THRESHOLD and DCGM_FR_RETIRED_PAGES_LIMIT; NVML API reference,
        nvmlDeviceGetRowRemapperHistogram
    """
    for severity, hits in by_severity(recording, _worn).items():
        yield gpu_draft(
            recording,
            hits,
            " and ".join(dict.fromkeys(_worn_words(gpu) for _, gpu in hits)),
            lambda gpu: Evidence(text=_worn_counts(gpu), expected_from=nvml.MEMORY_ERRORS),
            WATCH_GPU if severity is Severity.INFO else REPLACE_GPU,
            detail="All errors so far are dealt with; the next one of this kind may not be.",
            severity=severity,
        )


def _worn(gpu: Gpu) -> Severity | None:
    if gpu.row_remap_failed:
        return None  # DD312
    if gpu.sram_threshold_exceeded or _retired(gpu) >= thresholds.GPU_RETIRED_PAGES:
        return Severity.WARNING
    return Severity.INFO if (gpu.spare_rows or {}).get("none") else None


def _worn_words(gpu: Gpu) -> str:
    if gpu.sram_threshold_exceeded:
        return "more errors in its SRAM than NVIDIA's policy allows"
    if _retired(gpu) >= thresholds.GPU_RETIRED_PAGES:
        return "the table of retired memory pages is full"
    return "a bank of its memory has no spare row left"


def _worn_counts(gpu: Gpu) -> str:
    if gpu.sram_threshold_exceeded:
        return "SRAM threshold exceeded"
    return _pages(gpu) if _retired(gpu) >= thresholds.GPU_RETIRED_PAGES else _rows(gpu)


@rule("DD324", "gpu-inforom-corrupted", Severity.WARNING, GpusFact)
def gpu_inforom_corrupted(recording: Recording) -> Iterator[Draft]:
    """A GPU whose InfoROM fails its checksum.

    Finds: nvmlDeviceValidateInforom says that the InfoROM is corrupted.
    Why: The GPU works, but forgets: error counts, bad rows and settings are kept there.
    Remedy: Hand the GPU to its vendor at the next maintenance.
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
                "Have the GPU looked at by its vendor: what the InfoROM keeps, such as bad rows and error counts, is"
                " not safe.",
                "nvidia-smi -q | grep -i -A 6 inforom",
                "nvidia-bug-report.sh",
                undo=NOTHING_TO_UNDO,
                references=("DCGM, DCGM_FR_CORRUPT_INFOROM",),
            ),
            detail="It keeps the list of bad memory rows and the error counts.",
        )
