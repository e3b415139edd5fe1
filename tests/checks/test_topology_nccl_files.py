"""``ddp-doctor topology`` on NCCL's own topology files: the values read from them, and the findings."""

from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.app.inspection import read_topology
from ddp_doctor.facts.node.topology import RocmTopologyFact, TopologyFact
from ddp_doctor.model.choices import Verdict

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def codes(outcome: app.Outcome) -> list[str]:
    return [finding.code for finding in outcome.report.findings]


def test_dump_is_evaluated_like_a_matrix() -> None:
    outcome = read_topology(sample("nccl-dump-four-gpus.xml"))
    (seen,) = outcome.recording.facts(TopologyFact)
    assert (seen.fact.source, seen.fact.cpu_vendor) == ("nccl-xml", "GenuineIntel")
    assert codes(outcome) == ["DD403", "DD408"]
    assert "GPU3 has 16, but others have 18" in outcome.report.findings[0].title


def test_pairs_that_nvlink_may_connect_have_no_finding() -> None:
    outcome = read_topology(sample("nccl-file-of-a-provider.xml"))
    (seen,) = outcome.recording.facts(TopologyFact)
    assert list(seen.fact.gpu_pairs()) == []
    assert codes(outcome) == ["DD404"]


def test_matrix_and_file_in_one_text_belong_to_two_hosts() -> None:
    text = f"{sample('classic-two-socket.txt')}\n{sample('nccl-dump-four-gpus.xml')}"
    assert [seen.node for seen in read_topology(text).recording.facts(TopologyFact)] == [0, 1]


def test_a_file_of_amds_is_read_and_the_verdict_unsure() -> None:
    outcome = read_topology(sample("rccl-file-with-xgmi.xml"))
    assert codes(outcome) == ["DD414"]
    assert outcome.report.verdict is Verdict.UNSURE
    (fact,) = (seen.fact for seen in outcome.recording.facts(RocmTopologyFact))
    assert fact.link_type["GPU0"] == {"GPU1": "XGMI", "GPU2": "PCIE"}
    assert fact.numa_node == {"GPU0": 0, "GPU1": 0, "GPU2": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]>\n<system version="1"></system>', "line 2: the topology file has no <cpu> tag"),
        ('<system version="1">\n<!DOCTYPE a>\n</system>', "line 2: the file has a DOCTYPE or ENTITY declaration"),
        ('<system version="1">\n<cpu numaid="0">', "line 1: the topology file that starts here is truncated"),
    ],
)
def test_a_file_that_is_not_read_is_refused_with_the_line(text: str, reason: str) -> None:
    outcome = read_topology(text)
    assert codes(outcome) == ["DD405"]
    assert reason in outcome.report.findings[0].title
