"""DD309, DD310: GPUs that are sliced, or of different models."""

from collections import Counter
from collections.abc import Iterator

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import hits_of
from ddp_doctor.wording.gpus import Sight, gpu_draft

WHOLE_GPUS = by_operator(
    "For DDP over several GPUs ask for whole GPUs; an operator can turn MIG mode off.",
    "sudo nvidia-smi -i INDEX -mig 0",
    scope="cluster",
    cost="needs root and an idle GPU; ends the slices",
    undo="sudo nvidia-smi -i INDEX -mig 1, and create the slices again",
    references=(nvml.MIG_GUIDE,),
)

SAME_MODEL = by_operator(
    "Use GPUs of one model: name them in CUDA_VISIBLE_DEVICES by UUID, or ask the scheduler for one type.",
    "nvidia-smi --query-gpu=index,name,uuid --format=csv",
    scope="job",
    cost="fewer GPUs take part",
    undo="unset CUDA_VISIBLE_DEVICES",
    references=(nvml.CUDA_VARIABLES,),
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
    hits = hits_of(recording, lambda gpu: gpu.mig_enabled)
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "in MIG mode, so a process is shown one slice of it",
            lambda gpu: Sight(f"MIG mode on, {len(gpu.mig_uuids)} slices", expected_from=nvml.MIG_GUIDE),
            WHOLE_GPUS,
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
    hits = [(node.node, gpu) for node in recording.facts(GpusFact) for gpu in _taking_part(recording, node)]
    models = Counter(gpu.name or "unknown" for _, gpu in hits)
    if len(models) > 1:
        usual, count = models.most_common(1)[0]
        few = [(node, gpu) for node, gpu in hits if gpu.name != usual] if 2 * count > len(hits) else hits
        yield gpu_draft(
            recording,
            few,
            f"different models, {' and '.join(sorted(models))}",
            lambda gpu: Sight(f"{gpu.name}", expected_from=f"one model is best; most are {usual}"),
            SAME_MODEL,
            detail="The job will run at the speed, and with the memory, of the weakest.",
            severity=Severity.WARNING,
        )


def _taking_part(recording: Recording, seen: FactAt[GpusFact]) -> list[Gpu]:
    """The GPUs of a node that its ranks use: those of one model where there are enough of them."""
    shown = [gpu for gpu in seen.fact.gpus if gpu.index in seen.fact.visible and gpu.name]
    if seen.fact.hidden or not shown:
        return []
    usual, count = Counter(gpu.name for gpu in shown).most_common(1)[0]
    ranks = len(recording.world.ranks_of(seen.node)) if recording.world else len(shown)
    return shown if count < min(ranks, len(shown)) else [gpu for gpu in shown if gpu.name == usual]
