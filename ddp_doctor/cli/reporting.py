"""Save, write and show an outcome, and return its exit code."""

import socket
from collections.abc import Mapping

from ddp_doctor import app
from ddp_doctor.app import Outcome, folders
from ddp_doctor.cli.error_handler import keep_trace, print_to_stderr
from ddp_doctor.cli.outputs import Outputs, Results
from ddp_doctor.model.choices import ExitCode, OutputFormat
from ddp_doctor.model.recording import Recording
from ddp_doctor.render import finding_lines, screen, terminal
from ddp_doctor.starters.place import Place


def save_and_report(outcome: Outcome, outputs: Outputs, env: Mapping[str, str], here: Place | None = None) -> int:
    """Save the recording first, unless the request is wrong, then report; return the exit code."""
    host = socket.gethostname()
    follows = outcome.spoken_by is not None or (here is not None and here.is_head is False)
    is_misused = outcome.report.exit_code == ExitCode.USAGE.value
    saved_as = None if is_misused else save(outcome.recording, env, host if follows else None)
    if follows and here is not None and here.is_started_by_us:
        outputs = outputs.without_files()  # the head writes them: one command started all
        if outcome.spoken_by is not None:
            return outcome.report.exit_code
    return report(outcome, outputs.at_node(host, _node_rank(outcome, here, host)), saved_as)


def _node_rank(outcome: Outcome, here: Place | None, host: str) -> int:
    """Return this node's rank, from the launcher, or from the run if nodes are numbered as they arrive."""
    if here is not None and here.node_rank is not None:
        return here.node_rank
    nodes = outcome.recording.world.nodes if outcome.recording.world else ()
    return next((node.node_rank for node in nodes if node.hostname == host), 0)


def report(outcome: Outcome, outputs: Outputs, saved_as: str | None = None) -> int:
    """Write the outputs, show the report, and return the exit code."""
    if outputs.redact and outcome.spoken_by is None:
        from ddp_doctor.app.redaction import redacted

        outcome = app.judge(redacted(outcome.recording))
    elif outputs.redact:
        outputs = outputs.without_files()  # the head's report cannot be redacted without its recording
    problems = outputs.write(Results(outcome.report, outcome.recording))
    out = screen.console(outputs.words_to, is_piped=outputs.is_piped)
    if outputs.form is not OutputFormat.FULL:
        if outcome.spoken_by is None:
            finding_lines.show(outcome.report, outputs.form, out)
    elif outcome.spoken_by is None:
        note = folders.kept_note(saved_as) if saved_as else ""
        terminal.show(outcome.report, outcome.recording, out, saved_as, outputs.detail, note)
    else:
        terminal.show_short(outcome.report, out, outcome.spoken_by, saved_as)
    for code, trace in outcome.rule_failures:
        print_to_stderr(f"ddp-doctor: internal error in rule {code}; {keep_trace(trace)}")
    for problem in problems:
        print_to_stderr(
            f"ddp-doctor: {problem}; the recording is in {saved_as}" if saved_as else f"ddp-doctor: {problem}"
        )
    return ExitCode.USAGE.value if problems else outcome.report.exit_code


def save(recording: Recording, env: Mapping[str, str], copy_of: str | None = None) -> str | None:
    """Keep the recording in the user's state directory. Return its path, or None if it is not kept."""
    saved_as = folders.keep_recording(recording, env, copy_of)
    if saved_as is None and folders.keeps_recordings(env):
        print_to_stderr("ddp-doctor: cannot save the recording; write it elsewhere with --record PATH")
    return saved_as
