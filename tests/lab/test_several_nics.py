"""Hosts with two NICs: a fault of the first is reported, the second is tested, and its proof is recorded."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.lab import faults
from tests.lab.hosts import Lab, why_no_lab
from tests.lab.several_nics import FIRST, SECOND, Run, give_all_the_file_of_the_head, run

pytestmark = pytest.mark.lab

SLOW = ("rate:node0:100",)
APART = ("foreign-switch:node0", "foreign-switch:node1")
BLOCKED_ON_ETH0 = ("drop-all-but-on:node0:eth0", "drop-all-but-on:node1:eth0")


@pytest.fixture(autouse=True)
def _can_be_made() -> None:
    if reason := why_no_lab():
        pytest.skip(reason)


def planted(lab: Lab, names: Sequence[str]) -> None:
    for name in names:
        faults.plant(lab, name)


def only_finding(done: Run) -> dict[str, Any]:
    assert done.problems == []
    (finding,) = done.findings().values()
    return finding


def told(finding: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    (remedy, *_others) = finding["remedies"]
    return [(one["name"], one["value"], one["node"]) for one in remedy["settings"]]


ONE_NAME = [("GLOO_SOCKET_IFNAME", "eth1", None)]

#: the injected fault, the rendezvous, the finding's code, the result of the second measurement
PROVED = (
    pytest.param(APART, SECOND, "DD535", "passes", id="not cabled to each other"),
    pytest.param(("cable-out:node1",), SECOND, "DD521", "passes", id="cable out"),
    pytest.param(("link-down:node0", "link-down:node1"), SECOND, "DD521", "passes", id="links down"),
    pytest.param(("mtu-black-hole:node1",), FIRST, "DD532", "B/s", id="swallows large packets"),
    # Serial: a loss of packets and a busy machine together break the nodes' own contact.
    pytest.param(("loss:node1:5",), FIRST, "DD536", "B/s", id="loses packets", marks=pytest.mark.serial),
)
#: The nodes meet in the network that is slow or partly blocked, or in the other one: see ONE_FILE.
MENDED = (
    pytest.param(SLOW, FIRST, "DD538", "B/s", id="slow"),
    pytest.param(BLOCKED_ON_ETH0, FIRST, "DD531", "passes", id="ports blocked on the first"),
)


def proved(lab: Lab, plant: Sequence[str], endpoint: str, code: str, after: str) -> dict[str, Any]:
    """The finding of a run that proves that eth1 helps."""
    planted(lab, plant)
    done = run(lab, endpoint)
    finding = only_finding(done)
    proof = finding["remedies"][0]["proof"]
    assert (finding["code"], done.exits) == (code, {1})
    assert (proof["status"], after in proof["after"]) == ("proved", True), proof
    assert proof["before"]
    return finding


@pytest.mark.parametrize(("plant", "endpoint", "code", "after"), PROVED)
def test_the_other_network_is_proved(plant, endpoint, code, after):
    with Lab(nodes=2, second_nic=True) as lab:
        assert told(proved(lab, plant, endpoint, code, after))[:1] == ONE_NAME


@pytest.mark.parametrize(("plant", "endpoint", "code", "after"), MENDED)
def test_other_network_is_proved_and_the_next_run_with_its_file_is_healthy(plant, endpoint, code, after):
    with Lab(nodes=2, second_nic=True) as lab:
        assert told(proved(lab, plant, endpoint, code, after))[:1] == ONE_NAME

        second = run(lab, endpoint, env_files=True)
        assert (second.exits, second.findings(), second.settings()) == ({0}, {}, []), second.texts["node0"]


def test_torchrun_uses_the_other_network_with_the_file_of_the_head():
    """The workers' MASTER_ADDR would be node0's name, which leads to the dead network."""
    with Lab(nodes=2, second_nic=True) as lab:
        finding = proved(lab, ("renamed-interface:node0:eth1:ens5", "dead-port:node1"), SECOND, "DD535", "passes")
        give_all_the_file_of_the_head(lab)
        done = run(lab, SECOND, env_files=True, level="standard")

    assert told(finding) == [
        *(("GLOO_SOCKET_IFNAME", name, node) for name, node in (("ens5", "node0"), ("eth1", "node1"))),
        ("PET_LOCAL_ADDR", "10.78.0.1", "node0"),
        ("PET_LOCAL_ADDR", "10.78.0.2", "node1"),
    ]
    assert (done.exits, done.findings(), done.settings()) == ({0}, {}, []), done.texts["node0"]
    (torchrun,) = (one for one in done.report["checks"] if one["id"] == "torchrun")
    assert torchrun["status"] == "passed"


# Six paths have 1.6 s to show that the other network is healthy, which a busy machine exceeds.
@pytest.mark.serial
def test_slow_node_of_three_is_reported_and_the_other_network_helps_it():
    with Lab(nodes=3, second_nic=True) as lab:
        planted(lab, ("rate:node2:100",))
        finding = only_finding(run(lab, FIRST))

    assert finding["code"] == "DD533"
    assert {one["node"] for one in finding["culprits"]} == {"node2"}
    assert (told(finding), finding["remedies"][0]["proof"]["status"]) == (ONE_NAME, "proved")


def test_network_that_is_fast_only_for_a_burst_is_not_recommended():
    with Lab(nodes=2, second_nic=True) as lab:
        planted(lab, (*SLOW, "burst-credit:node0", "burst-credit:node1"))
        done = run(lab, FIRST)
        written = (lab["node0"].folder / "settings.sh").read_text()

    (tried,) = {one["code"] for one in done.recording["experiments"]}
    assert tried == "DD538"
    assert (done.exits, done.findings(), done.settings(), done.problems) == ({0}, {}, [], [])
    assert "export" not in written


@pytest.mark.parametrize("plant", [("rate:node0:100", "rate:node0:100:eth1"), ("rate:node0:100:eth1",)])
def test_second_network_that_is_not_better_is_not_recommended(plant):
    with Lab(nodes=2, second_nic=True) as lab:
        planted(lab, plant)
        done = run(lab, FIRST)

    assert (done.exits, done.findings(), done.settings()) == ({0}, {}, [])


#: what is planted, the network's first numbers, the finding's code and culprits
ONE_NETWORK = (
    pytest.param(
        *(("environment:node1:GLOO_SOCKET_IFNAME=eth9",), "10.77.0", "DD521", {"GLOO_SOCKET_IFNAME"}),
        id="no such interface",
    ),
    pytest.param(
        *(("loopback-name:node0", "loopback-name:node1"), "192.168.77", "DD520", {"node0", "node1"}), id="loopback name"
    ),
)


@pytest.mark.parametrize(("plant", "network", "code", "culprits"), ONE_NETWORK)
def test_wrong_choice_is_fixed_and_the_next_run_with_its_file_is_healthy(plant, network, code, culprits):
    endpoint = f"{network}.1:29400"
    with Lab(2, network) as lab:
        planted(lab, plant)
        first = run(lab, endpoint)
        finding = only_finding(first)
        assert (finding["code"], first.exits) == (code, {1})
        assert {one["name"] or one["node"] for one in finding["culprits"]} == culprits
        assert told(finding) == [("GLOO_SOCKET_IFNAME", "eth0", None)]
        assert finding["remedies"][0]["proof"]["status"] == "proved"

        second = run(lab, endpoint, env_files=True)
        assert (second.exits, second.findings()) == ({0}, {}), second.texts["node0"]


#: faults that no setting fixes: the fault, whether there are two networks, the code, a word of the right repair
NO_SETTING = (
    pytest.param(("drop-all-but:node0", "drop-all-but:node1"), True, "DD531", "firewall", id="ports blocked"),
    pytest.param(("block-inbound:node1",), False, "DD530", "firewall", id="inbound blocked"),
)


@pytest.mark.parametrize(("plant", "two", "code", "repair"), NO_SETTING)
def test_repair_is_suggested_if_no_setting_can_help(plant, two, code, repair):
    with Lab(2, second_nic=two) as lab:
        planted(lab, plant)
        done = run(lab, FIRST)
        written = (lab["node0"].folder / "settings.sh").read_text()

    finding = only_finding(done)
    assert (finding["code"], done.exits, done.settings()) == (code, {1}, [])
    assert repair in finding["remedies"][0]["summary"]
    assert "export" not in written


def test_healthy_runs_recommend_nothing():
    with Lab(nodes=2, second_nic=True) as lab:
        runs = [run(lab, endpoint) for endpoint in (FIRST, SECOND)]

    said = [(done.exits, list(done.findings()), done.settings(), done.problems) for done in runs]
    assert said == [({0}, [], [], [])] * len(runs)
