"""The making of findings by rules: culprits, title, evidence and fixes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Finding, MissingNode, Remedy, Reproducer

#: Maximum number of things in the evidence; the culprits list all of them.
LINES_OF_EVIDENCE = 16
#: The unit of a host's load. It identifies a finding that is only about the load.
LOAD = "processes for each CPU"
#: Units of values that a busy host makes worse: times, and amounts or rates per time.
_OF_TIME = re.compile(r"[mun\u00b5]?s|.+/s")


def only_a_busy_host(finding: Finding) -> bool:
    """Return True if a finding only says that times may be long, which needs a finding about a time."""
    return bool(finding.evidence) and all(each.unit == LOAD for each in finding.evidence)


def judges_times(finding: Finding) -> bool:
    """Return True if a finding rests on a time or a rate."""
    return finding.severity is not Severity.INFO and any(
        _OF_TIME.fullmatch(each.unit or "") for each in finding.evidence
    )


@dataclass(frozen=True)
class Who:
    """The subjects of a finding, and their names for its title."""

    culprits: tuple[Culprit, ...]
    names: str = ""


#: For a fault whose cause is unknown.
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
    """Return a draft; ``proved``, ``likely`` and ``possible`` use this. ``{who}`` in the title becomes the names.

    ``severity`` is set if it differs from the rule's, ``reproduced_by`` if a fix should be tested. ``nodes`` are set if
    a finding explains this one only if it names them, and ``missing`` if nodes did not check in.
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


def counted(number: int, noun: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{number} {noun}{'' if number == 1 or noun == 'info' else 's'}"


def short_count(number: int) -> str:
    """Return ``512``, ``26.2K``, ``124M``, ``1.3B``."""
    for unit, scale in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number}"


def in_units(size_bytes: float) -> str:
    """Return a size for people: "64 MiB", "9.2 MiB", "1 GiB"."""
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes:.0f} bytes"
