"""Rules: pure functions from a recording to findings, identified by a stable code."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ddp_doctor.model.choices import Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Finding
from ddp_doctor.model.recording import Recording

RuleFunction = Callable[[Recording], Iterable[Draft]]


@dataclass(frozen=True)
class Described:
    """What every opinion has. ``doc`` has the sections What it finds, Why it matters, Remedy, References."""

    code: str
    name: str  # kebab-case, states the fault: "p2p-stalls-between-gpus"
    severity: Severity
    doc: str


@dataclass(frozen=True)
class Rule(Described):
    """One opinion on a recording."""

    needs: tuple[type[Fact], ...]
    function: RuleFunction

    @property
    def check(self) -> str:
        """The id of its check, in whose folder or module it stands: checks/GROUP/CHECK; empty for a rule on trials."""
        _, *inside = self.function.__module__.partition(".checks.")[2].split(".")
        return inside[0] if inside else ""

    def apply(self, recording: Recording) -> list[Finding]:
        """The findings of this rule, empty where a fact it needs was not recorded."""
        if any(recording.first(kind) is None for kind in self.needs):
            return []
        return [self._complete(draft) for draft in self.function(recording)]

    def _complete(self, draft: Draft) -> Finding:
        fields = dict(draft) | {"severity": draft.severity or self.severity}
        fields["evidence"] = tuple(
            evidence if evidence.check else evidence.model_copy(update={"check": self.check})
            for evidence in draft.evidence
        )
        return Finding(code=self.code, name=self.name, **fields)


def rule(code: str, name: str, severity: Severity, *needs: type[Fact]) -> Callable[[RuleFunction], Rule]:
    """Make a Rule of a function; its docstring becomes the page of ``ddp-doctor explain``."""

    def decorate(function: RuleFunction) -> Rule:
        return Rule(code, name, severity, inspect.getdoc(function) or "", needs, function)

    return decorate
