"""``ddp-doctor env``: settings in force, their origins, findings, and values that are never shown."""

import io
import json

import pytest

from ddp_doctor import app
from ddp_doctor.facts.node.env_vars import EnvVars, Origin, SettingOrigins
from ddp_doctor.facts.node.nccl import ConfFile, NcclFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import EnvReport, SettingInForce
from ddp_doctor.render import screen, settings_table, terminal
from ddp_doctor.settings import nccl_conf
from ddp_doctor.settings.in_force import settings_in_force
from ddp_doctor.settings.nccl_conf import conf_lines
from tests.readings import collected

LOGIN = "PATH=/usr/bin\nHOME=/home/user\nPWD=/home/user\n"
SECRET = "hunter2xyzzy"


def recorded(*facts: Fact) -> Recording:
    readings = [collected("env_vars", fact) for fact in facts]
    return Recording(run_id="x", options=Options(command="env"), readings=tuple(readings))


def rows(*facts: Fact) -> dict[str, SettingInForce]:
    return {row.name: row for row in settings_in_force(recorded(*facts))}


def conf(path: str, text: str, reason="user") -> ConfFile:
    return ConfFile(path=path, reason=reason, lines=conf_lines(text))


def report_of(outcome: app.Outcome) -> EnvReport:
    assert isinstance(outcome.report, EnvReport)
    return outcome.report


def shown(report: EnvReport) -> str:
    stream = io.StringIO()
    out = screen.console(stream, width=300)
    settings_table.show(report, out)
    terminal.show(report, Recording(), out)
    return stream.getvalue()


def codes(text: str) -> list[str]:
    return sorted(finding.code for finding in app.read_settings(text).report.findings)


@pytest.mark.parametrize(
    ("line", "first", "then"),
    [
        *((f"NCCL_IB_DISABLE={word}", None, "1") for word in ("true", "True", "yes", "on", "enable", '"yes"')),
        ("NCCL_P2P_DISABLE=2", None, "1"),
        ("NCCL_CHECKS_DISABLE=true", None, "1"),
        ("NCCL_BUFFSIZE=4M", None, "4194304"),
        ("NCCL_BUFFSIZE=4MB", None, "4194304"),
        ("NCCL_NTHREADS=0512", None, "512"),
        ("TORCH_NCCL_BLOCKING_WAIT=on", None, "1"),
        ("TORCH_NCCL_BLOCKING_WAIT=off", None, "0"),
        ("NCCL_IB_DISABLE=perhaps", None, ""),
        ("NCCL_P2P_LEVEL=sys", "SYS", ""),
        ("GLOO_SOCKET_IFNAME==eth0", "eth0", ""),
    ],
)
def test_unset_is_the_first_fix_for_a_misread_number_or_switch(line, first, then):
    findings = [found for found in app.read_settings(f"{line}\n").report.findings if found.code in ("DD121", "DD122")]

    offered = [setting.value for remedy in findings[0].remedies for setting in remedy.settings]
    assert offered == ([first, then] if then else [first])


def test_a_misread_switch_that_is_off_as_intended_is_not_reported():
    assert codes("NCCL_IB_DISABLE=false\nNCCL_NVLS_ENABLE=off\nNCCL_DEBUG=WARN\n") in ([], ["DD124"])


# --- settings in force ----------------------------------------------------------------------------


def test_the_environment_overrides_the_users_file_and_that_the_systems_file():
    files = NcclFact(
        conf=(
            conf("/home/user/.nccl.conf", "NCCL_DEBUG=WARN\nNCCL_ALGO=Ring\nNCCL_ALGO=Tree\n"),
            conf("/etc/nccl.conf", "NCCL_ALGO=Tree\nNCCL_PROTO=LL\n", "system"),
        )
    )
    found = rows(EnvVars(variables={"NCCL_DEBUG": "INFO"}), files)
    assert (found["NCCL_DEBUG"].value, found["NCCL_DEBUG"].source) == ("INFO", "environment")
    assert [one.source for one in found["NCCL_DEBUG"].overrides] == ["/home/user/.nccl.conf:1"]
    assert (found["NCCL_ALGO"].value, found["NCCL_ALGO"].source) == ("Ring", "/home/user/.nccl.conf:2")
    assert [(one.value, one.source) for one in found["NCCL_ALGO"].overrides] == [
        ("Tree", "/home/user/.nccl.conf:3"),
        ("Tree", "/etc/nccl.conf:1"),
    ]
    assert found["NCCL_PROTO"].source == "/etc/nccl.conf:2"


def test_files_of_other_nodes_do_not_affect_the_first_node():
    env, file = EnvVars(variables={}), NcclFact(conf=(conf("/etc/nccl.conf", "NCCL_DEBUG=INFO\n", "system"),))
    readings = [collected("nccl", fact, node) for node in (0, 1) for fact in (env, file)]

    (debug,) = (row for row in settings_in_force(Recording(readings=tuple(readings))) if row.name == "NCCL_DEBUG")

    assert (debug.source, debug.overrides) == ("/etc/nccl.conf:1", ())


def test_an_empty_variable_overrides_the_file():
    found = rows(EnvVars(variables={"NCCL_DEBUG": ""}), NcclFact(conf=(conf("/a/.nccl.conf", "NCCL_DEBUG=INFO"),)))
    assert (found["NCCL_DEBUG"].value, len(found["NCCL_DEBUG"].overrides)) == ("", 1)


@pytest.mark.parametrize(("nccl", "counts"), [("2.21.5", False), ("2.27.5", True), (None, True)])
def test_a_named_file_counts_only_if_this_nccl_reads_it(nccl, counts):
    software = Software(python="3.11", machine="x86_64", nccl_loaded=nccl)
    found = rows(EnvVars(variables={}), software, NcclFact(conf=(conf("/x.conf", "NCCL_DEBUG=INFO", "named"),)))
    assert ("NCCL_DEBUG" in found) == counts


def test_names_of_other_libraries_in_files_are_not_shown():
    lines = f"AWS_SECRET_ACCESS_KEY={SECRET}\nOMP_NUM_THREADS=4\nexport NCCL_DEBUG=INFO\n"
    found = rows(EnvVars(variables={}), NcclFact(conf=(conf("/a/.nccl.conf", lines),)))
    assert set(found) == {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    assert found["OMP_NUM_THREADS"].source == "torchrun"


def test_torchrun_sets_only_unset_variables_and_none_for_its_own_workers():
    found = rows(EnvVars(variables={"OMP_NUM_THREADS": "8"}))
    assert found["OMP_NUM_THREADS"].source == "environment"
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"].source == "torchrun"
    assert rows(EnvVars(variables={"TORCHELASTIC_RUN_ID": "x"}, launcher="torchrun")).keys() == {"TORCHELASTIC_RUN_ID"}


@pytest.mark.parametrize("launcher", ["slurm", "mpi"])
def test_running_ranks_have_no_rows_for_torchrun_variables(launcher):
    assert rows(EnvVars(variables={"RANK": "1"}, launcher=launcher)).keys() == {"RANK"}


def test_a_slurm_task_without_a_rank_may_still_start_torchrun():
    assert rows(EnvVars(variables={}, launcher="slurm"))["OMP_NUM_THREADS"].source == "torchrun"


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (Origin(how="set", process="bash", pid=7), "set in bash (process 7)"),
        (Origin(how="given", process="sshd", pid=7), "from sshd (process 7) or from before it"),
        (Origin(how="given", process="slurmstepd", pid=7), "SLURM, which passes on the environment of sbatch or srun"),
        (Origin(how="first", process="tini", pid=1), "the container's image or runtime"),
        (Origin(how="first", process="systemd", pid=1), "since this host started"),
    ],
)
def test_the_origin_of_a_setting_is_reported_if_known(origin, words):
    origins = SettingOrigins(origins={"NCCL_DEBUG": origin}, files={"NCCL_DEBUG": "/etc/environment:3"})
    since = rows(EnvVars(variables={"NCCL_DEBUG": "INFO"}), origins)["NCCL_DEBUG"].since
    assert since
    assert words in since
    assert since.endswith("; /etc/environment:3 says so")


def test_default_and_status_match_the_loaded_release():
    env = EnvVars(variables={"NCCL_NVLS_ENABLE": "1", "NCCL_TIMEOUT": "1", "NCCL_XYZZY": "1"})
    old = Software(python="3.11", machine="x86_64", nccl_loaded="2.16.5")
    first = Software(python="3.11", machine="x86_64", nccl_loaded="2.17.1")
    assert rows(env, old)["NCCL_NVLS_ENABLE"].status == "not yet"
    assert (rows(env, first)["NCCL_NVLS_ENABLE"].status, rows(env, first)["NCCL_NVLS_ENABLE"].default) == ("read", "1")
    assert (rows(env)["NCCL_NVLS_ENABLE"].status, rows(env)["NCCL_NVLS_ENABLE"].default) == ("read", "2")
    assert rows(env)["NCCL_TIMEOUT"].status == "read by nothing"
    assert rows(env)["NCCL_XYZZY"].status == "unknown"


# --- texts ----------------------------------------------------------------------------------------


def test_a_job_script_is_evaluated_with_its_effective_lines():
    script = (
        "#!/bin/bash\n#SBATCH --export=ALL,NCCL_DEBUG=WARN\nexport NCCL_DEBUG=INFO NCCL_BUFFSIZE=4M\n"
        "export NCCL_SOCKET_IFNAME=ib$N\nexport NCCL_TIMEOUT=1\nunset NCCL_TIMEOUT\nsrun torchrun x.py\n"
    )
    report = report_of(app.read_settings(script))
    found = {row.name: row for row in report.settings}
    assert (found["NCCL_DEBUG"].source, found["NCCL_DEBUG"].overrides[0].source) == ("line 3", "line 2")
    assert found["NCCL_BUFFSIZE"].note == "is read as 4"
    assert found["NCCL_SOCKET_IFNAME"].note == "is not evaluated: depends on $N"
    assert found["NCCL_TIMEOUT"].note == "does not count: it is unset in line 6"
    assert found["OMP_NUM_THREADS"].source == "torchrun"
    assert [finding.code for finding in report.findings if finding.code == "DD121"] == ["DD121"]
    assert "DD112" not in codes(script)


def test_a_name_that_is_never_read_is_reported_even_with_an_unknown_value():
    report = report_of(app.read_settings("#!/bin/bash\nexport NCCL_TIMEOUT=$T NCCL_IB_DISABLE=$N\nsrun x.py\n"))
    assert [finding.code for finding in report.findings] == ["DD112"]
    notes = {row.name: row.note for row in report.settings}
    assert notes == {"NCCL_TIMEOUT": None, "NCCL_IB_DISABLE": "is not evaluated: depends on $N"}


def test_the_advice_to_unset_one_queue_to_the_gpu_states_its_purpose():
    report = report_of(app.read_settings("#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nsrun x.py\n"))
    [finding] = report.findings
    assert (finding.code, finding.severity) == ("DD124", Severity.INFO)
    assert "Megatron-LM" in finding.remedies[0].cost


def test_variables_that_a_script_sets_for_its_ranks_are_not_leftovers():
    script = "#!/bin/bash\nexport MASTER_ADDR=node0 MASTER_PORT=29500 WORLD_SIZE=16 RANK=0 PET_NNODES=2\nsrun x\n"
    assert codes(script) == []
    assert "DD101" in codes(LOGIN + "RANK=3\nWORLD_SIZE=8\n")


def test_a_script_without_torchrun_has_no_findings_about_torchrun():
    report = report_of(app.read_settings("#!/bin/bash\nexport NCCL_DEBUG=INFO\nsrun python x.py\n"))
    assert [row.name for row in report.settings] == ["NCCL_DEBUG"]


def test_the_environment_of_a_torchrun_worker_is_recognized():
    worker = LOGIN + "TORCHELASTIC_RUN_ID=x\nRANK=0\nLOCAL_RANK=0\nWORLD_SIZE=2\nLOCAL_WORLD_SIZE=2\n"
    assert codes(worker + "MASTER_ADDR=node0\nMASTER_PORT=29500\n") == []


@pytest.mark.parametrize(
    ("text", "verdict", "exit_code", "words"),
    [
        ("hello\n", "unsure", 3, "sets no variable; expected the output of `env`, a job script"),
        ("\ufffd\ufffd\ufffd", "unsure", 3, "is not text"),
        (LOGIN, "healthy", 0, "No errors or warnings in the settings. Nothing else was tested."),
        (LOGIN + "NCCL_IB_DISABLE=true\n", "degraded", 0, "Found 1 warning: NCCL_IB_DISABLE"),
    ],
)
def test_the_verdict_on_a_text(text, verdict, exit_code, words):
    report = app.read_settings(text).report
    assert (report.verdict.value, report.exit_code) == (verdict, exit_code)
    assert words in report.summary


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "NCCL_AUTH_TOKEN", "MY_VALUE"])
@pytest.mark.parametrize("head", [LOGIN, "#!/bin/sh\nexport "])
def test_a_secret_in_a_text_is_never_printed(name, head):
    outcome = app.read_settings(f"{head}{name}={SECRET}\nexport NCCL_DEBUG=INFO\n")
    report = report_of(outcome)
    texts = (shown(report), report.as_json(), outcome.recording.model_dump_json())
    assert not any(SECRET in text for text in texts)
    assert name in texts[0] or not name.startswith("NCCL_")


def test_control_characters_of_a_text_do_not_reach_the_terminal():
    text = "#!/bin/sh\nexport NCCL_NOTE='\x9b2J\u202e\x07x'\n- name: NCCL_\x1b[2J\n"
    words = shown(report_of(app.read_settings(text)))
    assert not any(sign in words for sign in "\x1b\x9b\u202e\x07")


# --- this process ---------------------------------------------------------------------------------


def test_this_process_is_evaluated_without_torch_and_replayed_with_the_same_result(tmp_path, monkeypatch):
    for name in ("CONF_FILE_SINCE", "HOME_SINCE"):  # with any release of NCCL
        monkeypatch.setattr(nccl_conf, name, (0,))
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "NCCL_IB_DISABLE": "true",
        "NCCL_AUTH_TOKEN": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    (tmp_path / ".nccl.conf").write_text(f"NCCL_ALGO=Ring\nNCCL_SECRET={SECRET}\nWANDB_API_KEY={SECRET}\n")
    outcome = app.live_settings(env)
    report = report_of(outcome)
    found = {row.name: row for row in report.settings}
    assert found["NCCL_IB_DISABLE"].source == "environment"
    assert found["NCCL_AUTH_TOKEN"].value is None
    assert found["NCCL_SECRET"].value is None
    assert "DD121" in [finding.code for finding in report.findings]
    assert {check.id for check in report.checks} == {"env_vars", "nccl"}
    assert SECRET not in outcome.recording.model_dump_json() + report.as_json() + shown(report)
    again = app.judge_settings(Recording.model_validate_json(outcome.recording.model_dump_json()))
    assert again.report == report


def test_an_empty_environment_is_healthy_and_shows_what_torchrun_would_set(tmp_path):
    report = report_of(app.live_settings({}))
    assert {row.name for row in report.settings if row.source == "torchrun"} == {
        "OMP_NUM_THREADS",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    }
    assert report.verdict.value == "healthy"
    keys = json.loads(report.as_json())["settings"][0].keys()
    assert {"name", "value", "source", "overrides", "default", "meaning", "status"} <= keys


def test_variables_unset_by_default_show_it_and_unknown_names_have_no_default():
    text = "NCCL_IB_HCA=mlx5_0\nNCCL_XYZZY=1\nNCCL_CUMEM_ENABLE=0\nNCCL_IB_GID_INDEX=3\n"
    lines = shown(report_of(app.read_settings(text))).splitlines()
    rows = {line.split()[0]: line.split()[1:3] for line in lines if line.startswith(" NCCL_")}
    assert rows == {
        "NCCL_IB_HCA": ["mlx5_0", "unset"],
        "NCCL_XYZZY": ["1", "-"],
        "NCCL_CUMEM_ENABLE": ["0", "automatic"],
        "NCCL_IB_GID_INDEX": ["3", "unset"],
    }


def test_the_table_shows_overridden_values_and_an_empty_environment():
    software = Software(python="3.11", machine="x86_64", nccl_loaded="2.27.5")
    env = EnvVars(variables={"NCCL_DEBUG": "INFO"}, launcher="torchrun")
    files = NcclFact(conf=(conf("/etc/nccl.conf", "NCCL_DEBUG=WARN", "system"),))
    words = shown(report_of(app.judge_settings(recorded(env, software, files))))
    assert "apply to NCCL 2.27.5" in words
    assert "overrides /etc/nccl.conf:1, which says WARN" in words
    nothing = shown(report_of(app.judge_settings(recorded(EnvVars(variables={}, launcher="torchrun")))))
    assert nothing.startswith("No relevant variable of NCCL")


def test_a_value_that_depends_on_a_branch_is_not_evaluated_and_both_are_shown():
    script = (
        "#!/bin/bash\nif a; then\n  export NCCL_IB_DISABLE=true NCCL_ALGO=Ring\n"
        "else\n  export NCCL_IB_DISABLE=0 NCCL_ALGO=Ring\nfi\n"
    )
    outcome = app.read_settings(script)
    report = report_of(app.judge_settings(Recording.model_validate_json(outcome.recording.model_dump_json())))

    row = next(one for one in report.settings if one.name == "NCCL_IB_DISABLE")
    assert (row.value, row.source, row.overrides) == ("0", "line 5", ())
    assert row.note == "is not evaluated: in another branch of the script it is true (line 3)"
    assert [finding.code for finding in report.findings] == ["DD124"]  # in the part that both share


# --- another vendor's library ---------------------------------------------------------------------


def test_variables_that_rccl_reads_are_not_evaluated_for_rocm():
    env = EnvVars(
        variables={
            "NCCL_LIBIBVERBS_SO": "libibverbs.so.1",
            "NCCL_SOKET_IFNAME": "eth0",
            "NCCL_IB_DISABLE": "true",
            "NCCL_NVLS_ENABLE": "1",
            "TORCH_NCCL_BLOCKING_WAIT": "on",
        }
    )
    rocm = Software(
        python="3.12.3", machine="x86_64", torch_version="2.7.0+rocm6.3", torch_hip="6.3.42131", nccl_loaded="2.22.3"
    )
    report = report_of(app.judge_settings(recorded(env, rocm)))

    assert [finding.code for finding in report.findings] == ["DD122"]  # torch still reads its own variables
    assert (report.nccl, report.rocm) == (None, "6.3.42131")
    assert {row.note for row in report.settings if row.name.startswith("NCCL_")} == {
        "is not evaluated: it is a variable of RCCL, which ddp-doctor does not know"
    }
    text = shown(report)
    assert "Torch here is built for ROCm 6.3.42131: AMD's RCCL reads NCCL_* and RCCL_*, which are not checked" in text
    assert "unset NCCL_" not in text
