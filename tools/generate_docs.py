"""Write docs/reference from the code: ``python -m tools.generate_docs [--check]``.

It stands in tools/ and not in the package because only maintainers run it, and not in docs/ because
that folder holds what people read. The pages are committed, so that they can be read without
running anything; tests/test_architecture.py fails where one is stale.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ddp_doctor.checks import CHECKS, every_check
from ddp_doctor.engine.causes.findings import JOB_RULES
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.lint.report import LintReport
from ddp_doctor.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.baseline import Baseline
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, ExitCode, Where
from ddp_doctor.model.fleet import FleetReport
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import AttachReport, EnvReport, FitReport, LogsReport, Report, TraceReport
from ddp_doctor.model.rule import HEADINGS, Described
from ddp_doctor.model.run_plan import RunPlan
from ddp_doctor.settings.releases import RELEASES, default_in_words, read_by
from ddp_doctor.settings.table import Variable, variables
from tools.man_page import man_page
from tools.schemas import schema

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
#: Written by tools/torches.py and tests/planted/table.py.
_BY_OTHERS = {"compatibility.md", "nccl-planted.md", "nccl-planted-machines.md"}
_NOTE = "<!-- Written by `make docs`; edit the code instead. -->\n"
_PLACES = {
    Where.NODE: "once on the node, in the agent; no torch needed",
    Where.NODES: "in the agent of each node, once all nodes of a run have met",
    Where.LAUNCHER: "on ranks that the real torchrun starts",
    Where.RANK: "on every rank",
    Where.GROUPS: "on ranks of groups of nodes, or of all of them, where an option asks for it",
    Where.AFTERWARDS: "once on each node, in the agent, when the ranks have ended",
}
_BLOCKS = {
    "1": "the environment",
    "2": "software and host",
    "3": "GPUs",
    "4": "topology",
    "5": "network and rendezvous",
    "6": "collectives, point-to-point and ranks that hang",
    "7": "what DDP promises",
    "8": "performance",
    "9": "the doctor itself",
}
_EXIT_CODES = {
    ExitCode.HEALTHY: "Healthy: nothing above info. Degraded: warnings, and no `--fail-on warning`. The report lists"
    " what was not tested.",
    ExitCode.UNHEALTHY: "Unhealthy: at least one error. Degraded with `--fail-on warning`.",
    ExitCode.USAGE: "Usage error: an unknown option or check, an unreadable or foreign file, an output that cannot be"
    " written, a `--model` that names no factory of a model, NCCL where no node shows a GPU. One sentence on stderr"
    " says which; for what only nodes or ranks can tell, the last line of the report.",
    ExitCode.UNSURE: "Unsure: nothing could be measured, or a check failed or timed out and no finding explains"
    " why, or a serious fault is only possible, or the doctor failed itself (the trace is in a file that the last line"
    " names).",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C, SIGTERM or SIGHUP. The report and the recording hold what was seen,"
    " and where the ranks stood.",
}
#: Where each rule stands, below docs/reference.
_PAGES = {rule.code: rule.page.removeprefix("docs/reference/") for rule in all_rules()} | {
    rule.code: rule.page.removeprefix("docs/reference/") for rule in LINT_RULES
}


def pages() -> dict[str, str]:
    """Every generated page: path below docs/reference, and its text."""
    made = {
        "cli.md": cli_page(),
        "ddp-doctor.1": man_page(_EXIT_CODES),
        "checks.md": checks_page(),
        "rules.md": rules_page(),
        "trials.md": trials_page(),
        "job-causes.md": job_causes_page(),
        "lint.md": lint_page(),
        "exit-codes.md": exit_codes_page(),
        "variables.md": variables_page(),
        "report.schema.json": schema(Report),
        "env-report.schema.json": schema(EnvReport),
        "logs-report.schema.json": schema(LogsReport),
        "attach-report.schema.json": schema(AttachReport),
        "trace-report.schema.json": schema(TraceReport),
        "fit-report.schema.json": schema(FitReport),
        "fleet-report.schema.json": schema(FleetReport),
        "baseline.schema.json": schema(Baseline),
        "run-plan.schema.json": schema(RunPlan),
        "lint-report.schema.json": schema(LintReport),
        "recording.schema.json": schema(Recording),
    }
    return made | {f"checks/{check.id}.md": check_page(check) for check in every_check()}


def stale() -> list[str]:
    """Pages that are missing, differ from the code, or describe what no longer exists."""
    wanted = pages()
    files = {path.relative_to(REFERENCE).as_posix() for path in REFERENCE.rglob("*") if path.is_file()}
    present = files - _BY_OTHERS
    differing = [name for name in wanted if name in present and (REFERENCE / name).read_text() != wanted[name]]
    return sorted({*differing, *(wanted.keys() ^ present)})


def write() -> None:
    """Write all pages and remove those of checks that no longer exist."""
    wanted = pages()
    for name in stale():
        path = REFERENCE / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name])
        else:
            path.unlink()


def cli_page() -> str:
    """The help of every command."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from ddp_doctor.cli.main import app

    runner = CliRunner(env={"COLUMNS": "100"})

    def help_of(*words: str) -> str:
        shown = runner.invoke(app, [*words, "--help"], prog_name="ddp-doctor").output
        return f"```text\n{shown.strip()}\n```\n"

    commands = getattr(get_command(app), "commands", {})
    parts = [f"{_NOTE}\n# Commands\n\nThe [exit codes](exit-codes.md) are common to all.\n", help_of()]
    return "\n".join([*parts, *(f"## ddp-doctor {name}\n\n{help_of(name)}" for name in commands)])


def checks_page() -> str:
    """The checks in the order of a run."""
    head = (
        f"{_NOTE}\n# Checks\n\nIn the order in which `ddp-doctor run` shows them. A check says what was seen;"
        " its rules say what that means. What goes wrong in trials, whichever check they belong to, is judged by"
        " [rules of their own](trials.md), and training scripts by [those of lint](lint.md).\n"
    )
    rows = ["| check | what it looks at | rules |", "|---|---|---|"]
    for check in CHECKS:
        codes = ", ".join(f"[{rule.code}]({_PAGES[rule.code]})" for rule in check.rules)
        rows.append(f"| [{check.id}](checks/{check.id}.md) | {check.title} | {codes} |")
    rows += [
        "",
        "Profilers' traces of jobs are judged by [a check](checks/trace.md) of their own, in `ddp-doctor trace`.",
        "Whether a model fits, `ddp-doctor fit` [estimates](checks/fit.md) and [measures](checks/fit_measured.md).",
    ]
    return f"{head}\n" + "\n".join(rows) + "\n"


def check_page(check: Check) -> str:
    """One check and its rules."""
    if check.where is Where.FILES:
        runs = f"`ddp-doctor {check.id}` judges the files that it is given; in no run.\n"
    else:
        runs = (
            f"Runs {_PLACES[check.where]}, from level {check.level.value} on{_with_model(check)}"
            + (f", with {check.min_ranks} ranks or more" if check.min_ranks > 1 else "")
            + f". Expected to take {check.cost_s:g} s; judged or given up after {check.deadline_s:g} s.\n"
        )
    documentation = (sys.modules[check.probe.__module__].__doc__ or "").strip()
    head = f"{_NOTE}\n# {check.id}: {check.title}\n\n{runs}\n```text\n{documentation}\n```\n"
    return "\n".join([head, *(_rule(rule, "../..") for rule in check.rules)])


def trials_page() -> str:
    """The rules over all trials."""
    head = (
        f"{_NOTE}\n# Trials\n\nA trial is one start of the ranks. These rules judge what ranks and agent saw of it, in"
        " every check that runs on ranks: who hangs, died or came late, and where"
        " ([how](../explanation/hangs.md)).\n"
    )
    return "\n".join([head, *(_rule(rule, "..") for rule in TRIAL_RULES)])


def job_causes_page() -> str:
    """What makes jobs fail."""
    head = (
        f"{_NOTE}\n# Causes of failed jobs\n\nWhat `ddp-doctor logs` names, from a job's output and the dumps of its"
        " flight recorder; what NCCL fell back to, also in jobs that went well; and what"
        " `ddp-doctor attach` names of jobs that run.\n"
    )
    return "\n".join([head, *(_rule(rule, "..") for rule in JOB_RULES)])


def lint_page() -> str:
    """The rules on training scripts."""
    head = (
        f"{_NOTE}\n# Lint\n\nThe rules by which `ddp-doctor lint` judges training scripts"
        " ([how to use it](../how-to/lint-a-training-script.md)).\n"
    )
    return "\n".join([head, *(_rule(rule, "..") for rule in LINT_RULES)])


def _with_model(check: Check) -> str:
    level = check.level_with_model
    return f" (with `--model` from level {level.value} on)" if level is not None else ""


def _confidences() -> dict[str, str]:
    """Return the confidence of the findings in the recorded situations, by code."""
    found: dict[str, set[str]] = {}
    for path in ROOT.glob("tests/recordings/*/*.json"):
        for finding in json.loads(path.read_text(encoding="utf-8"))["expected"]["findings"]:
            found.setdefault(finding["code"], set()).add(finding["confidence"])
    return {code: ", ".join(each.value for each in Confidence if each.value in some) for code, some in found.items()}


def rules_page() -> str:
    """All rules by code."""
    head = (
        f"{_NOTE}\n# Rules\n\n`ddp-doctor explain CODE` prints the same text. A code is never reused."
        " The severity follows from what the fault does to a job ([Verdicts](../explanation/verdicts.md)). Confidence"
        " is how sure the findings of the recorded situations are. The first digit of a code tells the subject:\n"
    )
    blocks = "\n".join(f"* DD{digit}: {subject}" for digit, subject in _BLOCKS.items())
    blocks += "\n* DDJ1: jobs that failed, read by `ddp-doctor logs`"
    blocks += "\n* DDJ2: what NCCL fell back to in a job, read by `ddp-doctor logs`"
    blocks += "\n* DDJ3: jobs that run and do not get on, seen by `ddp-doctor attach`"
    blocks += "\n* DDT1: profilers' traces of jobs, read by `ddp-doctor trace`"
    blocks += "\n* DDL1: training scripts, read by `ddp-doctor lint`"
    rows = ["| code | name | severity and why | confidence | what it finds |", "|---|---|---|---|---|"]
    confidences = _confidences()
    for rule in (*all_rules(), *LINT_RULES):
        gist = _escaped(rule.gist).replace("|", "\\|")
        sure = confidences.get(rule.code, "")
        rows.append(f"| [{rule.code}]({_PAGES[rule.code]}) | {rule.name} | {rule.reason} | {sure} | {gist} |")
    gone = [
        "## Retired",
        "",
        "No rule is given one of these codes again.",
        "",
        "| code | name | now |",
        "|---|---|---|",
    ]
    gone += [f"| {code} | {retired.name} | {_escaped(retired.instead)} |" for code, retired in RETIRED.items()]
    return f"{head}\n{blocks}\n\n" + "\n".join([*rows, "", *gone]) + "\n"


def _rule(rule: Described, docs: str) -> str:
    """One rule's section, from its docstring; ``docs`` is the way from the page to docs/."""
    head = f'<a id="{rule.code}"></a>\n\n## {rule.code} {rule.name}\n\nSeverity: {rule.reason}.\n'
    return "\n".join([head, *_parts(rule, docs)])


def _parts(rule: Described, docs: str) -> Iterable[str]:
    """The sections of its page in Markdown."""
    for heading, text in rule.sections.items():
        if heading == HEADINGS["See"]:
            yield f"**{heading}**\n\n{_references(_escaped(text), docs)}\n"
        elif text:
            lines = textwrap.fill(_escaped(text), 112, break_long_words=False, break_on_hyphens=False)
            yield f"**{heading}**\n\n{lines}\n" if heading else f"{lines}\n"


def _references(text: str, docs: str) -> str:
    """One line each; our own pages as links."""
    linked = re.sub(r"\bdocs/(explanation/[a-z-]+\.md)", rf"[\1]({docs}/\1)", text)
    return linked.replace("\n", "\\\n")


def exit_codes_page() -> str:
    """The exit codes and what each promises."""
    rows = [f"| {code.value} | {_EXIT_CODES[code]} |" for code in ExitCode]
    return (
        f"{_NOTE}\n# Exit codes\n\n| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        "`ddp-doctor prolog` exits 1 only when the node is unhealthy: unsure is 0 unless `--unsure fail` is given,"
        " because a doctor that fails must not drain healthy nodes.\n\n"
        "`ddp-doctor logs` says of a job that has ended: 0 there is no failure in it, 1 a cause was named, 3 it failed"
        " and the cause is not proven, or nothing shows how it ended, 2 nothing could be read.\n\n"
        "`ddp-doctor trace` says of profiles: 0 no rank and no setting costs over 10 % of the step, 1 a finding"
        " at or above `--fail-on` (here by default a warning), 2 no file holds a trace, 3 too little is told.\n\n"
        "`ddp-doctor attach` says of a job that runs: 0 it gets on, 1 it is stuck, 3 that cannot be told, 2 there is no"
        " such job.\n\n"
        "`ddp-doctor fleet` says of the newest runs: 1 a node is unhealthy, 3 none is and one is unsure, 0 all are"
        " healthy or degraded, 2 no run could be read.\n\n"
        "A reader that leaves, as in `ddp-doctor run | head -1`, changes no code: the command goes on to its end, and"
        " what nobody reads is dropped. A shell with `pipefail` sees the verdict.\n\n"
        "The verdict behind the code is explained in [Verdicts](../explanation/verdicts.md).\n"
    )


def variables_page() -> str:
    """The table of variables, by who reads them."""
    head = (
        f"{_NOTE}\n# Variables\n\nThe environment variables that matter to a DDP job, as far as {RELEASES}"
        " read them; releases are NCCL's where NCCL reads them, else torch's. An empty default means that the"
        " variable is unset, automatic that NCCL chooses, ncclConfig that NCCL or the program does. `ddp-doctor env`"
        " shows which are in force on a machine.\n"
    )
    owners = dict.fromkeys(variable.owner for variable in variables().values())
    return "\n".join([head, *(_owner_section(owner) for owner in sorted(owners))])


def _owner_section(owner: str) -> str:
    rows = [f"## {owner}\n", "| variable | what it does | default | releases | of concern |", "|---|---|---|---|---|"]
    for variable in sorted(variables().values(), key=lambda variable: variable.name):
        if variable.owner == owner:
            cells = (
                _meaning(variable),
                default_in_words(variable.default) or "",
                read_by(variable),
                _effects(variable),
            )
            rows.append(" | ".join([f"| {variable.name}", *(cell.replace("|", "\\|") for cell in cells)]) + " |")
    return "\n".join(rows) + "\n"


def _meaning(variable: Variable) -> str:
    replaced = f" Replaced by {variable.replaced_by}." if variable.replaced_by else ""
    return f"{variable.what_it_does}{replaced}"


def _effects(variable: Variable) -> str:
    return "; ".join(f"{effect.values}: {effect.why.rstrip('.')}" for effect in variable.effects)


def _escaped(text: str) -> str:
    """Stars and angle brackets of prose, which Markdown would take for its own; code and lists are kept."""
    pieces = re.split(r"(`+[^`]*`+|^\s*[*-] )", text, flags=re.MULTILINE)
    pieces[::2] = [re.sub(r"([*<])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        found = stale()
        sys.exit("\n".join(["stale, run `make docs`:", *found]) if found else 0)
    write()
