"""Each command once from end to end, as the README and the how-to pages show it; what tests, in a bare process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.model.report import Report
from tests.cli.test_cli import doctor, state
from tests.measured import MEASURED
from tests.schemas import refused
from tests.waiting import LIMIT_S

__all__ = ["state"]  # a fixture

SAMPLE = Path(__file__).parent / "samples" / "topology" / "classic-two-socket.txt"


#: The checks that pass without GPUs at each level, and those added by the next.
PASSES = {
    "quick": ("process_group", "allreduce", "p2p", "gradient_sync", "buffers"),
    "standard": ("torchrun", "initial_state"),
    "thorough": ("same_products", "checkpoint", "step_time"),
}


@pytest.mark.ranks
@pytest.mark.torches("a healthy run at each level")
@pytest.mark.parametrize(
    ("level", "nproc"),
    [
        pytest.param("quick", 3, marks=pytest.mark.smoke),
        pytest.param("standard", 2, marks=pytest.mark.smoke),  # torchrun imports torch once per rank
        ("thorough", 2),
    ],
)
def test_healthy_run_passes_every_check_of_its_level_and_replays_equally(asked, tmp_path, state, level, nproc):
    path, recording, env_file = tmp_path / "report.json", tmp_path / "recording.json", tmp_path / "env"
    written = ("--json", str(path), "--record", str(recording), "--settings", f"env:{env_file}")

    done = doctor("run", "--level", level, "--nproc-per-node", str(nproc), *written, env=state)
    report = Report.model_validate_json(path.read_text())

    assert done.returncode == 0, done
    assert refused("report", path.read_text()) == []
    assert refused("recording", recording.read_text()) == []
    assert [check.id for check in report.checks] == [check.id for check in CHECKS]
    status = {check.id: check.status.value for check in report.checks}
    reached = list(PASSES).index(level)
    for place, checks in enumerate(PASSES.values()):
        assert {name: status[name] for name in checks} == dict.fromkeys(
            checks, "passed" if place <= reached else "skipped"
        )
    assert all(check.reason for check in report.checks if check.status.value == "skipped")
    assert sum(check.duration_s for check in report.checks) > 0

    assert report.world is not None
    assert (report.verdict.value, report.world.world_size) == ("healthy", nproc)
    assert report.summary in done.stdout.splitlines()[-1]
    names = {measurement.name for measurement in report.measurements}
    assert {"allreduce_busbw", "p2p_latency", "init_process_group"} <= names
    assert "# nothing to set" in env_file.read_text()
    assert len(list((tmp_path / "state").glob("ddp-doctor/runs/*/recording.json"))) == 1

    first, again = (json.loads(path.read_text()), json.loads(asked("replay", str(recording), "--json", "-").stdout))
    for lasting in ("findings", "verdict", "checks", "measurements", "summary"):
        assert again[lasting] == first[lasting]


def test_the_prolog_needs_no_environment_and_no_torch(tmp_path):
    path = tmp_path / "report.json"
    argv = [sys.executable, "-I", "-X", "importtime", "-m", "ddp_doctor", "prolog", "--json", str(path)]
    env = {**MEASURED, "TMPDIR": str(tmp_path)}  # for the recording without a home

    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd="/", env=env, timeout=LIMIT_S)
    report = Report.model_validate_json(path.read_text())

    assert done.returncode == 0, done.stdout
    assert refused("report", path.read_text()) == []
    assert [check.id for check in report.checks] == [check.id for check in CHECKS if check.where.value == "node"]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported
    assert "torch" not in imported


def test_an_unsure_prolog_passes_unless_asked_to_fail(asked, tmp_path):
    everything = [word for check in CHECKS if check.where.value == "node" for word in ("--skip", check.id)]
    env = {"XDG_STATE_HOME": str(tmp_path)}

    passes, fails = (asked("prolog", *everything, env=env), asked("prolog", *everything, "--unsure", "fail", env=env))

    assert "Unsure: nothing could be measured" in passes.stdout
    assert (passes.returncode, fails.returncode) == (0, 3)


def test_a_pasted_topology_is_read_from_stdin_and_gives_a_candidate_that_is_not_applied(asked, tmp_path):
    target = tmp_path / "settings.sh"

    done = asked("topology", "-", "--json", "-", "--settings", f"env:{target}", text=SAMPLE.read_text())
    report = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert report["topology"]["links"]["GPU0"]["GPU1"] == "SYS"
    assert [finding["code"] for finding in report["findings"]] == ["DD402"]
    assert "# export NCCL_P2P_DISABLE=1   # a candidate, not tried\n" in target.read_text()
    shell = f". {target}; echo ${{NCCL_P2P_DISABLE-unset}}"
    sourced = subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True)
    assert sourced.stdout == "unset\n"


def test_picture_is_written_and_text_goes_to_another_stream(asked, tmp_path):
    target = tmp_path / "topo.svg"
    done = asked("topology", str(SAMPLE), "--svg", str(target))
    piped = asked("topology", str(SAMPLE), "--svg", "-")

    assert done.returncode == piped.returncode == 0
    assert target.read_text() == piped.stdout
    assert piped.stdout.startswith("<svg ")
    assert "GPU0" in done.stdout
    assert "GPU0" in piped.stderr


def test_picture_without_a_matrix_is_refused_with_a_sentence(asked, tmp_path):
    target = tmp_path / "topo.svg"
    done = asked("topology", str(SAMPLE.with_name("p2p-capabilities.txt")), "--svg", str(target))

    assert done.returncode == 2
    assert "there is no GPU matrix to draw" in done.stderr
    assert not target.exists()


def test_tables_of_p2p_and_nvlinks_are_shown_and_in_the_json(asked, tmp_path):
    path = tmp_path / "all.txt"
    names = ("classic-two-socket.txt", "p2p-capabilities.txt", "nvlink-states.txt")
    path.write_text("\n".join(SAMPLE.with_name(name).read_text() for name in names))
    done = asked("topology", str(path), "--json", "-")
    report = json.loads(done.stdout)

    assert [table["statuses"]["GPU0"]["GPU1"] for table in report["p2p"]] == ["CNS"]
    assert [len(gpu["links"]) for gpu in report["nvlinks"][0]["gpus"]] == [4, 4, 0, 0]
    assert "rocm" not in report
    assert refused("report", done.stdout) == []
    assert "CNS between GPU0-GPU1" in done.stderr
    assert "3 of 4 NVLinks active, 14.1 GB/s each; inactive: 2" in done.stderr


def test_amd_gpus_are_shown_and_the_verdict_is_unsure(asked):
    done = asked("topology", str(SAMPLE.with_name("rocm-smi-showtopo.txt")), "--json", "-")
    report = json.loads(done.stdout)

    assert (done.returncode, report["verdict"], report["topology"]) == (3, "unsure", None)
    assert report["rocm"][0]["link_type"]["GPU0"]["GPU1"] == "XGMI"
    assert "GPU0  X     XGMI" in done.stderr


def test_text_without_a_topology_is_refused_with_a_finding(asked, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("GPU0 is slow today\n")

    done = asked("topology", str(path), "--json", "-")

    assert done.returncode == 2
    assert json.loads(done.stdout)["topology"] is None
    assert "DD405" in done.stderr


def test_templates_are_listed_and_printed(asked):
    names = [line.split()[0] for line in asked("template").stdout.splitlines()]

    assert names[:1] == ["slurm-prolog"]
    assert len(names) == 6
    assert sys.executable in asked("template", names[0]).stdout
