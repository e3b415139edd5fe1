"""A comparison of many runs, made from one simulated report of a healthy node with eight GPUs."""

import gzip
import json
from datetime import datetime, timedelta, timezone
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.app import UsageError
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.features.fleet.cli import compare_runs
from ddp_doctor.features.fleet.report import FleetReport
from ddp_doctor.features.fleet.table import tables
from ddp_doctor.features.fleet.use_case import fleet_outcome, read_fleet
from ddp_doctor.model.choices import Detail, Verdict
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.render import terminal
from ddp_doctor.render.screen import console
from tests.recordings import judged, path_of
from tests.simulated import recording as simulated


@cache
def _template(verdict: str) -> str:
    report = app.judge(simulated(1)).report if verdict == "healthy" else judged("gpus/one-lost").report
    return report.as_json()


def made(
    host: str, day: int, verdict: str = "healthy", speed: float = 1.0, traits: dict[str, str] | None = None
) -> dict[str, Any]:
    """A report of this node, the first on 1 November 2026."""
    report: dict[str, Any] = json.loads(_template("healthy" if verdict == "healthy" else "unhealthy"))
    report["run_id"], report["started_at"] = f"{host}-{day}", f"2026-11-{day:02}T10:00:00Z"
    report["verdict"] = report["nodes"][0]["verdict"] = verdict
    report["nodes"][0]["hostname"] = report["world"]["nodes"][0]["hostname"] = host
    report["nodes"][0]["traits"] |= traits or {}
    for measured in report["measurements"]:
        measured["value"] *= speed
    return report


def fleet(folder: Path, *reports: dict[str, Any]) -> FleetReport:
    for report in reports:
        (folder / f"{report['run_id']}.json").write_text(json.dumps(report))
    return read(str(folder))


def read(*paths: str) -> FleetReport:
    found = fleet_outcome(read_fleet(paths, lambda _text: None), 0.0).report
    assert isinstance(found, FleetReport)
    return found


def test_repeatedly_unhealthy_node_is_a_repeat_offender(tmp_path):
    lemon = [made("bad", day, "unhealthy" if day in (1, 2, 4) else "healthy") for day in range(1, 6)]
    once = [made("once", day, "unhealthy" if day == 2 else "healthy") for day in range(1, 6)]
    well = [made(f"well{number}", day) for number in range(4) for day in range(1, 6)]

    found = fleet(tmp_path, *lemon, *once, *well)

    assert {node.hostname: (node.lemon, node.flapping, node.unhealthy_runs) for node in found.nodes} == {
        "bad": (True, True, 3),
        "once": (False, False, 1),
        **{f"well{number}": (False, False, 0) for number in range(4)},
    }
    assert (found.verdict, found.exit_code, found.runs) == (Verdict.HEALTHY, 0, 30)


def test_the_newest_run_of_each_node_decides(tmp_path):
    found = fleet(tmp_path, made("a", 1), made("a", 2, "unhealthy"), made("b", 1, "unhealthy"), made("b", 2, "unsure"))

    assert (found.verdict, found.exit_code) == (Verdict.UNHEALTHY, 1)
    assert found.summary == "Unhealthy: 1 of 2 nodes (a)."
    assert [finding.code for finding in found.findings] == ["DD304"]
    assert read(str(tmp_path / "b-1.json"), str(tmp_path / "b-2.json")).exit_code == 3


@pytest.mark.parametrize("culprit", [{"kind": "setting", "name": "GLOO_SOCKET_IFNAME"}, None])
def test_unhealthy_node_has_its_reason_even_if_a_setting_is_at_fault(tmp_path, culprit):
    report = made("c", 1, "unhealthy")
    report["nodes"][0]["findings"] = []
    report["findings"][0]["culprits"] = [culprit] if culprit else []
    found = fleet(tmp_path, made("a", 1), report)

    assert [(each.code, each.nodes) for each in found.common] == [("DD304", ("c",))]
    shown = "\n".join(line for part in tables(found, None, each=False) for line in part.lines(120))
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith(" c ")] == ["DD304"]


def test_differing_and_slow_nodes_are_reported(tmp_path):
    alike = [made(f"n{number}", 1) for number in range(6)]
    odd = made("old", 1, traits={"driver": "550.1"}), made("tree", 1, traits={"NCCL_ALGO": "Tree"})

    found = fleet(tmp_path, *alike, *odd, made("slow", 1, speed=0.7))

    assert {(each.name, value.value, value.nodes) for each in found.differences for value in each.values[1:]} == {
        ("driver", "550.1", ("old",)),
        ("NCCL_ALGO", "Tree", ("tree",)),
    }
    assert {outlier.node for outlier in found.outliers} == {"slow"}
    assert {"matmul_rate", "allreduce_busbw"} <= {outlier.name for outlier in found.outliers}


def test_every_file_that_does_not_count_is_reported_once(tmp_path):
    good = made("good", 1)
    poisoned = {"name": "matmul_rate", "value": 1.0, "unit": "FLOP/s", "labels": {"gpu": "first"}}
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    files = {
        "a-good.json": json.dumps(good),
        "copy.json": json.dumps(good),
        "torn.json": json.dumps(good)[:700],
        "empty.json": "",
        "foreign.json": '{"hello": 1}',
        "newer.json": json.dumps(good | {"schema_version": "2.0"}),
        "nan.json": json.dumps(good | {"duration_s": float("nan")}),
        "wrong.json": json.dumps(good | {"nodes": 7}),
        "older.json": json.dumps(good | {"run_id": "o", "verdict": "sick"}),
        "label.json": json.dumps(good | {"run_id": "l", "measurements": [poisoned]}),
        "env.json": json.dumps(good | {"run_id": "e", "settings": []}),
        "future.json": json.dumps(made("late", 1, "unhealthy") | {"run_id": "f", "started_at": tomorrow.isoformat()}),
        "no report.txt": "skipped",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/packed.json.gz").write_bytes(gzip.compress(json.dumps(made("late", 2)).encode()))
    (tmp_path / "recording.json").write_text(path_of("gpus/one-lost").read_text())

    found = fleet(tmp_path)

    said = {Path(each.file).name: each.why.replace(repr(each.file), "FILE") for each in found.left_out}
    assert said == {
        "copy.json": f"FILE is from the same run as '{tmp_path}/a-good.json'",
        "torn.json": "cannot use FILE: line 1 is not JSON",
        "empty.json": "cannot use FILE: it is empty",
        "foreign.json": "FILE is JSON, but a report or recording of ddp-doctor is expected",
        "newer.json": "FILE is from a newer ddp-doctor (schema 2.0); upgrade ddp-doctor",
        "nan.json": "cannot use FILE: NaN is not a finite number",
        "wrong.json": "FILE is not a valid report: nodes has the invalid value '7'",
        "older.json": "FILE is not a valid report: verdict has the invalid value 'sick'",
        "label.json": "FILE is not a valid report: in matmul_rate, gpu is 'first' instead of an integer",
        "env.json": "FILE is from `env`, which does not test an entire node",
        "future.json": f"FILE starts in the future, {tomorrow.isoformat()}: it is treated as older than all others",
    }
    assert {node.hostname: (node.runs, node.verdict.value) for node in found.nodes} == {
        "good": (1, "healthy"),
        "late": (2, "healthy"),
        "node0": (1, "unhealthy"),
    }


def test_changes_are_relative_to_the_newest_fleet_report_among_the_files(tmp_path):
    before = fleet(tmp_path, made("unhealthy", 1, "unhealthy"), made("well", 1), made("gone", 1))
    (tmp_path / "fleet.json").write_text(before.as_json())
    (tmp_path / "gone-1.json").unlink()

    found = fleet(tmp_path, made("unhealthy", 2), made("well", 2, "unhealthy"), made("new", 2)).since

    assert found is not None
    assert (found.came, found.gone, found.became_unhealthy, found.recovered) == (
        ("new",),
        ("gone",),
        ("well",),
        ("unhealthy",),
    )


@pytest.mark.parametrize("text", [None, "[]", "{"])
def test_input_without_a_readable_run_is_a_usage_error(tmp_path, text):
    if text is not None:
        (tmp_path / "x.json").write_text(text)

    with pytest.raises(UsageError, match="found no run in"):
        read_fleet([str(tmp_path)], lambda _text: None)


@pytest.mark.parametrize("width", [60, 100])
def test_a_fleet_is_shown_at_any_width(tmp_path, width):
    report = fleet(tmp_path, *(made(f"n{number}", 1, speed=1 - number // 7 / 2) for number in range(8)))
    screen = StringIO()

    recording = Recording(run_id="x", options=Options(command="fleet"))
    terminal.show(report, recording, console(screen, width=width), detail=Detail.ALL)

    assert "Slower than nodes with the same hardware" in screen.getvalue()
    assert "n7" in screen.getvalue()


def test_part_with_only_notes_is_shown_on_a_terminal(tmp_path):
    (tmp_path / "broken.json").write_text("{")

    report = fleet(tmp_path, made("well", 1))

    shown = "\n".join(line for part in tables(report, None, each=True) for line in part.lines(80))
    assert "\n Files that need attention\n   " in shown
    assert "broken.json" in shown


def test_report_of_a_fleet_is_complete_and_its_exit_code_is_the_verdict(capsys, tmp_path):
    fleet(tmp_path, made("a", 1, "unhealthy"))

    files = {name: f"{tmp_path}/fleet.{name[:4]}" for name in ("json", "html", "prometheus")}
    code = compare_runs([str(tmp_path)], None, Outputs(files))

    assert (code, capsys.readouterr().out.splitlines()[-1].split(" (")[0]) == (1, "Unhealthy: 1 of 1 node")
    assert read(str(tmp_path)).since is not None
    assert 'ddp_doctor_fleet_nodes{command="fleet",verdict="unhealthy"} 1.0\n' in (tmp_path / "fleet.prom").read_text()
    assert "<h2>Nodes</h2>" in (tmp_path / "fleet.html").read_text()
