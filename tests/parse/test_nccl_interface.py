from ddp_doctor.model.context import CommandResult, Interface
from ddp_doctor.probing.nccl_interface import library_choice, nccl_environment
from tests.fakes import FakeContext

INTERFACES = (
    Interface(name="lo", loopback=True, addresses=("127.0.0.1/8",)),
    Interface(name="eth0", addresses=("10.0.0.1/24", "fe80::1%eth0/64")),
)


def answer(stdout: str) -> CommandResult:
    return CommandResult(("nccl_interface",), "ended", 0, stdout)


def test_environment_precedes_the_users_file_and_the_systems_file():
    files = {
        "/etc/nccl.conf": "NCCL_SOCKET_IFNAME=eth0\nNCCL_DEBUG=WARN\nNCCL_IB_TC=1\n",
        "/home/me/.nccl.conf": "NCCL_SOCKET_IFNAME=eth1\nNCCL_DEBUG=INFO\n",
        "/other.conf": "NCCL_SOCKET_IFNAME=eth2\n",
    }
    env = {"HOME": "/home/me", "NCCL_DEBUG": "TRACE"}
    found = nccl_environment(FakeContext(env=env, files=files))
    assert found == {**env, "NCCL_SOCKET_IFNAME": "eth1", "NCCL_IB_TC": "1"}
    named = nccl_environment(FakeContext(env={**env, "NCCL_CONF_FILE": "/other.conf"}, files=files))
    assert named["NCCL_SOCKET_IFNAME"] == "eth2"
    assert nccl_environment(FakeContext(env=env)) == env


def test_the_address_in_the_unique_id_is_the_choice():
    choice = library_choice(answer('NCCL version 2.32.3\n{"version_code": 1, "address": "10.0.0.1"}\n'), INTERFACES)
    assert choice is not None
    assert (choice.interface, choice.address, choice.error) == ("eth0", "10.0.0.1", None)


def test_no_interface_is_a_choice_that_failed():
    told = '{"version_code": 1, "status": 5, "error": "Bootstrap : no socket interface found"}'
    choice = library_choice(answer(told), INTERFACES)
    assert choice is not None
    assert (choice.address, choice.error) == (None, "Bootstrap : no socket interface found")


def test_invalid_address_is_not_a_choice():
    assert library_choice(answer('{"address": " 10.0.0.1"}'), INTERFACES) is None
