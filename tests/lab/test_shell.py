"""The lab's shell, used and entered as a person would."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks, is_part
from tests.lab.hosts import ROOT, why_no_lab
from tests.lab.shell import Shell
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.lab


def test_a_host_is_entered_by_the_script_of_its_name(lab):
    shell = Shell(lab)
    assert str(shell.bin) in shell.introduce()
    done = subprocess.run(
        (shell.bin / "node1", "sh", "-c", "hostname; exit 7"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, "node1\n")


def test_fault_is_injected_and_undone(lab):
    shell = Shell(lab)
    assert shell.obey("plant environment:node1:GREETING=good day") == "planted environment:node1:GREETING=good day"
    greeting = (shell.bin / "node1", "sh", "-c", "echo $GREETING")
    assert subprocess.run(greeting, capture_output=True, text=True, check=True).stdout == "good day\n"
    assert "planted: environment:node1:GREETING=good day" in shell.obey("faults")
    assert shell.obey("undo") == "undone environment:node1:GREETING=good day"
    assert subprocess.run(greeting, capture_output=True, text=True, check=True).stdout == "\n"


def test_page_about_the_lab_shows_the_output_of_the_lab(two_hosts):
    shell = Shell(two_hosts)
    start, _, prompt = (block for block in blocks() if "tests/lab/test_shell.py" in block.said)

    assert is_part(start.typed()[0].shown.removesuffix("lab>"), shell.introduce())
    for typed, answer in re.findall(r"^lab> (.*)\n((?:(?!lab>).*\n)*)", prompt.text, re.MULTILINE):
        assert is_part(answer, shell.obey(typed)), typed


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("plant loss", "'loss' is not loss:HOST[:PERCENT]"),
        ("undo", "no such fault stands; faults lists them"),
        ("reboot", "no command 'reboot'; try help"),
        ("", ""),
    ],
)
def test_typing_mistake_gets_an_answer(lab, typed, answer):
    assert Shell(lab).obey(typed) == answer


@pytest.mark.parametrize("ended_by", ["quit", signal.SIGINT, signal.SIGTERM])
def test_the_hosts_are_down_when_the_shell_has_ended(ended_by):
    if reason := why_no_lab():
        pytest.skip(reason)
    argv = (sys.executable, "-m", "tests.lab.shell", "--nodes", "1", "--fault", "rate:node0:10")
    shell = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    with shell:
        assert shell.stdout is not None
        lines = iter(shell.stdout.readline, "")
        folder = next(Path(line.split(":")[-1].strip()) for line in lines if "export PATH" in line)
        next(line for line in lines if "planted rate:node0:10" in line)
        if isinstance(ended_by, signal.Signals):
            shell.send_signal(ended_by)
            shell.communicate(timeout=LIMIT_S)
        else:
            shell.communicate(f"{ended_by}\n", timeout=LIMIT_S)
    assert shell.returncode == (143 if ended_by is signal.SIGTERM else 0)
    assert not folder.parent.exists()
