"""--good-nodes and --bad-nodes: whom a run, or many, lists to be used, to be left out, or neither."""

import pytest

from ddp_doctor import app
from ddp_doctor.cli.outputs import Outputs, Results
from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.features.fleet.use_case import fleet_outcome, read_fleet
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.parse.hostlist import read_host_file
from ddp_doctor.render import host_lists
from tests.readings import collected
from tests.recordings import judged, load


def _lists(recording: Recording) -> tuple[list[str], list[str]]:
    report = app.judge(recording).report
    return host_lists.bad(report, recording).split(), host_lists.good(report, recording).split()


@pytest.mark.parametrize(
    ("situation", "bad", "good"),
    [
        ("connectivity/healthy", [], ["node0", "node1", "node2", "node3"]),
        ("p2p/node-sends-slowly", ["node1"], ["node0", "node2", "node3"]),
        ("hang/rank-is-stopped", ["node0"], []),  # its only node
        # Ranks never ran, so no node was tested completely.
        ("connectivity/black-hole", ["node2"], []),
        # Undecided: either end of a path may be faulty, or a node did not join.
        ("connectivity/path-loses-packets", [], []),
        ("roll_call/absent-node-says-why", [], []),
        # A setting of the job, or only the fact that it hangs.
        ("interfaces/nccl-lo-on-one-of-four", [], []),
        ("hang/nccl2-nobody-leaves-init-of-two-nodes", [], []),
        # Its program, or a setting of it, is wrong: so it would be on other hosts.
        ("user_model/has-another-layer-on-one-rank", [], []),
        ("consistency/first-ranks-of-two-nodes-connect-late", [], []),
        # The knowledge of a node that never met the head.
        ("roll_call/endpoint-port-mute", ["node0"], []),
    ],
)
def test_host_is_bad_if_an_error_names_it_and_good_if_it_passed_completely(situation, bad, good):
    assert _lists(load(situation)) == (bad, good)


def test_hosts_that_passed_in_a_separate_group_are_good():
    recording = load("connectivity/black-hole")
    fact = IsolationFact(tests=(GroupTest(round=0, nodes=(0, 1), outcome="passed"),))
    reading = collected("isolation", fact)

    _, good = _lists(recording.model_copy(update={"readings": (*recording.readings, reading)}))

    assert good == ["node0", "node1"]


@pytest.mark.parametrize(
    "change",
    [
        {"interrupted": True},
        # Behind a hang that has one culprit may be another.
        {"trials": (TrialRecord(trial="t0", outcome="stuck", checks=("allreduce",), ranks=(0, 1)),)},
    ],
)
def test_no_host_is_good_in_an_incomplete_run_with_a_bad_node(change):
    assert _lists(load("p2p/node-sends-slowly").model_copy(update=change)) == (["node1"], [])


def test_no_host_is_good_after_an_isolation_that_ran_out_of_time():
    recording = load("isolation/fails-alone")
    (reading,) = recording.of_check("isolation")
    assert reading.fact is not None
    fact = {**reading.fact, "stopped": "the time budget was used up"}
    stopped = recording.model_copy(update={"readings": (reading.model_copy(update={"fact": fact}),)})

    assert _lists(stopped) == (["node5"], [])


def test_no_host_is_good_in_an_unsure_run():
    recording = load("connectivity/healthy")
    ran = Reading(check="process_group", status=Status.COLLECTED, node=0, rank=0)
    failed = Reading(check="interfaces", status=Status.FAILED, node=1, reason="no answer")

    assert _lists(recording.model_copy(update={"readings": (*recording.readings, ran, failed)})) == ([], [])


def test_node_is_named_as_in_slurm_if_its_own_name_differs():
    recording = load("p2p/node-sends-slowly")
    assert recording.world is not None
    world = recording.world.model_copy(update={"expected_hosts": ("n0", "n1", "n2", "n3")})

    assert _lists(recording.model_copy(update={"world": world})) == (["n1"], ["n0", "n2", "n3"])


def test_newest_run_of_each_host_decides_in_a_fleet(tmp_path):
    sick, healthy = "gpus/one-lost", "host/two-ranks-on-two-cpus"
    for day, (host, situation) in enumerate((("old", sick), ("old", healthy), ("bad", sick), ("well", healthy)), 1):
        text = load(situation).model_dump_json().replace('"node0"', f'"{host}"')
        of_day = {"run_id": f"{day}", "started_at": f"2020-01-0{day}T10:00:00Z"}
        report = app.judge(Recording.model_validate_json(text).model_copy(update=of_day)).report
        (tmp_path / f"{day}.json").write_text(report.as_json())
    outcome = fleet_outcome(read_fleet([str(tmp_path)], lambda _: None), 0.0)

    outputs = Outputs({"good_nodes": str(tmp_path / "good"), "bad_nodes": str(tmp_path / "bad")})
    assert outputs.write(Results(outcome.report, outcome.recording)) == []

    assert (tmp_path / "bad").read_text() == "bad\n"
    assert read_host_file((tmp_path / "good").read_text()) == ("old", "well")


def test_empty_list_of_hosts_is_an_empty_file(tmp_path):
    outcome = judged("connectivity/healthy")
    Outputs({"bad_nodes": str(tmp_path / "bad")}).write(Results(outcome.report, outcome.recording))

    assert (tmp_path / "bad").read_bytes() == b""
