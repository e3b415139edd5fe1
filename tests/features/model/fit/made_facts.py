"""A recording of ``fit`` with the estimates of a language model of 7 billion parameters, without running anything."""

from collections.abc import Sequence
from typing import Any

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.features.model.fit.facts import Estimate, FitFact, FitMeasuredFact
from ddp_doctor.knowledge.ddp.strategies import STRATEGIES, Strategy
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import FitOptions, Options, Recording, World
from tests.readings import collected

GIB = 1 << 30
#: float32: 7 billion parameters, and the activations that the forward keeps per sample.
PARAMETERS, SAMPLE = 26 * GIB, 9 * GIB


def recording(
    memory: int | None = None, gpus: Sequence[int] = (), measured: Sequence[FitMeasuredFact] = (), **changed: Any
) -> Recording:
    """Return a recording with --memory or GPUs of these sizes; ``changed`` are fields of the fact and of FitOptions."""
    options = {name: changed.pop(name) for name in ("strategy", "measure") if name in changed}
    fact = estimated(**changed)
    kept = [_reading("fit", fact), *(_reading("fit_measured", each) for each in measured)]
    if gpus:
        shown = tuple(
            Gpu(index=index, uuid=f"GPU-{index}", name="NVIDIA H100 80GB HBM3", memory_total_bytes=size)
            for index, size in enumerate(gpus)
        )
        indices = tuple(range(len(gpus)))
        kept.append(_reading("gpus", GpusFact(gpus=shown, visible=indices, used=indices)))
    fit = FitOptions(memory_bytes=memory, **options)
    return Recording(
        run_id="1", world=World(), options=Options(command="fit", model=fact.model, fit=fit), readings=tuple(kept)
    )


def _reading(check: str, fact: Fact) -> Reading:
    rank = None if check == "gpus" else 0
    return collected(check, fact, rank=rank)


def estimated(**changed: Any) -> FitFact:
    ranks, batch = changed.get("ranks", 8), changed.get("batch", 4)
    estimates = [
        _estimate(strategy, ranks, batch or 0, checkpointing=checkpointing)
        for strategy in STRATEGIES
        if ranks > 8 or not strategy.within_node
        for checkpointing in (False, True)
    ]
    fields = {
        "model": "net:make",
        "precision": "fp32",
        "ranks": ranks,
        "batch": batch,
        "optimizer": "AdamW",
        "units": "32 Block",
        "largest": "head",
        "largest_bytes": 500 << 20,
        "estimates": tuple(estimates),
    }
    return FitFact.model_validate({**fields, **changed})


def _estimate(row: Strategy, ranks: int, batch: int, *, checkpointing: bool) -> Estimate:
    shard = PARAMETERS // ranks if row.shards_parameters else PARAMETERS
    on_device = 0 if row.offloads else 1
    sample = SAMPLE // 9 if checkpointing else SAMPLE
    sent = 3 if row.reshards else 2
    return Estimate(
        strategy=row.name,
        checkpointing=checkpointing,
        moment="backward",
        parameters=shard * on_device,
        gradients=0 if row.bucket_view else shard * on_device,
        optimizer=2 * (PARAMETERS // ranks if row.shards_state else shard) * on_device,
        buckets=0 if row.shards_parameters else PARAMETERS,
        activations=sample * batch,
        unsharded=0 if not row.shards_parameters else 2 * GIB if row.reshards else PARAMETERS,
        host_bytes=4 * shard if row.offloads else 0,
        sample_bytes=sample if batch else 0,
        sent_bytes=sent * PARAMETERS * (ranks - 1) // ranks,
    )
