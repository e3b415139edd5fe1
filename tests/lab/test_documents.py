"""The documents' commands, typed in the order of each document by a person who starts with an empty home."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, UNDERSTOOD, blocks, is_part
from tests.recordings import path_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

TOPOLOGY = ROOT / "tests/samples/topology/classic-two-socket.txt"
#: Commands that users have but this machine may lack. The environment of the tests is the one created by make. Commands
#: that test the entire project are only looked up.
TOOLS = {
    "ddp-doctor": f'[ "$1" != run ] || set -- "$@" $BRIEFLY\nexec {sys.executable} -m ddp_doctor "$@"',
    "python": f'exec {sys.executable} "$@"',
    "make": f'case $1 in run|help) ;; *) set -- -n "$@" ;; esac\n'
    f"cd {ROOT} && venv={sys.prefix} && "
    f'exec {shutil.which("make")} VENV=$venv ARGS="$BRIEFLY" -o $venv/.installed -o $venv/.installed-dev "$@"',
    "nvidia-smi": f"[ \"$*\" != 'topo -m' ] || cat {TOPOLOGY}",
    "ssh": 'shift; exec sh -c "$*"',
    # A shell that reads the home's start-up file and sees the home's etc in /etc.
    "in-a-shell": "exec unshare --mount sh -c 'mount -t overlay overlay -o lowerdir=$HOME/etc:/etc /etc"
    ' && exec bash -c ". ~/.bashrc; $0; :"\' "$*"',
}
#: A script with the fault that the page on lint shows, on the line that it shows.
TRAIN = """import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
{}

def main():
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
"""
NET = """
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 8))

"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a working directory with the files that the documents mention."""
    for folder in ("bin", "train", "etc"):
        (tmp_path / folder).mkdir()
    for name, script in TOOLS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "train.py").write_text(TRAIN.format("\n" * 22))
    (tmp_path / "train/models.py").write_text(NET + _model_of_the_page())
    shutil.copy(TOPOLOGY, tmp_path / "topo.txt")
    shutil.copy(path_of("gpus/one-lost"), tmp_path / "recording.json")
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nexport NCCL_DEBUG=INFO\nsrun python train.py\n"
    )
    (tmp_path / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n\nNCCL_P2P_DISABLE=true\n")
    (tmp_path / ".bashrc").write_text("\n" * 11 + "export NCCL_DEBUG=INFO\n")
    return tmp_path


def _model_of_the_page() -> str:
    page = "docs/how-to/test-your-own-model.md"
    return next(block.text for block in blocks() if (block.document, block.language) == (page, "python"))


def typed(command: str, home: Path, *, is_shown: bool = True) -> "subprocess.CompletedProcess[str]":
    """Return the output of a shell, including stderr. In the command, 4711 stands for a living process.

    If the document does not show the output of a run, the run has the lowest level or few repeats.
    """
    briefly = "" if is_shown else "--repeat 5" if "--repeat" in command else "--level quick"
    kept = {name: value for name, value in os.environ.items() if not re.match("XDG_|NCCL_|GLOO_", name)}
    return subprocess.run(
        ("bash", "-o", "pipefail", "-c", command.replace("4711", str(os.getpid()))),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        cwd=home,
        env={
            **kept,
            "HOME": str(home),
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "BRIEFLY": briefly,
        },
    )


RUN = [block for block in blocks() if block.language in ("console", "text") and block.note != "not run"]
WITHOUT_A_GPU = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="the documents show a machine without GPUs")


def from_checkout(command: str) -> str:
    """Return the command with paths to tests/ that are valid from any directory."""
    return command.replace(" tests/", f" {ROOT}/tests/")


@WITHOUT_A_GPU
@pytest.mark.ranks
@pytest.mark.parametrize(
    "document", sorted({block.document for block in RUN if not re.search("(replay|logs) tests", block.said)})
)
def test_documented_command_works_and_prints_the_documented_output(home: Path, document: str):
    printed = ""
    of_document = [block for block in RUN if block.document == document]
    for block, following in zip(of_document, [*of_document[1:], None], strict=True):
        if block.note == "shows":
            # The README's run. The tutorial shows the same output of a run at the standard level.
            printed = typed(from_checkout(block.said), home, is_shown=False).stdout
        if block.language == "text":
            assert is_part(block.text, printed), f"{block}\n{printed}"
            continue
        is_text_next = following is not None and (following.language, following.note) == ("text", "")
        for line in block.typed():
            done = typed(from_checkout(line.command), home, is_shown=bool(line.shown) or is_text_next)
            printed = done.stdout
            assert done.returncode in UNDERSTOOD, f"{block}: {line.command}\n{printed}"
            assert "Traceback" not in printed
            assert is_part(line.shown, printed), f"{block}: {line.command}\n{printed}"
