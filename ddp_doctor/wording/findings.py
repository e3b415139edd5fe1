"""How a rule makes a finding: whom it is about, its title, the evidence, the remedies."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, MissingNode, Remedy, Reproducer


@dataclass(frozen=True)
class Who:
    """Whom a finding is about, and their names for its title."""

    culprits: tuple[Culprit, ...]
    names: str = ""


#: For a fault that is blamed on nobody.
NOBODY: tuple[Culprit, ...] = ()


def finding(
    who: Who | Iterable[Culprit],
    title: str,
    evidence: Evidence | Iterable[Evidence],
    *remedies: Remedy,
    confidence: Confidence,
    detail: str = "",
    severity: Severity | None = None,
    reproduced_by: Reproducer | None = None,
    nodes: tuple[int, ...] = (),
    missing: Iterable[MissingNode] = (),
) -> Draft:
    """A draft, as ``proved``, ``likely`` and ``possible`` make it. ``{who}`` in the title becomes their names.

    ``severity`` is given where it is not the rule's own, ``reproduced_by`` where a remedy is to be tried, ``nodes``
    where a finding explains this one only if it names them, ``missing`` where nodes did not come.
    """
    known = who if isinstance(who, Who) else Who(tuple(who))
    return Draft(
        title=title.replace("{who}", known.names),
        detail=detail,
        confidence=confidence,
        culprits=known.culprits,
        missing=tuple(missing),
        evidence=(evidence,) if isinstance(evidence, Evidence) else tuple(evidence),
        remedies=remedies,
        severity=severity,
        reproduced_by=reproduced_by,
        nodes=nodes,
    )


proved = partial(finding, confidence=Confidence.PROVED)
likely = partial(finding, confidence=Confidence.LIKELY)
possible = partial(finding, confidence=Confidence.POSSIBLE)
