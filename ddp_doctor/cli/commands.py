"""The code of each command except ``run`` and ``lint`` around its use case.

Code that only one command needs is imported when it is called, because a prolog starts with every job.
"""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from ddp_doctor import app
from ddp_doctor.app import UsageError, folders
from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.cli.given import given_text, require_kind
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.reporting import report, save_and_report
from ddp_doctor.model.choices import Command, ExitCode, FailOn, Verdict
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.file_kinds import JSON, SHELL
from ddp_doctor.render import screen
from ddp_doctor.render.terminal import show_kept_run
from ddp_doctor.settings.files import read_none
from ddp_doctor.sources.given import read_beside

#: An environment has two megabytes at most, a job script a few kilobytes.
_LONGEST_SCRIPT_BYTES = 8 * 1024 * 1024


def prolog(options: Options, *, unsure: str, outputs: Outputs) -> int:
    """Run ``ddp-doctor prolog``. It exits with 1 only if the node is unhealthy, so it drains no other node."""
    if unsure not in ("pass", "fail"):
        raise UsageError(f"invalid --unsure {quoted(unsure)}: expected pass or fail")
    outcome = app.prolog(dict(os.environ), options, lambda _text: None)
    code = save_and_report(outcome, outputs, os.environ)
    if outcome.report.verdict is Verdict.UNSURE and unsure == "pass" and code == ExitCode.UNSURE.value:
        return ExitCode.HEALTHY.value
    return code


def replay(path: Path | None, outputs: Outputs, *, last: bool = False, ignore: tuple[str, ...] = ()) -> int:
    """Evaluate a recording again, or without one list the kept recordings. Raises UsageError."""
    if last and path is not None:
        raise UsageError(f"--last and {quoted(path)} are mutually exclusive; give one of them")
    if path is None and not last:
        if ignore or outputs != Outputs():
            raise UsageError("no recording given; add its path, or --last for the newest kept recording")
        _list_kept_runs()
        return ExitCode.HEALTHY.value
    from ddp_doctor.app import recordings

    outcome = recordings.replay(folders.recording_at(path, os.environ), ignore)
    if outcome.recording.command is Command.ENV:
        from ddp_doctor.app.redaction import redacted

        recording = redacted(outcome.recording) if outputs.redact else outcome.recording
        return report(app.judge_settings(recording), replace(outputs, redact=False))
    return report(outcome, outputs)


def _list_kept_runs() -> None:
    """Print each kept run, evaluated by the current rules."""
    from ddp_doctor.app import recordings

    out = screen.console(sys.stdout)
    kept = folders.kept_runs(os.environ)
    if not kept:
        out.print(folders.NOTHING_KEPT)
    for path in kept:
        try:
            outcome = recordings.replay(folders.recording_at(path, os.environ))
            show_kept_run(path, outcome.report, outcome.recording.options.command, out)
        except UsageError as error:
            out.print(str(error), style="yellow")


def topology(file: str | None, outputs: Outputs, ignore: tuple[str, ...] = ()) -> int:
    """Run ``ddp-doctor topology``: the matrix, its meaning, and the advice; exit 2 for refused input."""
    from ddp_doctor.render.topology.report import with_topology

    if file is None:
        outcome = app.live_topology(dict(os.environ), lambda _text: None, ignore)
    else:
        text = given_text(file)
        require_kind(file, text, "the output of `nvidia-smi topo -m`", JSON)
        outcome = app.read_topology(text, ignore)
    with_matrices = with_topology(outcome.report, outcome.recording)
    if file is not None and not any(reading.fact for reading in outcome.recording.readings):
        error = f"Error: {with_matrices.summary.removeprefix('Unsure: ')}"
        with_matrices = with_matrices.model_copy(update={"exit_code": ExitCode.USAGE.value, "summary": error})
    return report(replace(outcome, report=with_matrices), outputs)


def env(file: str | None, outputs: Outputs, ignore: tuple[str, ...] = (), fail_on: FailOn = FailOn.ERROR) -> int:
    """Run ``ddp-doctor env``: the settings in force here or in a text, and what is wrong with them."""
    options = Options(command=Command.ENV, ignore=ignore, fail_on=fail_on)
    if file is None:
        outcome = app.live_settings(dict(os.environ), options)
    else:
        text = given_text(file, most_bytes=_LONGEST_SCRIPT_BYTES)
        require_kind(
            file, text, "the output of `env`, a job script, a Dockerfile or a Kubernetes manifest", SHELL, JSON
        )
        beside = partial(read_beside, file, most_bytes=_LONGEST_SCRIPT_BYTES)
        outcome = app.read_settings(text, options, read_none if file == "-" else beside)
    return report(outcome, outputs)


def template(name: str | None, require_gpus: int | None = None) -> str:
    """Return a template's text, or a line on each; warns if root would run a file that another user can change."""
    from ddp_doctor import templates
    from ddp_doctor.starters.start_all_nodes import single_file

    if name is None:
        width = max(map(len, templates.TEMPLATES))
        return "".join(f"{each:<{width}}  {does}\n" for each, does in templates.TEMPLATES.items())
    if require_gpus is not None and name not in templates.OF_ROOT:
        raise UsageError(
            f"--require-gpus applies only to {' and '.join(templates.OF_ROOT)}; omit it for {quoted(name)}"
        )
    try:
        text = templates.text(name, single_file=single_file(), require_gpus=require_gpus)
    except LookupError as error:
        raise UsageError(str(error.args[0])) from error
    if name in templates.OF_ROOT and (path := templates.others_may_change(single_file())):
        print_to_stderr(
            f"ddp-doctor: warning: root will run this script, but other users can change {quoted(path)}; install"
            " ddp-doctor where only root can write (such as /opt/ddp-doctor) and print the script again from there"
        )
    return text
