"""Values that work as intended but cost or risk something."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.settings.effects import effects
from ddp_doctor.settings.table import variables


def test_values_with_a_cost_or_risk_are_reported():
    cases = [
        ("NCCL_P2P_DISABLE", "1", "slows"),
        ("NCCL_P2P_DISABLE", "0x1", "slows"),
        ("NCCL_PROTO", "LL128", "unsafe"),
        ("NCCL_PROTO", "ll,ll128", "unsafe"),
        ("NCCL_PROTO", "^LL", "unsafe"),  # keeps LL128, and so forces it
        ("NCCL_PROTO", "AllReduce:^Simple", "unsafe"),
        ("NCCL_PROTO", "Simple", "slows"),
        ("NCCL_ALGO", "ring", "slows"),
        ("NCCL_ALGO", "AllReduce:Tree,Ring;Broadcast:Ring", "slows"),
        ("NCCL_P2P_LEVEL", "LOC", "slows"),
        ("NCCL_P2P_LEVEL", "0", "slows"),
        ("NCCL_NET_GDR_LEVEL", "LOC", "slows"),
        ("NCCL_NET", "socket", "slows"),
        ("NCCL_SHM_DISABLE", "1", "slows"),
        ("NCCL_IB_DISABLE", "2", "slows"),
        ("NCCL_MAX_NCHANNELS", "1", "slows"),
        ("NCCL_BUFFSIZE", "4M", "slows"),  # read as 4
        ("NCCL_NVLS_ENABLE", "false", "slows"),  # read as 0
        ("NCCL_DEBUG", "trace", "debug"),
        ("NCCL_DEBUG", "INFO", "debug"),
        ("NCCL_DEBUG_SUBSYS", "INIT,COLL", "debug"),
        ("NCCL_GDR_FLUSH_DISABLE", "1", "unsafe"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "debug"),
        ("TORCH_NCCL_BLOCKING_WAIT", "yes", "slows"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "unsafe"),
        ("CUDA_LAUNCH_BLOCKING", "1", "debug"),
        ("KMP_DUPLICATE_LIB_OK", "True", "unsafe"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", "slows"),
        ("FI_LOG_LEVEL", "debug", "debug"),
    ]
    kinds = {case: {effect.kind for effect in effects(*case[:2])} for case in cases}
    assert [case for case in cases if case[2] not in kinds[case]] == []


def test_values_without_a_cost_are_not_reported():
    cases = [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_P2P_DISABLE", "true"),  # read as 0
        ("NCCL_P2P_DISABLE", ""),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_ALGO", "^NVLS"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "loc"),  # ignored
        ("NCCL_MAX_NCHANNELS", "-2"),  # NCCL's own choice
        ("NCCL_MAX_NCHANNELS", "16"),
        ("NCCL_BUFFSIZE", "8388608"),
        ("NCCL_NVLS_ENABLE", "2"),
        ("NCCL_IGNORE_CPU_AFFINITY", "1"),
        ("NCCL_CUMEM_HOST_ENABLE", "0"),  # needed in a container without SYS_NICE
        ("NCCL_IB_PCI_RELAXED_ORDERING", "1"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG", "VERSION"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        ("TORCH_NCCL_BLOCKING_WAIT", "0"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
        ("OMP_NUM_THREADS", "1"),
        ("UCX_TLS", "rc,cuda_copy"),
        ("FI_PROVIDER", "efa"),
        ("NCCL_NOBODY_KNOWS", "1"),
    ]
    assert [case for case in cases if effects(*case)] == []


def test_values_of_concern_have_a_text():
    said = {effect.values for variable in variables().values() for effect in variable.effects}
    assert {"any value", "1", "LOC or 0", "all but 0", "below 4", "above 0", "a list that keeps LL128"} <= said


def test_no_default_is_of_concern():
    for name, variable in variables().items():
        if variable.default != "ncclConfig":  # requested by the program
            assert effects(name, variable.default or "") == (), name


@given(st.text(max_size=20))
def test_any_value_can_be_evaluated(value):
    for name, variable in variables().items():
        assert set(effects(name, value)) <= set(variable.effects)
