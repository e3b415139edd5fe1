"""How grave a fault is, of a node's GPUs altogether and of single GPUs, and which GPUs are peers."""

from collections.abc import Callable

from ddp_doctor.facts.gpus import Gpu, GpusFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.phrases.gpus import Hits, asked_for


def severity_of_use(recording: Recording, group: list[Seen[GpusFact]]) -> Severity:
    """An error where the job wants GPUs; where CUDA_VISIBLE_DEVICES hides them on purpose, information."""
    return Severity.INFO if all(one.fact.hidden for one in group) else asked_for(recording, Severity.ERROR)


def hits_of(recording: Recording, is_hit: Callable[[Gpu], object]) -> Hits:
    """The job's GPUs with a fault."""
    return [(node, gpu) for node, gpu in _gpus_of_the_job(recording) if is_hit(gpu)]


def _gpus_of_the_job(recording: Recording) -> Hits:
    """Told once: some twenty rules ask, of thousands of nodes."""
    return recording.once(
        "GPUs of the job",
        lambda: [(one.node, gpu) for one in recording.facts(GpusFact) for gpu in one.fact.of_the_job()],
    )


def by_severity(recording: Recording, judge: Callable[[Gpu], Severity | None]) -> dict[Severity, Hits]:
    """The job's GPUs that ``judge`` finds fault with, the worst first."""
    judged = [(judge(gpu), (node, gpu)) for node, gpu in _gpus_of_the_job(recording)]
    found = {severity: [hit for verdict, hit in judged if verdict is severity] for severity in Severity}
    return {severity: hits for severity, hits in found.items() if hits}


def by_model(recording: Recording) -> dict[str, Hits]:
    """The job's GPUs by model, on all nodes: those of one model should be alike."""
    return recording.once("GPUs by model", lambda: _by_model(recording))


def _by_model(recording: Recording) -> dict[str, Hits]:
    models: dict[str, list[tuple[int, Gpu]]] = {}
    for node, gpu in hits_of(recording, lambda gpu: gpu.name and gpu.error is None):
        models.setdefault(gpu.name or "", []).append((node, gpu))
    return dict(models)
