"""The SLURM templates with stubs in place of Python, scontrol and srun; tests/lab has a real SLURM.

The prolog and the health check run as slurmd runs them, without PATH and HOME.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor import templates
from ddp_doctor.cli import commands
from ddp_doctor.features.trace.use_case import read_traces
from tests.lab.processes import to_its_end
from tests.waiting import LIMIT_S, limits_s, wait_until

SCRIPTS = ("slurm-prolog", "slurm-healthcheck", "slurm-gate")
WARM = '{"severity": "warning", "code": "DD308", "title": "warm"}'
SICK = '{"severity": "error", "code": "DD304", "title": "GPU 3 (0000:61:00.0) on node0: lost"}'
REPORT = '{"verdict": "%s", "summary": "Sick", "findings": [' + WARM + ", " + SICK + "]}"


class Script:
    """A rendered template with a stub Python, its log and a short limit."""

    def __init__(self, folder: Path, python: str = "python", template: str = "slurm-prolog") -> None:
        self.template = template
        self.folder = folder
        self.python = folder / python
        self.log = folder / "prolog.log"
        self.calls = folder / "calls"
        self.script = folder / "prolog.sh"

    def stub(self, body: str) -> None:
        self.python.parent.mkdir(parents=True, exist_ok=True)
        self.python.write_text(f'#!/bin/sh\nprintf "<%s>" "$@" >> {self.calls}; echo >> {self.calls}\n{body}\n')
        self.python.chmod(0o755)

    def stub_report(self, report: str, code: int) -> None:
        """Install a ddp-doctor that writes ``report`` and exits with ``code``; other Python code runs normally."""
        prepared = self.folder / "prepared.json"
        prepared.write_text(report)
        self.stub(f'[ "$2" = -c ] && exec "{sys.executable}" "$@"\ncp {prepared} "$6"\nexit {code}')

    def run(self, *edits: tuple[str, str], limit_s: float = LIMIT_S, **env: str) -> "subprocess.CompletedProcess[str]":
        text = templates.text(self.template, str(self.python))
        text = re.sub(r"^LIMIT_S=\d+", f"LIMIT_S={limit_s:g}", text, flags=re.MULTILINE)
        text = re.sub(r"^LOG=\S+", f"LOG={self.log}", text, flags=re.MULTILINE)
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        self.script.write_text(text)
        self.script.chmod(0o755)
        command = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items()), str(self.script)]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture
def prolog(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.fixture
def healthcheck(tmp_path: Path) -> Script:
    return Script(tmp_path, template="slurm-healthcheck")


@pytest.fixture(params=["slurm-prolog", "slurm-healthcheck"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Script:
    """Yield the prolog and the health check, which behave equally here."""
    return Script(tmp_path, template=request.param)


class Scontrol(Script):
    """A stub for scontrol that shows the node in ``state`` and records its calls."""

    def __init__(self, folder: Path, state: str = "IDLE") -> None:
        super().__init__(folder, "scontrol")
        self.calls = folder / "scontrol-calls"
        shown = f"NodeName=node0 CPUTot=8\n   State={state} ThreadsPerCore=1\n   Comment=DRAIN State=x"
        self.stub(f'[ "$1" = show ] && printf "{shown}"\nexit 0')

    def updates(self) -> list[str]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in calls if call.startswith("<update>")]


def test_every_name_has_a_text_without_placeholders() -> None:
    assert tuple(templates.TEMPLATES) == (*SCRIPTS, "profile", "prometheus-rules", "grafana-dashboard")
    for name in templates.TEMPLATES:
        assert not re.search("@[A-Z]+@", templates.text(name))


def test_the_packaged_files_are_exactly_the_named_ones() -> None:
    folder = Path(templates.__file__).parent
    packaged = {path.name for path in folder.iterdir() if path.suffix not in (".py", ".pyc") and path.is_file()}
    others = {"slurm-common.sh", "profile.txt", "reproducer.txt", "prometheus-rules.yml", "grafana-dashboard.json"}
    assert packaged == others | {f"{name}.sh" for name in SCRIPTS}


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match="slurm-prolog"):
        templates.text("slurm")


@pytest.mark.parametrize("python", ["python3", "", "./python", "/bin/py\0thon"])
def test_a_python_that_a_prolog_cannot_call_is_refused(python: str) -> None:
    with pytest.raises(ValueError, match="must be absolute"):
        templates.text("slurm-prolog", python)


def test_ordinary_path_is_unquoted_in_the_call() -> None:
    text = templates.text("slurm-prolog", "/opt/doctor/bin/python3")
    assert " /opt/doctor/bin/python3 -I -m ddp_doctor prolog " in text


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_every_template_is_sound_for_the_shell(shell: str, name: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = templates.text(name, '/opt/it\'s "here" $(reboot)/python\nreboot')
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=LIMIT_S)


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_has_no_findings(name: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    script = templates.text(name, "/opt/doctor/bin/python3")
    done = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 0), (3, 0), (130, 0), (126, 0)])
def test_only_an_unhealthy_node_fails_the_prolog(prolog: Script, code: int, expected: int) -> None:
    prolog.stub_report(REPORT % "unhealthy", code)
    done = prolog.run(SLURM_JOB_ID="4711", SLURMD_NODENAME="node0")
    assert (done.returncode, done.stdout) == (expected, "")
    first = prolog.calls.read_text().splitlines()[0]
    assert first.startswith("<-I><-m><ddp_doctor><prolog><--json>")
    logged = prolog.log.read_text() if prolog.log.exists() else ""
    assert ("job 4711 on node0" in logged) == (code != 0)


def test_degraded_node_is_not_drained_and_the_log_gets_one_line(either: Script) -> None:
    prepared = either.folder / "prepared.json"
    prepared.write_text('{\n "verdict": "degraded"\n}')
    either.stub(f'cp {prepared} "$6"; echo WARNING; echo "Degraded: GPU 3 is too hot. (0.3 s)"')
    done = either.run(SLURM_JOB_ID="4711", SLURMD_NODENAME="node0")
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = either.log.read_text().splitlines()
    assert line.endswith(" job 4711 on node0: Degraded: GPU 3 is too hot. (0.3 s)")


def test_required_gpus_of_a_node_are_passed_to_ddp_doctor(either: Script) -> None:
    either.stub("exit 0")
    either.run()
    either.run(("REQUIRE_GPUS=\n", "REQUIRE_GPUS=8\n"))
    told_nothing, told_eight = either.calls.read_text().splitlines()
    assert "--require-gpus" not in told_nothing
    assert told_eight.endswith("<--require-gpus><8>")
    assert "\nREQUIRE_GPUS=8\n" in templates.text(either.template, require_gpus=8)


def test_python_that_other_users_can_change_is_reported(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir(mode=0o755)
        (folder / "python").touch(mode=0o755)
    theirs.chmod(0o777)
    (ours / "linked").symlink_to(theirs / "python")
    if os.getuid() == 0:
        assert templates.others_may_change(python=str(ours / "python")) is None
        assert templates.others_may_change(python=str(ours / "linked")) == str(theirs)
    else:
        assert templates.others_may_change(python=str(ours / "python")) is not None


def test_script_for_root_has_a_warning_if_others_can_change_its_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(templates, "others_may_change", lambda _file: "/home/alice/venv")
    assert commands.template("slurm-prolog", 8) == templates.text("slurm-prolog", require_gpus=8)
    assert "other users can change '/home/alice/venv'" in capsys.readouterr().err
    commands.template("slurm-gate")
    assert capsys.readouterr().err == ""


def test_listing_describes_each_script_in_a_line() -> None:
    lines = commands.template(None).splitlines()
    assert [line.split()[0] for line in lines] == list(templates.TEMPLATES)
    assert all(20 < len(line) <= 80 for line in lines)


def test_hanging_ddp_doctor_is_ended_within_the_limit_and_the_job_starts(either: Script) -> None:
    either.stub("echo $$ > " + str(either.folder / "pid") + "\nexec /bin/sleep 1000")
    for limit_s in limits_s(0.2):
        assert either.run(limit_s=limit_s).returncode == 0
        if (either.folder / "pid").exists():
            break
    assert f"did not end within {limit_s} s" in either.log.read_text()
    pid = (either.folder / "pid").read_text().strip()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_helper_that_keeps_the_output_open_does_not_hold_the_prolog(either: Script) -> None:
    fifo = either.folder / "end"
    os.mkfifo(fifo)
    either.stub(f"/usr/bin/setsid /bin/cat {fifo} &\nexit 3")
    assert either.run().returncode == 0
    fifo.write_text("")


def test_missing_python_lets_the_job_start_with_a_log_line(either: Script) -> None:
    done = either.run()
    assert done.returncode == 0
    assert "could not be started (exit 127)" in either.log.read_text()


def test_missing_timeout_command_lets_the_job_start_with_a_log_line(either: Script) -> None:
    either.stub("exit 1")
    assert either.run(("/usr/bin/timeout", "/nowhere/timeout")).returncode == 0
    assert "nothing was looked at" in either.log.read_text()
    assert not either.calls.exists()


REASON = "ddp-doctor DD304: GPU 3 (0000:61:00.0) on node0: lost"


def test_unhealthy_node_is_drained_with_a_reason_that_names_the_gpu(prolog: Script) -> None:
    scontrol = Scontrol(prolog.folder)
    prolog.stub_report(REPORT % "unhealthy", 1)
    done = prolog.run(("SCONTROL=\n", f"SCONTROL={scontrol.python}\n"), SLURMD_NODENAME="node0")
    assert done.returncode == 1
    assert scontrol.updates() == [f"<update><nodename=node0><state=drain><reason={REASON}>"]
    assert f"unhealthy: {REASON}" in prolog.log.read_text()


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "DOWN*+DRAIN"])
def test_a_node_that_is_drained_already_keeps_its_reason(healthcheck: Script, state: str) -> None:
    scontrol = Scontrol(healthcheck.folder, state)
    healthcheck.stub_report(REPORT % "unhealthy", 1)
    call = ("/usr/bin/scontrol", str(scontrol.python))
    assert healthcheck.run(call, SLURMD_NODENAME="node0").returncode == 0
    assert scontrol.updates() == []
    assert "drained already" in healthcheck.log.read_text()


def test_health_check_drains_an_unhealthy_node_and_exits_0(healthcheck: Script) -> None:
    scontrol = Scontrol(healthcheck.folder)
    healthcheck.stub_report(REPORT % "unhealthy", 1)
    done = healthcheck.run(("/usr/bin/scontrol", str(scontrol.python)), SLURMD_NODENAME="node0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert scontrol.updates() == [f"<update><nodename=node0><state=drain><reason={REASON}>"]


@pytest.mark.parametrize("code", [0, 2, 3, 130])
def test_health_check_drains_only_unhealthy_nodes(healthcheck: Script, code: int) -> None:
    scontrol = Scontrol(healthcheck.folder)
    healthcheck.stub_report(REPORT % "unsure", code)
    done = healthcheck.run(("/usr/bin/scontrol", str(scontrol.python)), SLURMD_NODENAME="node0")
    assert done.returncode == 0
    assert not scontrol.calls.exists()
    assert healthcheck.log.exists() == (code != 0)


def test_a_scheduler_that_does_not_answer_does_not_hold_the_script(prolog: Script) -> None:
    scontrol = Scontrol(prolog.folder)
    scontrol.stub("exec /bin/sleep 1000")
    prolog.stub_report(REPORT % "unhealthy", 1)
    edits = (("SCONTROL=\n", f"SCONTROL={scontrol.python}\n"), ("-k 1 10", "-k 1 0.1"))
    assert prolog.run(*edits, SLURMD_NODENAME="node0").returncode == 1
    assert "SLURM could not be told" in prolog.log.read_text()


def test_the_health_check_ends_before_slurm_kills_it() -> None:
    limit = re.search(r"^LIMIT_S=(\d+)", templates.text("slurm-healthcheck"), re.MULTILINE)
    assert limit is not None
    assert int(limit[1]) + 5 + 1 + 2 * 10 < 60


def test_unhealthy_node_without_a_finding_is_drained_with_the_summary(prolog: Script) -> None:
    prolog.stub_report('{"verdict": "unhealthy", "summary": "Unhealthy: 1 error\\u001b]52;", "findings": []}', 1)
    assert prolog.run().returncode == 1
    assert "unhealthy: ddp-doctor unhealthy: Unhealthy: 1 error?]52;" in prolog.log.read_text()


@pytest.mark.parametrize(
    "report",
    ["", "{", "[]", '{"findings": []}', REPORT % "unsure"],
    ids=["empty", "broken", "foreign", "no verdict", "unsure"],
)
def test_exit_1_without_an_unhealthy_report_lets_the_job_start(prolog: Script, report: str) -> None:
    prolog.stub_report(report, 1)
    assert prolog.run().returncode == 0
    assert "without a report that says unhealthy" in prolog.log.read_text()


def test_a_python_without_the_package_lets_the_job_start(tmp_path: Path) -> None:
    prolog = Script(tmp_path)
    prolog.python.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -S "$@"\n')
    prolog.python.chmod(0o755)
    assert prolog.run().returncode == 0
    assert "No module named ddp_doctor" in prolog.log.read_text()
    assert "the job may start" in prolog.log.read_text()


def test_recordings_of_root_are_kept_outside_the_world_writable_folder(either: Script) -> None:
    either.stub(f"/usr/bin/env > {either.folder / 'env'}")
    either.run()
    assert "XDG_STATE_HOME=/var/lib\n" in (either.folder / "env").read_text()


def test_by_default_the_scheduler_is_not_called() -> None:
    assert "\nSCONTROL=\n" in templates.text("slurm-prolog")


@pytest.mark.parametrize(
    "name", ["with space/python", "it's/py'thon", 'a"b/$(touch broken)/python', "x;touch broken;/py"]
)
def test_hostile_python_path_stays_quoted(tmp_path: Path, name: str) -> None:
    prolog = Script(tmp_path, name)
    prolog.stub("exit 0")
    assert prolog.run().returncode == 0
    assert prolog.calls.read_text().startswith("<-I><-m><ddp_doctor><prolog>")
    assert not Path("/broken").exists()


def test_the_users_loader_variables_do_not_reach_python(either: Script) -> None:
    either.stub(f"/usr/bin/env > {either.folder / 'env'}")
    either.run(LD_LIBRARY_PATH="/home/user/lib", PYTHONPATH="/home/user", SLURM_JOB_GPUS="0,1")
    seen = (either.folder / "env").read_text()
    assert "/home/user" not in seen
    assert "SLURM_JOB_GPUS=0,1" in seen


def test_without_a_log_file_the_prolog_still_decides(prolog: Script) -> None:
    prolog.stub_report(REPORT % "unhealthy", 1)
    prolog.log = prolog.folder / "missing" / "prolog.log"
    done = prolog.run(("/usr/bin/logger", "/nowhere/logger"))
    assert done.returncode == 1


def test_no_temporary_folder_is_left(either: Script) -> None:
    either.stub("exit 0")
    either.run(("/tmp/$NAME.", f"{either.folder}/work."))
    assert not list(either.folder.glob("work.*"))


# --- the sbatch gate ------------------------------------------------------------------------------


class Gate(Script):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, template="slurm-gate")

    def doctor(self, verdict: str, code: int) -> None:
        prepared = self.folder / "prepared.json"
        prepared.write_text(json.dumps({"findings": [{"verdict": "none"}], "verdict": verdict}, indent=1))
        self.stub(f'echo " ok gpus"\ncp {prepared} "$8"\nexit {code}')

    def job(
        self, shell: str = "bash", start: str = "", limit_s: float = LIMIT_S, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        text = templates.text("slurm-gate", str(self.python)).replace("limit_s=300", f"limit_s={limit_s:g}")
        self.script.write_text(text)
        job = f"set -eu\n{start}\n. {self.script}\necho trained"
        of_slurm = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", "TMPDIR": str(self.folder), **env}
        return to_its_end([shell, "-c", job], of_slurm)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_gate_stops_the_sourcing_script_only_if_unhealthy(gate: Gate, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    gate.doctor("healthy", 0)
    healthy = gate.job(shell)
    assert (healthy.returncode, healthy.stdout, healthy.stderr) == (0, " ok gpus\ntrained\n", "")
    gate.doctor("unhealthy", 1)
    sick = gate.job(shell)
    assert (sick.returncode, sick.stdout) == (1, " ok gpus\n")
    assert sick.stderr.startswith("ddp-doctor gate: unhealthy, the report is above; the job ends here")
    assert not list(gate.folder.glob("ddp-doctor-gate.*"))


@pytest.mark.parametrize(
    ("verdict", "code", "note"),
    [
        ("unsure", 3, "unsure, see above; the job goes on"),
        ("unsure", 1, "unsure, see above; the job goes on"),
        ("unhealthy", 2, "the nodes could not be tested (exit 2), see above; the job goes on"),
        ("unhealthy", 130, "the nodes could not be tested (exit 130), see above; the job goes on"),
    ],
)
def test_inconclusive_gate_lets_the_job_continue(gate: Gate, verdict: str, code: int, note: str) -> None:
    gate.doctor(verdict, code)
    done = gate.job()
    assert (done.returncode, done.stdout) == (0, " ok gpus\ntrained\n")
    assert done.stderr == f"ddp-doctor gate: {note}\n"


@pytest.mark.parametrize(
    ("stub", "note"),
    [
        ("exit 1", "unsure, see above"),  # as Python without the package
        ("exit 127", "the nodes could not be tested (exit 127), see above"),
        ("exec /bin/sleep 1000", "no answer within 0.2 s"),
    ],
)
def test_gate_without_a_working_ddp_doctor_lets_the_job_continue(gate: Gate, stub: str, note: str) -> None:
    gate.stub(stub)
    done = gate.job(limit_s=0.2 if "sleep" in stub else LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.startswith(f"ddp-doctor gate: {note}; the job goes on")


def test_gate_passes_the_environment_of_the_job_to_ddp_doctor(gate: Gate) -> None:
    gate.stub("/usr/bin/env")
    done = gate.job(start="export NCCL_DEBUG=INFO", PYTHONPATH="/home/user")
    assert {"NCCL_DEBUG=INFO", "PYTHONPATH=/home/user"} <= set(done.stdout.splitlines())


def test_gate_outside_of_a_job_tests_nothing_and_reports_it(gate: Gate) -> None:
    gate.doctor("unhealthy", 1)
    done = gate.job(SLURM_JOB_ID="")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == "ddp-doctor gate: this is no SLURM job; nothing was tested\n"
    assert not gate.calls.exists()


def test_gate_without_a_temporary_directory_tests_nothing_and_reports_it(gate: Gate) -> None:
    done = gate.job(TMPDIR="/nowhere")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no temporary folder; nothing was tested" in done.stderr


def _lost(given: object, read: object, place: str = "") -> list[str]:
    """The places in JSON that are not in what was read of it."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [lost for key in given for lost in _lost(given[key], read.get(key), f"{place}.{key}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [lost for number, each in enumerate(given) for lost in _lost(each, read[number], f"{place}[{number}]")]
    return [] if given == read else [place]


def _lost_by_grafana(board: Any) -> list[str]:
    """Return the fields that Grafana's own models, which know all fields of a dashboard, drop."""
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason="needs Python 3.11")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    plugins.register_default_plugins()
    return _lost(board, json.loads(json.dumps(dashboard.Dashboard.from_json(board), cls=encoder.JSONEncoder)))


def test_grafana_knows_every_field_of_the_dashboard():
    board = json.loads(templates.text("grafana-dashboard"))

    assert _lost_by_grafana(board) == []

    board["panels"][0]["options"]["colorMod"] = board["panels"][0]["options"].pop("colorMode")
    board["panels"][5]["fieldConfig"]["defaults"]["units"] = "s"
    assert _lost_by_grafana(board) == [".panels[0].options.colorMod", ".panels[5].fieldConfig.defaults.units"]


#: A script with the names that the template asks for.
TRAINING = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(20, 8))


def train_step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()


"""


@pytest.mark.ranks
def test_the_lines_that_profile_a_job_write_a_trace_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + templates.text("profile"))
    command = [sys.executable, "train.py"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "RANK": "0"}, check=True, timeout=LIMIT_S)

    [fact] = read_traces([str(tmp_path / "traces")]).facts

    assert Path(fact.file).name == "rank0.json.gz"
    assert (fact.rank, fact.world_size) == (0, 1)
    assert fact.left_out + len(fact.steps) == 8
    assert {step.updates for step in fact.steps} == {1}
