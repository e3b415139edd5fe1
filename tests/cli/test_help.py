"""``--help``, the manual page and completion: whole words at any width, examples, exit codes."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ddp_doctor.cli import complete
from ddp_doctor.cli.help import COMMON, has_short_help, summary
from ddp_doctor.cli.main import app
from ddp_doctor.model.choices import UsageError

GROUP: Any = typer.main.get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}


MOST_LINES = 40


def said(*args: str, width: int) -> str:
    return CliRunner().invoke(app, args, terminal_width=width - 2, prog_name="ddp-doctor").output


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_truncates_no_word_or_summary_at_any_width(width):
    whole = " ".join(said("--help", width=width).split())
    assert all(f"{name} {summary(command)}" in whole for name, command in COMMANDS.items())

    for name, command in COMMANDS.items():
        text = said(name, "--help-all" if has_short_help(name) else "-h", width=width)
        before, _, examples = text.partition("Examples:\n  ")
        assert max(map(len, before.splitlines())) <= width
        words = " ".join(re.sub(r"(?<=\w)-\n +", "-", before).split())  # lines may end at a hyphen
        for parameter in command.params:
            assert " ".join((parameter.help or "").split()) in words
            assert parameter.param_type_name == "argument" or {*parameter.opts} <= {*re.split("[ ,]+", words)}
        assert re.search(
            r"Exit codes: (0 (healthy|done|no failure|making progress|fits|no certain bottleneck above 10%)"
            r"|the exit code or signal of CMD)",
            " ".join(examples.split()),
        )


def test_help_all_of_run_groups_options_by_task():
    text = said("run", "--help-all", width=80)
    order = ["\nNodes and ranks:", "--nnodes", "\nChecks:", "--only", "\nYour model and data:", "--model"]
    order += ["\nVerdict:", "--ignore", "\nOutput:", "--output-format", "\nExamples:"]

    places = [text.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_help_of_a_command_fits_a_screen(name, command):
    text = said(name, "--help", width=80)

    assert len(text.splitlines()) <= MOST_LINES
    assert len(summary(command)) < 85
    assert ("--help-all" in text) == has_short_help(name)
    wanted = {option for parameter in command.params for option in parameter.opts}
    assert {*COMMON.get(name, ())} <= wanted


@pytest.mark.parametrize("lines", [command.epilog for command in COMMANDS.values()])
def test_the_examples_of_a_command_are_understood(lines: str):
    for example in (line for line in lines.splitlines() if line.startswith("  ")):
        name, *rest = example.rpartition("ddp-doctor ")[2].partition(" -- ")[0].split()
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known


def test_the_version_has_a_short_option():
    assert said("-V", width=80) == said("--version", width=80) != ""


@pytest.mark.parametrize(
    ("shell", "env", "sentence"),
    [
        ("tcsh", {}, "no completion for shell 'tcsh': expected bash, zsh or fish"),
        ("", {"SHELL": "/bin/ksh"}, "no completion for shell 'ksh'"),
        ("", {"SHELL": ""}, "no completion for shell ''"),
    ],
)
def test_unknown_shell_is_one_sentence(monkeypatch, shell, env, sentence):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=sentence):
        complete.script(shell or None)


def test_a_shell_that_asks_and_is_not_known_is_one_sentence_and_exit_2(asked):
    done = asked("run", env={"_DDP_DOCTOR_COMPLETE": "complete_tcsh"})

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ddp-doctor: no completion for shell 'tcsh': expected bash, zsh or fish\n"


def test_bash_completes_options_checks_and_settings(tmp_path):
    program = tmp_path / "ddp-doctor"
    start = f"""#!/bin/sh\n'''exec' "{sys.executable}" "$0" "$@"\n' '''\n"""
    program.write_text(f"{start}from ddp_doctor.__main__ import main\nmain()\n")
    program.chmod(0o755)
    typed = "COMP_WORDS=(ddp-doctor run --output-format c); COMP_CWORD=3"
    script = f'{complete.script("bash")}\n{typed}; _ddp_doctor_completion ddp-doctor; echo "${{COMPREPLY[@]}}"'
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    done = subprocess.run(("bash", "-c", script), env=env, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("concise\n", "")
    assert complete.names_of_checks("p2p,all") == ["p2p,allreduce"]
    assert complete.words_to_explain("nccl_ib_dis") == ["NCCL_IB_DISABLE"]
    assert complete.words_to_explain("roll") == ["roll_call"]
    assert complete.codes("DD305,DDL104") == ["DD305,DDL104"]
    assert complete.names_of_templates("slurm-p") == ["slurm-prolog"]
