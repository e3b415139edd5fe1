"""The outputs of all commands, one row each, and the paths for the results of one command.

A new output is a renderer and its row: the option, its help and the reference page follow from the row. Renderers are
imported when their output is written, because ``--help`` and ``lint`` must start fast.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ddp_doctor.features import FEATURES, indent_of, recorded_by
from ddp_doctor.model.choices import Detail, OutputFormat, UsageError, as_usage_error
from ddp_doctor.model.error_text import expected, quoted

if TYPE_CHECKING:
    from ddp_doctor.model.recording import Recording
    from ddp_doctor.model.report import Report


class Results(NamedTuple):
    """The results of a command that judges a machine or a recording."""

    report: "Report"
    recording: "Recording"
    host: str = ""  # this node's host, if each node has its own file of an output


#: The results of a feature that has no recordings: a function for each output that returns its text, by output name.
OwnResults = Mapping[str, Callable[[], str]]


class Output(NamedTuple):
    """A row: an option of some commands, and its renderer."""

    name: str  # of the option, or of the form in --settings
    help: str  # empty for a form
    commands: tuple[str, ...]  # of the core that offer it; features list theirs
    render: Callable[[Results], str] | None  # raises CannotWrite; None if only features write it
    mode: int | None = None  # of the file, whatever the umask
    suffix: str = ""  # required at the end of file names, because their reader ignores other files
    is_form: bool = False  # a form of --settings

    @property
    def option(self) -> str:
        """The option as users type it."""
        return f"--settings {self.name}" if self.is_form else f"--{self.name.replace('_', '-')}"


def _by(module: str, function: str = "render") -> Callable[[Results], str]:
    """Return a renderer of a report and its recording, in a module of ddp_doctor/render."""

    def render(results: Results) -> str:
        renderer = getattr(import_module(f"ddp_doctor.render.{module}"), function)
        text: str = renderer(results.report, results.recording)
        return text

    return render


_WITH_SETTINGS = ("run", "replay", "topology", "env")
#: The commands of the core that can give names other names.
_REDACTABLE = ("run", "prolog", "replay")


def _form(name: str, writer: str, *, tells_hosts_apart: bool = False) -> Output:
    """Return a form of the recommended settings, written by a function of render/pasted.py.

    If a form cannot distinguish hosts, a file of one node contains only that host's values.
    """

    def render(results: Results) -> str:
        from ddp_doctor.remedies.settings_to_apply import settings_to_apply
        from ddp_doctor.render import pasted

        settings = settings_to_apply(results.report)
        if results.host and not tells_hosts_apart:
            settings = settings.on(results.host)
        text: str = getattr(pasted, writer)(settings)
        return text

    return Output(name, "", _WITH_SETTINGS, render, is_form=True)


#: In the order of the help.
OUTPUTS = (
    Output("svg", "Write a picture of the topology as SVG.", ("topology",), _by("topology.report", "picture")),
    Output(
        "json",
        "Write the report as JSON. In PATH, %h becomes the host name and %n the node rank.",
        (*_WITH_SETTINGS, "prolog"),
        lambda results: results.report.as_json(),
    ),
    Output("markdown", "Write the report as Markdown for a ticket.", _REDACTABLE, _by("markdown")),
    Output(
        "prometheus",
        "Write metrics for node_exporter's textfile collector to a .prom file.",
        ("run", "prolog"),
        _by("prometheus"),
        mode=0o644,  # root writes it, and another user serves it
        suffix=".prom",
    ),
    Output("html", "Write the report as a self-contained HTML page.", (*_WITH_SETTINGS, "prolog"), _by("html.page")),
    Output("sarif", "Write the findings as SARIF 2.1.0.", (), None),
    Output("junit", "Write the findings as JUnit XML.", ("run", "replay"), _by("junit")),
    Output(
        "reproducer",
        "Write a script for bug reports that repeats the --collectives-of calls and needs only torch.",
        ("run", "replay"),
        _by("reproducer"),
    ),
    Output(
        "good_nodes",
        "Write the hosts that passed all tests, one per line, for mpirun or ddp-doctor run --hostfile FILE.",
        ("run",),
        _by("host_lists", "good"),
    ),
    Output(
        "bad_nodes",
        "Write the faulty hosts, one per line, for srun --exclude=./FILE.",
        ("run",),
        _by("host_lists", "bad"),
    ),
    _form("env", "env_file", tells_hosts_apart=True),
    _form("sbatch", "sbatch_lines", tells_hosts_apart=True),
    _form("docker", "docker_args"),
    _form("kubernetes", "k8s_env"),
    _form("torchrun", "torchrun_args"),
    Output(
        "record",
        "Also write the recording to this path.",
        ("run", "prolog", "replay", "topology", "env"),
        lambda results: results.recording.as_json(indent_of(results.recording.command)),
    ),
)
FORMS = tuple(output for output in OUTPUTS if output.is_form)
#: Other names that users may type for a form.
_ALSO_CALLED = {"k8s": "kubernetes", "slurm": "sbatch", "podman": "docker", "shell": "env", "bash": "env"}
#: The outputs that support replaced names.
_OF_REDACTED = ("json", "markdown", "html", "record")


@dataclass(frozen=True)
class Outputs:
    """The paths of one command's results. With ``-`` data go to stdout and messages to stderr."""

    paths: Mapping[str, str] = field(default_factory=dict)  # of the requested outputs, by name
    form: OutputFormat = OutputFormat.FULL
    detail: Detail = Detail.SCREEN
    redact: bool = False  # replace names of hosts, users and similar in all output
    is_piped: bool = False  # a launcher gives its ranks a terminal but writes their output to a file
    own: Mapping[str, str] = field(default_factory=dict)  # this node's host, for outputs with a file per node

    @property
    def quiet(self) -> bool:
        """True if the user wants little output."""
        return self.detail is Detail.VERDICT

    @property
    def words_to(self) -> TextIO:
        """The stream for people."""
        return sys.stderr if "-" in self.paths.values() or self._prints_data else sys.stdout

    @property
    def _prints_data(self) -> bool:
        return self.form in (OutputFormat.GITHUB, OutputFormat.JSONL)

    def refuse_unwritable(self) -> None:
        """Raise UsageError for outputs that could not be written, before a run costs its time."""
        from ddp_doctor.render.files import CannotWrite, require_writable

        if list(self.paths.values()).count("-") > 1:
            raise UsageError("only one output can go to stdout (-); give the other outputs a path")
        if "-" in self.paths.values() and self._prints_data:
            raise UsageError(f"--output-format {self.form.value} already writes to stdout; replace - by a path")
        for output in OUTPUTS:
            _require_suffix(output, self.paths.get(output.name))
        for path in self.paths.values():
            if "%n" not in path.rpartition("/")[0]:  # the node rank is only known during the run
                with as_usage_error(CannotWrite):
                    require_writable(path.replace("%h", socket.gethostname()))
            same = [other for other in self.paths.values() if os.path.realpath(other) == os.path.realpath(path)]
            if len(same) > 1 and (Path(path).is_file() or not Path(path).exists()):
                raise UsageError(f"two outputs would write to {quoted(path)}; give each output its own path")

    def at_node(self, host: str, node_rank: int) -> "Outputs":
        """Return the outputs with the host's name for ``%h`` in paths and the node rank for ``%n``."""
        paths = {name: path.replace("%h", host).replace("%n", str(node_rank)) for name, path in self.paths.items()}
        return replace(self, own={name: host for name in paths if paths[name] != self.paths[name]}, paths=paths)

    def require_only(self, name: str, what: str) -> None:
        """Refuse all other outputs than this one. Raises UsageError."""
        others = [output.option for output in OUTPUTS if output.name in self.paths.keys() - {name}]
        others += [f"--output-format {self.form.value}"] * (self.form is not OutputFormat.FULL)
        others += ["--redact"] * self.redact
        if others:
            raise UsageError(f"{others[0]} does not apply to {what}; omit it, or use --{name}")

    def require_redactable(self) -> None:
        """Refuse settings with replaced names, which do not exist. Raises UsageError."""
        settings = [output.option for output in OUTPUTS if output.name in self.paths.keys() - _OF_REDACTED]
        if self.redact and settings:
            raise UsageError(
                f"--redact cannot be used with {settings[0]}, which needs the real names; give one of them"
            )

    def without_files(self) -> "Outputs":
        """Return the outputs of a node that leaves the files to the head."""
        return replace(self, paths={})

    def write(self, results: Results | OwnResults) -> list[str]:
        """Write all requested files; return one sentence for each that failed."""
        from ddp_doctor.render.files import CannotWrite, write

        problems = []
        # The recording is written first: everything else follows from it.
        for output in sorted(OUTPUTS, key=lambda output: output.name != "record"):
            path = self.paths.get(output.name)
            if path is None:
                continue
            try:
                write(path, self._text(output, results), mode=_mode(output, results))
            except CannotWrite as error:
                problems.append(str(error))
        return problems

    def _text(self, output: Output, results: Results | OwnResults) -> str:
        if not isinstance(results, Results):
            return results[output.name]()
        assert output.render is not None
        return output.render(results._replace(host=self.own.get(output.name, "")))


def offered_by(command: str) -> list[Output]:
    """Return the outputs that a command offers, in the order of the help."""
    of_feature = FEATURES[command].outputs if command in FEATURES else ()
    return [output for output in OUTPUTS if command in output.commands or output.name in of_feature]


def is_redactable(command: str) -> bool:
    """Return True if a command can replace names."""
    return FEATURES[command].is_redactable if command in FEATURES else command in _REDACTABLE


def _mode(output: Output, results: Results | OwnResults) -> int | None:
    """Return the mode of a file, or None for the usual one."""
    if output.name != "record" or not isinstance(results, Results):
        return output.mode
    feature = recorded_by(results.recording.command)
    return 0o600 if feature is not None and feature.is_private else output.mode


def _require_suffix(output: Output, path: str | None) -> None:
    """Raise UsageError if the path lacks the output's suffix, unless it is not a regular file."""
    if path is None or path == "-" or path.endswith(output.suffix):
        return
    if os.path.exists(path) and not Path(path).is_file():  # noqa: PTH110 - that of Path raises OSError for long names
        return  # /dev/stdout, a pipe
    raise UsageError(
        f"invalid {output.option} {quoted(path)}: expected a name ending in {output.suffix}; node_exporter ignores"
        " other files"
    )


def paths_of_forms(given: Sequence[str]) -> dict[str, str]:
    """Return the path of each form in ``--settings env:nccl.env --settings docker:-``. Raises UsageError."""
    names = [output.name for output in FORMS]
    paths: dict[str, str] = {}
    for text in given:
        form, colon, path = text.partition(":")
        if not colon and form not in names:
            raise UsageError(f"invalid --settings {quoted(text)}: expected FORM:PATH, for example env:FILE")
        if form not in names:
            meant = expected(_ALSO_CALLED.get(form.lower(), form), names)
            raise UsageError(f"unknown --settings form {quoted(form)}: {meant}")
        if not path:
            raise UsageError(f"--settings {form} has no path; give {form}:FILE, or {form}:- for stdout")
        if form in paths:
            raise UsageError(f"--settings {form} is given twice; give only one path for it")
        paths[form] = path
    return paths
