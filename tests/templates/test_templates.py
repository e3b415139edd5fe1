"""The SLURM prolog, run as slurmd runs it: no PATH, no HOME, a stub in place of Python."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_doctor import templates

WARM = '{"severity": "warning", "code": "DD308", "title": "warm"}'
SICK = '{"severity": "error", "code": "DD304", "title": "GPU 3 (0000:61:00.0) on node0: lost"}'
REPORT = '{"verdict": "%s", "summary": "Sick", "findings": [' + WARM + ", " + SICK + "]}"


class Prolog:
    """The rendered script with a stub Python, its log and a short limit."""

    def __init__(self, folder: Path, python: str = "python") -> None:
        self.folder = folder
        self.python = folder / python
        self.log = folder / "prolog.log"
        self.calls = folder / "calls"
        self.script = folder / "prolog.sh"

    def stub(self, body: str) -> None:
        self.python.parent.mkdir(parents=True, exist_ok=True)
        self.python.write_text(
            f'#!/bin/sh\nprintf "<%s>" "$@" >> {self.calls}; echo >> {self.calls}\n{body}\n'
        )
        self.python.chmod(0o755)

    def stub_report(self, report: str, code: int) -> None:
        """A doctor that writes ``report`` and exits ``code``; other Python runs as it is."""
        prepared = self.folder / "prepared.json"
        prepared.write_text(report)
        self.stub(f'[ "$2" = -c ] && exec {sys.executable} "$@"\ncp {prepared} "$6"\nexit {code}')

    def run(
        self, *edits: tuple[str, str], limit_s: int = 20, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        text = templates.text("slurm-prolog", str(self.python))
        for old, new in (
            ("LIMIT_S=90", f"LIMIT_S={limit_s}"),
            ("/var/log/ddp-doctor-prolog.log", str(self.log)),
            *edits,
        ):
            assert old in text
            text = text.replace(old, new)
        self.script.write_text(text)
        self.script.chmod(0o755)
        command = [
            "/usr/bin/env",
            "-i",
            *(f"{name}={value}" for name, value in env.items()),
            str(self.script),
        ]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


@pytest.fixture
def prolog(tmp_path: Path) -> Prolog:
    return Prolog(tmp_path)


def test_every_name_has_a_text_without_placeholders() -> None:
    assert templates.names() == ("slurm-prolog",)
    for name in templates.names():
        assert "@PYTHON@" not in templates.text(name)


def test_the_packaged_files_are_exactly_the_named_ones() -> None:
    folder = Path(templates.__file__).parent
    packaged = {
        path.name for path in folder.iterdir() if path.suffix not in (".py", ".pyc") and path.is_file()
    }
    assert packaged == {f"{name}.sh" for name in templates.names()}


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match="slurm-prolog"):
        templates.text("slurm")


@pytest.mark.parametrize("python", ["python3", "", "./python", "/bin/py\0thon"])
def test_a_python_that_a_prolog_cannot_call_is_refused(python: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        templates.text("slurm-prolog", python)


def test_an_ordinary_path_stands_unquoted_in_the_call() -> None:
    text = templates.text("slurm-prolog", "/opt/doctor/bin/python3")
    assert " /opt/doctor/bin/python3 -I -m ddp_doctor prolog " in text


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_the_prolog_is_sound_for_the_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = templates.text("slurm-prolog", '/opt/it\'s "here" $(reboot)/python\nreboot')
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=10)


def test_shellcheck_has_nothing_to_say() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    script = templates.text("slurm-prolog", "/opt/doctor/bin/python3")
    done = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 0), (3, 0), (130, 0), (126, 0)])
def test_only_a_sick_node_fails_the_prolog(prolog: Prolog, code: int, expected: int) -> None:
    prolog.stub_report(REPORT % "sick", code)
    done = prolog.run(SLURM_JOB_ID="4711", SLURMD_NODENAME="node0")
    assert (done.returncode, done.stdout) == (expected, "")
    first = prolog.calls.read_text().splitlines()[0]
    assert first.startswith("<-I><-m><ddp_doctor><prolog><--json>")
    logged = prolog.log.read_text() if prolog.log.exists() else ""
    assert ("job 4711 on node0" in logged) == (code != 0)


def test_a_doctor_that_hangs_is_ended_within_the_limit_and_the_job_starts(prolog: Prolog) -> None:
    prolog.stub("echo $$ > " + str(prolog.folder / "pid") + "\nexec /bin/sleep 1000")
    started = time.monotonic()
    done = prolog.run(limit_s=1)
    assert done.returncode == 0
    assert time.monotonic() - started < 8
    assert "did not end within 1 s" in prolog.log.read_text()
    pid = (prolog.folder / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_helper_that_keeps_the_output_open_does_not_hold_the_prolog(prolog: Prolog) -> None:
    prolog.stub("/usr/bin/setsid /bin/sleep 6 &\nexit 3")
    started = time.monotonic()
    assert prolog.run().returncode == 0
    assert time.monotonic() - started < 4


def test_a_missing_python_lets_the_job_start_and_says_so(prolog: Prolog) -> None:
    done = prolog.run()
    assert done.returncode == 0
    assert "could not be started (exit 127)" in prolog.log.read_text()


def test_a_missing_timeout_lets_the_job_start_and_says_so(prolog: Prolog) -> None:
    prolog.stub("exit 1")
    assert prolog.run(("/usr/bin/timeout", "/nowhere/timeout")).returncode == 0
    assert "nothing was looked at" in prolog.log.read_text()
    assert not prolog.calls.exists()


def test_a_sick_node_is_drained_with_a_reason_that_names_the_gpu(prolog: Prolog) -> None:
    scontrol = Prolog(prolog.folder, "scontrol")
    scontrol.calls = prolog.folder / "scontrol-calls"
    scontrol.stub("exit 0")
    prolog.stub_report(REPORT % "sick", 1)
    done = prolog.run(("SCONTROL=\n", f"SCONTROL={scontrol.python}\n"), SLURMD_NODENAME="node0")
    assert done.returncode == 1
    reason = "ddp-doctor DD304: GPU 3 (0000:61:00.0) on node0: lost"
    assert scontrol.calls.read_text() == f"<update><nodename=node0><state=drain><reason={reason}>\n"
    assert f"sick: {reason}" in prolog.log.read_text()


def test_a_sick_node_without_a_finding_is_drained_with_the_summary(prolog: Prolog) -> None:
    prolog.stub_report('{"verdict": "sick", "summary": "Sick: 1 error\\u001b]52;", "findings": []}', 1)
    assert prolog.run().returncode == 1
    assert "sick: ddp-doctor sick: Sick: 1 error?]52;" in prolog.log.read_text()


@pytest.mark.parametrize(
    "report",
    ["", "{", "[]", '{"findings": []}', REPORT % "unsure"],
    ids=["empty", "broken", "foreign", "no verdict", "unsure"],
)
def test_exit_1_without_a_report_that_says_sick_lets_the_job_start(prolog: Prolog, report: str) -> None:
    prolog.stub_report(report, 1)
    assert prolog.run().returncode == 0
    assert "without a report that says sick" in prolog.log.read_text()


def test_a_python_without_the_package_lets_the_job_start(tmp_path: Path) -> None:
    prolog = Prolog(tmp_path)
    prolog.python.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -S "$@"\n')
    prolog.python.chmod(0o755)
    assert prolog.run().returncode == 0
    assert "No module named ddp_doctor" in prolog.log.read_text()
    assert "the job may start" in prolog.log.read_text()


def test_recordings_of_root_are_kept_outside_the_world_writable_folder(prolog: Prolog) -> None:
    prolog.stub(f"/usr/bin/env > {prolog.folder / 'env'}")
    prolog.run()
    assert "XDG_STATE_HOME=/var/lib\n" in (prolog.folder / "env").read_text()


def test_by_default_the_scheduler_is_not_called() -> None:
    assert "\nSCONTROL=\n" in templates.text("slurm-prolog")


@pytest.mark.parametrize(
    "name", ["with space/python", "it's/py'thon", 'a"b/$(touch broken)/python', "x;touch broken;/py"]
)
def test_a_strange_python_path_does_not_break_out_of_its_quotes(tmp_path: Path, name: str) -> None:
    prolog = Prolog(tmp_path, name)
    prolog.stub("exit 0")
    assert prolog.run().returncode == 0
    assert prolog.calls.read_text().startswith("<-I><-m><ddp_doctor><prolog>")
    assert not Path("/broken").exists()


def test_the_users_loader_variables_do_not_reach_python(prolog: Prolog) -> None:
    prolog.stub(f"/usr/bin/env > {prolog.folder / 'env'}")
    prolog.run(LD_LIBRARY_PATH="/home/user/lib", PYTHONPATH="/home/user", SLURM_JOB_GPUS="0,1")
    seen = (prolog.folder / "env").read_text()
    assert "/home/user" not in seen
    assert "SLURM_JOB_GPUS=0,1" in seen


def test_without_a_log_file_the_prolog_still_decides(prolog: Prolog) -> None:
    prolog.stub_report(REPORT % "sick", 1)
    prolog.log = prolog.folder / "missing" / "prolog.log"
    done = prolog.run(("/usr/bin/logger", "/nowhere/logger"))
    assert done.returncode == 1


def test_no_temporary_folder_is_left(prolog: Prolog) -> None:
    prolog.stub("exit 0")
    prolog.run(("/tmp/ddp-doctor-prolog.", f"{prolog.folder}/work."))
    assert not list(prolog.folder.glob("work.*"))
