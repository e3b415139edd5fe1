"""Which values cost or risk something although they do what they say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_doctor.knowledge.concerns import concerns
from ddp_doctor.knowledge.variables import variables


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("NCCL_P2P_DISABLE", "1", "slows"),
        ("NCCL_P2P_DISABLE", "0x1", "slows"),
        ("NCCL_PROTO", "LL128", "unsafe"),
        ("NCCL_PROTO", "ll,ll128", "unsafe"),
        ("NCCL_DEBUG", "trace", "debug"),
        ("CUDA_LAUNCH_BLOCKING", "1", "debug"),
    ],
)
def test_values_that_cost_or_risk_something_are_told(name, value, kind):
    assert kind in [concern.kind for concern in concerns(name, value)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_P2P_DISABLE", "true"),  # read as 0
        ("NCCL_P2P_DISABLE", ""),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_DEBUG", "WARN"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("NCCL_NOBODY_KNOWS", "1"),
    ],
)
def test_values_that_cost_nothing_are_left_alone(name, value):
    assert concerns(name, value) == ()


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=20))
def test_any_value_can_be_judged(value):
    for name, variable in variables().items():
        assert set(concerns(name, value)) <= set(variable.concerns)
