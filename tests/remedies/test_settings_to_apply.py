"""The remedy that is applied: one per finding, a proved one first, and no contradiction without a note."""

import pytest

from ddp_doctor.model.finding import Remedy, Setting
from ddp_doctor.remedies.settings_to_apply import SettingsToApply
from ddp_doctor.remedies.values_by_host import Branch
from tests.render.reports import DISPROVED, PROVED, error, given_by, remedy, warning, world

P2P_OFF = Setting(name="NCCL_P2P_DISABLE", value="1")
P2P_ON = Setting(name="NCCL_P2P_DISABLE", value="0")
SHM_OFF = Setting(name="NCCL_SHM_DISABLE", value="1")
ETH1 = Setting(name="NCCL_SOCKET_IFNAME", value="eth1")


def applied(given: SettingsToApply) -> list[tuple[str, str]]:
    return [(one.code, one.name) for one in given.variables if not one.not_applied]


def notes(given: SettingsToApply) -> dict[str, str]:
    return {one.code: one.not_applied for one in given.variables if one.not_applied}


def test_first_of_two_remedies_is_applied_and_the_second_is_a_candidate():
    given = given_by(error(remedy(P2P_OFF), remedy(SHM_OFF)))
    assert applied(given) == [("DD601", "NCCL_P2P_DISABLE")]
    assert [one.not_applied for one in given.variables] == ["", "an alternative, not tried"]


def test_proved_remedy_is_applied_instead_of_an_earlier_one():
    given = given_by(error(remedy(P2P_OFF), remedy(SHM_OFF, proof=PROVED), remedy(ETH1, proof=PROVED)))
    assert applied(given) == [("DD601", "NCCL_SHM_DISABLE")]
    assert given.variables[2].not_applied == "an alternative"


def test_another_value_of_the_same_finding_is_an_alternative_and_no_conflict():
    given = given_by(error(remedy(P2P_OFF), remedy(P2P_ON)))
    assert [one.not_applied for one in given.variables] == ["", "an alternative, not tried"]


def test_disproved_remedy_is_not_used():
    assert given_by(error(remedy(P2P_OFF, proof=DISPROVED))).variables == ()
    assert applied(given_by(error(remedy(P2P_OFF, proof=DISPROVED), remedy(SHM_OFF)))) == [
        ("DD601", "NCCL_SHM_DISABLE")
    ]


def test_settings_of_the_second_remedy_are_applied_if_the_first_is_only_text():
    assert applied(given_by(error(Remedy(summary="repair it"), remedy(P2P_OFF)))) == [("DD601", "NCCL_P2P_DISABLE")]


def test_proved_remedy_of_a_warning_precedes_an_unproved_one_of_an_error():
    given = given_by(error(P2P_ON), warning(remedy(P2P_OFF, proof=PROVED)))
    assert applied(given) == [("DD402", "NCCL_P2P_DISABLE")]
    assert notes(given) == {"DD601": "conflict, not applied: DD402 wants another value"}


def test_conflicting_remedy_is_not_even_partly_applied():
    given = given_by(error(P2P_OFF), error(remedy(ETH1, P2P_ON), code="DD602"))
    assert applied(given) == [("DD601", "NCCL_P2P_DISABLE")]
    assert [one.name for one in given.variables if one.code == "DD602"] == ["NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE"]


@pytest.mark.parametrize("conflicting_first", [True, False])
def test_remedy_incompatible_with_an_applied_setting_is_a_conflict(conflicting_first):
    level = remedy(Setting(name="NCCL_P2P_LEVEL", value="PXB"), conflicts=["NCCL_P2P_DISABLE"])
    both = [error(level), error(P2P_OFF, code="DD602")]
    given = given_by(*(both if conflicting_first else reversed(both)))
    assert len(applied(given)) == 1
    assert [note.partition(":")[0] for note in notes(given).values()] == ["conflict, not applied"]


def test_remedy_incompatible_with_a_variable_is_applied_if_that_is_unset():
    level = remedy(Setting(name="NCCL_P2P_LEVEL", value="PXB"), conflicts=["NCCL_P2P_DISABLE"])
    unset = Setting(name="NCCL_P2P_DISABLE", action="unset")
    assert len(applied(given_by(error(level), error(unset, code="DD602")))) == 2


def test_two_findings_with_the_same_setting_give_one_line():
    given = given_by(warning(P2P_OFF, code="DD402"), error(P2P_OFF), error(P2P_OFF, code="DD602"))
    assert [(one.code, one.not_applied) for one in given.variables] == [("DD601", "")]


def test_remedy_shared_by_two_findings_is_evaluated_for_each():
    shared = remedy(P2P_OFF, container=["--ipc=host"])
    given = given_by(warning(shared), error(shared))
    assert [(one.code, one.not_applied) for one in given.variables] == [("DD601", "")]
    assert [(one.because.partition(";")[0], one.not_applied) for one in given.options] == [("DD601", "")]


def test_two_sizes_of_shared_memory_are_a_conflict_and_two_capabilities_are_not():
    sizes = given_by(error(remedy(container=["--shm-size=2g"])), error(remedy(container=["--shm-size=4g"]), code="DD2"))
    caps = given_by(error(remedy(container=["--cap-add=A"])), error(remedy(container=["--cap-add=B"]), code="DD2"))
    assert [one.not_applied for one in sizes.options] == ["", "conflict, not applied: DD601 wants --shm-size=2g"]
    assert [one.not_applied for one in caps.options] == ["", ""]


def test_invalid_container_option_is_omitted():
    assert given_by(error(remedy(container=["--shm-size=2g; rm -rf /", "-v=/:/host", "x"]))).options == ()


# --- values of single nodes ---------------------------------------------------------------------------


def on(host: str | None, value: str | None, rank: int | None = None) -> Setting:
    return Setting(
        name="NCCL_SOCKET_IFNAME", value=value, action="set" if value else "unset", node=host, node_rank=rank
    )


def test_values_of_nodes_are_grouped_by_value():
    given = given_by(error(on("a", "eth0"), on("b", "eth1"), on("c", "eth0")), on=world("a", "b", "c"))
    assert given.variables[0].branches == (Branch("eth0", ("a", "c")), Branch("eth1", ("b",)))


def test_one_value_on_each_of_all_nodes_is_one_for_all():
    given = given_by(error(on("a", "eth1"), on("b", "eth1")), on=world("a", "b"))
    assert given.variables[0].branches == (Branch("eth1"),)


def test_value_for_some_nodes_does_not_affect_others():
    given = given_by(error(on("b", "eth1")), on=world("a", "b"))
    assert given.variables[0].branches == (Branch("eth1", ("b",)),)
    assert given.on("a").variables == ()
    assert given.on("b").variables[0].branches == (Branch("eth1"),)


def test_value_of_a_node_precedes_the_value_of_all_nodes():
    given = given_by(error(on(None, "eth0"), on("b", None)), on=world("a", "b"))
    assert given.on("a").variables[0].branches == (Branch("eth0"),)
    assert given.on("b").variables[0].branches == (Branch(None),)


def test_a_node_that_is_known_by_its_rank_gets_its_host_name():
    given = given_by(error(on(None, "eth1", rank=1)), on=world("a", "b"))
    assert given.variables[0].branches == (Branch("eth1", ("b",)),)


@pytest.mark.parametrize(
    ("settings", "hosts", "why"),
    [
        ((on(None, "eth1", rank=7),), ("a", "b"), "the host name of node rank 7 is unknown"),
        ((on("node rank 3", "eth1"),), ("a", "b"), "the host name of node rank 3 is unknown"),
        ((on("a", "eth0"), on("a", "eth1")), ("a", "b"), "the fix sets this variable to two different values on a"),
        ((on("a", "eth0", rank=0),), ("a", "a"), "several nodes have the host name a"),
        ((on(None, "eth0"), on(None, "eth1")), ("a",), "the fix sets this variable to two different values"),
    ],
)
def test_value_is_not_applied_if_its_hosts_are_unclear(settings, hosts, why):
    given = given_by(error(*settings), on=world(*hosts))
    assert given.variables[0].branches == ()
    assert given.variables[0].because.endswith(why)


def test_remedy_with_a_part_that_cannot_be_pasted_is_not_applied():
    given = given_by(error(ETH1, Setting(name="NCCL_IB_HCA", value="a\nb")))
    assert [one.not_applied for one in given.variables] == ["not applied: it cannot be pasted completely"] * 2


def test_launcher_variable_is_not_called_proved_by_trials_without_it():
    both = (Setting(name="GLOO_SOCKET_IFNAME", value="eth1"), Setting(name="PET_LOCAL_ADDR", value="10.78.0.1"))
    name, address = given_by(error(remedy(*both, proof=PROVED))).variables

    assert "proved: 1 GB/s -> 5 GB/s" in name.because
    assert "proved" not in address.because
    assert "not tested by itself" in address.because
    assert not address.not_applied
