"""The interface that gloo and NCCL use. The tables show what torch 2.13 and libnccl 2.32.3 did on such hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.interface_choice import Choice, gloo_choice, nccl_choice
from ddp_doctor.model.context import Interface

LO = Interface(name="lo", loopback=True, addresses=("127.0.0.1/8", "::1/128"))


def nic(name: str, *addresses: str, running: bool = True) -> Interface:
    return Interface(name=name, addresses=addresses, running=running)


ETH0 = nic("eth0", "10.77.0.1/24", "fd00:7::1/64", "fe80::1%eth0/64")
ETH1 = nic("eth1", "10.78.0.1/24", "fd00:8::1/64")
DOCKER0 = nic("docker0", "172.17.0.1/16", "fd00:9::1/64")
IB0 = nic("ib0", "10.79.0.1/24", "fd00:10::1/64")
BOND0 = nic("bond0", "10.80.0.1/24", "fd00:11::1/64")
ALL = (LO, ETH0, ETH1, DOCKER0, IB0, BOND0)


def nccl(interfaces: tuple[Interface, ...], value: str | None = None, family: str = "") -> Choice:
    env = {} if value is None else {"NCCL_SOCKET_IFNAME": value}
    return nccl_choice(interfaces, {**env, **({"NCCL_SOCKET_FAMILY": family} if family else {})})


#: Values of NCCL_SOCKET_IFNAME by the address that libnccl took for them.
TAKEN: dict[str, list[str | None]] = {
    "10.79.0.1": [None, "", "e", "^"],
    "10.77.0.1": ["eth", "=eth0", "eth0:99", "=eth1:1,eth0", "^lo", "^docker0,lo"],
    "10.78.0.1": [",eth1", "bond0,eth1"],
    "172.17.0.1": ["docker0"],
    "127.0.0.1": ["lo", "^eth0", "^=eth0", "^eth0,^ib0"],
    "10.80.0.1": ["^lo,docker,eth,ib"],
}


@pytest.mark.parametrize(
    ("value", "address"), [(value, address) for address, values in TAKEN.items() for value in values]
)
def test_nccl_chooses_of_six_interfaces_as_libnccl_did(value, address):
    choice = nccl(ALL, value)
    assert (choice.address, choice.error) == (address, None)
    assert choice.setting == ("NCCL_SOCKET_IFNAME" if value and len(value) > 1 else None)


@pytest.mark.parametrize("value", ["=eth", "nope", "=^eth0", "==eth0", "^lo,eth,docker,ib,bond"])
def test_nccl_finds_no_interface_where_libnccl_found_none(value):
    choice = nccl(ALL, value)
    assert choice.address is None
    assert choice.error == f"no running interface with an address matches {value!r}"


def test_nccl_follows_its_order_as_interfaces_disappear():
    without_ib = (LO, ETH0, ETH1, DOCKER0)
    assert nccl(without_ib).interface == "eth0"
    down = ETH0.model_copy(update={"running": False})
    assert nccl((LO, down, ETH1, DOCKER0)).interface == "eth1"
    assert nccl((LO, down, DOCKER0)).interface == "docker0"
    assert nccl((LO, down)).interface == "lo"
    assert nccl((LO, nic("virbr0", "192.168.122.1/24"))).interface == "lo"
    assert nccl((down,)).error == "no running interface has an address"


@pytest.mark.parametrize(
    ("family", "address"),
    [("AF_INET6", "fd00:10::1"), ("AF_INET", "10.79.0.1"), ("AF_FOO", "10.79.0.1"), ("af_inet6", "10.79.0.1")],
)
def test_nccl_uses_a_known_address_family_from_its_setting(family, address):
    assert nccl(ALL, family=family).address == address


def test_nccl_names_the_address_family_if_no_interface_has_it():
    choice = nccl((LO, nic("eth0", "10.0.0.1/24")), family="AF_INET6")
    assert choice.error == "no running interface has an address of NCCL_SOCKET_FAMILY=AF_INET6"
    assert choice.setting == "NCCL_SOCKET_FAMILY"


def test_nccl_prefers_any_ipv4_address_to_any_ipv6():
    assert nccl((nic("eth0", "fd00::1/64"), nic("eth1", "10.0.0.1/24"))).interface == "eth1"


def test_nccl_is_not_predicted_if_a_comm_id_names_a_network():
    choice = nccl_choice(ALL, {"NCCL_COMM_ID": "10.78.0.9:4242", "NCCL_SOCKET_IFNAME": "eth0"})
    assert (choice.address, choice.error) == (None, None)
    assert "NCCL_COMM_ID" in choice.why


@given(st.text("^=,:ethlo019", max_size=12), st.sampled_from(["eth0", "eth1", "lo", "ib0"]))
def test_negated_list_matches_the_opposite_of_the_list(names, interface):
    if names.startswith("^") or not names.strip("=,:0123456789"):
        return
    assert nccl_hca.takes("^" + names, interface) is not nccl_hca.takes(names, interface)


# --- gloo -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "interface", "address"),
    [
        (("10.77.0.1",), "eth0", "10.77.0.1"),
        (("10.78.0.1",), "eth1", "10.78.0.1"),
        (("127.0.1.1",), "lo", "127.0.1.1"),
        (("127.0.0.1", "10.77.0.1"), "lo", "127.0.0.1"),
        (("10.99.0.1", "10.77.0.1"), "eth0", "10.77.0.1"),
        (("fd00:7::1", "10.77.0.1"), "eth0", "fd00:7::1"),
        (("10.99.0.1",), "lo", "127.0.0.1"),
        ((), "lo", "127.0.0.1"),
    ],
)
def test_gloo_uses_the_first_local_address_of_its_host_name(own, interface, address):
    choice = gloo_choice(ALL, {}, own)
    assert (choice.interface, choice.address, choice.error) == (interface, address, None)


@pytest.mark.parametrize("own", [("10.77.0.1",), ()])
@pytest.mark.parametrize(
    ("value", "interface", "address", "error"),
    [
        ("eth1", "eth1", "10.78.0.1", None),
        ("lo", "lo", "127.0.0.1", None),
        ("eth1,", "eth1", "10.78.0.1", None),
        ("eth1,eth0", "eth1", "10.78.0.1", None),
        ("v6", "v6", "fd00:12::1", None),
        ("bare", "bare", None, "bare has no address"),
        ("ib1", None, None, "no interface is named 'ib1'"),
        ("eth", None, None, "no interface is named 'eth'"),
        (" eth0", None, None, "no interface is named ' eth0'"),
        ("eth0,ib1", "eth0", "10.77.0.1", "no interface is named 'ib1'"),
        ("eth0,,eth1", "eth0", "10.77.0.1", "no interface is named ''"),
    ],
)
def test_gloo_uses_only_the_interfaces_of_its_setting(own, value, interface, address, error):
    interfaces = (*ALL, nic("v6", "fd00:12::1/64"), nic("bare"))
    choice = gloo_choice(interfaces, {"GLOO_SOCKET_IFNAME": value}, own)
    assert (choice.interface, choice.address, choice.error) == (interface, address, error)
    assert choice.setting == "GLOO_SOCKET_IFNAME"


def test_gloo_offers_an_interface_without_a_link():
    down = nic("eth9", "10.90.0.1/24", running=False)
    assert gloo_choice((LO, down), {"GLOO_SOCKET_IFNAME": "eth9"}, ()).address == "10.90.0.1"
    assert gloo_choice((LO, down), {}, ("10.90.0.1",)).interface == "eth9"


def test_gloo_is_not_predicted_if_the_resolver_did_not_answer():
    choice = gloo_choice(ALL, {}, None)
    assert (choice.address, choice.error) == (None, None)
    assert gloo_choice(ALL, {"GLOO_SOCKET_IFNAME": "eth0"}, None).address == "10.77.0.1"


def test_fallback_shows_the_address_of_the_name():
    assert gloo_choice(ALL, {}, ("10.99.0.1",)).why == "its own name resolves to 10.99.0.1, not its own"
    assert gloo_choice(ALL, {}, ()).why == "its own name does not resolve"
