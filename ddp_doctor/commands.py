"""What each command does around its use case: outputs, exit codes, and the one error handler."""

import dataclasses
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp_doctor import __version__, app
from ddp_doctor.app import Outcome, UsageError
from ddp_doctor.checks import CHECKS
from ddp_doctor.checks.topology import TopologyFact
from ddp_doctor.engine.trial_rules import TRIAL_RULES
from ddp_doctor.launch import foreign
from ddp_doctor.launch.detect import ForeignWorld, foreign_world
from ddp_doctor.model.choices import ExitCode, Verdict, Where
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import TopologyReport
from ddp_doctor.render import terminal
from ddp_doctor.render.files import CannotWrite, write
from ddp_doctor.render.folders import private_folder
from ddp_doctor.render.outputs import Outputs
from ddp_doctor.render.plain import plain
from ddp_doctor.render.progress import progress
from ddp_doctor.render.topology_matrix import matrix_text, topology_json

#: Recordings kept in the state folder.
_KEPT = 20
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}", re.ASCII)
_ENDPOINT = re.compile(r"(?P<host>[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
#: Longest that a rank which is not the agent waits beyond the budget: start, kill, report.
_WAIT_MARGIN_S = 150.0


@contextmanager
def guarded() -> Iterator[None]:
    """The outermost error handler: one sentence and exit 2, or a trace kept and exit 3."""
    try:
        yield
    except UsageError as error:
        _say(f"ddp-doctor: {error}")
        raise SystemExit(ExitCode.USAGE.value) from None
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED.value) from None
    except BrokenPipeError:
        raise SystemExit(ExitCode.UNSURE.value) from None
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - the border to the user; a panic of pydantic's core is no Exception
        _say(f"ddp-doctor failed itself, so the verdict is unsure; {_kept(traceback.format_exc())}")
        raise SystemExit(ExitCode.UNSURE.value) from None


def run(options: Options, *, nnodes: int, nproc_per_node: str, endpoint: str, outputs: Outputs) -> int:
    """``ddp-doctor run``: the agent tests; other ranks of a foreign world wait for its verdict."""
    env = dict(os.environ)
    if nnodes != 1:
        raise UsageError("this version tests one node; run it on each node, without --nnodes")
    request = app.RunRequest(
        options=options,
        env=env,
        nproc_per_node=_ranks(nproc_per_node),
        endpoint=_endpoint(endpoint),
        foreign=foreign_world(env, os.getppid()),
    )
    world = request.foreign
    if world is None or world.local_size == 1:
        return _run_and_report(request, outputs)
    if not world.is_agent:
        return _wait_for(world, env, options.budget_s)
    folder = _meeting_folder(env)
    lock = foreign.AgentLock(world, folder) if folder else None
    code = ExitCode.UNSURE.value
    try:
        code = _run_and_report(request, outputs)
    except UsageError:
        code = ExitCode.USAGE.value
        raise
    finally:
        if lock is not None:
            lock.tell(code)
    return code


def _run_and_report(request: app.RunRequest, outputs: Outputs) -> int:
    out = terminal.console(outputs.words_to)
    with progress(out, quiet=outputs.quiet) as tell:
        outcome = app.run(request, tell)
    return _finish(outcome, outputs, request.env)


def prolog(options: Options, *, unsure: str, outputs: Outputs) -> int:
    """``ddp-doctor prolog``: exits 1 only when sick, so that no healthy node is drained."""
    if unsure not in ("pass", "fail"):
        raise UsageError(f"--unsure takes pass or fail, not {unsure!r}")
    outcome = app.prolog(dict(os.environ), options, lambda _text: None)
    code = _finish(outcome, outputs, os.environ)
    if outcome.report.verdict is Verdict.UNSURE and unsure == "pass" and code == ExitCode.UNSURE.value:
        return ExitCode.HEALTHY.value
    return code


def replay(path: Path, outputs: Outputs) -> int:
    """``ddp-doctor replay``: the same findings from the file alone."""
    outcome = app.replay(path)
    return _show_and_write(outcome, outputs, saved_as=None)


def topology(file: str | None, outputs: Outputs) -> int:
    """``ddp-doctor topology``: the matrix, what it means, and the advice; exit 2 for what is refused."""
    if file is None:
        outcome = app.live_topology(dict(os.environ), lambda _text: None)
    else:
        outcome = app.read_topology(_pasted(file))
    matrices = [seen.fact for seen in outcome.recording.facts(TopologyFact)]
    report = TopologyReport(**dict(outcome.report), **topology_json(matrices))
    out = terminal.console(outputs.words_to)
    for matrix in matrices:
        out.print(matrix_text(matrix), soft_wrap=True)
    refused = file is not None and not matrices
    if refused:
        report = report.model_copy(update={"exit_code": ExitCode.USAGE.value})
    return _show_and_write(dataclasses.replace(outcome, report=report), outputs, saved_as=None)


def _pasted(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    return data.decode("utf-8", errors="replace")


def list_checks() -> str:
    """The checks in order, each with its rules."""
    lines = []
    for check in CHECKS:
        where = {Where.NODE: "node", Where.LAUNCHER: "torchrun ranks", Where.RANK: "ranks"}[check.where]
        lines.append(f"{check.id:<14} {check.title} ({where}, from level {check.level.value})")
        lines += [f"    {rule.code} {rule.name} ({rule.severity.value})" for rule in check.rules]
    lines.append("any rank check  What happens to ranks while they run any of these")
    lines += [f"    {rule.code} {rule.name} ({rule.severity.value})" for rule in TRIAL_RULES]
    return "\n".join(lines) + "\n"


def explain(code: str) -> str:
    """One rule's page."""
    rule = app.find_rule(code)
    return f"{rule.code} {rule.name} ({rule.severity.value})\n\n{rule.doc}\n"


def template(name: str | None) -> str:
    """A template's text, or the names of all."""
    from ddp_doctor import templates

    if name is None:
        return "\n".join(templates.names()) + "\n"
    if name not in templates.names():
        raise UsageError(f"there is no template {name!r}; there is {', '.join(templates.names())}")
    return templates.text(name)


# --- parts ----------------------------------------------------------------------------------------


def _ranks(text: str) -> int | None:
    if text in ("auto", "gpu"):
        return None
    if text.isdigit() and 1 <= int(text) <= 1024:
        return int(text)
    raise UsageError(f"--nproc-per-node takes auto or a number from 1 to 1024, not {text!r}")


def _endpoint(text: str) -> tuple[str, int]:
    if not text:
        return "127.0.0.1", 0
    found = _ENDPOINT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise UsageError(f"--rdzv-endpoint takes HOST:PORT with a port up to 65535, not {text!r}")
    host = found["host"].strip("[]")
    return ("127.0.0.1" if host == "localhost" else host), int(found["port"])


def _wait_for(world: ForeignWorld, env: Mapping[str, str], budget_s: float) -> int:
    folder = _meeting_folder(env)
    if folder is None:
        _say(f"ddp-doctor: local rank {world.local_rank} has no folder of its own to meet the agent in")
        return ExitCode.UNSURE.value
    code = foreign.wait_for_agent(world, folder, budget_s + _WAIT_MARGIN_S)
    if code is None:
        _say(f"ddp-doctor: local rank {world.local_rank} waited for the agent of this node, which is gone")
        return ExitCode.UNSURE.value
    return code


def _meeting_folder(env: Mapping[str, str]) -> Path | None:
    """Equal on all ranks of this node; None where none is ours alone: a planted code would be believed."""
    for base in (env.get("XDG_RUNTIME_DIR"), _temporary()):
        folder = private_folder(Path(base) / f"ddp-doctor-{os.getuid()}") if base else None
        if folder is not None:
            return folder
    return None


def _temporary() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def _finish(outcome: Outcome, outputs: Outputs, env: Mapping[str, str]) -> int:
    """Save the recording before anything else can fail, then report."""
    return _show_and_write(outcome, outputs, saved_as=_save(outcome.recording, env))


def _show_and_write(outcome: Outcome, outputs: Outputs, saved_as: str | None) -> int:
    problems = outputs.write(outcome.recording, outcome.report)
    terminal.show(outcome.report, terminal.console(outputs.words_to), saved_as)
    for code, trace in outcome.rule_failures:
        _say(f"ddp-doctor: rule {code} failed itself; {_kept(trace)}")
    for problem in problems:
        _say(
            f"ddp-doctor: {problem}; the recording is in {saved_as}" if saved_as else f"ddp-doctor: {problem}"
        )
    return ExitCode.USAGE.value if problems else outcome.report.exit_code


def _save(recording: Recording, env: Mapping[str, str]) -> str | None:
    for folder in _save_folders(env):
        path = folder / recording.run_id / "recording.json"
        try:
            path.parent.mkdir(mode=0o700)
            write(str(path), recording.model_dump_json(indent=1) + "\n")
        except (OSError, CannotWrite):
            continue
        _forget_old(folder)
        return str(path)
    _say("ddp-doctor: the recording could not be saved; use --record PATH")
    return None


def _save_folders(env: Mapping[str, str]) -> Iterator[Path]:
    """Folders that are ours alone, the best first; the last one has a name nobody can foresee."""
    temporary = _temporary()
    for base in (app.state_folder(env), temporary and Path(temporary) / f"ddp-doctor-{os.getuid()}"):
        if base and private_folder(base) and private_folder(base / "runs"):
            yield base / "runs"
    with suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix="ddp-doctor-"))


def _forget_old(folder: Path) -> None:
    """Keep the newest runs of a folder that is ours alone; a run's name begins with its time."""
    with suppress(OSError):
        runs = sorted(
            entry
            for entry in folder.iterdir()
            if _RUN_ID.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
        )
        for old in runs[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _kept(trace: str) -> str:
    """Where the trace is: in a file, or, where there is no room for one, in the text itself."""
    text = f"ddp-doctor {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{trace}"
    try:
        handle, path = tempfile.mkstemp(prefix="ddp-doctor-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        return f"no file could be written, the trace follows\n{text}"
    return f"the trace is in {path}"


def _say(sentence: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or None
        sys.stderr.write(plain(sentence) + "\n")
