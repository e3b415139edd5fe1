"""``ddp-doctor explain``: the list of all rules, or the page of a rule, check, variable, error message or term."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import chain, islice

from ddp_doctor.checks import every_check
from ddp_doctor.cli.search import Entry, search
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.features import loadable
from ddp_doctor.knowledge.ddp.strategies import BY_NAME as STRATEGIES
from ddp_doctor.knowledge.endings import endings
from ddp_doctor.knowledge.glossary import GLOSSARY
from ddp_doctor.knowledge.gpu.xids import CATALOG, RECOVERY_ACTION, XIDS, xid
from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.knowledge.topology.link_codes import meaning_of, p2p_status
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import UsageError, Where
from ddp_doctor.model.known_error import KnownError, Page
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
    Where.GROUPS: "ranks in node groups",
    Where.AFTERWARDS: "node, after the rank tests",
    Where.FILES: "files",
}
#: Texts of errors that are shown, characters of a quoted line, and rules in a list.
_MOST, _LONGEST_QUOTE, _MOST_RULES = 3, 120, 12
#: Share of an error's text that must be in a phrase, or the other way around, for them to be the same.
_SAME_TEXT = 0.5
#: Characters: a traceback has some thousands, longer texts are a job's output. Unknown texts are shown shortened.
_LONGEST, _SHOWN = 32_768, 60
#: Minimum likeness of a misspelled name and the right one.
_ALMOST_SAME = 0.9
#: Words of a phrase, and results of a search by kind.
_LONGEST_PHRASE = 40
_RESULTS = {"rule": 5, "error": 10, "variable": 2, "term": 2}
_XID = re.compile(r"\bs?xid\b\W{0,9}(?:\([^()]{0,60}\))?\W{0,9}(\d{1,3})\b|\bs?xid(\d{1,3})\b", re.IGNORECASE)
#: A line of a list or a definition.
_ITEM = re.compile(r"\s+[\w\"]+\W|[\w#,/ ()-]{1,60}: ")


def explain(text: str, width: int = 100) -> str:
    """Return the page of what ``text`` names, or the list of all rules if it is empty. Raises UsageError."""
    text = text.strip()
    if not text:
        return _folded(_every_rule(), width)
    if len(text) > _LONGEST:
        raise UsageError(
            f"the text has {len(text)} characters, but at most {_LONGEST} are allowed; run `ddp-doctor logs FILE` to"
            " read a job's output"
        )
    if page := _rule(text) or ("" if _error(text) else _rule(re.sub(r"\s+", "-", text))):
        return fold(page, width)
    for known in (_ending, _xid, _term, _variable, _with_prefix, _error, _found):
        if page := known(text):
            return _folded(page, width)
    raise UsageError(f"no rule, variable, error or term matches {_shown(text)!r}{_meant(text)}")


def _folded(page: str, width: int) -> str:
    """Fold the lines; the rest of a definition or a list item is indented."""
    return "".join(fold(line, width, hang=4 if _ITEM.match(line) else 0) or "\n" for line in page.splitlines())


def _every_rule() -> str:
    """List the checks in the order they run, each with its rules, and then the rules that no check has."""
    listed: list[tuple[str, Sequence[Described]]] = [
        (f"{check.id:<15} {_about_check(check)}", check.rules) for check in every_check()
    ]
    listed += [
        ("any rank check  Rank failures during any of these checks", TRIAL_RULES),
        *((each.about_rules, rules) for each in loadable().values() if (rules := each.rules())),
    ]
    lines = [line for head, rules in listed for line in (head, *map(_rule_line, rules))]
    return "\n".join([*lines, "", "Run `ddp-doctor explain CODE` to print the page of a rule."])


def _page_of_check(check: Check) -> list[str]:
    needs = [
        *([f"{check.min_ranks} ranks"] if check.min_ranks > 1 else []),
        *(["--model"] if check.needs_model else []),
        *(["--baseline"] if check.needs_baseline else []),
        *(["several nodes"] if check.where is Where.NODES else []),
    ]
    doc = (inspect.getdoc(inspect.getmodule(check.probe)) or "").replace("``", "`").replace("::\n", ":\n")
    paragraphs = [text if "\n " in f"\n{text}" else " ".join(text.split()) for text in doc.split("\n\n")]
    takes = f"Takes about {check.cost_s:g} s{f' and needs {name_list(needs)}' if needs else ''}."
    runs = f"To run only this check: `ddp-doctor run --only {check.id}`. {takes}"
    if check.where is Where.FILES:
        runs = f"To run it: `ddp-doctor {check.id} FILES`."
    head = f"Check {check.id}: {_about_check(check)}"
    return [head, "", *chain.from_iterable((text, "") for text in paragraphs), runs, *map(_rule_line, check.rules)]


def _about_check(check: Check) -> str:
    level = "" if check.where is Where.FILES else f", from level {check.level.value}"
    return f"{check.title} ({_PLACES[check.where]}{level})"


def _rule_line(rule: Described) -> str:
    return f"    {rule.code} {rule.name} ({rule.severity.value})"


def _rules() -> list[Described]:
    return [*dict.fromkeys((*all_rules(), *(rule for feature in loadable().values() for rule in feature.rules())))]


@cache
def _errors() -> tuple[KnownError, ...]:
    return tuple(error for feature in loadable().values() for error in feature.errors())


def _ending(text: str) -> str:
    """Return the meaning of a signal or an exit code in any form; a number may also be an Xid."""
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
    """Return the meaning of an Xid, and the page of the error if the text is a line of the kernel log."""
    found = _XID.search(text)
    return f"{_error(text)}{chr(10).join(_about_xid(int(found[1] or found[2])))}\n" if found else ""


def _about_xid(number: int) -> list[str]:
    known, meaning = xid(number), xid(number).meaning
    asks = {
        "application": "A program caused this error or was stopped. The error does not indicate a GPU fault.",
        "watch": "No action is needed now.",
        "reset": "The GPU needs a reset.",
        "reboot": "The host needs a reboot.",
    }[known.kind]
    if number == RECOVERY_ACTION:
        meaning = "the driver asks for a recovery action"
        asks = "The line in the kernel log names the action: a GPU reset or a host reboot."
    elif number not in XIDS:
        asks = "Look up this Xid in NVIDIA's catalog before you use the GPU again."
    code = "DD330" if known.stays else "DD332" if known.kind == "application" else "DD331"
    rules = [rule for rule in _rules() if rule.code == code]
    rules += [cause for cause in _rules() if re.search(rf"\bXids?\b[^.]*\b{number}\b", cause.doc)]
    lines = [f"Xid {number}: {meaning}. {asks}", *_listed({rule.code: rule for rule in rules}.values())]
    return [*lines, f"Source: {CATALOG}"]


def _term(text: str) -> str:
    """Return the page of a term or a check; a name in capitals that is a variable is left to ``_variable``."""
    if text.isupper() and text in variables():
        return ""
    check = next((check for check in every_check() if _plain(check.id) == _plain(text)), None)
    meanings, named = _meanings(text), re.compile(rf"\b{re.escape(text)}\b", re.IGNORECASE)
    if check is None and not meanings:
        return ""
    lines = [f"{meaning}." for meaning in meanings]
    if check is not None:
        lines += ["", *_page_of_check(check)]
    elif related := [rule for rule in _rules() if named.search(rule.gist)]:
        lines += ["", "Related rules", *_listed(related)]
    if text.upper() in variables():
        lines += ["", *chain.from_iterable(_about(variables()[text.upper()]))]
    return "\n".join(lines).strip() + "\n"


def _meanings(text: str) -> list[str]:
    """Return the term with its meaning; NET/IB/0/GDRDMA is explained by its longest known part."""
    parts = text.split("/", 9)
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if found := [*_codes(name), *_of_glossary(name)]:
            return found
    return []


def _of_glossary(name: str) -> Iterator[str]:
    keys = {_plain(name), _plain(name).removesuffix("s")} - {""}
    for term, meaning in GLOSSARY.items():
        if keys & {_plain(spelling) for spelling in term.split(",")}:
            yield f"{term}: {meaning}"


def _codes(name: str) -> Iterator[str]:
    """Yield the meanings of a code that nvidia-smi or a table of ``fit`` prints."""
    with suppress(KeyError):
        yield f"{name}: {meaning_of(name)} (path between two devices in `nvidia-smi topo -m`)"
    with suppress(KeyError):
        yield f"{name}: {p2p_status(name).meaning} (P2P state of two GPUs in `nvidia-smi topo -p2p`)"
    if name.lower() in STRATEGIES:
        yield f"{name.lower()}: {STRATEGIES[name.lower()].words}"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _listed(rules: Iterable[Described]) -> list[str]:
    """List the first rules, one per line."""
    every = list(_gists(rules))
    more = [f"    and {len(every) - _MOST_RULES} more (`ddp-doctor explain` lists all rules)"]
    return [*(f"    {gist}" for gist in every[:_MOST_RULES]), *(more if len(every) > _MOST_RULES else [])]


def _rule(text: str) -> str:
    name, code = text.lower().replace("_", "-"), _plain(text).upper()
    for rule in _rules():
        if name == rule.name or code == rule.code:
            page = rule.text.replace("``", "`")  # a terminal does not render markup
            return f"{rule.code} {rule.name} ({rule.reason})\n\n{page}\n"
    for retired, gone in RETIRED.items():
        if name == gone.name or code == retired:
            return f"{retired} {gone.name} is retired. {gone.instead}\n"
    return ""


def _with_prefix(text: str) -> str:
    """List the rules whose codes, or the variables whose names, start with the text."""
    begun = text.upper()
    rules = [rule for rule in _rules() if rule.code.startswith(begun)]
    settings = [name for name in variables() if name.startswith(begun) and len(begun) > 1]
    lines = [*_gists(rules), *(f"{name}: {variables()[name].meaning}" for name in sorted(settings))]
    return "\n".join(lines) + "\n" if begun and lines else ""


def _gists(rules: Iterable[Described]) -> Iterator[str]:
    lines = (f"{rule.code} {rule.name} ({rule.severity.value}): {rule.gist}" for rule in rules)
    return (line.replace("``", "`") for line in lines)


def _variable(text: str) -> str:
    """Return the page of a variable, given as NAME or NAME=value."""
    name = re.split("[=:]", text)[0].strip()
    written = re.sub(r"[\s-]+", "_", name).upper()
    name = written if written in variables() else name
    if name in variables():
        return "\n".join(chain.from_iterable(_about(variables()[name]))) + "\n"
    if name in never_read():
        unread = never_read()[name]
        instead = f" {unread.instead} does that." if unread.instead else ""
        means = f"It usually means {unread.meant}.{instead}"
        return f"{name}: NCCL, torch and gloo do not read this variable. {means}\nSource: {unread.source}\n"
    for owner in foreign() if re.fullmatch(r"\w+", name) else ():
        if name.startswith(owner.name):
            reader = f"{owner.reader} reads this variable, but NCCL, torch and gloo do not."
            return f"{name}: {reader}\nSource: {owner.source}\n"
    return ""


def _about(variable: Variable) -> Iterator[list[str]]:
    releases = read_by(variable)
    yield [f"{variable.name} (read by {variable.owner}{f', {releases}' if releases else ''})", ""]
    yield [variable.what_it_does]
    if variable.replaced_by:
        yield [f"Replaced by {variable.replaced_by}."]
    default = default_in_words(variable.default)
    yield [f"Default: {default or 'unset'}"]
    if variable.values:
        yield [f"Values: {', '.join(variable.values)}"]
    for takes in variable.ranges:
        _, least, most = takes.takes[-1]
        yield [f"Range: {least} to {most}. {takes.beyond}"]
    known = [
        *(f"{effect.values}: {effect.why}" for effect in variable.effects),
        *(f"With {listed(silencer.names)}: {silencer.why}" for silencer in variable.silencers),
        *(f"{' and '.join(conflict.names)} {conflict.says}: {conflict.why}" for conflict in variable.conflicts),
        *(f"If ranks differ: {agreement.effect}." for agreement in variable.agreements),
    ]
    yield ["", "Notes", *(f"    {line}" for line in known)] if known else []
    rules = [rule for rule in _rules() if re.search(rf"\b{variable.name}\b", rule.doc)]
    yield ["", "Related rules", *(f"    {line}" for line in _gists(rules))] if rules else []
    yield ["", f"Source: {variable.source}", "Run `ddp-doctor env` to see its value on this machine."]


def listed(pattern: str) -> str:
    """Return ``NCCL_IB_* and NCCL_NET_GDR_*`` for the pattern of names in the table."""
    plain = re.sub(r"\(\?![^)]*\)", "", pattern).replace(".*", "*")
    return " and ".join(plain.split("|"))


def _error(text: str) -> str:
    """Return the pages of the errors whose text is in ``text``, or the other way around."""
    found = list(islice(_same_texts(text).items(), _MOST))
    return "\n".join("\n".join(_behind(quoted, page)) for page, quoted in found)


def _same_texts(text: str) -> dict[Page, str]:
    """Return the pages of errors, the best match first, each with the quoted match."""
    given = text.lower()
    found: list[tuple[float, str, Page]] = []
    for error in _errors():
        page = error.page
        for words in error.words if page is not None else ():
            known = words.strip(" :").lower()
            share = min(len(known), len(given)) / max(len(known), len(given))
            match = re.search(error.pattern, text) if error.pattern and known in given else None
            is_same = share >= _SAME_TEXT and (known in given or (given in known and " " in given))
            if page is not None and (is_same or match or (known in given and not error.pattern)):
                found.append((share, _quoted(text, words.strip(" :"), match), page))
    pages: dict[Page, str] = {}
    for _, quoted, page in sorted(found, key=lambda row: -row[0]):
        pages.setdefault(page, quoted)
    return pages


def _quoted(text: str, words: str, match: re.Match[str] | None) -> str:
    """Return the match in the text, or the words of the error if the text has only a part of them."""
    start = text.lower().find(words.lower())
    if start < 0:
        return words
    end = start + len(words)
    if match and max(end, match.end()) - min(start, match.start()) <= _LONGEST_QUOTE:
        start, end = min(start, match.start()), max(end, match.end())
    before = re.search(r"\w*$", text[:start])
    after = re.match(r"\w*", text[end:])
    return " ".join(f"{before and before[0]}{text[start:end]}{after and after[0]}".split())


def _behind(quoted: str, page: Page) -> Iterator[str]:
    by_code = {rule.code: rule for rule in _rules()}
    yield f'"{quoted}"'
    yield f"{page.means}\n"
    yield "Rules that find the cause"
    yield from (f"    {line}" for line in _gists(by_code[code] for code in page.codes))
    if page.settings:
        yield "Settings"
        yield from (f"    {name}: {variables()[name].meaning}" for name in page.settings)
    yield f"Source: {page.source}"
    yield ""


def _found(text: str) -> str:
    """Return the results of a search for a phrase; all parts of a single name must be found."""
    if len(text.split()) > _LONGEST_PHRASE or _near(text, _ALMOST_SAME):
        return ""
    found = search(text, list(_entries()), _RESULTS, covered=0.5 if " " in text else 1.0)
    if not found:
        return ""
    found = list({entry.text: entry for entry in reversed(found)}.values())[::-1]  # errors may share a page
    found.sort(key=lambda entry: entry.kind == "variable")
    end = "Run `ddp-doctor explain TEXT` with the code or the quoted text of an entry to read its page."
    return "\n".join([f"Best matches for {_shown(text)!r}", *(f"    {entry.shown}" for entry in found), end, ""])


def _entries() -> Iterator[Entry]:
    texts = ((error.page, words) for error in _errors() if not error.cause for words in error.words)
    for page, words in texts:
        if page is not None:
            yield Entry("error", f'"{words.strip(" :")}": {page.means}', (words,), page.means)
    messages = grouped((error.code, words) for error in _errors() for words in error.words)
    for rule in _rules():
        yield Entry("rule", next(_gists([rule])), (rule.name, rule.gist, *messages.get(rule.code, ())), rule.doc)
    for name, variable in variables().items():
        yield Entry("variable", f"{name}: {variable.meaning}", (name,), variable.meaning)
    for term, meaning in GLOSSARY.items():
        yield Entry("term", f"{term}: {meaning}.", tuple(term.split(",")), meaning)


def _meant(text: str) -> str:
    """Return ``; did you mean A or B?``, or how to list what there is."""
    near = _near(text, 0.7)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "; run `ddp-doctor explain` to list all rules"


def _near(text: str, cutoff: float) -> list[str]:
    """Return the names of rules, variables, terms and checks that are spelled like the text."""
    nearest = names.nearest(text) if re.fullmatch(r"\w+", text) else None
    terms = [spelling.strip() for term in GLOSSARY for spelling in term.split(",")]
    every = (*(rule.name for rule in _rules()), *variables(), *terms, *(check.id for check in every_check()))
    known = {name.lower(): name for name in every}
    return [nearest] if nearest else [known[name] for name in get_close_matches(text.lower(), known, _MOST, cutoff)]


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
