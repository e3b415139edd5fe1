"""Features: products with their own command, one package each, from the facts to the command.

The core loads a feature by name if its command runs or a recording has its facts. It imports none.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ddp_doctor.model.choices import Command

if TYPE_CHECKING:
    from ddp_doctor.facts.cluster import TracedSide
    from ddp_doctor.model.check import Check
    from ddp_doctor.model.finding import Finding
    from ddp_doctor.model.job_collectives import JobCollectives
    from ddp_doctor.model.recording import Recording
    from ddp_doctor.model.report import Report


class Row(NamedTuple):
    """A feature before it is loaded."""

    summary: str  # of its command, in the help
    kinds: Collection[str]  # of facts that only this feature records


#: By the name of the package, which is also the command.
FEATURES = {"trace": Row("Show where step time goes and why, from profiler traces.", ("trace/1",))}


@dataclass(frozen=True)
class Feature:
    """The hooks of a loaded feature. Its reports list no checks, and its recordings are not indented."""

    checks: "tuple[Check, ...]"  #: Evaluate its recordings. They are in no run.
    report: "type[Report]"  #: The class of its report.
    complete: "Callable[[Report, Recording], Report]"  #: Return the report with the feature's own part.
    scope: "Callable[[Recording], str]"  #: Return what the verdict rests on: ``2 ranks, 4 steps of 31 ms``.
    #: Return the sentence of a healthy verdict, and sentences to add to it or to a degraded one.
    healthy: "Callable[[Recording, Sequence[Finding]], tuple[str, Sequence[str]]]"
    label: str  #: Stands before the worst finding, in place of "Degraded" and "Unhealthy".
    tables: Callable[..., Iterator[Any]]  #: Yield the tables of a report (render/layout.py); ``each``: with all rows.
    #: Yield the bars of a report and its recording, as the template of the HTML page takes them.
    bars: "Callable[[Any, Recording], Iterator[dict[str, object]]]"
    files: Collection[str]  #: The fields of readings and facts that are names of files, which --redact replaces.
    #: Read one side of ``compare``, and report the progress in bytes. Raises UsageError.
    side: "Callable[[str, Callable[[int, int], None] | None], TracedSide]"
    #: Return the collectives in recordings, for ``run --collectives-of PATH``. Raises UsageError.
    collectives: "Callable[[str, Sequence[Recording]], JobCollectives]"


def feature_of(command: Command) -> Feature | None:
    """Return the feature of a command, or None for a command of the core."""
    return load(command.value) if command.value in FEATURES else None


def features_in(recording: "Recording | None") -> list[Feature]:
    """Return the features that have facts in a recording, or all features without a recording."""
    return [load(name) for name, row in FEATURES.items() if not recording or any(map(recording.of_kind, row.kinds))]


def load(name: str) -> Feature:
    """Import a feature by its name in FEATURES."""
    feature: Feature = import_module(f"{__name__}.{name}").FEATURE
    return feature


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function whose module is imported when it is called."""
    return lambda *given: vars(import_module(module))[function](*given)  # noqa: PLW0108 - imports when it is called
