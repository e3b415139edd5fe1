"""Findings that another finding explains are dropped; unexplained errors and other nodes stay."""

from collections.abc import Iterator

import pytest

from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import Rule


def _rule(code: str, *explained_by: str, draft: Draft | None = None) -> Rule:
    def function(recording: Recording) -> Iterator[Draft]:
        yield draft or Draft(title=code)

    return Rule(code, code.lower(), Consequence.RISK, "", (), function, explained_by)


def _found(*rules: Rule) -> set[str]:
    return {finding.code for finding in diagnose(Recording(), rules).findings}


def _on(*nodes: int, severity: Severity = Severity.WARNING) -> Draft:
    return Draft(
        title="a cause", severity=severity, culprits=tuple(Culprit(kind="node", node_rank=node) for node in nodes)
    )


def test_explained_finding_is_dropped_in_either_order_of_the_rules():
    cause, effect = _rule("DD901"), _rule("DD902", "DD901")

    assert _found(effect, cause) == _found(cause, effect) == {"DD901"}


def test_unexplained_finding_is_reported():
    assert _found(_rule("DD902", "DD901")) == {"DD902"}


def test_explained_cause_does_not_explain_other_findings():
    assert _found(_rule("DD903", "DD902"), _rule("DD902", "DD901"), _rule("DD901")) == {"DD901", "DD903"}


@pytest.mark.parametrize(
    ("cause", "effect", "found"),
    [
        (Severity.WARNING, Severity.ERROR, {"DD901", "DD902"}),
        (Severity.ERROR, Severity.ERROR, {"DD901"}),
        (Severity.INFO, Severity.WARNING, {"DD901"}),
    ],
)
def test_only_errors_explain_an_error(cause: Severity, effect: Severity, found: set[str]):
    rules = _rule("DD901", draft=_on(severity=cause)), _rule("DD902", "DD901", draft=_on(severity=effect))

    assert _found(*rules) == found


@pytest.mark.parametrize(("named", "found"), [((1,), {"DD901", "DD902"}), ((1, 2), {"DD901"})])
def test_finding_about_nodes_is_explained_if_its_cause_covers_all_of_them(named: tuple[int, ...], found: set[str]):
    effect = _rule("DD902", "DD901", draft=Draft(title="nodes 1 and 2 have less", nodes=(1, 2)))

    assert _found(_rule("DD901", draft=_on(*named)), effect) == found
