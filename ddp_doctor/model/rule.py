"""Rules: pure functions from a recording to findings, identified by a stable code."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import indent
from types import ModuleType
from typing import Literal

from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Finding
from ddp_doctor.model.recording import Recording

RuleFunction = Callable[[Recording], Iterable[Draft]]
#: The behavior of ranks with a fault: they stop forever, take several times longer, or run.
RanksDo = Literal["stop", "slow", "run"]
#: The same, if it depends on more than the rule.
RanksDoHere = Callable[[Recording], RanksDo]
#: Start of each paragraph of a rule's docstring below its summary, and the heading of that paragraph on its page.
HEADINGS = {"Finds": "What it finds", "Why": "Why it matters", "Remedy": "Remedy", "See": "References"}


@dataclass(frozen=True)
class Described:
    """The common part of all rules. ``doc``: an optional summary, and a paragraph for each of HEADINGS."""

    code: str
    name: str  # kebab-case, states the fault: "p2p-stalls-between-gpus"
    consequence: Consequence
    doc: str

    @property
    def severity(self) -> Severity:
        """The severity of findings that do not set another one."""
        return self.consequence.severity

    @property
    def reason(self) -> str:
        """The severity and the reason for it."""
        if self.consequence is Consequence.SLOWER:
            return "error at 3 times slower or more, warning below"
        return f"{self.severity.value}: {self.consequence.value}"

    @cached_property
    def sections(self) -> dict[str, str]:
        """The texts of its page by heading, "" for the summary. References have one line each."""
        summary, *rest = re.split(rf"(?m)^({'|'.join(HEADINGS)}): ", self.doc)
        texts = {HEADINGS[label]: " ".join(text.split()) for label, text in zip(rest[::2], rest[1::2], strict=True)}
        references = [line.strip() for line in rest[-1].splitlines()] if rest else []
        return {"": " ".join(summary.split()), **texts, HEADINGS["See"]: "\n".join(references)}

    @property
    def page(self) -> str:
        """The command that prints its page."""
        return f"ddp-doctor explain {self.code}"

    @property
    def gist(self) -> str:
        """The first sentence of the summary, or of "What it finds" without a summary."""
        sections = self.sections
        return re.split(r"(?<=\.)\s", sections[""] or sections[HEADINGS["Finds"]])[0]

    @property
    def text(self) -> str:
        """The rule's page as plain text."""
        return "\n\n".join(
            f"{heading}\n{indent(text, '    ')}" if heading else text for heading, text in self.sections.items() if text
        )


@dataclass(frozen=True)
class Rule(Described):
    """A rule about a recording.

    ``explained_by`` are codes of rules that report the cause of this rule's findings. If one of them found something,
    this rule's findings are omitted. ``ranks`` applies to errors of a check that runs before ranks of several nodes
    start (``Check.stops_ranks``).
    """

    needs: tuple[type[Fact], ...]
    function: RuleFunction
    explained_by: tuple[str, ...] = ()
    ranks: RanksDo | RanksDoHere = "stop"

    @property
    def check(self) -> str:
        """The id of its check, from its module: checks/GROUP/CHECK, features/**/CHECK/rules; empty if it has none."""
        found = re.search(r"\.(?:checks\.\w+\.(\w+)|features\.(?:\w+\.)*?(\w+)\.rules)\b", self.function.__module__)
        return (found[1] or found[2]) if found else ""

    def apply(self, recording: Recording, found: Sequence[Finding] = ()) -> list[Finding]:
        """Return the findings of this rule; empty if a fact that it needs was not recorded.

        ``found`` are the findings of the rules that were applied before. Findings of this rule that they explain are
        omitted.
        """
        if any(recording.first(kind) is None for kind in self.needs):
            return []
        causes = [finding for finding in found if finding.code in self.explained_by] if self.explained_by else []
        drafts = ((draft, self._complete(draft)) for draft in self.function(recording))
        return [finding for draft, finding in drafts if not _are_causes_of(causes, finding, draft.nodes)]

    def _complete(self, draft: Draft) -> Finding:
        fields = dict(draft) | {"severity": draft.severity or self.severity}
        del fields["nodes"]
        fields["evidence"] = tuple(
            evidence if evidence.check else evidence.model_copy(update={"check": self.check})
            for evidence in draft.evidence
        )
        return Finding(code=self.code, name=self.name, page=self.page, **fields)


def _are_causes_of(causes: Sequence[Finding], finding: Finding, nodes: Sequence[int]) -> bool:
    """Return True if the causes name all of these nodes. An error can only be explained by errors."""
    if finding.severity is Severity.ERROR:
        causes = [cause for cause in causes if cause.severity is Severity.ERROR]
    named = {culprit.node_rank for cause in causes for culprit in cause.culprits}
    return bool(causes) and named.issuperset(nodes)


def rule(
    code: str,
    name: str,
    consequence: Consequence,
    *needs: type[Fact],
    explained_by: tuple[str, ...] = (),
    ranks: RanksDo | RanksDoHere = "stop",
) -> Callable[[RuleFunction], Rule]:
    """Make a Rule of a function; its docstring becomes the page of ``ddp-doctor explain``."""

    def decorate(function: RuleFunction) -> Rule:
        return Rule(code, name, consequence, inspect.getdoc(function) or "", needs, function, explained_by, ranks)

    return decorate


def rules_in(*modules: ModuleType) -> tuple[Rule, ...]:
    """Return the rules in these modules, by code."""
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Rule)]
    return tuple(sorted(found, key=lambda rule: rule.code))
