"""The command line as a person and a script use it: real processes, exit codes, one sentence per error."""

import gzip
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.model.choices import Detail, UsageError
from ddp_doctor.model.recording import Recording
from tests.lab.processes import to_its_end
from tests.once import free_port
from tests.recordings import judged, path_of
from tests.waiting import LIMIT_S

DOCTOR = (sys.executable, "-m", "ddp_doctor")


def doctor(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None):
    whole = {**os.environ, **(env or {})}
    return to_its_end((*DOCTOR, *args), whole, cwd=cwd, limit_s=240)  # a hang ends here


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_users_modules_named_like_standard_ones_do_not_end_ddp_doctor(tmp_path):
    for module in ("random", "logging", "signal", "json", "rich", "typer"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('it was imported')\n")
    hidden = [str(path) for path in (Path(__file__).parents[2], tmp_path / "lib")]
    (tmp_path / "lib").mkdir()
    (tmp_path / "random.py").rename(tmp_path / "lib" / "random.py")

    done = doctor("replay", str(path_of("gpus/one-lost")), cwd=tmp_path, env={"PYTHONPATH": ":".join(hidden)})

    assert done.returncode == 1, done.stderr
    assert done.stderr == ""


def test_gzip_compressed_recording_is_replayed(tmp_path):
    from ddp_doctor.app import recordings

    path = tmp_path / "recording.json.gz"
    path.write_bytes(gzip.compress(path_of("gpus/one-lost").read_bytes()))

    assert recordings.replay(path).report == judged("gpus/one-lost").report


STRANGE = ("1e308", "-1e308", "1e20", "0", "-1", "9" * 30, "-7")


def test_a_recording_with_a_strange_number_is_replayed_or_refused(tmp_path):
    """Every number in the recordings of two fabrics, one at a time: a report or one sentence, no crash."""
    from ddp_doctor.app import recordings
    from ddp_doctor.remedies.settings_to_apply import settings_to_apply
    from ddp_doctor.render import screen, terminal
    from ddp_doctor.render.pasted import env_file

    path, replayed = tmp_path / "recording.json", 0
    for situation in ("allreduce/not-repeatable", "process_group/two-gpu-ranks-healthy"):
        text = path_of(situation).read_text()
        places = list(re.finditer(r"(?<=: )-?\d[\d.e+-]*(?=[,}\]])", text))[:90]
        for found, number in zip(places, cycle(STRANGE), strict=False):
            path.write_text(text[: found.start()] + number + text[found.end() :])
            with suppress(UsageError):
                outcome = recordings.replay(path)
                report = outcome.report
                terminal.show(report, outcome.recording, screen.console(io.StringIO()), detail=Detail.ALL)
                assert report.as_json()
                assert env_file(settings_to_apply(report))
                replayed += 1
    assert replayed


def test_title_from_a_recording_does_not_control_the_terminal(asked, tmp_path):
    path = tmp_path / "recording.json"
    reading = {"check": "p2p", "status": "failed", "reason": "rank 3 \x1b]52;c;ZXZpbA==\x07\x9b2J\nHealthy"}
    path.write_text(json.dumps({"schema_version": "1.0", "run_id": "x", "readings": [reading]}))
    done = asked("replay", str(path))

    assert done.returncode == 3
    assert "rank 3 ?]52;c;ZXZpbA==??2J Healthy" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_a_recording_with_an_unknown_fact_of_the_same_schema_is_replayed(asked, tmp_path):
    path = tmp_path / "recording.json"
    reading = {"check": "future", "status": "collected", "fact": {"kind": "future/7", "value": 1}}
    path.write_text(json.dumps({"schema_version": "1.3", "run_id": "x", "readings": [reading], "new": 1}))
    done = asked("replay", str(path), "--json", "-")

    assert done.returncode == 0, done
    assert [check["id"] for check in json.loads(done.stdout)["checks"]] == ["future"]


def test_text_goes_to_stderr_with_json_on_stdout(asked, state):
    done = asked("run", "-q", "--only", "host", "--json", "-", env=state)

    assert json.loads(done.stdout)["exit_code"] == done.returncode == 0
    assert "Healthy" in done.stderr


@pytest.mark.ranks
def test_a_port_in_use_is_a_finding_with_its_holder_and_the_ranks_are_tested_on_another(state):
    hold = "import socket; it = socket.create_server(('127.0.0.1', 0)); print(it.getsockname()[1], flush=True); input()"
    with subprocess.Popen((sys.executable, "-c", hold), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        port = holder.stdout.readline().decode().strip()
        env = {**state, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        done = doctor("run", "--only", "process_group", env=env)
        holder.kill()

    assert done.returncode == 1, done
    assert f"Rendezvous port {port} of" in done.stdout
    assert f"is in use by python (pid {holder.pid})" in done.stdout
    assert " ok collectives process_group\n" in done.stdout


def test_unwritable_outputs_do_not_lose_the_recording(asked, state):
    targets = ("--json", "/dev/full", "--settings", "env:/dev/full")
    done = asked("run", "-q", "--only", "host", *targets, env=state)

    assert done.returncode == 2, done
    assert done.stderr.count("cannot write '/dev/full'") == 2
    saved = done.stderr.rpartition("the recording is in ")[2].strip()
    assert Recording.model_validate_json(Path(saved).read_text()).readings
    assert "Healthy" in done.stdout


@pytest.mark.ranks
@pytest.mark.smoke
def test_under_torchrun_all_ranks_give_one_report_and_one_code(state):
    argv = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ddp_doctor")
    done = to_its_end((*argv, "run", "-q", "--only", "process_group"), {**os.environ, **state})

    assert done.returncode == 0, done
    assert done.stdout.count("Healthy") == 1
    assert len(list(Path(state["XDG_STATE_HOME"]).glob("ddp-doctor/runs/*"))) == 1


def test_crash_of_ddp_doctor_is_unsure_with_the_traceback_in_a_file(monkeypatch, capsys):
    from ddp_doctor.app import recordings
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.error_handler import error_handler
    from ddp_doctor.cli.outputs import Outputs

    def broken(_path: Path, _ignore: tuple[str, ...]) -> None:
        raise ZeroDivisionError("the doctor is ill")

    monkeypatch.setattr(recordings, "replay", broken)
    with pytest.raises(SystemExit) as left, error_handler():
        commands.replay(Path("x"), Outputs())

    said = capsys.readouterr().err
    assert left.value.code == 3
    trace = Path(said.rpartition(" in ")[2].strip())
    assert "the doctor is ill" in trace.read_text()
    trace.unlink()


@pytest.mark.parametrize("usable", [True, False], ids=["stderr", "no stderr"])
def test_a_crash_without_a_temporary_folder_is_unsure_and_shows_its_trace(monkeypatch, capsys, usable):
    from ddp_doctor.cli.error_handler import error_handler

    def unusable(**_options: str) -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "mkstemp", unusable)
    if not usable:
        monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as left, error_handler():
        raise ZeroDivisionError("the doctor is ill")

    assert left.value.code == 3
    assert ("ZeroDivisionError: the doctor is ill\n" in capsys.readouterr().err) == usable


def test_panic_that_is_not_an_exception_is_unsure(monkeypatch, tmp_path):
    from ddp_doctor.cli.error_handler import error_handler

    class Panic(BaseException):
        """A BaseException, as pyo3 (in pydantic) raises it."""

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as left, error_handler():
        raise Panic

    assert left.value.code == 3


def test_error_message_does_not_control_the_terminal(capsys):
    from ddp_doctor.cli.error_handler import error_handler

    with pytest.raises(SystemExit) as left, error_handler():
        raise UsageError("cannot read \x1b]52;c;ZXZpbA==\x07")

    assert left.value.code == 2
    assert capsys.readouterr().err == "ddp-doctor: cannot read ?]52;c;ZXZpbA==?\n"


# --- where recordings are kept ----------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


RUN_ID = "20260102T030405Z-0a1b2c"


def test_recording_is_kept_in_a_private_directory_without_a_home(temporary):
    from ddp_doctor.cli import reporting

    saved = reporting.save(Recording(run_id=RUN_ID), {})

    assert saved == str(temporary / f"ddp-doctor-{os.getuid()}" / "runs" / RUN_ID / "recording.json")
    assert Recording.model_validate_json(Path(saved).read_text()).run_id == RUN_ID
    assert (temporary / f"ddp-doctor-{os.getuid()}").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["", "runs"])
def test_planted_link_is_not_followed_and_its_target_is_unchanged(temporary, planted):
    from ddp_doctor.cli import reporting

    theirs = temporary / "theirs"
    for day in range(10, 40):
        (theirs / "runs" / f"202601{day}T000000Z-000000").mkdir(parents=True)
        (theirs / f"202601{day}T000000Z-000000").mkdir()
    before = sorted(theirs.rglob("*"))
    link = temporary / f"ddp-doctor-{os.getuid()}" / planted
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.symlink_to(theirs)

    saved = reporting.save(Recording(run_id=RUN_ID), {"XDG_STATE_HOME": "/proc/none"})

    assert saved is not None
    assert Path(saved).resolve() == Path(saved)
    assert Path(saved).parent.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(theirs.rglob("*")) == before


def test_newest_twenty_runs_are_kept_and_no_other_file_is_changed(temporary):
    from ddp_doctor.cli import reporting

    runs = temporary / "state" / "ddp-doctor" / "runs"
    for folder in (runs.parent, runs, runs / "mine", runs / "20250101T000000Z-zzzzzz"):
        folder.mkdir(mode=0o700, parents=True)
    (runs.parent.parent / "elsewhere").mkdir()
    (runs / "20240101T000000Z-000000").symlink_to(runs.parent.parent / "elsewhere")
    for day in range(10, 40):
        (runs / f"202501{day}T000000Z-000000").mkdir()

    reporting.save(Recording(run_id=RUN_ID), {"XDG_STATE_HOME": str(temporary / "state")})

    kept = sorted(path.name for path in runs.iterdir())
    assert kept[:1] == ["20240101T000000Z-000000"]
    assert kept[-2:] == [RUN_ID, "mine"]
    assert [name for name in kept if name.startswith("202501")][1:] == [
        f"202501{day}T000000Z-000000" for day in range(21, 40)
    ]


def test_rank_does_not_meet_its_agent_in_a_directory_of_another_user(temporary, capsys):
    from ddp_doctor.cli import run
    from ddp_doctor.starters.detect import OuterWorld

    (temporary / f"ddp-doctor-{os.getuid()}").mkdir()
    (temporary / f"ddp-doctor-{os.getuid()}").chmod(0o777)
    (temporary / f"ddp-doctor-{os.getuid()}" / "k.agent").write_text("agent\n0\n")
    world = OuterWorld(launcher="slurm", local_rank=1, local_size=2, nnodes=1, key="k")

    assert run._wait_for_agent(world, {}, 60.0) == 3
    assert "local rank 1 cannot create a private directory" in capsys.readouterr().err


def test_options_of_run_are_listed():
    """The surface is frozen: a new option is a decision, not an accident."""
    import typer

    from ddp_doctor.cli.main import app

    group: Any = typer.main.get_command(app)  # typer types it as a lone command
    command = group.commands["run"]
    options = """
        --backend --bad-nodes --baseline --budget --collective --collectives-of --compile --data --fail-on --from-trace
        --good-nodes --help-all --hostfile --hosts --html --ignore --isolate --iters --join-timeout --json --junit
        --level --markdown --master-addr --master-port --mesh --min-busbw --model --nnodes --node-rank
        --nproc-per-node --only --output-format --plan --prometheus --prove --quiet --rdzv-endpoint --record
        --redact --repeat --reproducer --require-gpus --settings --sizes --skip --soak
        --topology --verbose --warmup -q -v
    """
    assert sorted(option for parameter in command.params for option in parameter.opts) == options.split()


# --- many nodes -------------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path):
    ssh = (
        "#!/bin/sh\n"
        'for word; do host="$before"; before="$word"; done\n'
        '[ "$host" = denied ] && { echo "root@denied: Permission denied (publickey)." >&2; exit 255; }\n'
        'exec sh -c "$before"\n'
    )
    srun = (
        "#!/bin/sh\n"
        'while [ "$1" != ddp-doctor ]; do shift; done; shift; shift\n'
        "export SLURM_STEP_ID=0 SLURM_STEP_NODELIST=fan[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=1\n"
        "exec 3<&0\n"
        'SLURM_NODEID=1 SLURM_PROCID=1 "$@" <&3 & SLURM_NODEID=0 SLURM_PROCID=0 "$@" <&3 & wait\n'
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("ssh", ssh), ("srun", srun)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def quick(*args: str) -> tuple[str, ...]:
    endpoint = ("--rdzv-endpoint", f"localhost:{free_port()}")
    return ("run", "--level", "quick", "--only", "process_group", *endpoint, *args)


@pytest.mark.ranks
def test_one_command_over_ssh_reports_all_nodes_once_on_its_host(asked, tools, state, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{socket.gethostname()} slots=8\nfar # over ssh\n")
    done = asked(
        *quick("--hostfile", str(hosts), "--json", "-", "--record", "record-%h-%n.json"),
        env={**state, **tools},
        cwd=tmp_path,
    )
    report = json.loads(done.stdout)

    assert done.returncode == 0, done
    assert (report["world"]["nnodes"], report["world"]["launcher"]) == (2, "ssh")
    assert report["world"]["expected_hosts"] == [socket.gethostname(), "far"]
    assert done.stderr.count("Healthy") == 1
    assert done.stderr.startswith(" ok ")  # progress is for terminals
    assert (tmp_path / f"record-{socket.gethostname()}-0.json").exists()


@pytest.mark.ranks
def test_host_that_ssh_cannot_reach_is_a_finding_with_the_message_of_ssh(asked, tools, state):
    done = asked(*quick("--hosts", f"{socket.gethostname()},denied", "-q"), env={**state, **tools})

    assert done.returncode == 1, done
    assert "DD516" in done.stdout
    assert "Permission denied (publickey)" in done.stdout.splitlines()[-1]


def test_a_head_that_ssh_cannot_reach_is_the_same_finding(asked, tools, state):
    done = asked("run", "--hosts", "denied,far", "--only", "process_group", env={**state, **tools})

    assert done.returncode == 1, done
    assert "denied could not be started: root@denied: Permission denied (publickey)." in done.stdout
    assert "DD516" in done.stdout


def test_error_of_the_agents_is_one_sentence_with_exit_2(asked, tools, state):
    done = asked("run", "--hosts", f"{socket.gethostname()},far", "--only", "gpu", env={**state, **tools})

    assert done.returncode == 2, done
    assert done.stderr.count("unknown check 'gpu'") == 1


@pytest.mark.ranks
def test_one_command_in_an_allocation_is_a_step_on_all_nodes(tools, state):
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "fan[1-2]", "SLURMD_NODENAME": "fan1", "SLURM_NODEID": "0"}
    done = doctor(*quick(), env={**state, **tools, **job})

    assert done.returncode == 0, done
    assert done.stdout.count("Healthy: 2 ranks on 2 nodes passed over gloo") == 1
    (run,) = Path(state["XDG_STATE_HOME"]).glob("ddp-doctor/runs/*")
    assert "recording.json" in {path.name for path in run.iterdir()}


@pytest.mark.ranks
@pytest.mark.serial  # takes port 29400 of this host, as torchrun does by default
def test_command_started_on_each_host_prints_the_verdict_on_all(state):
    try:
        socket.create_server(("", 29400)).close()
    except OSError:
        pytest.skip("port 29400, which a bare head takes, is in use on this host")
    args = ("-m", "ddp_doctor", "run", "--nnodes", "2", "--level", "quick", "--only", "process_group")
    env = {**os.environ, **state}
    pipe = subprocess.PIPE
    with subprocess.Popen((sys.executable, *args), stdout=pipe, stderr=pipe, text=True, env=env) as head:
        assert head.stdout is not None
        assert head.stderr is not None
        while "--rdzv-endpoint" not in (line := head.stderr.readline()):
            assert head.poll() is None
        other = doctor(*line.split()[1:-2], "--only", "process_group", env=state)
        shown, code = head.stdout.read(), head.wait(LIMIT_S)

    assert line.strip().endswith("--level quick --only process_group")
    assert (other.returncode, code) == (0, 0), other
    assert "Healthy: 2 ranks on 2 nodes passed over gloo" in shown
    # Both use the endpoint's host here, so the first to bind the port is the head.
    short = [
        f"The full report is on the head node, {socket.gethostname()}.\n" in text for text in (shown, other.stdout)
    ]
    assert sorted(short) == [False, True]
    assert other.stdout.splitlines()[-1] == shown.splitlines()[-1]


def test_a_node_that_is_not_needed_leaves_with_exit_0(asked, state):
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NODEID": "1"}
    nodes = {"SLURM_STEP_NODELIST": "fan[1-2]", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    done = asked("run", "--nnodes", "1", env={**state, **step, **nodes})

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "ddp-doctor: node rank 1 is not needed: --nnodes uses only the first node\n"


@pytest.mark.ranks
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_stream_does_not_make_a_node_unhealthy(closed, tmp_path):
    command = f'exec "{sys.executable}" -m ddp_doctor run --only process_group {closed}'
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    done = subprocess.run(("sh", "-c", command), env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
