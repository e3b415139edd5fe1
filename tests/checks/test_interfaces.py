"""The check interfaces: this machine, made-up ones, and what the rules make of several nodes together."""

from __future__ import annotations

import json
import os
import time
import warnings
from socket import EAI_AGAIN, gaierror
from typing import Any

import pytest

from ddp_doctor.checks.node.env_vars.devices import setting_names_absent_interface
from ddp_doctor.checks.node.interfaces import CHECK, probe
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_choice import gloo_choice, nccl_choice
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.context import Interface
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.interfaces import name_interfaces
from ddp_doctor.sources.machine import LiveContext
from ddp_doctor.views.network import advertised
from tests.fakes import FakeContext
from tests.readings import findings_of, of_nodes, plain_world

LO = Interface(name="lo", loopback=True, mtu=65536, addresses=("127.0.0.1/8", "::1/128"))


def nic(name: str, *addresses: str, running: bool = True, speed: int | None = None) -> Interface:
    return Interface(name=name, addresses=addresses, running=running, speed_mbps=speed)


def fact(
    *nics: Interface,
    own: tuple[str, ...] | None = (),
    env: dict[str, str] | None = None,
    host: str | None = None,
    name: str = "",
) -> InterfacesFact:
    found, env = (LO, *nics), env or {}
    return InterfacesFact(
        interfaces=found,
        hostname=name,
        hostname_addresses=own or (),
        gloo=gloo_choice(found, env, own),
        nccl=nccl_choice(found, env),
        settings=env,
        host_id=host,
    )


def node(address: str, own: str | None = None, env: dict[str, str] | None = None) -> InterfacesFact:
    """A node with one NIC, whose own name leads to its address or to ``own``."""
    return fact(nic("eth0", f"{address}/24"), own=(own or address,), env=env)


def recording(*facts: InterfacesFact, backend: str = "gloo", nnodes: int | None = None) -> Recording:
    world = plain_world(len(facts), backend=backend)
    world = world.model_copy(update={"nnodes": nnodes or len(facts)})
    return Recording(world=world, readings=of_nodes("interfaces", facts))


def findings(*facts: InterfacesFact, backend: str = "gloo") -> list[Finding]:
    return findings_of(CHECK, recording(*facts, backend=backend))


def only(*facts: InterfacesFact, backend: str = "gloo") -> Finding:
    (finding,) = findings(*facts, backend=backend)
    return finding


def blamed(finding: Finding) -> list[str | None]:
    return [culprit.node for culprit in finding.culprits]


def settings(finding: Finding) -> list[tuple[str, str | None]]:
    return [(one.name, one.value) for remedy in finding.remedies for one in remedy.settings]


# --- the probe ------------------------------------------------------------------------------------


def test_this_machine_is_read_in_a_moment():
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


def test_one_node_alone_gives_nothing_whatever_its_name_means():
    seen = probe(LiveContext(dict(os.environ), time.monotonic() + 60))
    assert findings(seen) == []
    assert findings(node("10.0.0.1", own="127.0.1.1")) == []
    assert findings(node("10.0.0.1", env={"GLOO_SOCKET_IFNAME": "ib0"})) == []


def test_an_address_of_this_machine_is_what_the_real_gloo_listens_on():
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


def test_a_credential_in_the_place_of_a_name_is_not_recorded():
    env = {"NCCL_SOCKET_IFNAME": "eth1 --password=hunter2", "GLOO_SOCKET_IFNAME": "token=hunter2"}

    assert "hunter2" not in probe(fake(env=env)).model_dump_json()


def test_a_site_file_of_nccl_counts_like_the_environment():
    seen = probe(fake(files={"/etc/nccl.conf": "NCCL_SOCKET_IFNAME=eth1\n"}))
    assert advertised(seen, "nccl") == "10.78.0.1"
    assert seen.port_range is None
    assert seen.host_id is None


def test_the_word_of_libnccl_stands_above_the_forecast():
    answer = json.dumps({"version_code": 20700, "address": "10.78.0.1"})
    seen = probe(fake(children={"nccl_interface": answer}))
    assert seen.nccl.interface == "eth0"
    assert seen.libnccl is not None
    assert seen.libnccl.interface == "eth1"
    assert advertised(seen, "nccl") == "10.78.0.1"


def test_libnccl_is_not_asked_where_a_comm_id_stands_in_for_its_choice():
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


def test_a_resolver_that_does_not_answer_leaves_the_choice_open():
    slow = probe(fake(names={"node0": TimeoutError("no answer")}))
    assert slow.hostname_error == "no answer within 2 s"
    assert (slow.gloo.address, slow.gloo.error) == (None, None)
    assert advertised(slow, "gloo") is None


def test_interfaces_that_cannot_be_listed_are_a_failure_and_not_an_empty_list():
    class Blind(FakeContext):
        def interfaces(self):
            raise PermissionError(1, "Operation not permitted")

    with pytest.raises(Failed, match="cannot be listed"):
        probe(Blind())


def test_a_choice_that_failed_gives_out_nothing():
    seen = node("10.0.0.1", env={"GLOO_SOCKET_IFNAME": "eth0,ib0"})
    assert seen.gloo.address == "10.0.0.1"
    assert advertised(seen, "gloo") is None


# --- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "sick", "severity"),
    [
        ("10.77.0", 0, Severity.WARNING),
        ("10.77.0", 1, Severity.WARNING),
        ("192.168.77", 0, Severity.ERROR),
        ("192.168.77", 1, Severity.ERROR),
        ("172.16.0", 1, Severity.ERROR),
    ],
)
def test_a_name_that_is_loopback_is_an_error_where_the_other_node_must_dial_it(network, sick, severity):
    """As real runs of torch 2.13 with gloo went, in each of these networks."""
    nodes = [node(f"{network}.{rank + 1}", own="127.0.1.1" if rank == sick else None) for rank in (0, 1)]
    finding = only(*nodes)
    assert (finding.code, finding.severity, blamed(finding)) == ("DD520", severity, [f"node{sick}"])
    assert settings(finding) == [("GLOO_SOCKET_IFNAME", "eth0")]
    assert f"{network}.{sick + 1} node{sick}" in finding.remedies[1].summary


def test_two_names_that_are_loopback_are_an_error_in_every_network():
    finding = only(*(node(f"10.77.0.{rank}", own="127.0.1.1") for rank in (1, 2)), node("10.77.0.3"))
    assert (finding.code, finding.severity) == ("DD520", Severity.ERROR)
    assert blamed(finding) == ["node0", "node1"]


def test_of_two_loopback_addresses_the_larger_one_dials():
    nodes = [node("10.77.0.1", own="127.0.0.1"), node("10.77.0.2", own="127.0.1.1")]
    finding = only(*nodes)
    assert finding.severity is Severity.ERROR
    assert blamed(finding) == ["node0", "node1"]
    assert "127.0.0.1 and 127.0.1.1" in finding.title


def test_a_name_that_is_loopback_is_information_with_nccl_and_nothing_with_an_interface_named():
    nodes = [node(f"192.168.0.{rank}", own="127.0.1.1") for rank in (1, 2)]
    assert only(*nodes, backend="nccl").severity is Severity.INFO
    told = [node(f"192.168.0.{rank}", own="127.0.1.1", env={"GLOO_SOCKET_IFNAME": "eth0"}) for rank in (1, 2)]
    assert findings(*told) == []


def test_an_interface_that_one_node_lacks_is_an_error_of_that_node_and_its_setting():
    told = {"GLOO_SOCKET_IFNAME": "ib0"}
    with_ib = [
        fact(nic("eth0", f"10.0.0.{r}/24"), nic("ib0", f"10.1.0.{r}/24"), own=(f"10.0.0.{r}",), env=told)
        for r in (1, 2, 3)
    ]
    finding = only(*with_ib, node("10.0.0.4", env=told))
    assert (finding.code, finding.severity, finding.confidence) == ("DD521", Severity.ERROR, Confidence.PROVED)
    assert [(one.kind, one.node, one.name) for one in finding.culprits] == [("setting", "node3", "GLOO_SOCKET_IFNAME")]
    assert settings(finding) == [("GLOO_SOCKET_IFNAME", "eth0"), ("GLOO_SOCKET_IFNAME", None)]
    assert finding.remedies[0].undo == "export GLOO_SOCKET_IFNAME=ib0"


def test_the_interface_of_the_backend_that_is_not_in_use_is_nobodys_fault():
    told = {"NCCL_SOCKET_IFNAME": "ib0"}
    nodes = [node("10.0.0.1", env=told), node("10.0.0.2", env=told)]
    assert findings(*nodes) == []
    assert only(*nodes, backend="nccl").code == "DD521"


def test_a_list_that_leaves_only_loopback_is_named_with_what_is_left():
    nodes = [node(f"10.0.0.{rank}", env={"NCCL_SOCKET_IFNAME": "^eth0"}) for rank in (1, 2)]
    finding = only(*nodes, backend="nccl")
    assert finding.code == "DD521"
    assert finding.title.endswith("NCCL_SOCKET_IFNAME='^eth0': only lo is left")
    assert settings(finding)[0] == ("NCCL_SOCKET_IFNAME", "=eth0")


def test_a_link_that_is_down_is_an_error_where_the_nodes_talk_over_it_and_a_warning_where_not():
    told = {"GLOO_SOCKET_IFNAME": "eth1"}

    def with_eth1(rank: int, *, running: bool, env: dict[str, str] | None) -> InterfacesFact:
        nics = nic("eth0", f"10.77.0.{rank}/24"), nic("eth1", f"10.78.0.{rank}/24", running=running)
        return fact(*nics, own=(f"10.77.0.{rank}",), env=env)

    over_it = only(with_eth1(1, running=True, env=told), with_eth1(2, running=False, env=told))
    assert (over_it.code, over_it.severity, blamed(over_it)) == ("DD521", Severity.ERROR, ["node1"])
    not_over_it = only(with_eth1(1, running=True, env=None), with_eth1(2, running=False, env=told))
    assert (not_over_it.code, not_over_it.severity) == ("DD521", Severity.WARNING)


def test_loopback_by_a_setting_follows_the_same_luck():
    told = {"GLOO_SOCKET_IFNAME": "lo"}
    assert only(node("10.0.0.1"), node("10.0.0.2", env=told)).severity is Severity.WARNING
    finding = only(node("192.168.0.1"), node("192.168.0.2", env=told))
    assert (finding.code, finding.severity, blamed(finding)) == ("DD522", Severity.ERROR, ["node1"])
    assert only(node("10.0.0.1", env=told), node("10.0.0.2", env=told)).severity is Severity.ERROR


def test_one_docker_address_on_two_nodes_is_an_error_of_both():
    env = {"GLOO_SOCKET_IFNAME": "docker0"}
    nics = nic("docker0", "172.17.0.1/16")
    nodes = [fact(nic("eth0", f"10.0.0.{r}/24"), nics, own=(f"10.0.0.{r}",), env=env) for r in (1, 2)]
    finding = only(*nodes)
    assert (finding.code, finding.severity, blamed(finding)) == ("DD522", Severity.ERROR, ["node0", "node1"])
    assert settings(finding) == [("GLOO_SOCKET_IFNAME", "eth0"), ("GLOO_SOCKET_IFNAME", None)]
    assert finding.evidence[0].text == "node0: 172.17.0.1 on docker0, because of GLOO_SOCKET_IFNAME=docker0"


def test_containers_of_two_hosts_with_one_address_are_found_without_any_setting():
    pods = [fact(nic("eth0", "172.17.0.2/16"), own=("172.17.0.2",), name=name) for name in ("c1", "c2")]
    finding = only(*(pod.model_copy(update={"host_id": f"{rank} x"}) for rank, pod in enumerate(pods)))
    assert (finding.code, finding.severity) == ("DD522", Severity.ERROR)


def test_a_bridge_that_only_looks_local_is_no_more_than_a_warning():
    nodes = [fact(nic("docker0", f"10.{rank}.0.1/24"), own=(f"10.{rank}.0.1",)) for rank in (1, 2)]
    for backend in ("gloo", "nccl"):
        found = findings(*nodes, backend=backend)
        assert {(one.code, one.severity, one.confidence) for one in found} == {
            ("DD522", Severity.WARNING, Confidence.POSSIBLE)
        }


def test_an_address_of_a_routed_service_on_lo_is_healthy():
    lo = [LO.model_copy(update={"addresses": ("127.0.0.1/8", f"10.200.0.{rank}/32")}) for rank in (1, 2)]
    nodes = [
        InterfacesFact(
            interfaces=(one, nic("eth0", f"10.{rank}.0.1/31")),
            hostname_addresses=(f"10.200.0.{rank}",),
            gloo=gloo_choice((one,), {}, (f"10.200.0.{rank}",)),
            nccl=nccl_choice((nic("eth0", f"10.{rank}.0.1/31"),), {}),
        )
        for rank, one in enumerate(lo, 1)
    ]
    assert findings(*nodes) == []
    assert findings(*nodes, backend="nccl") == []


def test_different_networks_are_information_only_where_another_one_is_shared():
    nics = [(nic("eth0", f"10.0.0.{r}/24"), nic("eth1", f"10.1.0.{r}/24")) for r in (1, 2)]
    finding = only(fact(*nics[0], own=("10.0.0.1",)), fact(*nics[1], own=("10.1.0.2",)))
    assert (finding.code, finding.severity) == ("DD523", Severity.INFO)
    assert settings(finding) == [("GLOO_SOCKET_IFNAME", "eth0")]
    routed = [node("10.0.0.1"), node("10.1.0.1"), node("10.2.0.1")]
    assert findings(*routed) == []
    assert findings(*routed, backend="nccl") == []


def test_two_families_end_gloo_and_the_minority_is_named():
    both = [fact(nic("eth0", f"10.0.0.{r}/24", f"fd00::{r}/64"), own=(f"10.0.0.{r}",)) for r in (1, 2)]
    odd = fact(nic("eth0", "10.0.0.3/24", "fd00::3/64"), own=("fd00::3", "10.0.0.3"))
    finding = only(*both, odd)
    assert (finding.code, finding.severity, blamed(finding)) == ("DD524", Severity.ERROR, ["node2"])
    assert settings(finding) == [("GLOO_SOCKET_IFNAME", "eth0")]
    assert blamed(only(both[0], odd)) == ["node0", "node1"]


def test_where_only_ipv6_is_common_the_names_must_lead_there():
    old = fact(nic("eth0", "10.0.0.1/24", "fd00::1/64"), own=("10.0.0.1",))
    new = fact(nic("eth0", "fd00::2/64"), own=("fd00::2",))
    finding = only(old, new)
    assert finding.code == "DD524"
    assert "fd00::1 node0" in finding.remedies[0].summary


def test_two_families_under_nccl_are_a_warning_where_every_node_speaks_both():
    def with_both(rank: int, **env: str) -> InterfacesFact:
        return fact(nic("eth0", f"10.0.0.{rank}/24", f"fd00::{rank}/64"), own=(f"10.0.0.{rank}",), env=env)

    finding = only(with_both(1), with_both(2, NCCL_SOCKET_FAMILY="AF_INET6"), backend="nccl")
    assert (finding.code, finding.severity) == ("DD524", Severity.WARNING)
    assert settings(finding) == [("NCCL_SOCKET_FAMILY", "AF_INET")]
    apart = only(with_both(1), fact(nic("eth0", "fd00::2/64"), own=("fd00::2",)), backend="nccl")
    assert (apart.severity, settings(apart)) == (Severity.ERROR, [("NCCL_SOCKET_FAMILY", "AF_INET6")])


@pytest.mark.parametrize(("network", "severity"), [("10.77.0", Severity.WARNING), ("192.168.0", Severity.ERROR)])
def test_a_name_that_leads_nowhere_falls_back_to_loopback(network, severity):
    lost = fact(nic("eth0", f"{network}.2/24"), own=())
    finding = only(node(f"{network}.1"), lost)
    assert (finding.code, finding.severity, blamed(finding)) == ("DD526", severity, ["node1"])
    moved = fact(nic("eth0", f"{network}.2/24"), own=("10.99.0.9",))
    assert "10.99.0.9" in only(node(f"{network}.1"), moved).title


def test_a_resolver_that_does_not_answer_is_a_warning():
    finding = only(node("192.168.0.1"), fact(nic("eth0", "192.168.0.2/24"), own=None))
    assert (finding.code, finding.severity) == ("DD526", Severity.WARNING)


def test_two_agents_on_one_host_reach_each_other_over_loopback():
    one = fact(nic("eth0", "10.0.0.1/24"), own=("127.0.1.1",), host="boot net:[1]", name="laptop")
    assert findings(one, one) == []
    told = fact(nic("eth0", "10.0.0.1/24"), own=("10.0.0.1",), env={"GLOO_SOCKET_IFNAME": "lo"}, host="b n")
    assert findings(told, told) == []


def test_names_that_differ_are_a_setting_for_each_node_with_gloo_and_a_list_with_nccl():
    nodes = [fact(nic(name, f"10.0.0.{r}/24")) for r, name in enumerate(("eth0", "enp1s0", "eth0"), 1)]
    remedy = findings(*nodes)[0].remedies[0]
    assert [(one.name, one.value, one.node, one.node_rank) for one in remedy.settings] == [
        ("GLOO_SOCKET_IFNAME", "eth0", "node0", 0),
        ("GLOO_SOCKET_IFNAME", "enp1s0", "node1", 1),
        ("GLOO_SOCKET_IFNAME", "eth0", "node2", 2),
    ]
    lost = [one.model_copy(update={"nccl": fact(env={"NCCL_SOCKET_IFNAME": "ib0"}).nccl}) for one in nodes]
    assert settings(only_of(findings(*lost, backend="nccl"), "DD521"))[0] == ("NCCL_SOCKET_IFNAME", "=eth0,enp1s0")


def only_of(found: list[Finding], code: str) -> Finding:
    (finding,) = (one for one in found if one.code == code)
    return finding


def test_nccl_is_told_the_name_exactly_for_it_may_be_a_prefix_of_another():
    env = {"NCCL_SOCKET_IFNAME": "lo"}
    nodes = [fact(nic("eth1", f"10.0.0.{r}/24"), nic("eth10", f"10.9.{r}.1/24"), env=env) for r in (1, 2)]
    assert settings(only_of(findings(*nodes, backend="nccl"), "DD522"))[0] == ("NCCL_SOCKET_IFNAME", "=eth1")


def test_a_node_that_nothing_connects_is_told_to_be_connected():
    cut = fact(nic("eth0", "10.0.0.2/24", running=False))
    finding = only_of(findings(node("10.0.0.1"), cut, backend="nccl"), "DD522")
    assert blamed(finding) == ["node1"]
    assert "eth0 is down or not connected" in finding.remedies[0].summary
    assert settings(finding) == []


def test_a_node_that_did_not_report_spoils_nothing():
    seen = recording(node("192.168.0.2", own="127.0.1.1"), nnodes=2)
    assert findings_of(CHECK, seen) == []


def test_four_thousand_nodes_are_judged_in_seconds():
    nodes = [node(f"10.{r >> 8}.{r & 255}.1", own="127.0.1.1" if r % 2 else None) for r in range(4096)]
    seen = recording(*nodes)
    began = time.process_time()
    found = findings_of(CHECK, seen)
    assert time.process_time() - began < 8.0
    assert [(one.code, len(one.culprits)) for one in found] == [("DD520", 2048)]


def test_nodes_that_had_different_values_are_not_all_given_the_last_of_them():
    made = name_interfaces(
        Recording(), "gloo", {0: {"eth1"}, 1: {"eth1"}}, {0: "eth1", 1: "eth1"}, "why", ["eth2", "eth0", "eth2"]
    )

    assert made.undo == (
        "on each node its own line again: export GLOO_SOCKET_IFNAME=eth0 or export GLOO_SOCKET_IFNAME=eth2"
    )


@pytest.mark.parametrize(
    ("setting", "value", "backend", "title"),
    [
        ("NCCL_SOCKET_IFNAME", "foo", "gloo", "node0 has no interface 'foo' (it has lo, eth0): NCCL would not start"),
        ("GLOO_SOCKET_IFNAME", "eth0,x", "nccl", "node0 has no interface 'x' (it has lo, eth0): gloo would not start"),
        (
            "NCCL_SOCKET_IFNAME",
            "ib",
            "gloo",
            "node0: NCCL would not start with NCCL_SOCKET_IFNAME=ib: no running interface with an address matches 'ib'",
        ),
    ],
)
def test_a_setting_of_the_other_backend_names_what_is_not_there(setting, value, backend, title):
    seen = fact(nic("eth0", "10.0.0.1/24"), nic("ib0", running=False), env={setting: value})
    (finding,) = setting_names_absent_interface.apply(recording(seen, backend=backend))
    assert finding.title.removesuffix(f" with {setting}={value}") == title
