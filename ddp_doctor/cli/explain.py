"""``ddp-doctor explain``: the list of all rules, or the page of a rule, check, variable, error message or term."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import chain

from ddp_doctor.checks import every_check
from ddp_doctor.engine.causes.findings import JOB_RULES
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.knowledge.endings import endings
from ddp_doctor.knowledge.glossary import GLOSSARY
from ddp_doctor.knowledge.gpu.xids import CATALOG, XIDS, xid
from ddp_doctor.knowledge.job_causes import SIGNS
from ddp_doctor.knowledge.job_causes.kinds import JobCause
from ddp_doctor.knowledge.job_causes.signs import Page, Sign
from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import UsageError, Where
from ddp_doctor.model.rule import Described
from ddp_doctor.render.text import fold
from ddp_doctor.settings import names
from ddp_doctor.settings.releases import default_in_words, read_by
from ddp_doctor.settings.table import Variable, foreign, never_read, variables
from ddp_doctor.wording.nodes import name_list

_PLACES = {
    Where.NODE: "node",
    Where.NODES: "between nodes",
    Where.LAUNCHER: "torchrun ranks",
    Where.RANK: "ranks",
    Where.GROUPS: "ranks of groups of nodes",
    Where.AFTERWARDS: "node, after the ranks",
    Where.FILES: "files",
}
#: Of the words of a text that is known, the share that must be in what was given; or the other way round.
_SAME_TEXT = 0.75
_LIKE_IT = 0.5
#: Texts that are shown, and names that are offered.
_MOST = 3
#: Characters beside the words by which a text is a whole line of output.
_A_LINE = 20
#: Characters: a traceback has some thousands; what is longer is a job's output. Of what is unknown so many are shown.
_LONGEST, _SHOWN = 32_768, 60
#: Rules that are listed of those that speak of a word.
_MOST_RULES = 12
_XID = re.compile(r"\bs?xid\b\W*(?:\([^()]{0,60}\))?\W*(\d{1,3})\b|\bs?xid(\d{1,3})\b", re.IGNORECASE)
_TOO_COMMON = {"the", "and", "for", "with", "was", "not", "error", "failed", "has", "that", "from", "this"}


def explain(text: str, width: int = 100) -> str:
    """Return the page of what ``text`` names, or the list of all rules if it is empty. Raises UsageError."""
    text = text.strip()
    if not text:
        return fold(_every_rule(), width, hang=4)
    if len(text) > _LONGEST:
        raise UsageError(
            f"{len(text)} characters are no text of one error; `ddp-doctor logs FILE` reads a job's output"
        )
    if page := _rule(text) or ("" if _error(text) else _rule(re.sub(r"\s+", "-", text))):
        return fold(page, width)
    for known in (_ending, _xid, _word, _variable, _begin_so, _error, _speak_of):
        if page := known(text):
            return fold(page, width, hang=4)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
    raise UsageError(f"nothing is known of {shown!r}{_meant(text)}")


def _every_rule() -> str:
    """List the checks in the order they run, each with its rules, and then the rules that no check has."""
    listed: list[tuple[str, Sequence[Described]]] = [
        (f"{check.id:<15} {_about_check(check)}", check.rules) for check in every_check()
    ]
    listed += [
        ("any rank check  Failures of the ranks during any of these checks", TRIAL_RULES),
        ("logs, attach    Causes of failed and stuck jobs, in `ddp-doctor logs` and `ddp-doctor attach`", JOB_RULES),
        ("lint            Training scripts, in `ddp-doctor lint`", LINT_RULES),
    ]
    lines = [line for head, rules in listed for line in (head, *map(_rule_line, rules))]
    return "\n".join([*lines, "", "`ddp-doctor explain CODE` prints the page of a rule."])


def _page_of_check(check: Check) -> list[str]:
    needs = [
        *([f"{check.min_ranks} ranks"] if check.min_ranks > 1 else []),
        *(["--model"] if check.needs_model else []),
        *(["--baseline"] if check.needs_baseline else []),
        *(["several nodes"] if check.where is Where.NODES else []),
    ]
    doc = (inspect.getdoc(inspect.getmodule(check.probe)) or "").replace("``", "`")
    takes = f"Takes about {check.cost_s:g} s{f' and needs {name_list(needs)}' if needs else ''}."
    runs = f"`ddp-doctor run --only {check.id}` runs it alone. {takes}"
    if check.where is Where.FILES:
        runs = f"`ddp-doctor {check.id} FILES` runs it."
    return [f"Check {check.id}: {_about_check(check)}", "", doc, "", runs, *map(_rule_line, check.rules)]


def _about_check(check: Check) -> str:
    level = "" if check.where is Where.FILES else f", from level {check.level.value}"
    return f"{check.title} ({_PLACES[check.where]}{level})"


def _rule_line(rule: Described) -> str:
    return f"    {rule.code} {rule.name} ({rule.severity.value})"


def _rules() -> list[Described]:
    return [*all_rules(), *LINT_RULES]


def _ending(text: str) -> str:
    """What a signal or an exit code says, in any form; a number may also be that of an Xid."""
    found = endings(text)
    by_code = {rule.code: rule for rule in _rules()}
    lines = []
    for name, ending in found:
        lines += [name, f"    {ending.means}"]
        lines += [f"    {gist}" for gist in _gists(by_code[code] for code in ending.codes)]
    if found and text.isdecimal() and int(text) in XIDS:
        lines += _about_xid(int(text))
    return "\n".join(lines) + "\n" if lines else ""


def _xid(text: str) -> str:
    """What an Xid means; of a whole line of the kernel log also what else is known of it."""
    found = _XID.search(text)
    return f"{_error(text)}{chr(10).join(_about_xid(int(found[1] or found[2])))}\n" if found else ""


def _about_xid(number: int) -> list[str]:
    known = xid(number)
    asks = {
        "application": "A program did it, or was ended; nothing against the GPU.",
        "watch": "Nothing to do now.",
        "reset": "The GPU needs a reset.",
        "reboot": "The host needs a reboot.",
    }[known.kind]
    code = "DD330" if known.stays else "DD332" if known.kind == "application" else "DD331"
    rules = [rule for rule in _rules() if rule.code == code]
    rules += [cause for cause in _rules() if re.search(rf"\bXids?\b[^.]*\b{number}\b", cause.doc)]
    lines = [f"Xid {number}: {known.meaning}. {asks}", *_listed({rule.code: rule for rule in rules}.values())]
    return [*lines, f"Source: {CATALOG}"]


def _word(text: str) -> str:
    """A word of the field or of this project, and the check of that name. A variable is written in capitals."""
    key = _plain(text)
    check = next((check for check in every_check() if _plain(check.id) == key), None)
    word = next((word for word in GLOSSARY if key in {_plain(part) for part in word.split(",")}), None)
    if (check is None and word is None) or (text.isupper() and text in variables()):
        return ""
    lines = [f"{word}: {GLOSSARY[word]}", ""] if word else []
    if check is not None:
        lines += _page_of_check(check)
    elif word is not None:
        wanted = {*re.findall(r"\w+", word.partition(",")[0].lower())}
        lines += _listed([rule for rule in _rules() if wanted <= {*re.findall(r"\w+", rule.doc.lower())}])
    if text.upper() in variables():
        lines += ["", *chain.from_iterable(_about(variables()[text.upper()]))]
    return "\n".join(lines).strip() + "\n"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _listed(rules: Iterable[Described]) -> list[str]:
    """The first of them, in a line each."""
    every = list(_gists(rules))
    more = [f"    and {len(every) - _MOST_RULES} more; `ddp-doctor explain` lists all"]
    return [*(f"    {gist}" for gist in every[:_MOST_RULES]), *(more if len(every) > _MOST_RULES else [])]


def _rule(text: str) -> str:
    name = text.lower().replace("_", "-")
    for rule in _rules():
        if name == rule.name or _plain(text) == rule.code.lower():
            page = rule.text.replace("``", "`")  # a terminal knows no markup
            return f"{rule.code} {rule.name} ({rule.reason})\n\n{page}\n"
    for code, gone in RETIRED.items():
        if name == gone.name or _plain(text) == code.lower():
            return f"{code} {gone.name} is retired: no rule has this code any more. {gone.instead}\n"
    return ""


def _begin_so(text: str) -> str:
    """The rules whose codes, or the variables whose names, begin so."""
    begun = text.upper()
    rules = [rule for rule in _rules() if rule.code.startswith(begun)]
    settings = [name for name in variables() if name.startswith(begun) and len(begun) > 1]
    lines = [*_gists(rules), *(f"{name}: {variables()[name].meaning}" for name in sorted(settings))]
    return "\n".join(lines) + "\n" if begun and lines else ""


def _gists(rules: Iterable[Described]) -> Iterator[str]:
    lines = (f"{rule.code} {rule.name} ({rule.severity.value}): {rule.gist}" for rule in rules)
    return (line.replace("``", "`") for line in lines)


def _variable(text: str) -> str:
    """What a variable does; of ``NAME=value`` the name counts."""
    name = re.split("[=:]", text)[0].strip()
    written = re.sub(r"[\s-]+", "_", name).upper()
    name = written if written in variables() else name
    if name in variables():
        return "\n".join(chain.from_iterable(_about(variables()[name]))) + "\n"
    if name in never_read():
        unread = never_read()[name]
        instead = f" {unread.instead} does that." if unread.instead else ""
        return f"{name}: nothing reads it. People mean {unread.meant}.{instead}\nSource: {unread.source}\n"
    for owner in foreign() if re.fullmatch(r"\w+", name) else ():
        if name.startswith(owner.name):
            return f"{name}: {owner.reader} reads it, not NCCL, torch or gloo.\nSource: {owner.source}\n"
    return ""


def _about(variable: Variable) -> Iterator[list[str]]:
    releases = read_by(variable)
    yield [f"{variable.name} (read by {variable.owner}{f', {releases}' if releases else ''})", ""]
    yield [variable.what_it_does]
    if variable.replaced_by:
        yield [f"{variable.replaced_by} has replaced it."]
    default = default_in_words(variable.default)
    yield [f"Default: {default or 'unset'}"]
    if variable.values:
        yield [f"Values: {', '.join(variable.values)}"]
    for takes in variable.ranges:
        _, least, most = takes.takes[-1]
        yield [f"Takes {least} to {most}. {takes.beyond}"]
    known = [
        *(f"{effect.values}: {effect.why}" for effect in variable.effects),
        *(f"Beside {listed(silencer.names)}: {silencer.why}" for silencer in variable.silencers),
        *(f"{' and '.join(conflict.names)} {conflict.says}: {conflict.why}" for conflict in variable.conflicts),
        *(f"Where ranks differ: {agreement.effect}." for agreement in variable.agreements),
    ]
    yield ["", "What to know", *(f"    {line}" for line in known)] if known else []
    rules = [rule for rule in _rules() if re.search(rf"\b{variable.name}\b", rule.doc)]
    yield ["", "Rules that speak of it", *(f"    {line}" for line in _gists(rules))] if rules else []
    yield ["", f"Source: {variable.source}", "`ddp-doctor env` shows what it is set to here."]


def listed(pattern: str) -> str:
    """``NCCL_IB_* and NCCL_NET_GDR_*`` for the pattern of names in the table."""
    plain = re.sub(r"\(\?![^)]*\)", "", pattern).replace(".*", "*")
    return " and ".join(plain.split("|"))


def _error(text: str) -> str:
    """What is behind the text of an error."""
    found = [(words, page) for score, words, page in _by_likeness(text) if score >= _SAME_TEXT][:_MOST]
    return "\n".join("\n".join(_behind(words, page)) for words, page in found)


def _behind(words: str, page: Page) -> Iterator[str]:
    by_code = {rule.code: rule for rule in _rules()}
    yield f'"{words}"'
    yield f"{page.means}\n"
    yield "Rules that find the cause"
    yield from (f"    {line}" for line in _gists(by_code[code] for code in page.codes))
    if page.settings:
        yield "Settings"
        yield from (f"    {name}: {variables()[name].meaning}" for name in page.settings)
    yield f"Source: {page.source}"
    yield ""


def _speak_of(text: str) -> str:
    """The rules whose pages have all of the words, unless they are nearly those of an error."""
    words = re.findall(r"\w+", text.lower()) if not _like(text) else []
    rules = [rule for rule in _rules() if {*words} <= {*re.findall(r"\w+", rule.doc.lower())}] if words else []
    return "\n".join(line.removeprefix("    ") for line in _listed(rules)) + "\n" if rules else ""


def _page(sign: Sign, cause: JobCause | None) -> Page | None:
    """What is known of a sign: of its cause, else what it points at."""
    if cause is None or sign.beside:
        return sign.page
    settings = {setting.name for remedy in cause.remedies for setting in remedy.settings} & {*variables()}
    return Page(cause.finds, (cause.code, *cause.found_by), cause.references[0], tuple(sorted(settings)))


def _by_likeness(text: str) -> Sequence[tuple[float, str, Page]]:
    """The texts of signs, the likest first: by how many of their words were given, or the other way round.

    Of the texts of one cause the likest is in it. Where ``text`` is a line with one, the sign's pattern decides.
    """
    first: dict[Page, tuple[float, str, Page]] = {}
    for score, words, (sign, cause) in _scored(text):
        is_line = words in text and len(text) > len(words) + _A_LINE
        page = _page(sign, cause) if not is_line or re.search(sign.pattern, text) else None
        if page is not None:
            first.setdefault(page, (score, words, page))
    return list(first.values())


def _scored(text: str) -> Sequence[tuple[float, str, tuple[Sign, JobCause | None]]]:
    given = _words(text)
    scored = []
    for sign, cause in SIGNS.values():
        for words in sign.words:
            known = _words(words)
            common = len(known & given)
            if words.strip(" :") in text:
                scored.append((1.0, words, (sign, cause)))
            elif known and common >= (2 if cause is None else min(2, len(known))):
                scored.append((max(common / len(known), common / len(given)), words, (sign, cause)))
    return sorted(scored, key=lambda row: (-row[0], row[1].strip() not in text))


def _like(text: str) -> list[str]:
    """The texts of errors that may be meant."""
    return [words for score, words, _ in _by_likeness(text) if score >= _LIKE_IT]


def _words(text: str) -> set[str]:
    words = re.findall(r"[a-z_]{3,}|\d{2,}", text.lower())
    return set(words) - _TOO_COMMON


def _meant(text: str) -> str:
    """``; did you mean A or B?``, or where one can look."""
    likely = _like(text)
    if " " not in text:
        every = [name for rule in _rules() for name in (rule.code, rule.name)]
        nearest = names.nearest(text)
        near = get_close_matches(text.upper(), [*variables(), *every], _MOST, 0.8)
        likely += [nearest] if nearest else [*near, *get_close_matches(text.lower(), every, _MOST, 0.7)]
    if not likely:
        return "; the codes stand in every finding and in `ddp-doctor explain`"
    return f"; did you mean {' or '.join(repr(words) for words in dict.fromkeys(likely[:_MOST]))}?"
