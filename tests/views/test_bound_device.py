import pytest

from ddp_doctor.views.failed_trials import UsedElsewhere, used_elsewhere

SAID = "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1"


@pytest.mark.parametrize("message", [SAID, f"RuntimeError: {SAID}\nException raised from ensureInitialized"])
def test_both_devices_are_read(message: str):
    assert used_elsewhere(message) == UsedElsewhere(bound="cuda:0", used="cuda:1")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "ProcessGroupNCCL is bound to device cuda:0",
        "the socket is bound to device eth0 but an operation was issued on eth1",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!",
    ],
)
def test_other_messages_do_not_identify_a_device(message: str):
    assert used_elsewhere(message) is None
