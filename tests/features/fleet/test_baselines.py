"""Baselines of healthy runs, and runs compared with them."""

import json
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.app import UsageError
from ddp_doctor.app.outcome import with_baseline
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.features.fleet.cli import compare_runs
from ddp_doctor.features.fleet.compare.use_case import compare
from ddp_doctor.features.fleet.comparison import comparison_with
from ddp_doctor.features.fleet.use_case import baseline_of, read_fleet
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.model.choices import Severity, Verdict
from ddp_doctor.model.finding import Finding
from tests.features.fleet.test_fleet import made
from tests.features.jobs.logs.test_facts import INSPECTOR
from tests.recordings import judged, load

#: Healthy runs of a node, with speeds a few percent apart.
SPEEDS = (0.97, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.03, 1.0, 0.99)


@pytest.fixture
def baseline(tmp_path: Path) -> str:
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
def test_run_as_fast_as_the_healthy_ones_has_no_finding(baseline, speed):
    assert held(baseline, speed) == ()


@pytest.mark.parametrize(("speed", "severity"), [(0.7, Severity.WARNING), (0.3, Severity.ERROR)])
def test_slower_node_is_reported_with_the_margin(baseline, speed, severity):
    [finding] = held(baseline, speed)

    assert (finding.code, finding.severity) == ("DD830", severity)
    assert finding.title == f"n is {100 - 100 * speed:.0f}% slower than its baseline of 10 healthy runs"
    assert [culprit.node for culprit in finding.culprits] == ["n"]
    assert all("is noise" in (each.expected_from or "") for each in finding.evidence)


def test_slow_gpu_of_a_healthy_node_is_reported_and_all_eight_share_a_line(baseline):
    run = made("n", 20)
    for measured in run["measurements"]:
        measured["value"] *= 0.6 if measured["labels"].get("gpu") == 3 else 1.0

    [finding] = held(baseline, 1.0, measurements=run["measurements"])

    assert [(culprit.kind, culprit.node, culprit.gpu) for culprit in finding.culprits] == [("gpu", "n", 3)]
    assert finding.title.startswith("GPU 3 of n is 40% slower")
    assert all(each.text.endswith("on n, GPU 3") for each in finding.evidence)
    [of_all] = held(baseline, 0.6)
    assert sum(each.text.endswith("the slowest of 8 such") for each in of_all.evidence) == len(finding.evidence)


def test_slower_than_a_single_run_is_info_because_its_noise_is_unknown(baseline):
    earlier, later = (str(Path(baseline).with_name(name)) for name in ("4.json", "later"))

    [finding] = held(earlier, 0.5)

    assert (finding.severity, finding.confidence.value) == (Severity.INFO, "possible")
    report = compare(earlier, later).report
    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, 3)
    assert report.summary.startswith("Unsure: n is 50% slower than the run it is compared with; how much")
    assert held(earlier, 0.97) == ()
    assert compare(earlier, later).report.exit_code == 0


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ({"torch": "2.9.0"}, "torch: 2.9.1+cu128 before, 2.9.0 now"),
        ({"driver": "550.1"}, "driver: 580.95.05 before, 550.1 now"),
        ({"NCCL": "2.21.5"}, "NCCL: 2.27.5 before, 2.21.5 now"),
        ({"kernel": "5.4.0"}, "kernel: 5.15.0-105-generic before, 5.4.0 now"),
        ({"NCCL_ALGO": "Tree"}, "NCCL_ALGO: not set before, Tree now"),
    ],
)
def test_differences_from_the_run_before_are_reported_without_a_slowdown(baseline, traits, said):
    for earlier in (baseline, str(Path(baseline).with_name("4.json"))):
        [finding] = held(earlier, 1.0, nodes=made("n", 20, traits=traits)["nodes"])

        assert (finding.code, finding.severity, finding.culprits) == ("DD831", Severity.INFO, ())
        assert [each.text for each in finding.evidence] == [said]
        report = compare(earlier, str(Path(baseline).with_name("later"))).report
        assert (report.verdict, report.exit_code) == (Verdict.HEALTHY, 0)
        assert report.summary.endswith(f" Differs from {earlier}: {next(iter(traits))}.")


def test_two_runs_differ_in_every_known_variable_and_in_findings(tmp_path):
    for name, recording in (("a", "env_vars/ordinary-settings"), ("b", "env_vars/launch-blocking")):
        (tmp_path / name).write_text(judged(recording).report.model_dump_json())

    [finding] = compare(str(tmp_path / "a"), str(tmp_path / "b")).report.findings

    lines = [each.text for each in finding.evidence]
    assert "CUDA_LAUNCH_BLOCKING: not set before, 1 now" in lines
    assert any(line.startswith("new finding: DD123 (warning) Debugging setting is still active") for line in lines)
    assert finding.title.startswith(f"Differs from {tmp_path / 'a'}: 1 new finding")


def test_trait_known_in_only_one_of_two_runs_is_not_a_difference(baseline):
    """A run with --only did not read all traits; a baseline of an older release has only the hardware."""
    run = made("n", 20, traits={"NCCL_ALGO": "Tree"})
    checks = [check for check in run["checks"] if check["id"] != "env_vars"]
    [node] = run["nodes"]
    del node["traits"]["torch"]
    written = json.loads(Path(baseline).read_text())
    older = Path(baseline).with_name("older")
    older.write_text(json.dumps({key: written[key] for key in written if key not in ("traits", "settings_known")}))

    assert held(str(older), 1.0, nodes=[node]) == ()
    assert held(baseline, 1.0, nodes=[node], checks=checks) == ()
    recording = compare(baseline, str(Path(baseline).with_name("later"))).recording
    assert recording.readings[1].fact["left_out"] == [  # type: ignore[index]
        f"known only of {baseline}: torch",
        "known only here: NCCL_ALGO",
    ]


def test_run_of_any_verdict_can_be_the_earlier_one(baseline):
    earlier = Path(baseline).with_name("4.json")
    earlier.write_text(json.dumps(json.loads(earlier.read_text()) | {"verdict": "unhealthy", "exit_code": 1}))

    [finding] = held(str(earlier), 0.5)

    assert finding.code == "DD830"


def nccl_tests(folder: Path, name: str, busbw: float, gpu: str = "NVIDIA H100", nccl: int = 22705) -> str:
    """Return the path of the report that ``logs --json`` writes for the output of nccl-tests."""
    (folder / f"{name}.out").write_text(
        f"# nccl-tests version 2.17.6 nccl-headers=22705 nccl-library={nccl}\n"
        "# Collective test starting: all_reduce_perf\n"
        f"#  Rank  0 Group  0 Pid  64904 on  n1 device  0 [0000:17:00] {gpu}\n"
        f"#  Rank  1 Group  0 Pid  64904 on  n1 device  1 [0000:18:00] {gpu}\n"
        f"     8388608       2097152     float     sum      -1    51.03  {busbw}  {busbw}      0\n"
        f"    16777216       4194304     float     sum      -1    99.03  {busbw}  {busbw}      0\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 107.0\n"
    )
    written = folder / f"{name}.json"
    written.write_text(logs([str(folder / f"{name}.out")]).report.as_json())
    return str(written)


def test_numbers_of_nccl_tests_are_compared_and_others_are_listed(tmp_path):
    fast, slow = nccl_tests(tmp_path, "fast", 164.5), nccl_tests(tmp_path, "slow", 104.5, nccl=22907)
    (tmp_path / "inspector.out").write_text(INSPECTOR)
    inspected = tmp_path / "inspector.json"
    inspected.write_text(logs([str(tmp_path / "inspector.out")]).report.as_json())

    as_fast, slower = compare(fast, nccl_tests(tmp_path, "same", 163.5)), compare(fast, slow)
    others, in_job = (compare(fast, nccl_tests(tmp_path, "a100", 164.5, "NVIDIA A100")), compare(fast, str(inspected)))

    assert (as_fast.report.exit_code, as_fast.report.findings) == (0, ())
    assert slower.report.exit_code == 3
    assert slower.report.summary == (
        "Unsure: The run is 36% slower than the run it is compared with; how much of that is noise is unknown."
        f" Differs from {fast}: NCCL."
    )
    assert others.report.exit_code == 2
    assert "GPUs 2 NVIDIA A100 here, 2 NVIDIA H100 there" in others.report.summary
    assert in_job.recording.readings[1].fact == {
        "kind": "run-differences/1",
        "file": fast,
        "differ": [{"name": "measured by", "before": "nccl-tests", "now": "NCCL Inspector"}],
        "only_before": [],
        "only_now": [],
        "left_out": [
            f"measured only in {fast}: all-reduce over 2 ranks (16 MiB)",
            f"known only of {fast}: NCCL and GPUs",
        ],
    }


def test_nccl_tests_are_compared_with_a_run_over_nccl_not_gloo(tmp_path):
    measured = nccl_tests(tmp_path, "nccl-tests", 164.5)
    run = made("n", 1)
    run["world"] |= {"world_size": 2, "nproc_per_node": 2}
    sizes = {"bytes": 16777216, "ranks": 2}
    run["measurements"] = [{"name": "allreduce_busbw", "value": 99e9, "unit": "B/s", "labels": sizes}]
    [node] = run["nodes"]
    node["traits"]["GPUs"] = "2 NVIDIA H100"
    (tmp_path / "nccl").write_text(json.dumps(run))
    run["world"]["backend"] = "gloo"
    (tmp_path / "gloo").write_text(json.dumps(run))

    over_nccl, over_gloo = (compare(measured, str(tmp_path / name)).report for name in ("nccl", "gloo"))

    assert over_nccl.summary.startswith("Unsure: n is 40% slower")
    assert over_gloo.summary.startswith(f"Error: cannot compare '{tmp_path}/gloo': {measured} is of other hardware")


def preflight(folder: Path, **sizes: float) -> str:
    """A report of a run over NCCL on two GPUs of n1: GB/s by bytes."""
    run = made("n1", 1)
    run["finished_at"] = run["started_at"]
    run["world"] |= {"world_size": 2, "nproc_per_node": 2}
    run["measurements"] = [
        {"name": "allreduce_busbw", "value": value * 1e9, "unit": "B/s", "labels": {"bytes": int(size[1:]), "ranks": 2}}
        for size, value in sizes.items()
    ]
    run["nodes"][0]["traits"]["GPUs"] = "2 NVIDIA H100"
    (folder / "preflight.json").write_text(json.dumps(run))
    return str(folder / "preflight.json")


def test_job_is_compared_by_size_with_the_preflight_without_blaming_a_node(tmp_path):
    before = preflight(tmp_path, _8388608=200.0, _16777216=250.0, _67108864=300.0)

    job = nccl_tests(tmp_path, "job", 150.0)
    outcome = compare(before, job)

    [finding, _] = outcome.report.findings
    assert (finding.code, finding.severity, finding.culprits) == ("DD830", Severity.INFO, ())
    assert finding.title == (
        "The job reaches 60 to 75% of what the nodes of the run delivered on 2026-11-01 at 10:00 UTC,"
        " in all-reduces of 2 sizes, 8 to 16 MiB"
    )
    assert [(each.text, each.value, each.expected) for each in finding.evidence] == [
        ("all-reduce of 8 MiB: 75%", 150e9, 200e9),
        ("all-reduce of 16 MiB: 60%", 150e9, 250e9),
    ]
    assert outcome.report.exit_code == 3
    left_out = (outcome.recording.readings[1].fact or {})["left_out"]
    assert f"measured only in {before}: all-reduce over 2 ranks (64 MiB)" in left_out
    sick = json.loads(Path(before).read_text()) | {"verdict": "unhealthy", "exit_code": 1}
    Path(before).write_text(json.dumps(sick))
    assert (
        " on 2026-11-01 at 10:00 UTC in a preflight that was unhealthy itself, in"
        in compare(before, job).report.summary
    )


def test_job_as_fast_as_its_preflight_is_healthy_with_the_share(tmp_path):
    (tmp_path / "job.out").write_text("n1.cluster:71:71 [0] NCCL INFO NCCL version 2.27.5+cuda12.8\n")
    (tmp_path / "inspector.log").write_text(INSPECTOR)
    job = tmp_path / "job.json"
    job.write_text(logs([str(tmp_path / name) for name in ("job.out", "inspector.log")]).report.as_json())

    report = compare(preflight(tmp_path, _8388608=17.0), str(job)).report

    assert report.exit_code == 0
    assert (
        " The job reaches 97% of what these nodes delivered on 2026-11-01 at 10:00 UTC, in all-reduces of 8 MiB."
        in report.summary
    )


def test_preflight_after_the_job_or_on_other_gpus_is_an_ordinary_run(tmp_path):
    before, job = preflight(tmp_path, _8388608=100.0), nccl_tests(tmp_path, "job", 200.0)

    [slower, _] = compare(job, before).report.findings
    other = compare(before, nccl_tests(tmp_path, "a100", 50.0, "NVIDIA A100")).report

    assert slower.title == "n1 is 50% slower than the run it is compared with"
    assert (other.exit_code, "of other hardware" in other.summary) == (2, True)


def test_stdin_twice_is_refused_with_advice():
    with pytest.raises(UsageError, match="name a file for the other"):
        compare("-", "-")


def test_two_runs_without_measurements_are_not_healthy(tmp_path):
    for name, torch in (("a", "2.9.0"), ("b", "2.10.0")):
        (tmp_path / name).write_text(json.dumps(made("n", 1, traits={"torch": torch}) | {"measurements": []}))

    report = compare(str(tmp_path / "a"), str(tmp_path / "b")).report

    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, 2)
    assert "a has no measurement that another run can be compared with" in report.summary
    assert [finding.code for finding in report.findings] == ["DD831"]


def test_network_that_is_slower_between_all_nodes_blames_no_node():
    recording = load("baseline/one-link-of-three-nodes-slower")
    [reading] = recording.readings
    slow = [each | {"value": each["median"] * 0.5} for each in (reading.fact or {})["compared"]]
    all_slow = reading.model_copy(update={"fact": (reading.fact or {}) | {"compared": slow}})

    [finding] = app.judge(recording.model_copy(update={"readings": (all_slow,)})).report.findings

    assert finding.culprits == ()
    assert finding.title.startswith("The network between all nodes is 50% slower")


def test_baseline_of_other_hardware_is_refused_with_the_differences(baseline):
    other = {"GPUs": "8 NVIDIA A100", "driver": "550.1"}
    [finding] = held(baseline, 1.0, nodes=made("n", 20, traits=other)["nodes"])

    report = compare(baseline, str(Path(baseline).with_name("later"))).report
    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, 2)
    assert "of other hardware: GPUs 8 NVIDIA A100 here, 8 NVIDIA H100" in report.summary
    assert (finding.code, finding.title) == ("DD831", f"Differs from {baseline}: driver and GPUs")
    [of_run] = [
        reading
        for reading in with_baseline(judged("p2p/one-slow-pair"), comparison_with(baseline)).recording.readings
        if reading.check == "baseline" and reading.misused
    ]
    assert "ranks of a node" in (of_run.reason or "")


@pytest.mark.parametrize(
    ("poison", "sentence"),
    [
        ({"baseline": []}, "baseline has the invalid value"),
        ({"median": float("nan")}, "NaN is not a finite number"),
        ({"median": -1.0}, "baseline.0.median has the invalid value '-1.0'"),
        ({"median": 0}, "baseline.0.median has the invalid value"),
        ({"mad": "0.1"}, "baseline.0.mad has the invalid value '0.1'"),
        ({"runs": 0}, "baseline.0.runs has the invalid value"),
        ({"schema_version": "2.0"}, "newer ddp-doctor"),
        ({"hardware": None}, "hardware has the invalid value"),
    ],
)
def test_invalid_baseline_is_refused_with_a_sentence(baseline, poison, sentence):
    written = json.loads(Path(baseline).read_text())
    of_file = poison.keys() & {"baseline", "schema_version", "hardware"}
    (written if of_file else written["baseline"][0]).update(poison)
    Path(baseline).write_text(json.dumps(written))

    with pytest.raises(UsageError, match=sentence):
        comparison_with(baseline)


@pytest.mark.parametrize(("text", "sentence"), [("", "it is empty"), ("{}", "not a baseline"), (None, "is a report")])
def test_foreign_file_is_not_a_baseline(tmp_path, text, sentence):
    (tmp_path / "x").write_text(json.dumps(made("n", 1)) if text is None else text)

    with pytest.raises(UsageError, match=sentence):
        comparison_with(str(tmp_path / "x"))


def test_too_few_healthy_runs_are_refused_and_write_no_baseline(tmp_path):
    (tmp_path / "1.json").write_text(json.dumps(made("n", 1)))

    with pytest.raises(UsageError, match="it requires 5 healthy or degraded runs with the same measurements"):
        compare_runs([str(tmp_path)], str(tmp_path / "out"), Outputs())
    assert not (tmp_path / "out").exists()
