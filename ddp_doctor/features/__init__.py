"""Features: products with their own command, one package each, from the facts to the command.

The core loads a feature by name if its command runs or a recording has its facts. It imports none.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ddp_doctor.model.choices import Command

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ddp_doctor.facts.cluster import TracedSide
    from ddp_doctor.model.check import Check
    from ddp_doctor.model.finding import Finding
    from ddp_doctor.model.job_collectives import JobCollectives
    from ddp_doctor.model.recording import Recording
    from ddp_doctor.model.report import Report
    from ddp_doctor.model.rule import Described


class Row(NamedTuple):
    """The data of a feature that the help and the options of its command need before it is loaded."""

    heading: str  # of the commands in the help
    summary: str  # of its command in the help
    outputs: Collection[str]  # that its command offers, by their names in cli/outputs.py
    common: Collection[str] = ()  # options in --help, if the full help does not fit on a screen
    is_redactable: bool = False
    kinds: Collection[str] = ()  # of facts that only this feature records
    signs: Collection[bytes] = ()  # in the heads of files that ``compare`` leaves to this feature


#: By the name of the package, which is also the command.
FEATURES = {
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
}


class CannotLoad(Exception):
    """A feature cannot be imported, and the message is the sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A loaded feature, as the core uses it."""

    report: "type[BaseModel]"  #: The class of its report.
    about_rules: str = ""  #: Stands above its rules in ``ddp-doctor explain``.
    rules: "Sequence[Described]" = ()  #: The rules that no check has.
    #: Yield the tables of a report (render/layout.py); ``each``: with all rows. None: the feature shows its own report.
    tables: "Callable[..., Iterator[Any]] | None" = None
    #: Return its template for the HTML page, in its folder templates/, and the values that only this template takes.
    page: "Callable[[Any], tuple[str, dict[str, object]]] | None" = None
    is_of_runs: bool = False  #: Its report is on many runs, and its tables list their findings.


@dataclass(frozen=True, kw_only=True)
class Recorded(Feature):
    """A feature whose recordings the core evaluates. Its reports list no checks; its recordings are not indented."""

    report: "type[Report]"
    checks: "tuple[Check, ...]"  #: Evaluate its recordings. They are in no run.
    complete: "Callable[[Report, Recording], Report]"  #: Return the report with the feature's own part.
    scope: "Callable[[Recording], str]"  #: Return what the verdict rests on: ``2 ranks, 4 steps of 31 ms``.
    #: Return the sentence of a healthy verdict, and sentences to add to it or to a degraded one.
    healthy: "Callable[[Recording, Sequence[Finding]], tuple[str, Sequence[str]]]"
    label: str  #: Stands before the worst finding, in place of "Degraded" and "Unhealthy".
    tables: Callable[..., Iterator[Any]]
    #: Yield the bars of a report and its recording, as the template of the HTML page takes them.
    bars: "Callable[[Any, Recording], Iterator[dict[str, object]]]"
    files: Collection[str]  #: The fields of readings and facts that are names of files, which --redact replaces.
    #: Read one side of ``compare``, and report the progress in bytes. Raises UsageError.
    side: "Callable[[str, Callable[[int, int], None] | None], TracedSide]"
    #: Return the collectives in recordings, for ``run --collectives-of PATH``. Raises UsageError.
    collectives: "Callable[[str, Sequence[Recording]], JobCollectives]"


def feature_of(command: Command) -> Feature | None:
    """Return the feature of a command, or None for a command of the core. Raises CannotLoad."""
    return load(command.value) if command.value in FEATURES else None


def recorded_by(command: Command) -> Recorded | None:
    """Return the feature of a command if the core evaluates its recordings. Raises CannotLoad."""
    return recorded(command.value) if command.value in FEATURES and FEATURES[command.value].kinds else None


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
    """Import all features except broken ones, by name."""
    found = {}
    for name in FEATURES:
        with suppress(CannotLoad):
            found[name] = load(name)
    return found


def load(name: str) -> Feature:
    """Import a feature by its name in FEATURES. Raises CannotLoad."""
    feature: Feature = load_module(name).FEATURE
    return feature


def load_module(name: str, part: str = "") -> Any:
    """Import the package of a feature or a module of it, for example ``.cli``. Raises CannotLoad."""
    try:
        return import_module(f"{__name__}.{name}{part}")
    except Exception as error:
        where = f", line {error.lineno} of {error.filename}" if isinstance(error, SyntaxError) else ""
        reason = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}{where}"
        raise CannotLoad(f"`ddp-doctor {name}` cannot start ({reason}); reinstall ddp-doctor") from error


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function whose module is imported when it is called."""
    return lambda *given: vars(import_module(module))[function](*given)  # noqa: PLW0108 - imports when it is called
