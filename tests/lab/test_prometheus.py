"""The metrics, rules and dashboard with the real promtool, node_exporter and Prometheus."""

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor import templates
from ddp_doctor.cli.outputs import Outputs, Results
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render import prometheus
from tests.once import free_port
from tests.recordings import SITUATIONS, judged
from tests.waiting import LIMIT_S, wait_until

TOOLS = ("promtool", "prometheus", "prometheus-node-exporter")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}"),
]
HOSTILE = 'no"de\\1\n{x="y"} #'
#: A unhealthy run and an unsure one: between them they have each kind of metric.
SLOW, STUCK = "connectivity/node-at-100-mbit", "hang/check-moves-slowly"


def promtool(*arguments: str, given: str | None = None) -> str:
    """Return the output of promtool, which must not report an error."""
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_promtool_reports_no_problem_of_the_metrics():
    every = "".join(prometheus.render(run.report, run.recording) for run in map(judged, SITUATIONS[::40]))
    for text in re.split(r"(?=# HELP ddp_doctor_build_info)", every)[1:]:
        assert promtool("check", "metrics", given=text) == ""


_RATE = "ddp_doctor_bandwidth_bytes_per_second"
#: A healthy week of node1 with a sample per half hour, and later events; gone:9100 disappears for good.
_SAMPLES = {
    'up{instance="node1:9100"}': "1x400",
    'up{instance="gone:9100"}': "1x200 0x200",
    'ddp_doctor_last_run_timestamp_seconds{command="prolog", instance="node1:9100"}': "0+1800x336 _x60",
    'ddp_doctor_last_run_timestamp_seconds{command="prolog", instance="gone:9100"}': "0+1800x200",
    'ddp_doctor_last_run_timestamp_seconds{command="logs", instance="node1:9100"}': "0+1800x400",
    'ddp_doctor_verdict{command="run", verdict="unhealthy", instance="node1:9100"}': "0x336 1x2 0x60",
    'ddp_doctor_verdict{command="run", verdict="unsure", instance="node1:9100"}': "0x340 1x60",
    'ddp_doctor_verdict{command="prolog", verdict="degraded", instance="node1:9100"}': "0x300 1x90 0x10",
    'ddp_doctor_findings{command="prolog", code="DD308", severity="warning", instance="node1:9100"}': "1x400",
    'ddp_doctor_verdict{command="logs", verdict="unhealthy", instance="node1:9100"}': "1x400",
    'ddp_doctor_check_status{command="run", check="p2p", status="timed_out", instance="node1:9100"}': "1x400",
    'ddp_doctor_findings{command="run", code="DD402", severity="error", instance="node1:9100"}': "1x400",
    _RATE + '{command="run", measurement="busbw", bytes="64", instance="node1:9100"}': "9e9x336 1e9x60",
    _RATE + '{command="run", measurement="busbw", bytes="67108864", instance="node1:9100"}': "9e9x336 8e9x2 1e9x60",
    _RATE + '{command="run", measurement="hbm", gpu="3", instance="node1:9100"}': "2e12x336 1e12x2 2e12x60",
}
_WHY = " On that node, ddp-doctor replay --last "
_BELOW = "More than 20 % below its median of seven days "
#: The expected alert at some hours, with its labels, summary and description if it fires.
_ALERTS: list[tuple[int, str, tuple[dict[str, str], str, str] | None]] = [
    (168, "Unhealthy", None),
    (
        169,
        "Unhealthy",
        (
            {"severity": "critical", "command": "run", "verdict": "unhealthy"},
            "ddp-doctor run found a fault",
            "Jobs would fail, hang or be slow. Found: DD402; ddp-doctor explain CODE says what that is."
            + _WHY
            + "shows who is to blame and what fixes it.",
        ),
    ),
    (170, "Unhealthy", None),
    (174, "Degraded", None),
    (
        175,
        "Degraded",
        (
            {"severity": "info", "command": "prolog", "verdict": "degraded"},
            "ddp-doctor prolog found warnings",
            "Jobs work, at a cost or a risk. Found: DD308; ddp-doctor explain CODE describes them.",
        ),
    ),
    (196, "Degraded", None),
    (171, "Unsure", None),
    (
        172,
        "Unsure",
        (
            {"severity": "warning", "command": "run", "verdict": "unsure"},
            "ddp-doctor run cannot tell whether it is healthy",
            "Without result: p2p." + _WHY + "says why.",
        ),
    ),
    (192, "Stale", None),
    (
        193,
        "Stale",
        (
            {"severity": "warning"},
            "no result of ddp-doctor for 1d 1h 0m 0s",
            "Its last verdict says nothing of today. See what starts ddp-doctor on that node.",
        ),
    ),
    (
        169,
        "BandwidthFell",
        (
            {"severity": "warning", "command": "run", "measurement": "hbm", "gpu": "3"},
            "hbm fell to 1TB/s",
            _BELOW + "(run, GPU 3).",
        ),
    ),
    (
        171,
        "BandwidthFell",
        (
            {"severity": "warning", "command": "run", "measurement": "busbw", "bytes": "67108864"},
            "busbw fell to 1GB/s",
            _BELOW + "(run, 67108864 bytes).",
        ),
    ),
]


def _expected(alert: tuple[dict[str, str], str, str]) -> dict[str, dict[str, str]]:
    labels, summary, description = alert
    return {
        "exp_labels": {**labels, "instance": "node1:9100"},
        "exp_annotations": {"summary": f"node1:9100: {summary}", "description": description},
    }


def test_each_rule_fires_for_its_situation_and_clears(tmp_path: Path):
    (tmp_path / "rules.yml").write_text(templates.text("prometheus-rules"))
    week = {
        "interval": "30m",
        "input_series": [{"series": series, "values": values} for series, values in _SAMPLES.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{hour}h",
                "alertname": f"DdpDoctor{name}",
                "exp_alerts": [_expected(alert)] if alert else [],
            }
            for hour, name, alert in _ALERTS
        ],
    }
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "30m", "tests": [week]}
    (tmp_path / "tests.yml").write_text(json.dumps(tests))

    assert "5 rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))


class Server:
    """A Prometheus that asks a node_exporter each second; alerts wait for nothing."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "textfiles"
        self.files.mkdir()
        exporter, self._port = free_port(), free_port()
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        rules = re.sub(r"\bfor: \w+", "for: 0s", templates.text("prometheus-rules"))
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 200ms}}
rule_files: [rules.yml]
scrape_configs: [{{job_name: node, static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]}}]
""")
        commands = (
            (
                *("prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile"),
                f"--collector.textfile.directory={self.files}",
                f"--web.listen-address=127.0.0.1:{exporter}",
            ),
            (
                *("prometheus", f"--config.file={folder}/prometheus.yml", "--scrape.discovery-reload-interval=100ms"),
                *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self._port}"),
            ),
        )
        with (folder / "log").open("w") as log:
            self._processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with self._http.open(url, timeout=LIMIT_S) as answer:
            return json.load(answer)["data"]

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """The series with their values; waits for the first, because a scrape may fail on a busy machine."""
        found = self.wait_until(lambda: self.ask("query", query=promql)["result"], promql)
        return [(each["metric"], float(each["value"][1])) for each in found]

    def firing(self) -> set[tuple[str, str]]:
        """The alerts with the command that each is about."""
        alerts = self.ask("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("command", ""))
            for each in alerts
            if each["state"] == "firing"
        }

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        def is_true() -> Any:
            with contextlib.suppress(OSError):  # it does not listen yet
                return condition()

        return wait_until(is_true, what)

    def write(self, report: Report, command: str) -> None:
        results = Results(report, Recording(run_id="x", options=Options(command=command)))
        outputs = Outputs({"prometheus": str(self.files / f"ddp-doctor-{command}.prom")})
        assert outputs.write(results) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()


def at(report: Report, ago: timedelta) -> Report:
    ended = datetime.now(timezone.utc) - ago
    return report.model_copy(update={"finished_at": ended.isoformat(timespec="seconds")})


def hostile(report: Report) -> Report:
    """Return the report with a host name that would end its label or line."""
    nodes = tuple(
        node.model_copy(update={"hostname": HOSTILE if node.verdict is Verdict.UNHEALTHY else node.hostname})
        for node in report.nodes
    )
    return report.model_copy(update={"nodes": nodes})


def recovered(report: Report) -> Report:
    nodes = (node.model_copy(update={"verdict": Verdict.HEALTHY, "findings": ()}) for node in report.nodes)
    return report.model_copy(update={"verdict": Verdict.HEALTHY, "findings": (), "nodes": tuple(nodes)})


def test_unhealthy_node_is_scraped_queried_and_alerted_until_it_recovers(server: Server):
    slow, stuck = hostile(judged(SLOW).report), judged(STUCK).report
    server.write(at(slow, timedelta(days=2)), "run")
    server.write(at(stuck, timedelta(days=3)), "prolog")

    alerts = {("DdpDoctorUnhealthy", "run"), ("DdpDoctorUnsure", "prolog"), ("DdpDoctorStale", "")}
    server.wait_until(lambda: server.firing() == alerts, "the alerts")

    assert [value for _, value in server.query("node_textfile_scrape_error")] == [0]
    ((labels, value),) = server.query('ddp_doctor_node_verdict{verdict!="healthy", command="run"} == 1')
    assert (labels["node"], labels["verdict"], value) == (HOSTILE, "unhealthy", 1)
    found = server.query('ddp_doctor_findings{severity="error", command="run"}')
    assert [labels["code"] for labels, _ in found] == ["DD533"]
    for panel in json.loads(templates.text("grafana-dashboard"))["panels"]:
        for target in panel["targets"]:
            server.query(re.sub(r"\$\w+", ".*", target["expr"]))

    server.write(at(recovered(slow), timedelta(0)), "run")
    server.write(at(recovered(stuck), timedelta(0)), "prolog")

    server.wait_until(lambda: len(server.query('ddp_doctor_verdict{verdict="healthy"} == 1')) == 2, "healthy")
    server.wait_until(lambda: server.firing() == set(), "no alert")
