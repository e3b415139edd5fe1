"""Settings that affect each other, and the ranges of numbers."""

import pytest

from ddp_doctor.settings.effects import out_of_range
from ddp_doctor.settings.interactions import conflicts, disagreeing, silenced
from ddp_doctor.settings.releases import Installed


@pytest.mark.parametrize(
    ("env", "decides", "idle"),
    [
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
        ({"NCCL_NET": "socket", "NCCL_IB_TC": "106"}, "NCCL_NET", "NCCL_IB_TC"),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"),
        ({"NCCL_DEBUG": "warn", "NCCL_DEBUG_SUBSYS": "ALL"}, "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"),
        ({"NCCL_GDRCOPY_FIFO_ENABLE": "1"}, "NCCL_GDRCOPY_ENABLE", "NCCL_GDRCOPY_FIFO_ENABLE"),
        (
            {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
            "TORCH_FR_BUFFER_SIZE",
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
        ),
        (
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
            "TORCH_NCCL_TRACE_BUFFER_SIZE",  # not the newer name, which is unset
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
        ),
    ],
    ids=str,
)
def test_a_disabled_setting_is_reported_with_the_setting_that_disables_it(env, decides, idle):
    assert [(row.name, names) for row, names in silenced(env)] == [(decides, (idle,))]


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_P2P_DISABLE": "2", "NCCL_P2P_LEVEL": "NVL"},  # only the number 1 disables
        {"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "aws", "NCCL_IB_TC": "106"},
        {"NCCL_IB_GID_INDEX": "0", "NCCL_IB_ROCE_VERSION_NUM": "2"},
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"},
        {"NCCL_IB_QPS_PER_CONNECTION": "2", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"},
        {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
    ],
    ids=str,
)
def test_compatible_settings_are_not_reported(env):
    assert list(silenced(env)) == []


@pytest.mark.parametrize(
    ("env", "says", "nccl", "fails"),
    [
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "leave NCCL without a network", (), True),
        ({"NCCL_ALGO": "Tree"}, "leaves AllGather and Broadcast without an algorithm", (), None),
        ({"NCCL_ALGO": "Tree"}, "leaves AllGather and Broadcast without an algorithm", (2, 24, 3), True),
        (
            {"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"},
            "leave AllReduce, AllGather and Broadcast without an algorithm",
            (),
            True,
        ),
        ({"NCCL_PROTO": "^LL,LL128,Simple"}, "leaves NCCL without a protocol", (), True),
        ({"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "4"}, "contradict each other", (), False),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "request 128 sockets", (), False),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}, "are mutually exclusive", (2, 29), None),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}, "are mutually exclusive", (2, 30), True),
    ],
    ids=str,
)
def test_a_contradiction_is_reported_and_an_error_if_the_release_fails(env, says, nccl, fails):
    (found,) = conflicts(env, nccl)
    assert found.says == says
    assert set(found.names) == set(env)
    assert found.fails(nccl) is fails


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "8"},
        {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "-2"},  # NCCL's own choice
        {"NCCL_ALGO": "allreduce:Tree"},
        {"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"},
    ],
    ids=str,
)
def test_settings_without_a_contradiction_are_not_reported(env):
    assert list(conflicts(env, ())) == []


def test_an_algorithm_list_in_older_releases_applies_only_to_all_reduce():
    assert list(conflicts({"NCCL_ALGO": "Tree"}, (2, 23, 4))) == []


@pytest.mark.parametrize(
    ("name", "value", "nccl", "says"),
    [
        ("NCCL_IB_TIMEOUT", "0", (), "is out of range (1 to 31)"),
        ("NCCL_IB_TIMEOUT", "40", (), "is out of range (1 to 31)"),
        ("NCCL_IB_TIMEOUT", "5", (), "waits 0.13 ms for an answer"),
        ("NCCL_MAX_NCHANNELS", "48", (2, 24, 3), "is out of range (1 to 32)"),
        ("NCCL_MAX_NCHANNELS", "80", (2, 25, 1), "is out of range (1 to 64)"),
        ("NCCL_MAX_NCHANNELS", "80", (), "is out of range (1 to 64)"),
    ],
)
def test_a_number_out_of_range_is_reported_with_the_range_of_the_release(name, value, nccl, says):
    found = out_of_range(name, {name: value}, nccl)
    assert found is not None
    assert found.says == says


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_IB_TIMEOUT", "22"), ("NCCL_MAX_NCHANNELS", "48"), ("NCCL_MAX_NCHANNELS", "-2"), ("NCCL_X", "9")],
)
def test_a_number_in_range_or_without_a_range_is_not_reported(name, value):
    assert out_of_range(name, {name: value}, (2, 30, 7)) is None


def test_the_older_of_two_contradictory_names_has_no_effect():
    both = {"NCCL_MAX_NCHANNELS": "8", "NCCL_MAX_NRINGS": "16"}
    assert disagreeing(both, Installed()) == {"NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS"}
    assert disagreeing({**both, "NCCL_MAX_NRINGS": "8"}, Installed()) == {}
