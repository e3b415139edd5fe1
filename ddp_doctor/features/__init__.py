"""Features: products with their own commands or options of ``run``, one package each, from the facts to the commands.

The core does not import features. It loads a feature by its name if its command runs, its option is given, or a
recording contains its facts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ddp_doctor.model.choices import Command, Level

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ddp_doctor.facts.cluster import TracedSide
    from ddp_doctor.model.check import Check
    from ddp_doctor.model.choices import Verdict
    from ddp_doctor.model.context import RankContext
    from ddp_doctor.model.fact import Fact
    from ddp_doctor.model.finding import Finding
    from ddp_doctor.model.job_collectives import JobCollectives
    from ddp_doctor.model.known_error import KnownError
    from ddp_doctor.model.recording import Recording
    from ddp_doctor.model.report import Report
    from ddp_doctor.model.rule import Described
    from ddp_doctor.model.work import Work


#: The groups of commands in ``ddp-doctor --help``.
Heading: TypeAlias = Literal["Before a job", "While a job runs", "After a job", "Clusters", "Reference"]


class Row(NamedTuple):
    """The data of a command that its help and its options need before its feature is loaded."""

    heading: Heading  # of the commands in the help
    summary: str  # of its command in the help
    outputs: Collection[str]  # outputs that it offers, by their names in cli/outputs.py; none: it has no report
    common: Collection[str] = ()  # options in --help, if the full help does not fit on a screen
    is_redactable: bool = False
    kinds: Collection[str] = ()  # kinds of facts that only this feature records
    signs: Collection[bytes] = ()  # texts at the start of files that ``compare`` leaves to this feature
    package: str = ""  # if its name differs from the command's name


#: By command.
FEATURES = {
    "logs": Row(
        "After a job",
        "Find out why a job failed, from its output and dumps.",
        ("json", "markdown", "prometheus", "html", "record"),
        common=("--job",),
        is_redactable=True,
        kinds=("job-log/1",),
        package="jobs.logs",
    ),
    "attach": Row(
        "While a job runs",
        "Show whether running jobs make progress, and which rank holds them up. Read-only.",
        ("json", "markdown", "html", "record"),
        common=("--pid", "--slurm-job", "--hosts", "--seconds"),
        is_redactable=True,
        kinds=("live-job/1", "live-rank/1"),
        package="jobs.attach",
    ),
    "watch": Row(
        "While a job runs", "Run a job and report why it hangs, slows down or fails.", (), package="jobs.watch"
    ),
    "compare": Row(
        "Clusters",
        "Compare two runs or traces: what is slower and what differs.",
        ("json", "html"),
        package="fleet.compare",
    ),
    "fleet": Row(
        "Clusters",
        "Compare many runs and list unhealthy, differing and slow nodes.",
        ("json", "prometheus", "html", "good_nodes", "bad_nodes"),
    ),
    "lint": Row(
        "Before a job",
        "Check training scripts and job scripts for mistakes without running them.",
        ("json", "html", "sarif", "junit"),
    ),
    "trace": Row(
        "After a job",
        "Show where step time goes and why, from profiler traces.",
        ("json", "markdown", "html", "record"),
        common=("--window", "--against", "--fail-on"),
        is_redactable=True,
        kinds=("trace/1",),
        signs=(b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"ph"'),
    ),
    "fit": Row(
        "Before a job",
        "Estimate if a model fits GPU memory under DDP, ZeRO or FSDP.",
        ("json", "markdown", "html", "record"),
        common=("--memory", "--ranks", "--precision", "--strategy", "--batch", "--seq", "--measure"),
        is_redactable=True,
        kinds=("fit/1", "fit_measured/1"),
        package="model.fit",
    ),
}


class Added(NamedTuple):
    """A check that a feature adds to ``run`` if its option is given; other runs only list it with this data."""

    feature: str
    kind: str  # of its fact
    title: str
    level: Level


#: By the id of the check.
ADDED = {
    "user_model": Added("model", "user_model/1", "Your own model, in DDP or fully_shard", Level.QUICK),
    "compile": Added("model", "compiled/1", "What torch.compile makes of your own model", Level.STANDARD),
}


class CannotLoad(Exception):
    """A feature cannot be imported; the message is a sentence for the user."""


def _none(*_given: Any) -> Any:
    """Raise TypeError. The default of hooks that a feature does not provide."""
    raise TypeError("the feature does not offer this")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A loaded feature: the hooks that the core calls."""

    report: "type[BaseModel]"  #: The class of its report.
    #: Its other documents by their name in ``schema``: the class, and the command that writes them.
    documents: "Mapping[str, tuple[type[BaseModel], str]]" = field(default_factory=dict)
    about_rules: str = ""  #: The line above its rules in ``ddp-doctor explain``.
    rules: "Callable[[], Sequence[Described]]" = lambda: ()  #: Return the rules that do not belong to a check.
    errors: "Callable[[], Sequence[KnownError]]" = lambda: ()  #: Return the texts of errors that it knows.
    #: Yield its tables (render/layout.py) from report, recording and ``each`` (all rows). None: it has no tables.
    tables: "Callable[..., Iterator[Any]] | None" = None
    #: Yield the lines of each part on the screen from report, recording, width and ``each``, instead of tables.
    story: "Callable[..., Iterator[Iterable[str]]] | None" = None
    #: Return its template for the HTML page, in its directory templates/, and the values for only this template.
    page: "Callable[[Any], tuple[str, dict[str, object]]] | None" = None
    #: Return the sentence of a healthy verdict, and sentences to add to it or to a degraded one.
    healthy: "Callable[[Recording, Sequence[Finding]], tuple[str, Sequence[str]]] | None" = None
    label: str = ""  #: The first word of the verdict, instead of "Degraded" and "Unhealthy".
    #: Return why the verdict is unsure, with sentences to add. None: the findings decide the verdict.
    unclear: "Callable[[Sequence[Finding]], tuple[str, Sequence[str]] | None]" = lambda _findings: None
    is_of_runs: bool = False  #: Its report is on many runs, and its tables list their findings.
    #: Read a baseline and return the function that adds the comparison with it to a recording. Raises UsageError.
    comparison: "Callable[[str], Callable[[Recording, Report], Recording]]" = _none


@dataclass(frozen=True, kw_only=True)
class Recorded(Feature):
    """A feature whose recordings the core evaluates."""

    report: "type[Report]"
    checks: "tuple[Check, ...]" = ()  #: The checks of its recordings. They are not part of a run.
    #: Checks of the core that run before its checks and whose rules are not applied: modules in checks/, ``node.gpus``.
    reads: Collection[str] = ()
    in_parts: Collection[str] = ()  #: Ids of its checks that have a result as soon as one part is finished.
    facts: "tuple[type[Fact], ...]" = ()  #: Its facts that do not belong to a check.
    has_all_reduces: bool = False  #: Its recordings may have all-reduces that another program measured.
    #: Return the diagnosis of a recording (engine/diagnose.py). None: the rules of its checks are applied.
    diagnose: "Callable[[Recording], Any] | None" = None
    #: Return the report with the feature's own part; the last argument is the diagnosis.
    complete: "Callable[[Report, Recording, Any], Report]"
    #: Return the verdict in one sentence from recording, verdict and diagnosis. None: from scope, healthy and label.
    summary: "Callable[[Recording, Verdict, Any], str] | None" = None
    #: Return the scope of the verdict: ``2 ranks, 4 steps of 31 ms``. None: the ranks, as for ``run``.
    scope: "Callable[[Recording], str] | None" = None
    #: Yield the requested options without a result, each with the id of the check that would give it.
    unmet: "Callable[[Recording], Iterable[tuple[str, str]]]" = lambda _recording: ()
    #: Return why the verdict is unsure according to its facts, or an empty text.
    unknown: "Callable[[Recording], str]" = lambda _recording: ""
    has_plain_errors: bool = False  #: The title of an error is the verdict, without a label.
    tables: Callable[..., Iterator[Any]]
    lists_checks: bool = False  #: Its checks are listed in Markdown and HTML.
    in_markdown: str = ""  #: The title of its story in Markdown; without a title, Markdown has only its tables.
    #: Yield the bars of the HTML page, for its template, from a report and its recording.
    bars: "Callable[[Any, Recording], Iterator[dict[str, object]]]" = lambda _report, _recording: iter(())
    files: Collection[str] = ()  #: Fields of readings and facts with names of files, which --redact replaces.
    indent: int | None = 1  #: The indentation of its recordings.
    is_private: bool = False  #: Only the user who writes its recordings may read them.
    #: Read one side of ``compare`` and report the progress in bytes. Raises UsageError.
    side: "Callable[[str, Callable[[int, int], None] | None], TracedSide]" = _none
    #: Return the collectives in recordings, for ``run --collectives-of PATH``. Raises UsageError.
    collectives: "Callable[[str, Sequence[Recording]], JobCollectives] | None" = None
    #: Yield which rank waits for which, by the dumps in a recording: ``culprits``, ``detail`` and ``confidence``.
    waits: "Callable[[Recording], Iterable[Any]]" = _none
    #: Return the finding on the cause that an output names, and its line, by name and text of the output, and check.
    named_cause: "Callable[[str, str, str], tuple[Finding, Sequence[str]] | None]" = _none


class CodeRaised(NamedTuple):
    """An exception of the user's code on a rank."""

    rank: int
    check: str
    message: str
    doing: str  # the call that raised it: ``forward of net:make``
    where: str  # the line of code


@dataclass(frozen=True, kw_only=True)
class RunFeature:
    """A loaded feature that adds checks to ``run``."""

    checks: "tuple[Check, ...]"
    words: "Callable[[Recording], str]"  #: Return a phrase on what it tested, for a healthy verdict.
    #: Return why its option was tested only in part; an empty text if completely; None without a result.
    unmet: "Callable[[Recording], str | None]"
    raised: "Callable[[Recording], Iterable[CodeRaised]]"  #: Yield exceptions of the user's code.
    work: "Callable[[RankContext], Work]"  #: Return work for checks that time steps. Raises Skip and Failed.


def run_feature(name: str) -> RunFeature:
    """Import a feature in ADDED. Raises CannotLoad."""
    feature: RunFeature = load_module(name, ".in_run").FEATURE
    return feature


def has_model(recording: "Recording") -> bool:
    """Return True if a recording of ``run`` has the user's own model, by its options, its facts or its trials."""
    has_facts = any(recording.of_kind(row.kind) for row in ADDED.values())
    return bool(recording.options.model) or has_facts or any(ADDED.keys() & trial.checks for trial in recording.trials)


def is_loadable(name: str) -> bool:
    """Return True if a feature in ADDED can be imported."""
    with suppress(CannotLoad):
        return bool(run_feature(name))
    return False


def run_features(recording: "Recording") -> list[RunFeature]:
    """Return the features that have added facts to a recording of ``run``. Raises CannotLoad."""
    return [run_feature(name) for name in {row.feature: None for row in ADDED.values() if recording.of_kind(row.kind)}]


def feature_of(command: Command) -> Feature | None:
    """Return the feature of a command, or None for a command of the core. Raises CannotLoad."""
    return load(command.value) if command.value in FEATURES else None


def recorded_by(command: Command) -> Recorded | None:
    """Return the feature of a command if the core evaluates its recordings. Raises CannotLoad."""
    return recorded(command.value) if command.value in FEATURES and FEATURES[command.value].kinds else None


def indent_of(command: Command) -> int | None:
    """Return the indentation of the recordings of a command. Raises CannotLoad."""
    feature = recorded_by(command)
    return 1 if feature is None else feature.indent


def features_in(recording: "Recording | None") -> list[Recorded]:
    """Return the features that have facts in a recording, or all features that record facts if it is None.

    Raises CannotLoad if the recording needs a feature that is broken.
    """
    if recording is None:
        return [feature for feature in loadable().values() if isinstance(feature, Recorded)]
    return [recorded(name) for name, row in FEATURES.items() if any(map(recording.of_kind, row.kinds))]


def recorded(name: str) -> Recorded:
    """Import a feature that records facts. Raises CannotLoad."""
    feature = load(name)
    assert isinstance(feature, Recorded)
    return feature


def loadable() -> dict[str, Feature]:
    """Import all features that have reports, except broken ones, by command."""
    found = {}
    for name in (name for name, row in FEATURES.items() if row.outputs):
        with suppress(CannotLoad):
            found[name] = load(name)
    return found


def load(name: str) -> Feature:
    """Import the feature of a command in FEATURES. Raises CannotLoad."""
    feature: Feature = load_module(name).FEATURE
    return feature


def load_module(name: str, part: str = "") -> Any:
    """Import the package of a command or a module of it, for example ``.cli``. Raises CannotLoad."""
    try:
        package = FEATURES[name].package if name in FEATURES else ""
        return import_module(f"{__name__}.{package or name}{part}")
    except Exception as error:
        where = f", line {error.lineno} of {error.filename}" if isinstance(error, SyntaxError) else ""
        reason = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}{where}"
        what = name if name in FEATURES else f"run --{name}"
        raise CannotLoad(f"`ddp-doctor {what}` cannot start ({reason}); reinstall ddp-doctor") from error


def later(name: str, part: str, function: str) -> Callable[..., Any]:
    """Return a function of a module of the package of a command, imported when it is called. Raises CannotLoad then."""
    return lambda *given, **named: vars(load_module(name, part))[function](*given, **named)  # noqa: PLW0108 - imports late
