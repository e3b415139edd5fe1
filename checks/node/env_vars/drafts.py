"""Findings about settings: the same cause on several nodes is one finding."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.wording.nodes import node_culprits, node_names

F = TypeVar("F", bound=Fact)

#: Where the nodes' values differ, the evidence shows no more of them.
VALUES_SHOWN = 8


def setting_draft(
    names: Iterable[str],
    title: str,
    text: str,
    expected_from: str,
    *remedies: Remedy,
    detail: str = "",
    severity: Severity | None = None,
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    """A finding about variables, on whichever nodes they are; ``text`` is the evidence."""
    return Draft(
        title=title,
        detail=detail,
        confidence=confidence,
        culprits=tuple(Culprit(kind="setting", name=name) for name in names),
        evidence=(Evidence(check="env_vars", text=text, expected_from=expected_from),),
        remedies=remedies,
        severity=severity,
    )


def one_per_cause(
    recording: Recording, kind: type[F], drafts: Callable[[F], Iterable[Draft]]
) -> Iterator[Draft]:
    """Drafts of several nodes about the same variables as one that names the nodes.

    A job script's line is on all of them, and where the values differ (RANK=0, RANK=1) it is still one line.
    """
    found = ((seen, draft) for seen in recording.facts(kind) for draft in drafts(seen.fact))
    yield from per_cause(recording, found)


def per_cause(recording: Recording, found: Iterable[tuple[FactAt[F], Draft]]) -> Iterator[Draft]:
    """The same of drafts that are made already, each with the node it is about, in the order of the nodes."""
    groups: dict[Hashable, dict[Draft, list[FactAt[F]]]] = {}
    met: Counter[Hashable] = Counter()
    for seen, draft in found:
        names = tuple(culprit.name for culprit in draft.culprits)
        about = (names, draft.severity, draft.evidence[0].expected_from)
        groups.setdefault((about, met[seen.node, about]), {}).setdefault(draft, []).append(seen)
        met[seen.node, about] += 1
    several = recording.world is not None and recording.world.nnodes > 1
    for alike in groups.values():
        yield _on_nodes(recording, alike, several=several)


def _on_nodes(recording: Recording, alike: Mapping[Draft, list[FactAt[F]]], *, several: bool) -> Draft:
    first, *rest = alike.items()
    draft, group = first
    others = [seen for _, more in rest for seen in more]
    culprits = tuple(
        node.model_copy(update={"kind": culprit.kind, "name": culprit.name})
        for node in node_culprits(recording, [*group, *others])
        for culprit in draft.culprits
    )
    title, evidence = draft.title, draft.evidence
    if several:
        also = f"; alike on {node_names(recording, others)}" if others else ""
        title = f"{title} (on {node_names(recording, group)}{also})"
    if others:
        evidence = tuple(
            evidence_here.model_copy(update={"text": f"{node_names(recording, seen)}: {evidence_here.text}"})
            for draft_here, seen in list(alike.items())[:VALUES_SHOWN]
            for evidence_here in draft_here.evidence
        )
    return draft.model_copy(update={"title": title, "culprits": culprits, "evidence": evidence})
