import pytest

from ddp_doctor.checks.node.rdma.wording import DEFAULT_TIMEOUT, lowered, wait_s


def test_nccls_own_wait_is_half_a_minute():
    assert wait_s(DEFAULT_TIMEOUT) == pytest.approx(30.06, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"NCCL_IB_TIMEOUT": "14"}, {"NCCL_IB_TIMEOUT": "14"}),
        ({"NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "3"}, {"NCCL_IB_RETRY_CNT": "3"}),
        ({"NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7"}, {}),
        ({"NCCL_IB_TIMEOUT": "long"}, {}),
        ({}, {}),
    ],
)
def test_settings_below_nccls_own_give_up_sooner(settings: dict[str, str], found: dict[str, str]):
    assert lowered(settings) == found
