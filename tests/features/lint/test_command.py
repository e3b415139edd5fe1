"""``ddp-doctor lint`` as a person, an editor and continuous integration use it: files, streams, exit codes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from ddp_doctor.cli.main import app
from ddp_doctor.features.lint.linting import lint_text
from ddp_doctor.features.lint.report import LintReport
from ddp_doctor.features.lint.rules import RULES
from tests.features.lint.hundred import write_hundred

HEAD = "import torch\nimport torch.distributed as dist\nimport utils\n"
FAULT = "torch.cuda.set_device(0)"
SICK = f"{HEAD}dist.init_process_group('nccl')\n{FAULT}\n"
HEALTHY = "import torch\n\nprint(torch.ones(3))\n"
WARNED = "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(3, 3))\nmodel(torch.ones(3)).sum().backward()\n"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def lint(*args: str, cwd: Path) -> Done:
    """The command line without the third of a second that a process takes."""
    before = Path.cwd()
    os.chdir(cwd)
    try:
        result = CliRunner().invoke(app, ["lint", *args])
    finally:
        os.chdir(before)
    return Done(result.exit_code, result.stdout, result.stderr)


def process(*args: str, cwd: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "ddp_doctor", "lint", *args)
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, cwd=cwd, input=text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"sick.py": SICK, "healthy.py": HEALTHY, "warned.py": WARNED, "note.txt": "print 'x'"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_script_that_a_job_script_runs_is_reported_in_its_own_line(tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job/a.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\nsrun bash run.sh\n")
    (tmp_path / "job/run.sh").write_text("#!/bin/bash\n\ntorchrun --nnodes=4 --nproc-per-node=8 train.py\n")
    (tmp_path / "secret.sh").write_text("torchrun --nnodes=4 train.py\n")

    done = lint("job/a.sbatch", "job/run.sh", cwd=tmp_path)
    assert done.stdout.count("job/run.sh:3:1: error DD127") == 1
    assert (done.returncode, "job/a.sbatch:" in done.stdout) == (1, False)

    (tmp_path / "job/run.sh").unlink()
    (tmp_path / "job/run.sh").symlink_to("../secret.sh")
    assert "run.sh was not read" in lint("a.sbatch", cwd=tmp_path / "job").stdout


def test_manifest_without_a_job_is_not_called_healthy(tmp_path: Path):
    (tmp_path / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n")

    done = lint("map.yaml", cwd=tmp_path)

    assert (done.returncode, "map.yaml:1:1: not checked: does not start ranks" in done.stdout) == (3, True)


def test_a_job_script_on_stdin_is_checked(tmp_path: Path):
    text = "#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\nsrun torchrun --nnodes=4 --nproc-per-node=8 train.py\n"

    done = process("-", cwd=tmp_path, text=text)

    assert (done.returncode, "<stdin>:3:1: error DD127" in done.stdout) == (1, True)


def test_fault_is_shown_with_its_place_line_and_fix_and_exit_code_1(folder: Path):
    done = process("sick.py", cwd=folder)

    assert done.returncode == 1
    assert "  sick.py:5:1: error DDL104 Every rank uses cuda:0" in done.stdout.splitlines()
    assert f"      {FAULT}" in done.stdout.splitlines()
    assert "Fix: Use the GPU with number LOCAL_RANK" in done.stdout
    assert "Found 1 error in 1 file." in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("wrapper", "line", "words"),
    [
        ("ddp", "for x in data: net(x).sum().backward()", "Call the wrapper itself, ddp(...), not"),
        ("ddp", "for x in data: ddp.module(x).sum().backward()", "Call the wrapper itself, ddp(...), not"),
        ("ddp", "torch.save(ddp.state_dict(), path)", "inside the wrapper: ddp.module.state_dict()"),
        ("self.ddp", "torch.save(self.ddp, path)", "inside the wrapper: self.ddp.module.state_dict()"),
    ],
)
def test_fix_uses_the_name_of_the_wrapper_in_the_script(wrapper: str, line: str, words: str):
    script = f"""import torch
from torch.nn.parallel import DistributedDataParallel
def train(self, net, data, path):
    {wrapper} = DistributedDataParallel(net)
    {line}
"""

    linted = lint_text("train.py", script)

    assert any(words in remedy.summary for finding in linted.findings for remedy in finding.remedies)


def test_healthy_script_prints_one_line_and_none_with_quiet(folder: Path):
    assert lint("healthy.py", cwd=folder).stdout == "No problems found in 1 file.\n"

    quiet = lint("--quiet", "healthy.py", cwd=folder)

    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_last_line_counts_findings_and_suggests_the_worst_one(folder: Path):
    start = "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as D\n"
    (folder / "both.py").write_text(f"{start}dist.init_process_group('nccl')\nD(m.to(0), device_ids=[0])\nprint(1)\n")

    lines = lint("both.py", cwd=folder).stdout.splitlines()

    assert "  both.py:3:1: info DDL110 This process group is never destroyed" in lines
    assert lines[-2:] == ["(more: ddp-doctor explain DDL104)", "Found 2 errors and 1 info finding in 1 file."]


def test_warning_fails_only_on_request(folder: Path):
    assert lint("warned.py", cwd=folder).returncode == 0
    assert lint("--fail-on", "warning", "warned.py", cwd=folder).returncode == 1


def test_directory_is_walked_without_foreign_code(folder: Path):
    for place in (".git", "node_modules", "build", "__pycache__", "env3"):
        (folder / place).mkdir()
        (folder / place / "sick.py").write_text(SICK)
    (folder / "env3" / "pyvenv.cfg").write_text("")
    (folder / "package").mkdir()
    (folder / "package" / "inner.py").write_text(SICK)
    (folder / "package" / "again").symlink_to(folder)

    done = lint(".", cwd=folder)

    assert "Found 2 errors and 1 warning in 4 files." in done.stdout
    assert "  package/inner.py:5:1: error" in done.stdout


def test_broken_links_and_pipes_in_a_directory_are_not_scripts(folder: Path):
    (folder / ".#healthy.py").symlink_to("me@host.4711")  # the lock of an editor
    os.mkfifo(folder / "pipe.py")
    (folder / "sick.py").unlink()

    done = lint("--json", "out.json", ".", cwd=folder)

    assert done.returncode == 0
    assert json.loads((folder / "out.json").read_text())["unread"] == []


def test_script_on_stdin_is_checked(folder: Path):
    done = process("-", cwd=folder, text=SICK)

    assert done.returncode == 1
    assert "<stdin>:5:1: error DDL104" in done.stdout


def test_file_that_does_not_parse_is_unsure_and_its_line_is_shown(folder: Path):
    (folder / "old.py").write_text("import torch\nprint 'hello'\n")

    done = lint("old.py", "healthy.py", cwd=folder)

    assert done.returncode == 3
    assert "old.py:2:1: not checked: does not parse" in done.stdout
    assert "No problems found in 1 file. 1 file could not be checked." in done.stdout
    assert lint("old.py", "sick.py", cwd=folder).returncode == 1


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["missing.py"], "cannot read 'missing.py'"),
        (["empty"], "found no Python file in 'empty'"),
        (["--select", "DDL999", "sick.py"], "unknown rule 'DDL999'"),
        (["--select", "DDL104", "--ignore", "DDL1", "sick.py"], "exclude every rule"),
        (["--json", "-", "--sarif", "-", "sick.py"], "only one output can go to stdout"),
        (["--sarif", "missing/x.sarif", "sick.py"], "cannot write 'missing/x.sarif'"),
    ],
)
def test_impossible_request_is_one_sentence_with_exit_code_2(folder: Path, args: list[str], sentence: str):
    (folder / "empty").mkdir()

    done = lint(*args, cwd=folder)

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("concise", "sick.py:5:1: error DDL104 Every rank uses cuda:0"),
        ("github", "::error title=DDL104 gpu-hard-coded,file=sick.py,line=5,col=1,endLine=5,endColumn=25::sick.py:5:1"),
        ("jsonl", '"path": "sick.py", "line": 5, "column": 1'),
    ],
)
def test_findings_are_printed_in_one_line_each_with_their_place(folder: Path, form: str, line: str):
    done = lint("sick.py", "-q", "--output-format", form, cwd=folder)

    assert done.returncode == 1
    assert line in done.stdout
    assert len(done.stdout.splitlines()) == (2 if form == "concise" else 1)  # the verdict is for people
    assert "Found 1 error" in (done.stdout if form == "concise" else done.stderr)


def test_rules_are_selected_and_ignored_by_the_beginning_of_their_codes(folder: Path):
    assert lint("--select", "DDL11,DDL101", "sick.py", cwd=folder).returncode == 0
    assert lint("--select", "ddl104", "sick.py", cwd=folder).returncode == 1
    assert lint("--ignore", "DDL104", "sick.py", cwd=folder).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        SICK.replace(FAULT, f"{FAULT}  # noqa: DDL104"),
        SICK.replace(FAULT, f"{FAULT}  # NOQA"),
        SICK.replace(FAULT, f"{FAULT}  # noqa: E501, DDL104 (one GPU here)"),
        SICK.replace(FAULT, "torch.cuda.set_device(\n    0  # noqa: DDL104\n)"),
        f"# ddp-doctor: noqa: DDL110,DDL104\n{SICK}",
        f"{SICK}# ddp-doctor: noqa\n",
    ],
)
def test_comment_suppresses_a_finding_and_the_report_counts_it(folder: Path, text: str):
    (folder / "sick.py").write_text(text)

    done = lint("sick.py", cwd=folder)

    assert (done.returncode, done.stdout) == (0, "No problems found in 1 file. 1 suppressed.\n")


@pytest.mark.parametrize(
    "text",
    [
        SICK.replace(FAULT, f"{FAULT}  # noqa: DDL105"),
        SICK.replace("'nccl')", "'nccl')  # noqa"),
        f"# noqa\n{SICK}",
        f"# ddp-doctor: noqa: DDL105\n{SICK}",
        SICK.replace(FAULT, f"if True:  # noqa\n    {FAULT}"),
        SICK.replace(FAULT, f"{FAULT}; note = '# noqa: DDL104'"),
        SICK.replace(FAULT, "torch.cuda.set_device(\n    0 if '# noqa' else 0\n)"),
        f'"""\n# ddp-doctor: noqa\n"""\n{SICK}',
    ],
)
def test_comment_elsewhere_or_for_another_code_suppresses_nothing(folder: Path, text: str):
    (folder / "sick.py").write_text(text)

    assert "suppressed" not in lint("--select", "DDL104", "sick.py", cwd=folder).stdout


def test_the_json_report_is_the_envelope_with_places(folder: Path):
    done = lint("--json", "-", ".", cwd=folder)
    report = LintReport.model_validate_json(done.stdout)

    assert (report.verdict.value, report.exit_code, report.world, report.files) == ("unhealthy", 1, None, 3)
    assert [(one.path, one.line, one.column, one.end_line, one.end_column) for one in report.findings] == [
        ("sick.py", 5, 1, 5, 25),
        ("warned.py", 2, 9, 2, 53),
    ]
    assert [(one.kind, one.name) for one in report.findings[0].culprits] == [("file", "sick.py:5")]
    assert "Found 1 error" in done.stderr


def test_culprit_distinguishes_two_files_of_one_name(tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "first" / "train.py").write_text(HEALTHY)
    (tmp_path / "second" / "train.py").write_text(SICK)
    done = lint("--json", "-", ".", cwd=tmp_path)
    report = LintReport.model_validate_json(done.stdout)

    assert [one.culprits[0].name for one in report.findings] == ["second/train.py:5"]


def test_line_that_may_contain_a_secret_is_withheld(folder: Path):
    (folder / "secret.py").write_text("import os, torch\nos.environ['NCCL_CONNECT_TIMEOUT'] = 'token=abcdef'\n")

    done = lint("--json", "-", "secret.py", cwd=folder)

    assert "abcdef" not in done.stdout + done.stderr
    assert "(kept back)" in done.stdout


def test_junit_has_a_case_for_each_file_and_a_failure_for_each_that_fails(folder: Path):
    (folder / "old.py").write_text("print 'hello'\n")

    lint("--junit", "junit.xml", ".", cwd=folder)
    suite = ET.parse(folder / "junit.xml").getroot()[0]

    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
    }
    assert {case.get("name"): [part.tag for part in case] for case in suite} == {
        "healthy.py": [],
        "old.py": ["error"],
        "sick.py": ["failure"],
        "warned.py": ["system-out"],
    }


def test_sarif_has_the_fields_that_its_schema_requires(folder: Path):
    (folder / "old.py").write_text("print 'hello'\n")
    (folder / "with space.py").write_text(SICK)

    lint("--sarif", "out.sarif", ".", cwd=folder)
    log = json.loads((folder / "out.sarif").read_text())
    (run,) = log["runs"]
    driver, (invocation,) = run["tool"]["driver"], run["invocations"]

    assert (log["version"], run["columnKind"]) == ("2.1.0", "unicodeCodePoints")
    assert set(log) == {"$schema", "version", "runs"}
    assert [one["id"] for one in driver["rules"]] == [rule.code for rule in RULES]
    assert all(one["defaultConfiguration"]["level"] in ("error", "warning", "note") for one in driver["rules"])
    assert all(len(one["fullDescription"]["text"]) < 1024 for one in driver["rules"])  # truncated by GitHub
    assert all("\nRemedy\n" in one["help"]["text"] for one in driver["rules"])
    for result in run["results"]:
        assert set(result) == {"ruleId", "ruleIndex", "level", "message", "locations"}
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        region = result["locations"][0]["physicalLocation"]["region"]
        assert (region["startLine"], region["startColumn"]) >= (1, 1)
        assert (region["endLine"], region["endColumn"]) > (region["startLine"], region["startColumn"])
    uris = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in run["results"]]
    assert uris == ["sick.py", "warned.py", "with%20space.py"]
    assert invocation["executionSuccessful"] is False
    assert invocation["exitCode"] == 1
    assert len(invocation["toolExecutionNotifications"]) == 1


@pytest.mark.fuzz
def test_a_hundred_scripts_take_seconds_at_most(tmp_path: Path):
    write_hundred(tmp_path)
    began = time.process_time()

    done = lint(".", cwd=tmp_path)

    assert "in 100 files" in done.stdout
    assert time.process_time() - began < 10  # about 1 s on an idle machine


def test_neither_torch_nor_the_checks_are_imported(folder: Path):
    code = (
        "import sys; sys.argv = ['ddp-doctor', 'lint', 'sick.py']\n"
        "import os; os._exit = lambda code: print([m for m in ('torch', 'ddp_doctor.checks') if m in sys.modules])\n"
        "from ddp_doctor.cli.main import entry; entry()"
    )
    done = subprocess.run((sys.executable, "-c", code), check=False, capture_output=True, text=True, cwd=folder)

    assert done.stdout.splitlines()[-1] == "[]", done.stderr


JOB = "#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun --nnodes=4 --node-rank=$SLURM_NODEID --master-addr=n0 x.py\n"


@pytest.mark.parametrize(
    ("given", "code", "places"),
    [
        (("healthy.py", "job.sbatch"), 1, ["job.sbatch:3 DD131"]),
        (("job.sbatch", "pod.yaml", "--select", "DD131"), 1, ["job.sbatch:3 DD131"]),
        (("job.sbatch", "--ignore", "DD131"), 0, []),
        (("job.sbatch", "healthy.py", "--select", "DDL"), 0, []),
        (("pod.yaml",), 0, []),
        (("other.sh",), 3, []),
        (("jobs",), 0, []),
    ],
)
def test_named_job_scripts_and_manifests_are_checked(folder: Path, given, code, places):
    (folder / "jobs").mkdir()
    (folder / "jobs" / "a.py").write_text(HEALTHY)
    for name in ("job.sbatch", "jobs/job.sbatch"):
        (folder / name).write_text(JOB)
    (folder / "other.sh").write_text("#!/bin/bash\nsrun -N 4 bash train.sh\n")
    (folder / "pod.yaml").write_text("kind: Pod\nspec: {containers: [{command: [torchrun, x.py]}]}\n")

    done = lint(*given, "--json", "report.json", cwd=folder)

    report = json.loads((folder / "report.json").read_text())
    assert [f"{each['path']}:{each['line']} {each['code']}" for each in report["findings"]] == places
    assert done.returncode == code
    assert code != 3 or "not checked: `srun -N 4 bash train.sh`" in done.stdout
