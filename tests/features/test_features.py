"""Features that cannot be imported, because a package is missing or a file has a syntax error."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddp_doctor

ROOT = Path(ddp_doctor.__file__).parent.parent


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of ddp-doctor: trace and model have syntax errors, and lint imports a package that is missing."""
    copy = tmp_path_factory.mktemp("broken")
    shutil.copytree(ROOT / "ddp_doctor", copy / "ddp_doctor")
    for path, text in (
        ("trace/facts.py", "class TraceFact(:\n"),
        ("model/user_model/facts.py", "class UserModel(:\n"),
        ("lint/report.py", "import no_such_package\n"),
    ):
        (copy / "ddp_doctor/features" / path).write_text(text)
    (copy / "a.json").write_text('{"traceEvents": []}')
    (copy / "job.out").write_text("training finished\n")
    return copy


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["trace", "traces/"], 3, "`ddp-doctor trace` cannot start (SyntaxError: "),
        (["compare", "a.json", "a.json"], 3, "`ddp-doctor trace` cannot start (SyntaxError: "),
        (["lint", "train.py"], 3, "cannot start (ModuleNotFoundError: No module named 'no_such_package'); reinstall"),
        (["fit", "net:make"], 3, "`ddp-doctor fit` cannot start (SyntaxError: "),
        (["run", "--plan", "--model", "net:make"], 3, "`ddp-doctor run --model` cannot start (SyntaxError: "),
        (["run", "--plan"], 0, "user_model"),
        (["explain"], 0, "DD610"),
        (["logs", "job.out"], 0, "No failure"),
    ],
)
def test_a_broken_feature_breaks_only_its_own_command(broken: Path, arguments: list[str], code: int, says: str):
    command = [sys.executable, "-m", "ddp_doctor", *arguments]
    done = subprocess.run(command, cwd=broken, capture_output=True, text=True, check=False)

    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    if code:
        assert (done.stdout, "Traceback" in done.stderr) == ("", False)
