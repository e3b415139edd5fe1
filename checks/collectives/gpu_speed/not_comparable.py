"""DD806, DD807: rates that were measured beside another program's work, or not measured."""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.gpu_speed import comparison
from ddp_doctor.checks.collectives.gpu_speed.comparison import Measured, busy, rank_of
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.gpus import BusyGpu
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE
from ddp_doctor.wording.ranks import capital, rank_at, ranks_at

_GIB = 1024**3


@rule("DD806", "gpu-measured-beside-another-program", Severity.INFO, GpuSpeedFact)
def beside_another_program(recording: Recording) -> Iterator[Draft]:
    """A GPU that somebody else used while the doctor measured it.

    What it finds
        Ranks whose GPU was busy before the run began. The doctor takes a tenth of what is free, and no more
        than 1 GiB; what it measures there is not held against other GPUs.

    Why it matters
        Its rates are lower than the GPU's own, and so are those of every collective that it takes part in.

    Remedy
        Repeat the run when the GPU is free, or without that GPU.

    References
        docs/explanation/measurements.md
    """
    crowded = busy(recording)
    shared = {rank_of(gpu): gpu for gpu in recording.facts(GpuSpeedFact) if rank_of(gpu) in crowded}
    if shared:
        yield likely(
            (
                comparison.gpu_culprit(recording, rank, gpu.fact.gpu_uuid)
                for rank, gpu in sorted(shared.items())
            ),
            f"{capital(ranks_at(recording, shared))}: measured while another program used the GPU",
            (
                Evidence(text=f"{rank_at(recording, rank)}: {_holders(crowded[rank], gpu)}")
                for rank, gpu in sorted(shared.items())[:LINES_OF_EVIDENCE]
            ),
            detail="Its rates are shown and not judged.",
        )


def _holders(busy_gpu: BusyGpu | None, gpu: Measured) -> str:
    """The processes that held memory before the run; without NVML, how much memory was not free."""
    if busy_gpu is None:
        used = (gpu.fact.memory_total_bytes - gpu.fact.memory_free_bytes) / _GIB
        return f"{used:.1f} GiB in use, more than CUDA and NCCL take; by whom was not read"
    named = [f"pid {process.pid} ({process.name or 'name unknown'})" for process in busy_gpu.holders[:4]]
    more = f" and {len(busy_gpu.holders) - 4} more" if busy_gpu.holders[4:] else ""
    held = f"{busy_gpu.used_bytes / _GIB:.1f} GiB" if busy_gpu.used_bytes is not None else "memory"
    return f"{held} in use before the run, by {', '.join(named) or 'no process that can be seen from here'}{more}"


@rule("DD807", "gpu-rate-not-measured", Severity.INFO, GpuSpeedFact)
def not_measured(recording: Recording) -> Iterator[Draft]:
    """A rate of a GPU that could not be measured.

    What it finds
        Ranks that measured their GPU in part, and why the rest is missing.

    Why it matters
        What was not measured was not compared: a slow GPU may be among these.

    Remedy
        Repeat the run when the GPU's memory is free.

    References
        docs/explanation/measurements.md
    """
    reasons: dict[tuple[str, str], list[int]] = {}
    for gpu in recording.facts(GpuSpeedFact):
        for what, why in gpu.fact.not_measured.items():
            reasons.setdefault((what, why), []).append(rank_of(gpu))
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
