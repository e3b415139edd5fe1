"""The check interfaces: this machine, made-up ones, and what the rules make of several nodes together."""

from __future__ import annotations

import json
import os
import time
import warnings
from socket import EAI_AGAIN, gaierror
from typing import Any

import pytest

from ddp_doctor.checks.node.interfaces import CHECK, probe
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_choice import gloo_choice, nccl_choice
from ddp_doctor.model.context import Interface
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.interfaces import name_interfaces
from ddp_doctor.sources.machine import LiveContext
from ddp_doctor.views.network import advertised
from tests.fakes import FakeContext
from tests.readings import findings_of, of_nodes, plain_world

LO = Interface(name="lo", loopback=True, mtu=65536, addresses=("127.0.0.1/8", "::1/128"))


def nic(name: str, *addresses: str) -> Interface:
    return Interface(name=name, addresses=addresses)


def node(address: str, own: str, **env: str) -> InterfacesFact:
    found = (LO, nic("eth0", f"{address}/24"))
    return InterfacesFact(
        interfaces=found,
        hostname="",
        hostname_addresses=(own,),
        gloo=gloo_choice(found, env, (own,)),
        nccl=nccl_choice(found, env),
        settings=env,
    )


# --- the probe ------------------------------------------------------------------------------------


def test_this_machine_is_read_quickly():
    live = LiveContext(dict(os.environ), time.monotonic() + 60)
    began = time.process_time()
    seen = probe(live)
    assert time.process_time() - began < 3.0
    assert any(one.loopback for one in seen.interfaces)
    assert seen.hostname == os.uname().nodename
    assert seen.host_id is not None
    assert seen.port_range is not None
    assert seen.port_range[0] < seen.port_range[1]
    assert seen.hostname_addresses or seen.hostname_error


def test_real_gloo_listens_on_the_predicted_address_of_this_machine():
    """The real device of this torch, on this machine, as its own name and the environment make it."""
    import psutil
    from torch._C._distributed_c10d import ProcessGroupGloo

    seen = probe(LiveContext({}, time.monotonic() + 60))
    before = _listening(psutil)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the name of this machine does not resolve
        device = ProcessGroupGloo.create_default_device()
    assert {address for address, _port in _listening(psutil) - before} == {advertised(seen, "gloo")}
    del device


def _listening(psutil) -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections("tcp")
    return {tuple(connection.laddr) for connection in connections if connection.status == "LISTEN"}


def fake(**changes: object) -> FakeContext:
    network = (LO, nic("eth0", "10.77.0.1/24"), nic("eth1", "10.78.0.1/24"))
    files = {"/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n", "/proc/sys/kernel/random/boot_id": "7e1c\n"}
    links = {"/proc/self/ns/net": "net:[4026531840]"}
    given: dict[str, Any] = {
        "network": network,
        "files": files,
        "links": links,
        "names": {"node0": ("10.77.0.1",)},
        **changes,
    }
    return FakeContext(**given)


def test_a_machine_is_recorded_with_both_choices():
    seen = probe(fake(env={"NCCL_SOCKET_IFNAME": "eth1", "PATH": "/bin"}))
    assert (advertised(seen, "gloo"), advertised(seen, "nccl")) == ("10.77.0.1", "10.78.0.1")
    assert seen.settings == {"NCCL_SOCKET_IFNAME": "eth1"}
    assert seen.port_range == (32768, 60999)
    assert seen.host_id == "7e1c net:[4026531840]"
    assert seen.libnccl is None


def test_credential_in_place_of_a_name_is_not_recorded():
    env = {"NCCL_SOCKET_IFNAME": "eth1 --password=hunter2", "GLOO_SOCKET_IFNAME": "token=hunter2"}

    assert "hunter2" not in probe(fake(env=env)).model_dump_json()


def test_a_site_file_of_nccl_counts_like_the_environment():
    seen = probe(fake(files={"/etc/nccl.conf": "NCCL_SOCKET_IFNAME=eth1\n"}))
    assert advertised(seen, "nccl") == "10.78.0.1"
    assert seen.port_range is None
    assert seen.host_id is None


def test_answer_of_libnccl_overrides_the_prediction():
    answer = json.dumps({"version_code": 20700, "address": "10.78.0.1"})
    seen = probe(fake(children={"nccl_interface": answer}))
    assert seen.nccl.interface == "eth0"
    assert seen.libnccl is not None
    assert seen.libnccl.interface == "eth1"
    assert advertised(seen, "nccl") == "10.78.0.1"


def test_libnccl_is_not_asked_if_a_comm_id_replaces_its_choice():
    answer = json.dumps({"version_code": 20700, "address": "10.9.9.9"})
    seen = probe(fake(children={"nccl_interface": answer}, env={"NCCL_COMM_ID": "10.9.9.9:1"}))
    assert seen.libnccl is None
    assert advertised(seen, "nccl") is None


def test_a_name_that_does_not_resolve_is_recorded_with_the_reason():
    unknown = probe(fake(names={}))
    assert (unknown.hostname_addresses, unknown.hostname_error) == ((), "Name or service not known")
    assert advertised(unknown, "gloo") == "127.0.0.1"
    again = gaierror(EAI_AGAIN, "Temporary failure in name resolution")
    assert probe(fake(names={"node0": again})).hostname_error == "Temporary failure in name resolution"


def test_resolver_without_an_answer_leaves_the_choice_unknown():
    slow = probe(fake(names={"node0": TimeoutError("no answer")}))
    assert slow.hostname_error == "no answer within 2 s"
    assert (slow.gloo.address, slow.gloo.error) == (None, None)
    assert advertised(slow, "gloo") is None


def test_interfaces_that_cannot_be_listed_are_a_failure_and_not_an_empty_list():
    class Blind(FakeContext):
        def interfaces(self):
            raise PermissionError(1, "Operation not permitted")

    with pytest.raises(Failed, match="cannot list the network interfaces"):
        probe(Blind())


def test_failed_choice_advertises_no_address():
    seen = node("10.0.0.1", "10.0.0.1", GLOO_SOCKET_IFNAME="eth0,ib0")
    assert seen.gloo.address == "10.0.0.1"
    assert advertised(seen, "gloo") is None


# --- the rules ------------------------------------------------------------------------------------


def test_thousand_nodes_are_evaluated_in_seconds():
    addresses = [f"10.{r >> 8}.{r & 255}.1" for r in range(1024)]
    nodes = [node(address, "127.0.1.1" if r % 2 else address) for r, address in enumerate(addresses)]
    seen = Recording(world=plain_world(1024), readings=of_nodes("interfaces", nodes))
    began = time.process_time()
    found = findings_of(CHECK, seen)
    assert time.process_time() - began < 2.0
    assert [(one.code, len(one.culprits)) for one in found] == [("DD520", 512)]


def test_undo_lists_the_different_previous_values_of_nodes():
    made = name_interfaces(
        Recording(), "gloo", {0: {"eth1"}, 1: {"eth1"}}, {0: "eth1", 1: "eth1"}, "why", ["eth2", "eth0", "eth2"]
    )

    assert made.undo == (
        "restore each node's own line: export GLOO_SOCKET_IFNAME=eth0 or export GLOO_SOCKET_IFNAME=eth2"
    )
