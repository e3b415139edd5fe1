"""The file to source, in real shells: certain values are active, others are comments, each host gets its own."""

from pathlib import Path

import pytest

from ddp_doctor.model.finding import Finding, Proof, Setting
from ddp_doctor.model.recording import World
from ddp_doctor.render.pasted import env_file
from tests.render.reports import PROVED, error, given_by, warning, world
from tests.render.shells import SHELLS, environment

P2P_OFF = Setting(name="NCCL_P2P_DISABLE", value="1")


def rendered(*findings: Finding, on: World | None = None) -> str:
    return env_file(given_by(*findings, on=on))


def live(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_candidate_of_a_warning_that_was_not_tried_is_a_comment():
    text = rendered(warning(P2P_OFF))

    assert "# export NCCL_P2P_DISABLE=1   # a candidate, not tried\n" in text
    assert live(text) == []
    assert text.endswith("# nothing is set; take the # off to try a candidate\n")


def test_file_without_recommendations_has_a_note_and_no_effect():
    assert rendered() == "# Settings recommended by ddp-doctor 1, run x\n# nothing to set\n"


def test_proved_setting_of_a_warning_is_active_with_proof_and_undo():
    found = warning(P2P_OFF, proof=PROVED)
    undo = found.remedies[0].model_copy(update={"undo": "unset NCCL_P2P_DISABLE"})

    text = rendered(found.model_copy(update={"remedies": (undo,)}))

    assert live(text) == ["export NCCL_P2P_DISABLE=1"]
    assert "# 'DD402; mend it; proved: 1 GB/s -> 5 GB/s; undo: unset NCCL_P2P_DISABLE'\n" in text


def test_setting_of_an_error_is_active_after_an_inactive_candidate():
    text = rendered(warning(Setting(name="NCCL_P2P_DISABLE", value="0")), error(P2P_OFF))

    assert live(text) == ["export NCCL_P2P_DISABLE=1"]


def test_a_leftover_variable_is_unset_but_its_replacement_is_a_candidate():
    text = rendered(
        warning(
            Setting(name="NCCL_SOCKT_IFNAME", action="unset"),
            Setting(name="NCCL_SOCKET_IFNAME", value="ib0"),
            code="DD101",
        )
    )

    assert live(text) == ["unset NCCL_SOCKT_IFNAME"]


def test_two_errors_that_want_different_values_show_the_conflict():
    text = rendered(error(P2P_OFF), error(Setting(name="NCCL_P2P_DISABLE", value="0"), code="DD602"))

    assert live(text) == ["export NCCL_P2P_DISABLE=1"]
    assert "# export NCCL_P2P_DISABLE=0   # conflict, not applied: DD601 wants another value\n" in text


def test_tried_setting_without_a_clear_result_is_a_marked_candidate():
    unclear = Proof(before="1 GB/s", after="1.05 GB/s", reason="the trials lie too close together to tell")
    text = rendered(warning(P2P_OFF, proof=unclear))

    assert "# 'DD402; mend it; tried, not proved: 1 GB/s -> 1.05 GB/s'\n" in text
    assert "# export NCCL_P2P_DISABLE=1   # a candidate, tried, not proved\n" in text


# --- each host its own --------------------------------------------------------------------------------


def own(host: str, value: str) -> Setting:
    return Setting(name="NCCL_SOCKET_IFNAME", value=value, node=host)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("recorded", "calls_itself", "gets"),
    [
        (("node0", "node1"), "node1", "=eth1"),
        (("node0", "node1"), "node1.example.com", "=eth1"),
        (("node0.example.com", "node1.example.com"), "node1", "=eth1"),
        (("node0.example.com", "node1.example.com"), "node1.example.com", "=eth1"),
        (("gpu.a.com", "gpu.b.com"), "gpu.b.com", "=eth1"),
        (("gpu.a.com", "gpu.b.com"), "gpu", None),
        (("gpu", "gpu.b.com"), "gpu", "eth0"),
        (("gpu", "gpu.b.com"), "gpu.b.com", "=eth1"),
        (("node1", "node11"), "node11", "=eth1"),
        (("node0", "node1"), "login", None),
    ],
)
def test_host_gets_its_own_value(tmp_path, shell, recorded, calls_itself, gets):
    first, second = recorded
    text = rendered(error(own(first, "eth0"), own(second, "=eth1")), on=world(*recorded))

    assert environment(shell, text, tmp_path, host=calls_itself).get("NCCL_SOCKET_IFNAME") == gets


def test_four_thousand_hosts_with_two_values_are_one_statement(tmp_path):
    hosts = [f"node{number:04}" for number in range(4096)]
    text = rendered(error(*(own(host, f"eth{host[-1]}") for host in hosts)), on=world(*hosts))

    assert len(text) < 150_000
    assert max(map(len, text.splitlines())) < 300
    for shell in SHELLS:
        assert environment(shell, text, tmp_path, host="node4095")["NCCL_SOCKET_IFNAME"] == "eth5"


def test_candidate_with_values_per_host_is_a_comment_that_works_uncommented(tmp_path: Path):
    text = rendered(warning(own("node0", "eth0"), own("node1", "eth1")), on=world("node0", "node1"))
    assert live(text) == []

    block = text[text.index("# case") : text.index("# nothing")].replace("# ", "")
    assert environment("bash", block, tmp_path, host="node1")["NCCL_SOCKET_IFNAME"] == "eth1"
