"""The job's GPUs on all nodes, by model."""

from collections import Counter
from collections.abc import Callable, Sequence

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.thresholds import GPU_LIMIT_SHARE
from ddp_doctor.model.recording import Recording

Hits = Sequence[tuple[int, Gpu]]  # node ranks, and GPUs on them


def hits_of(recording: Recording, is_hit: Callable[[Gpu], object]) -> Hits:
    """The job's GPUs with a fault."""
    return [(node, gpu) for node, gpu in gpus_of_the_job(recording) if is_hit(gpu)]


def gpus_of_the_job(recording: Recording) -> Hits:
    """Computed once: some twenty rules ask, for thousands of nodes."""
    return recording.once(
        "GPUs of the job",
        lambda: [(gpus.node, gpu) for gpus in recording.facts(GpusFact) for gpu in gpus.fact.of_the_job()],
    )


def by_model(recording: Recording) -> dict[str, Hits]:
    """The job's GPUs by model, on all nodes: those of one model should be alike."""
    return recording.once("GPUs by model", lambda: _by_model(recording))


def _by_model(recording: Recording) -> dict[str, Hits]:
    models: dict[str, list[tuple[int, Gpu]]] = {}
    for node, gpu in hits_of(recording, lambda gpu: gpu.name and gpu.error is None):
        models.setdefault(gpu.name or "", []).append((node, gpu))
    return dict(models)


def far_below(peers: Hits, tell: Callable[[Gpu], float | None]) -> tuple[Hits, Hits, float]:
    """The GPUs far below the usual value, all GPUs with a value, and the usual value: the most frequent one."""
    hits = [peer for peer in peers if tell(peer[1])]
    counts = Counter(tell(gpu) or 0.0 for _, gpu in hits)
    usual = max(counts, key=lambda value: (counts[value], value), default=0.0)
    low = [peer for peer in hits if (tell(peer[1]) or 0.0) < GPU_LIMIT_SHARE * usual]
    return low, hits, usual


def power_limited(recording: Recording) -> frozenset[tuple[int, str]]:
    """Node and UUID of the GPUs whose power limit is below that of most of their model (DD318)."""
    found = (far_below(peers, lambda gpu: gpu.power_limit_w)[0] for peers in by_model(recording).values())
    return frozenset((node, gpu.uuid) for low in found for node, gpu in low if gpu.uuid)
