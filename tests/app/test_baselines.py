"""What healthy runs measured, and runs held against it."""

import json
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.app import UsageError
from ddp_doctor.app.baselines import compare, load_baseline, with_baseline
from ddp_doctor.app.fleet import baseline_of, read_fleet
from ddp_doctor.cli import commands
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import Severity, Verdict
from ddp_doctor.model.finding import Finding
from tests.app.test_fleet import made
from tests.recorded import judged, load

#: Healthy runs of a node, their speeds some per cent apart.
SPEEDS = (0.97, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.03, 1.0, 0.99)


@pytest.fixture
def baseline(tmp_path: Path) -> str:
    """The file of a baseline of ten runs."""
    for day, speed in enumerate(SPEEDS, 1):
        (tmp_path / f"{day}.json").write_text(json.dumps(made("n", day, speed=speed)))
    written = tmp_path / "baseline"
    written.write_text(baseline_of(read_fleet([str(tmp_path)], lambda _text: None)))
    return str(written)


def held(baseline: str, speed: float, **changes: object) -> tuple[Finding, ...]:
    later = Path(baseline).with_name("later")
    later.write_text(json.dumps(made("n", 20, speed=speed) | changes))
    return compare(baseline, str(later)).report.findings


@pytest.mark.parametrize("speed", [*SPEEDS, 0.93, 1.4])
def test_a_run_as_fast_as_the_healthy_ones_is_silent(baseline, speed):
    assert held(baseline, speed) == ()


@pytest.mark.parametrize(("speed", "severity"), [(0.7, Severity.WARNING), (0.3, Severity.ERROR)])
def test_a_slower_node_is_named_with_the_margin(baseline, speed, severity):
    [finding] = held(baseline, speed)

    assert (finding.code, finding.severity) == ("DD830", severity)
    assert finding.title == f"n is {100 - 100 * speed:.0f} % slower than the 10 healthy runs of its baseline"
    assert [culprit.node for culprit in finding.culprits] == ["n"]
    assert all("is noise" in (each.expected_from or "") for each in finding.evidence)


def test_one_slow_gpu_of_a_healthy_node_is_named_and_all_eight_in_a_line_for_each_measurement(baseline):
    run = made("n", 20)
    for measured in run["measurements"]:
        measured["value"] *= 0.6 if measured["labels"].get("gpu") == 3 else 1.0

    [finding] = held(baseline, 1.0, measurements=run["measurements"])

    assert [(culprit.kind, culprit.node, culprit.gpu) for culprit in finding.culprits] == [("gpu", "n", 3)]
    assert finding.title.startswith("GPU 3 of n is 40 % slower")
    assert all(each.text.endswith("on n, GPU 3") for each in finding.evidence)
    [of_all] = held(baseline, 0.6)
    assert sum(each.text.endswith("the slowest of 8 such") for each in of_all.evidence) == len(
        finding.evidence
    )


def test_one_run_tells_no_noise_so_what_is_slower_than_it_is_information_and_no_verdict(baseline):
    earlier, later = (str(Path(baseline).with_name(name)) for name in ("4.json", "later"))

    [finding] = held(earlier, 0.5)

    assert (finding.severity, finding.confidence.value) == (Severity.INFO, "possible")
    report = compare(earlier, later).report
    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, 3)
    assert report.summary.startswith(
        "Unsure: n is 50 % slower than the run it is compared with, and how much"
    )
    assert held(earlier, 0.97) == ()
    assert compare(earlier, later).report.exit_code == 0


def test_one_slow_link_of_three_nodes_names_its_node_and_no_other():
    [finding] = judged("baseline/one-link-of-three-nodes-slower").report.findings

    assert [culprit.node for culprit in finding.culprits] == ["node1"]


def test_a_network_that_is_slower_between_all_nodes_is_blamed_on_none_of_them():
    recording = load("baseline/one-link-of-three-nodes-slower")
    [reading] = recording.readings
    slow = [each | {"value": each["median"] * 0.5} for each in (reading.fact or {})["compared"]]
    all_slow = reading.model_copy(update={"fact": (reading.fact or {}) | {"compared": slow}})

    [finding] = app.judge(recording.model_copy(update={"readings": (all_slow,)})).report.findings

    assert finding.culprits == ()
    assert finding.title.startswith("The network between all nodes is 50 % slower")


def test_a_baseline_of_other_hardware_is_refused(baseline):
    nodes = made("n", 20, traits={"GPUs": "8 NVIDIA A100"})["nodes"]

    with pytest.raises(UsageError, match="of other hardware: GPUs 8 NVIDIA A100 here, 8 NVIDIA H100"):
        held(baseline, 1.0, nodes=nodes)
    [of_run] = [
        reading
        for reading in with_baseline(
            judged("p2p/one-slow-pair"), baseline, load_baseline(baseline)
        ).recording.readings
        if reading.check == "baseline"
    ]
    assert "ranks of a node" in (of_run.reason or "")


@pytest.mark.parametrize(
    ("poison", "sentence"),
    [
        ({"baseline": []}, "under baseline"),
        ({"median": float("nan")}, "NaN is not a finite number"),
        ({"median": -1.0}, "it has -1.0 under baseline.0.median, which no baseline has"),
        ({"median": 0}, "under baseline.0.median"),
        ({"mad": "0.1"}, "it has '0.1' under baseline.0.mad"),
        ({"runs": 0}, "under baseline.0.runs"),
        ({"schema_version": "2.0"}, "newer ddp-doctor"),
        ({"hardware": None}, "under hardware"),
    ],
)
def test_a_poisoned_baseline_is_refused_with_a_sentence(baseline, poison, sentence):
    written = json.loads(Path(baseline).read_text())
    of_file = poison.keys() & {"baseline", "schema_version", "hardware"}
    (written if of_file else written["baseline"][0]).update(poison)
    Path(baseline).write_text(json.dumps(written))

    with pytest.raises(UsageError, match=sentence):
        load_baseline(baseline)


@pytest.mark.parametrize(
    ("text", "sentence"), [("", "it is empty"), ("{}", "no baseline"), (None, "is a report")]
)
def test_a_foreign_file_is_no_baseline(tmp_path, text, sentence):
    (tmp_path / "x").write_text(json.dumps(made("n", 1)) if text is None else text)

    with pytest.raises(UsageError, match=sentence):
        load_baseline(str(tmp_path / "x"))


def test_too_few_healthy_runs_make_no_baseline_and_write_none(tmp_path):
    (tmp_path / "1.json").write_text(json.dumps(made("n", 1)))

    with pytest.raises(UsageError, match="it takes 5 healthy runs that measured the same"):
        commands.fleet([str(tmp_path)], str(tmp_path / "out"), Outputs())
    assert not (tmp_path / "out").exists()
