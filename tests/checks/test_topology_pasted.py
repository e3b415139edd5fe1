"""topology: several outputs in one text, and what the rules make of tables of P2P and of AMD GPUs."""

import time
from functools import partial
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.checks.node.topology import CHECK
from ddp_doctor.checks.node.topology.pasted import read_pasted
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.render.topology.report import matrix_text
from ddp_doctor.render.topology.tree import machine_of
from tests.readings import findings_of
from tests.recordings import load

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS / "samples" / "topology"
MATRIX = (SAMPLES / "classic-two-socket.txt").read_text()
NVLINKS = (SAMPLES / "nvlink-states.txt").read_text()
P2P = "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"


def kinds(text: str) -> list[tuple[int, object]]:
    return [(reading.node, (reading.fact or {}).get("kind")) for reading in read_pasted(text)]


judge = partial(findings_of, CHECK)


def judged(text: str, command: str = "topology") -> list[Finding]:
    return judge(Recording(options=Options(command=command), readings=read_pasted(text)))


# --- several outputs ------------------------------------------------------------------------------


def test_outputs_of_every_kind_are_read_in_their_order_as_one_host():
    assert kinds(P2P + NVLINKS + "and so on\n" + MATRIX) == [(0, "p2p-status/1"), (0, "nvlinks/1"), (0, "topology/1")]


def test_damaged_table_is_refused_with_its_line_next_to_valid_ones():
    whole, refused = read_pasted(MATRIX + P2P.replace("GPU1\tOK\tX", "GPU1\tOK\tPIX"))

    assert whole.status is Status.COLLECTED
    assert (refused.status, refused.fact) == (Status.FAILED, None)
    assert str(refused.reason).endswith("PIX in row GPU1 is not a status of nvidia-smi topo -p2p")
    assert str(refused.reason).startswith("line ")


def test_damaged_matrix_does_not_affect_the_matrices_before_and_after():
    damaged = MATRIX.replace("NODE", "NODDE", 1)
    first, second, refused = read_pasted(MATRIX + damaged + MATRIX)

    assert kinds(MATRIX + damaged + MATRIX) == [(0, "topology/1"), (1, "topology/1"), (0, None)]
    assert first.fact is not None
    assert first.fact["links"] == (second.fact or {})["links"]
    assert "NODDE in row GPU0 is no link code" in str(refused.reason)


def test_missing_links_make_the_verdict_unsure_and_present_ones_are_checked():
    (reading,) = read_pasted((SAMPLES / "cut-off.txt").read_text())
    recording = Recording(options=Options(command="topology"), readings=(reading,))
    report = app.judge(recording).report

    assert reading.status is Status.FAILED
    assert str(reading.reason).startswith("15 of 66 links cannot be read from this matrix; ")
    assert (report.exit_code, [finding.code for finding in report.findings]) == (3, ["DD404"])
    assert report.summary == (
        "Unsure: topology could be evaluated only in part: 15 of 66 links cannot be read from this matrix."
    )
    (view,) = [node.fact for node in recording.facts(TopologyFact)]
    shown = matrix_text(view).splitlines()
    assert shown[7].split() == ["GPU6", *["NV18"] * 6, "X", *"?????"]
    assert len(machine_of(view).boxes) > 0


@pytest.mark.parametrize(
    "output", ["GPU 0: A (UUID: GPU-1)\n\t Link 0: 1 GB/s\n", P2P, "GPU[0]\t: (Topology) Numa Node: 0\n"]
)
def test_more_outputs_than_any_cluster_gives_are_refused_in_bounded_time(output: str):
    started = time.process_time()
    (reading,) = read_pasted(output * 10_000)
    assert reading.status is Status.FAILED
    assert "more than 1024 outputs" in str(reading.reason)
    assert time.process_time() - started < 3.0


def test_text_in_another_encoding_is_refused():
    (reading,) = read_pasted("\0G\0P\0U\0000")
    assert "UTF-16" in str(reading.reason)


# --- the same, told by NVML -----------------------------------------------------------------------


def test_one_cause_on_many_nodes_is_one_finding_and_fast():
    one = load("topology/nvlink-without-p2p")
    count = 256
    readings = tuple(reading.model_copy(update={"node": node}) for node in range(count) for reading in one.readings)
    started = time.process_time()
    (finding,) = judge(Recording(world=World(nnodes=count), readings=readings))
    assert time.process_time() - started < 3.0
    assert (finding.code, len(finding.culprits)) == ("DD410", 2 * count)
