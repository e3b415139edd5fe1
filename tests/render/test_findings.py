"""The lines below a finding's title that people paste."""

from ddp_doctor.model.finding import MissingNode, Proof, Remedy, Setting
from ddp_doctor.remedies.kinds import FOLLOWS, NO_TRIAL
from ddp_doctor.render import findings
from tests.render.reports import error, warning


def pasted(*settings: Setting) -> list[str]:
    return [line.text for line in findings.lines(error(*settings)) if line.to_paste]


def test_missing_nodes_that_the_title_does_not_name_have_a_line():
    absent = (MissingNode(node="node1"), MissingNode(node="node10"), MissingNode(node_rank=3))
    found = error().model_copy(update={"title": "node10 did not report in", "missing": absent})

    assert next(findings.lines(found)).text == "No answer from: node1, node rank 3"


def own(host: str, value: str) -> Setting:
    return Setting(name="NCCL_SOCKET_IFNAME", value=value, node=host)


def test_values_of_single_nodes_name_their_node():
    unknown = Setting(name="NCCL_SOCKET_IFNAME", value="eth2", node_rank=7)
    assert pasted(own("node0", "eth0"), own("node1", "eth1"), own("node2", "eth0"), unknown) == [
        "export NCCL_SOCKET_IFNAME=eth0   # on node0 and node2",
        "export NCCL_SOCKET_IFNAME=eth1   # on node1",
        "export NCCL_SOCKET_IFNAME=eth2   # on node rank 7",
    ]


def test_thousands_of_nodes_that_share_a_value_are_one_line():
    (line,) = pasted(*(own(f"node{number}", "eth1") for number in range(4096)))
    assert line == "export NCCL_SOCKET_IFNAME=eth1   # on node0, node1, node2, node3 and 4092 more"


def test_different_values_of_thousands_of_nodes_are_summarized():
    settings = [own(f"node{number}", f"eth{number}") for number in range(4096)]
    shown = [line.text for line in findings.lines(error(*settings))]
    assert len(pasted(*settings)) == 8
    assert "and 4088 more values; --settings env:FILE writes all of them" in shown


def test_value_that_cannot_be_pasted_is_not_a_line_to_paste():
    evil = Setting(name="NCCL_IB_HCA", value="x\ntouch canary")
    worse = Setting(name="X;touch canary;", value="1")
    assert pasted(evil, worse) == []
    (pair,) = [pasted(Setting(name="NCCL_IB_HCA", value="a", node="x\ntouch canary"))]
    assert pair == ["export NCCL_IB_HCA=a   # on x touch canary"]


def proof_line(*settings: Setting, **proof: str) -> str:
    whole = Remedy(summary="mend it", settings=settings, proof=Proof.model_validate(proof))
    return [line.text for line in findings.lines(error(whole))][-2]


def test_proof_line_omits_settings_that_the_trials_did_not_use():
    both = (Setting(name="GLOO_SOCKET_IFNAME", value="eth1"), Setting(name="PET_LOCAL_ADDR", value="10.78.0.1"))

    said = proof_line(*both, status="proved", before="no end in 1.0 s", after="passes (2 of 2)")

    assert said == "Proved: GLOO_SOCKET_IFNAME=eth1: no end in 1.0 s -> passes (2 of 2)"


def test_reason_for_no_trial_is_shown_unless_there_is_nothing_to_measure():
    gone = Setting(name="NCCL_TIMEOUT", action="unset")

    def told(proof: Proof) -> list[str]:
        return [line.text for line in findings.lines(warning(gone, proof=proof)) if line.text.startswith("Not tested")]

    assert told(FOLLOWS) == []
    assert told(NO_TRIAL) == [f"Not tested: {NO_TRIAL.reason}"]
