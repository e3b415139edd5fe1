"""DD808: GPUs that are all slower than others of their model, elsewhere, are said to be."""

from collections.abc import Iterator
from statistics import median

from ddp_doctor.checks.collectives.gpu_speed import state
from ddp_doctor.checks.collectives.gpu_speed.comparable import MATMUL, Measured, judged, rank_of
from ddp_doctor.checks.collectives.gpu_speed.throttling import slowed_by_hardware
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import NOBODY, possible
from ddp_doctor.wording.ranks import capital, ranks_at

#: A smaller matrix does not reach the published rates.
_SMALLEST = 4096


@rule("DD808", "gpu-model-below-published-rate", Severity.INFO, GpuSpeedFact)
def below_published(recording: Recording) -> Iterator[Draft]:
    """GPUs of one model whose matrix products are all far below what others measured on it.

    What it finds
        A model whose median bf16 rate is below 60 % of a published measurement. Information only: such tables
        are made with other clocks, power limits and sizes, and some are wrong.

    Why it matters
        Peers that are all slow alike show no difference: low clocks or power limits set everywhere.

    Remedy
        Look at clocks and power limits under load.

    References
        huggingface/gpu-fryer, README; docs/explanation/measurements.md
    """
    explained = slowed_by_hardware(recording)
    names: dict[str, list[Measured]] = {}
    for seen in judged(recording):
        if _is_like_the_published(seen.fact) and rank_of(seen) not in explained:
            names.setdefault(seen.fact.gpu_name or "", []).append(seen)
    for name, gpus in names.items():
        expected = gpu_speed.published_bf16(name)
        typical = median(rate.median for seen in gpus if (rate := MATMUL.of(seen)) is not None)
        if expected is not None and typical < gpu_speed.PUBLISHED_LEAST_SHARE * expected:
            yield _draft(recording, gpus, typical, expected)


def _is_like_the_published(fact: GpuSpeedFact) -> bool:
    measured = fact.matmul_tflop_per_s is not None and fact.matmul_size >= _SMALLEST
    return measured and fact.matmul_dtype == "bfloat16"


def _draft(recording: Recording, gpus: list[Measured], typical: float, expected: float) -> Draft:
    ranks = ranks_at(recording, map(rank_of, gpus))
    return possible(
        NOBODY,
        f"{capital(ranks)}: matrix products at {typical:.0f} TFLOP/s; others measured {expected:.0f} on "
        f"{gpus[0].fact.gpu_name}",
        (
            Evidence(
                text=f"median of {len(gpus)} GPUs, matrices of {gpus[0].fact.matmul_size} rows",
                value=round(typical, 1),
                unit="TFLOP/s",
                expected=expected,
                expected_from=gpu_speed.PUBLISHED_BY,
            ),
            *state.evidence(recording, gpus[:4], gpus),
        ),
        *state.remedies(recording, gpus)[:1],
        detail="Another machine's rate is no promise for this one.",
    )
