"""What versions and settings share: differences that part the nodes, or the ranks, alike are one finding."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.differences import Split, Who, odd_culprits, told
from ddp_doctor.wording.findings import likely


@dataclass(frozen=True)
class Difference(Generic[Who]):
    """One thing in which nodes or ranks differ, how much that matters, and what says so."""

    name: str
    split: Split[Who]
    severity: Severity
    effect: str
    source: str


def together(differences: Iterable[Difference[Who]]) -> list[list[Difference[Who]]]:
    """Groups that part them in the same way, each with the worst first: one image, or one shell, is one cause."""
    groups: dict[object, list[Difference[Who]]] = {}
    for one in differences:
        groups.setdefault(one.split.parts, []).append(one)
    order = list(Severity)
    return [sorted(group, key=lambda one: order.index(one.severity)) for group in groups.values()]


def difference_draft(
    recording: Recording, group: Sequence[Difference[int]], title: str, detail: str, remedy: Remedy
) -> Draft:
    """One finding about nodes; it blames none of them where no value is usual."""
    odd = odd_culprits(recording, group[0].split)
    return draft_of(group, title, detail, remedy, odd, lambda split: told(recording, split))


def draft_of(
    group: Sequence[Difference[Who]],
    title: str,
    detail: str,
    remedy: Remedy,
    odd: tuple[Culprit, ...],
    told_of: Callable[[Split[Who]], str],
    check: str = "",
) -> Draft:
    """One finding about a group, as grave as its worst."""
    worst = group[0]
    return likely(
        odd,
        title,
        (
            Evidence(
                check=check,
                text=_named(one.name, told_of(one.split)),
                expected_from=f"{one.effect}; {one.source}",
            )
            for one in group
        ),
        remedy,
        detail=detail,
        severity=worst.severity,
    )


def _named(name: str, told: str) -> str:
    """What was told of a setting names it already (``NCCL_ALGO=Tree on node3``)."""
    return told if told.startswith(name) else f"{name}: {told}"
