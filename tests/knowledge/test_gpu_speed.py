"""The reference values for busy GPUs: PCIe rates by generation and width, published rates by model."""

import pytest

from ddp_doctor.knowledge.gpu.gpu_speed import link_gb_per_s, published_bf16


@pytest.mark.parametrize(
    ("generation", "width", "rate"), [(3, 16, 15.8), (4, 16, 31.5), (5, 16, 63.0), (4, 4, 7.9), (1, 16, 4.0)]
)
def test_link_has_the_rate_of_the_standard(generation: int, width: int, rate: float):
    assert link_gb_per_s(generation, width) == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (0, 16), (9, 16), (4, 0)])
def test_a_link_that_is_not_known_has_no_rate(generation: int | None, width: int | None):
    assert link_gb_per_s(generation, width) is None


def test_published_rates_are_for_the_exact_model():
    assert published_bf16("NVIDIA H100 80GB HBM3") == 730.0
    assert published_bf16("NVIDIA H100 PCIe") is None
    assert published_bf16("NVIDIA A100-SXM4-40GB") == 270.0
    assert published_bf16("NVIDIA A100 80GB PCIe") is None
    assert published_bf16(None) is None
