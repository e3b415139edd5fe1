"""The findings about the causes that the judge (judge.py) returns, and all rules about jobs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten

from ddp_doctor.features.jobs.causes import fallbacks
from ddp_doctor.features.jobs.causes.judged import Judged, place_of
from ddp_doctor.features.jobs.causes.whose import UNKNOWN
from ddp_doctor.features.jobs.facts import LogLine
from ddp_doctor.features.jobs.table import JOB_CAUSES
from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.features.jobs.table.unproven import NOT_FAILED, RECOVERED
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Evidence, Finding
from ddp_doctor.model.rule import Described, rules_in
from ddp_doctor.wording.ranks import capital

#: Maximum evidence lines of a finding; the report's causes have all lines.
_MOST_LINES = 5
#: Causes that are not a fault, or not known to be one.
_NO_FAULT = {
    "others-wait-for-work": Consequence.KNOWN,
    RECOVERED: Consequence.KNOWN,
    **dict.fromkeys(("progress-not-known", "job-ended", *NOT_FAILED), Consequence.RISK),
}
#: Maximum characters of one value in a title, such as an exception's message.
_LONGEST_VALUE = 160
_OPTIONAL = re.compile(r"\[([^\]]*)\]")
_RANK = re.compile(r"\brank ?\d+", re.IGNORECASE)
#: The start of a title that does not begin with a host name.
_NO_HOST = re.compile(r"(?:(?:local )?ranks?|all|both|an?|the|several|collectives?|process(?:es)?)\b")
#: The part of a title that is omitted if no host or rank is known.
_OF_WHOM = re.compile(r" (?:of|on|for) \{who\}")
_BRACES = re.compile(r"\{(\w+)\}")


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a title with its values; text in square brackets is omitted if one of its values is unknown.

    ``{who} never entered[ {op} {seq}][ of {group}]`` becomes "rank 5 never entered" without an operation and a group.
    """
    kept = _OPTIONAL.sub(
        lambda part: part[1] if all(values.get(name) for name in _BRACES.findall(part[1])) else "", template
    )
    text = _BRACES.sub(lambda brace: shorten(values.get(brace[1]) or "", _LONGEST_VALUE, placeholder=" …"), kept)
    return " ".join(re.sub(r" (?=[,.;:](?:\s|$))", "", text).split())


def _title(judged: Judged) -> str:
    template = _OF_WHOM.sub("", judged.cause.title) if judged.who in UNKNOWN else judged.cause.title
    title = filled(template, {**judged.values, "who": judged.who})
    if judged.is_one_of_several_jobs and judged.job not in title:
        title = f"{title} (job {judged.job})"
    return capital(title) if _NO_HOST.match(title) else title


def finding_of(judged: Judged, check: str) -> Finding:
    """Return the finding about a cause; ``check`` is the source of its evidence."""
    rule, first = _BY_CODE[judged.cause.code], dict[str, LogLine]()
    for line in judged.lines:  # the first of lines that differ only in the rank
        first.setdefault(_RANK.sub("rank", line.text) if line.line else f"{line.file}: {line.text}", line)
    return Finding(
        code=rule.code,
        name=rule.name,
        page=rule.page,
        severity=rule.severity,
        title=_title(judged),
        detail=judged.detail,
        confidence=judged.confidence,
        culprits=judged.culprits,
        evidence=tuple(
            Evidence(check=check, text=f"{place_of(line)}: {line.text}") for line in [*first.values()][:_MOST_LINES]
        ),
        remedies=tuple(
            remedy.model_copy(update={"commands": judged.commands(remedy.commands)})
            for remedy in judged.remedies or judged.cause.remedies
        ),
    )


@dataclass(frozen=True)
class CauseRule(Described):
    """A cause as a rule, with a page and a code for --ignore."""


def _rule(cause: JobCause) -> CauseRule:
    remedy = " ".join(f"{remedy.summary}." for remedy in cause.remedies)
    references = "\n    ".join(cause.references)
    doc = f"Finds: {cause.finds}\nWhy: {cause.why}\nRemedy: {remedy}\nSee: {references}"
    return CauseRule(cause.code, cause.name, _NO_FAULT.get(cause.name, Consequence.FAILS), doc)


_BY_CODE = {cause.code: _rule(cause) for cause in JOB_CAUSES}
JOB_RULES = (*_BY_CODE.values(), *rules_in(fallbacks))
