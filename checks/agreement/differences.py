"""What versions and settings share: differences that part the nodes alike are one finding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.phrases.agreement import Split, odd_culprits, told


@dataclass(frozen=True)
class Difference:
    """One thing in which nodes differ, how much that matters, and what says so."""

    name: str
    split: Split
    severity: Severity
    effect: str
    source: str


def together(differences: Iterable[Difference]) -> list[list[Difference]]:
    """Groups that part the nodes in the same way, each with the worst first: one image, or one shell, is one cause."""
    groups: dict[object, list[Difference]] = {}
    for one in differences:
        groups.setdefault(one.split.parts, []).append(one)
    order = list(Severity)
    return [sorted(group, key=lambda one: order.index(one.severity)) for group in groups.values()]


def difference_draft(
    recording: Recording, group: Sequence[Difference], title: str, detail: str, remedy: Remedy
) -> Draft:
    """One finding about a group, as grave as its worst; it blames nobody where no value is usual."""
    worst = group[0]
    return Draft(
        title=title,
        detail=detail,
        severity=worst.severity,
        confidence=Confidence.LIKELY,
        culprits=odd_culprits(recording, worst.split),
        evidence=tuple(
            Evidence(
                check="agreement",
                text=f"{one.name}: {told(recording, one.split)}",
                expected_from=f"{one.effect}; {one.source}",
            )
            for one in group
        ),
        remedies=(remedy,),
    )
