"""The reference pages of the site, generated from the code. ``tools/docs_site.py`` writes them into the site."""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ddp_doctor.checks import CHECKS, every_check
from ddp_doctor.cli.help import has_short_help
from ddp_doctor.cli.schemas import SCHEMAS, schema
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.features.jobs.causes.findings import JOB_RULES
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from ddp_doctor.knowledge.glossary import GLOSSARY
from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Where
from ddp_doctor.model.rule import HEADINGS, Described
from ddp_doctor.settings.releases import RELEASES, default_in_words, read_by
from ddp_doctor.settings.table import Variable, variables

ROOT = Path(__file__).parent.parent
#: The pages in the order of the navigation: file, title and description.
CONTENTS = (
    ("cli.md", "Commands", "every command and option"),
    ("rules.md", "Rules", "every code, its severity and what it finds"),
    ("checks.md", "Checks", "what a run tests, in order"),
    ("trials.md", "Hangs and deaths of ranks", "rules on the tests with real ranks"),
    ("job-causes.md", "Causes of failed jobs", "what `logs` and `attach` report"),
    ("lint.md", "Lint rules", "what `lint` reports"),
    ("variables.md", "Variables", "environment variables that matter to a job"),
    ("glossary.md", "Glossary", "terms of reports and commands"),
    ("schemas.md", "JSON schemas", "formats of reports and recordings"),
)
_PLACES = {
    Where.NODE: "once on the node, in the agent; no torch needed",
    Where.NODES: "in the agent of each node, after all nodes have checked in",
    Where.LAUNCHER: "on ranks that the real torchrun starts",
    Where.RANK: "on every rank",
    Where.GROUPS: "on ranks of groups of nodes, or of all nodes, if an option asks for it",
    Where.AFTERWARDS: "once on each node, in the agent, after the ranks have exited",
}
_BLOCKS = {
    "DD1": "the environment",
    "DD2": "software and host",
    "DD3": "GPUs",
    "DD4": "topology",
    "DD5": "network and rendezvous",
    "DD6": "collectives, point-to-point and hanging ranks",
    "DD7": "what DDP promises",
    "DD8": "performance",
    "DD9": "ddp-doctor itself",
    "DDJ1": "failed jobs, read by `ddp-doctor logs`",
    "DDJ2": "what NCCL fell back to in a job, read by `ddp-doctor logs`",
    "DDJ3": "running jobs without progress, seen by `ddp-doctor attach`",
    "DDT1": "profiler traces of jobs, read by `ddp-doctor trace`",
    "DDL1": "training scripts, read by `ddp-doctor lint`",
}
#: The page and anchor of each rule.
PAGES = {
    rule.code: f"{page}#{rule.code}"
    for page, rules in (
        *((f"checks/{check.id}.md", check.rules) for check in every_check()),
        ("trials.md", TRIAL_RULES),
        ("job-causes.md", JOB_RULES),
        ("lint.md", LINT_RULES),
    )
    for rule in rules
}


def pages() -> dict[str, str]:
    """Return the text of every generated file by its path below docs/reference."""
    return {
        "cli.md": _cli(),
        "checks.md": _checks(),
        "rules.md": _rules(),
        "trials.md": _page("Hangs and deaths of ranks", _ON_TRIALS, TRIAL_RULES),
        "job-causes.md": _page("Causes of failed jobs", _ON_JOBS, JOB_RULES),
        "lint.md": _page("Lint rules", _ON_SCRIPTS, LINT_RULES),
        "variables.md": _variables(),
        "glossary.md": _glossary(),
        "schemas.md": _schemas(),
        **{f"checks/{check.id}.md": _check(check) for check in every_check()},
        **_schema_files(),
    }


_ON_TRIALS = (
    "A trial is one start of the ranks. These rules apply to every check that runs on ranks. They report which rank"
    " hangs, dies or is late, and where ([how](../explanation/hangs.md))."
)
_ON_JOBS = (
    "`ddp-doctor logs` finds these causes in the output of a job and in the dumps of its flight recorder. It also"
    " reports what NCCL fell back to, even in jobs that succeeded. `ddp-doctor attach` finds causes in running jobs."
)
_ON_SCRIPTS = (
    "`ddp-doctor lint` reports these faults in training scripts ([how to use it](../how-to/lint-a-training-script.md))."
)


def _page(title: str, introduction: str, rules: Iterable[Described]) -> str:
    return "\n".join([f"# {title}\n\n{introduction}\n", *map(_rule, rules)])


def _cli() -> str:
    from typer.main import get_command
    from typer.testing import CliRunner

    from ddp_doctor.cli.main import app

    runner = CliRunner(env={"COLUMNS": "90"})

    def help_of(*words: str) -> str:
        option = "--help-all" if has_short_help("".join(words)) else "--help"
        shown = runner.invoke(app, [*words, option], prog_name="ddp-doctor").output
        return f"```text\n{shown.strip()}\n```\n"

    group: Any = get_command(app)
    parts = ["# Commands\n\nAll commands share the [exit codes](exit-codes.md).\n", help_of()]
    return "\n".join([*parts, *(f"## ddp-doctor {name}\n\n{help_of(name)}" for name in group.list_commands(None))])


def _checks() -> str:
    head = (
        "# Checks\n\nThe checks in the order in which `ddp-doctor run` shows them. A check records facts, and its rules"
        " turn them into findings. Other rules apply to [trials](trials.md)"
        " and to [training scripts](lint.md).\n"
    )
    rows = ["| check | what it tests | rules |", "|---|---|---|"]
    for check in CHECKS:
        codes = ", ".join(f"[{rule.code}]({PAGES[rule.code]})" for rule in check.rules)
        rows.append(f"| [{check.id}](checks/{check.id}.md) | {check.title} | {codes} |")
    rest = (
        "`ddp-doctor trace` has [a check](checks/trace.md) for profiler traces. `ddp-doctor fit`"
        " [estimates](checks/fit.md) and [measures](checks/fit_measured.md) whether a model fits."
    )
    return f"{head}\n" + "\n".join([*rows, "", rest]) + "\n"


def _check(check: Check) -> str:
    if check.where is Where.FILES:
        runs = f"Only `ddp-doctor {check.id}` runs this check, on the given files.\n"
    else:
        model = check.level_with_model
        runs = (
            f"Runs {_PLACES[check.where]}. Minimum level: {check.level.value}"
            + (f" ({model.value} with `--model`)" if model is not None else "")
            + (f". Minimum number of ranks: {check.min_ranks}" if check.min_ranks > 1 else "")
            + f". Expected duration: {check.cost_s:g} s. Time limit: {check.deadline_s:g} s.\n"
        )
    head = f"# {check.id}: {check.title}\n\n{runs}"
    return "\n".join([head, *_documentation(check), *map(_rule, check.rules)])


def _documentation(check: Check) -> Iterator[str]:
    """Yield the paragraphs of the docstring of a check; indented ones are samples."""
    for paragraph in re.split(r"\n{2,}", (sys.modules[check.probe.__module__].__doc__ or "").strip()):
        is_sample = paragraph.startswith("    ")
        yield f"```text\n{textwrap.dedent(paragraph)}\n```\n" if is_sample else f"{_escaped(paragraph)}\n"


def _confidences() -> dict[str, str]:
    """Return the confidence of the findings in the recorded situations, by code."""
    found: dict[str, set[str]] = {}
    for path in ROOT.glob("tests/recordings/*/*.json"):
        for finding in json.loads(path.read_text(encoding="utf-8"))["expected"]["findings"]:
            found.setdefault(finding["code"], set()).add(finding["confidence"])
    return {code: ", ".join(each.value for each in Confidence if each.value in some) for code, some in found.items()}


def _rules() -> str:
    head = (
        "# Rules\n\n`ddp-doctor explain CODE` prints the page of a rule. A code is never reused. The severity follows"
        " from what the fault does to a job ([verdicts](../explanation/verdicts.md)). The confidence is taken from"
        " findings in recorded situations. The start of a code shows the subject:\n"
    )
    blocks = "\n".join(f"* {start}: {subject}" for start, subject in _BLOCKS.items())
    rows = ["| code | name | severity and why | confidence | what it finds |", "|---|---|---|---|---|"]
    confidences = _confidences()
    for rule in (*all_rules(), *LINT_RULES):
        gist = _escaped(rule.gist).replace("|", "\\|")
        confidence = confidences.get(rule.code, "")
        rows.append(f"| [{rule.code}]({PAGES[rule.code]}) | {rule.name} | {rule.reason} | {confidence} | {gist} |")
    gone = ["## Retired", "", "These codes are never reused.", "", "| code | name | now |", "|---|---|---|"]
    gone += [f"| {code} | {retired.name} | {_escaped(retired.instead)} |" for code, retired in RETIRED.items()]
    return f"{head}\n{blocks}\n\n" + "\n".join([*rows, "", *gone]) + "\n"


def _rule(rule: Described) -> str:
    head = f"## {rule.code} {rule.name} {{#{rule.code}}}\n\nSeverity: {rule.reason}.\n"
    return "\n".join([head, *_sections(rule)])


def _sections(rule: Described) -> Iterator[str]:
    for heading, text in rule.sections.items():
        if heading == HEADINGS["See"]:
            yield f"**{heading}**\n\n" + "".join(f"* {_linked(line, rule)}\n" for line in text.splitlines())
        elif text:
            lines = textwrap.fill(_escaped(text), 112, break_long_words=False, break_on_hyphens=False)
            yield f"**{heading}**\n\n{lines}\n" if heading else f"{lines}\n"


def _linked(reference: str, rule: Described) -> str:
    """Return a reference with links for web addresses and our own pages."""
    docs = "../" * (PAGES[rule.code].count("/") + 1)
    address = re.compile(r"https?://[^\s,;]+[^\s,;.]|\bdocs/((?:explanation|how-to|reference)/[a-z-]+\.md)")
    made = (f"[{found[0]}]({docs}{found[1]})" if found[1] else f"<{found[0]}>" for found in address.finditer(reference))
    texts = [_escaped(text) for text in re.sub(address, "\0", reference).split("\0")]
    return "".join(text + link for text, link in zip(texts, [*made, ""], strict=True))


def _glossary() -> str:
    rows = [f"| {term} | {_escaped(meaning)}. |" for term, meaning in GLOSSARY.items()]
    introduction = "The terms of reports and commands. `ddp-doctor explain TERM` prints the same text."
    return "\n".join([f"# Glossary\n\n{introduction}\n", "| term | meaning |", "|---|---|", *rows]) + "\n"


def _variables() -> str:
    head = (
        f"# Variables\n\nThe environment variables that matter to a DDP job, as {RELEASES} read them. Releases are"
        " NCCL's if NCCL reads the variable, and otherwise torch's. An empty default means unset, `automatic` that NCCL"
        " chooses, and `ncclConfig` that NCCL or the program chooses. `ddp-doctor env` shows the settings in force on a"
        " machine.\n"
    )
    owners = dict.fromkeys(variable.owner for variable in variables().values())
    return "\n".join([head, *map(_variables_of, sorted(owners))])


def _variables_of(owner: str) -> str:
    rows = [f"## {owner}\n", "| variable | what it does | default | releases | of concern |", "|---|---|---|---|---|"]
    for variable in sorted(variables().values(), key=lambda variable: variable.name):
        if variable.owner == owner:
            replaced = f" Replaced by {variable.replaced_by}." if variable.replaced_by else ""
            cells = (
                f"{variable.what_it_does}{replaced}",
                default_in_words(variable.default) or "",
                read_by(variable),
                _effects(variable),
            )
            rows.append(
                " | ".join([f"| {variable.name}", *(_escaped(cell).replace("|", "\\|") for cell in cells)]) + " |"
            )
    return "\n".join(rows) + "\n"


def _effects(variable: Variable) -> str:
    return "; ".join(f"{effect.values}: {effect.why.rstrip('.')}" for effect in variable.effects)


def _schemas() -> str:
    rows = "\n".join(f"| [{name}](schemas/{name}.json) | {use} |" for name, (_, use) in SCHEMAS.items())
    return (
        "# JSON schemas\n\n`ddp-doctor schema NAME` prints a schema as one document with all definitions. The files"
        f" below share the definitions in [defs.json](schemas/defs.json).\n\n| schema | document |\n|---|---|\n{rows}\n"
    )


def _schema_files() -> dict[str, str]:
    """Return the schemas, which refer to one file for the definitions that several of them use."""
    schemas = {name: schema(name) for name in SCHEMAS}
    defs: dict[str, object] = {}
    for each in schemas.values():
        defs |= each.pop("$defs", {})
    files = {
        name: json.dumps(each, indent=2).replace('"#/$defs/', '"defs.json#/$defs/') for name, each in schemas.items()
    }
    files["defs"] = json.dumps({"$defs": dict(sorted(defs.items()))}, indent=2)
    return {f"schemas/{name}.json": f"{text}\n" for name, text in files.items()}


def _escaped(text: str) -> str:
    """Escape what Markdown takes for markup in prose, except code and lists."""
    pieces = re.split(r"(`+[^`]*`+|^\s*[*-] )", text, flags=re.MULTILINE)
    pieces[::2] = [re.sub(r"([*<\[])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)
