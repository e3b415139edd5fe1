"""Recordings of four real ranks as the agent writes them, and the findings of a check's rules."""

from collections.abc import Sequence
from typing import Any

import pytest

from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.model.check import Check
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from tests.readings import collected, plain_world, replayed


def record(check: Check, facts: Sequence[Fact], ranks: Sequence[int] | None = None, backend: str = "gloo") -> Recording:
    """Return a recording of one node per rank, as the agent would write it, read back from its JSON."""
    readings = tuple(
        collected(check.id, fact, rank, rank=rank) for rank, fact in zip(ranks or range(len(facts)), facts, strict=True)
    )
    return replayed(Recording(world=plain_world(4, backend=backend), readings=readings))


def judge_by(check: Check, whole: Recording) -> list[Finding]:
    return list(diagnose(whole, check.rules).findings)


def only(findings: list[Finding], code: str) -> Finding:
    assert [finding.code for finding in findings] == [code], findings
    return findings[0]


def blamed(finding: Finding) -> list[int | None]:
    return [culprit.rank for culprit in finding.culprits]


def planted(*rows: Any) -> Any:
    """Parametrize by a defect's name, the ranks' scenario, and its single finding: code, faulty ranks, text."""
    cases = [pytest.param(scenario, code, ranks, words, id=name) for name, scenario, code, ranks, *words in rows]
    return pytest.mark.parametrize(("scenario", "code", "ranks_blamed", "words"), cases)


def assert_found(findings: list[Finding], code: str, ranks_blamed: list[int], words: Sequence[str]) -> None:
    """Assert a single finding of these ranks, with these words in its severity, title, detail or evidence."""
    finding = only(findings, code)
    assert blamed(finding) == ranks_blamed
    lines = [f"{finding.severity.value}, {finding.confidence.value}: {finding.title}", finding.detail]
    said = "\n".join(lines + [evidence.text for evidence in finding.evidence])
    assert [word for word in words if word not in said] == [], said
