"""DD782: BatchNorm that sees few samples on each rank."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.user_model.words import code, facts, in_model_code
from ddp_doctor.facts.ddp.user_model import UserModel
from ddp_doctor.knowledge.thresholds import FEW_SAMPLES, SMALL_BATCH
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import likely

_PAGE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html"


@rule("DD782", "user-model-batch-norm-sees-few-samples", Severity.WARNING, UserModel)
def few_samples(recording: Recording) -> Iterator[Draft]:
    """BatchNorm whose statistics come from few samples, for each rank has a batch of its own.

    What it finds
        BatchNorm layers in training mode that are no SyncBatchNorm, and the least number of samples that
        one saw in a batch of ``make_batch``. Up to 4 a warning, below 16 information.

    Why it matters
        DDP synchronises gradients, not activations: each rank normalises with its own batch, whatever the
        batch of all ranks is. Only rank 0's running statistics are kept.

    Remedy
        ``SyncBatchNorm.convert_sync_batchnorm(model)`` before wrapping (GPUs only), a larger batch a rank, or
        GroupNorm.

    References
        Wu and He, Group Normalization, 2018: error of ResNet-50 by batch a GPU
        https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    seen = [one.fact for one in facts(recording) if one.fact.batch_norms is not None]
    found = [fact.batch_norms for fact in seen if fact.batch_norms is not None and fact.world_size > 1]
    if not found:
        return
    least = min(found, key=lambda one: one.samples)
    if least.samples >= SMALL_BATCH:
        return
    layers = "1 layer" if least.count == 1 else f"{least.count} layers"
    samples = "1 sample" if least.samples == 1 else f"{least.samples} samples"
    yield likely(
        (code(least.first),),
        f"BatchNorm of {seen[0].model} normalises with {samples} a rank ({layers}, {least.first})",
        Evidence(
            text=f"samples that {least.first} saw in a batch",
            value=float(least.samples),
            expected=float(SMALL_BATCH),
            expected_from="Group Normalization, 2018, table 2",
        ),
        in_model_code(
            "SyncBatchNorm.convert_sync_batchnorm(model) before wrapping, on GPUs",
            cost="An exchange among the ranks in every such layer, forward and backward",
            reference=_PAGE,
        ),
        in_model_code(
            "A larger batch a rank, or GroupNorm, which needs no batch", cost="Memory, or another model"
        ),
        detail="Each rank normalises with its own batch alone; what counts is the batch of make_batch, which should"
        " be as large as the job's.",
        severity=None if least.samples <= FEW_SAMPLES else Severity.INFO,
    )
