"""Steps that a newcomer could forget: the registry, the rules' identity and pages, sizes and imports."""

import ast
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import Any

import grimp
import pytest

import ddp_doctor.checks
from ddp_doctor.checks import CHECKS, checks_of, every_check
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.features import ADDED, FEATURES, Recorded, features_in, load, run_feature
from ddp_doctor.features.jobs.causes.findings import JOB_RULES
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from ddp_doctor.knowledge.retired import RETIRED, RETIRED_CHECKS
from ddp_doctor.model import check as model_check
from ddp_doctor.model.choices import Command
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import HEADINGS, Rule
from tests.conftest import IMPORTED
from tests.lab.processes import to_its_end
from tests.recordings import SITUATIONS, raw

ROOT = Path(__file__).parent.parent
RULES = all_rules()

LONGEST_MODULE = 500
LONGEST_FUNCTION = 60


@cache
def _sources() -> list[Path]:
    tops = ("checks", "ddp_doctor", "tools")
    found = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    return sorted(path for path in found if "ddp_doctor/checks/" not in path.as_posix())


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module. Only its statements are searched."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, part, ()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node
            yield from _functions(node)


# --- checks ---------------------------------------------------------------------------------------


def test_every_check_is_described_by_its_module_docstring():
    for check in every_check():
        assert sys.modules[check.probe.__module__].__doc__, check.id
        assert check.title, check.id


def test_checks_that_the_engine_names_exist():
    named = {value for name, value in vars(model_check).items() if name.isupper()}

    assert named - {check.id for check in every_check()} == set()


def test_fact_kinds_are_unique_and_versioned():
    kinds = [fact.KIND for check in every_check() for fact in check.facts]

    assert len(kinds) == len(set(kinds))
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]*/[1-9]\d*", kind) for kind in kinds), kinds


def test_features_are_found_by_their_commands_and_by_the_facts_of_their_checks():
    for name, row in ((name, row) for name, row in FEATURES.items() if row.outputs):
        assert Command(name) is not Command.OTHER
        known = load(name)
        facts = [*known.facts, *chain(*(of.facts for of in known.checks))] if isinstance(known, Recorded) else []
        assert {fact.KIND for fact in facts} == {*row.kinds}


def test_checks_of_features_are_listed_even_without_their_option():
    added = {check.id: check for name in {row.feature for row in ADDED.values()} for check in run_feature(name).checks}
    run = {with_model: checks_of(Command.RUN, has_model=with_model) for with_model in (False, True)}
    listed = {check.id: check for check in run[False] if check.id in ADDED}

    assert [check.id for check in run[False]] == [check.id for check in run[True]]
    assert {name: (check.facts[0].KIND,) for name, check in added.items()} == {
        name: (row.kind,) for name, row in ADDED.items()
    }
    for name, check in added.items():
        assert (check.title, check.level, check.where, check.group, check.needs_model) == (
            *(listed[name].title, listed[name].level, listed[name].where),
            *(listed[name].group, listed[name].needs_model),
        )


def test_rules_not_applied_without_ranks_could_have_no_finding():
    known = {check for command in Command if command.is_of_one_node for check in checks_of(command)}
    recorded = {kind for check in known for kind in check.facts}
    others = [rule for check in CHECKS if check not in known for rule in check.rules]

    assert [rule.code for rule in others if rule.needs and recorded.issuperset(rule.needs)] == []
    on_trials = [rule for rule in (*others, *TRIAL_RULES) if not rule.needs]
    assert [rule.code for rule in on_trials if rule.apply(Recording())] == []


# --- rules ----------------------------------------------------------------------------------------


def test_codes_and_names_are_unique():
    rules = (*RULES, *LINT_RULES)

    assert len({rule.code for rule in rules}) == len(rules)
    assert len({rule.name for rule in rules}) == len(rules)
    assert [rule.code for rule in LINT_RULES] == sorted(rule.code for rule in LINT_RULES)


def test_no_rule_reuses_a_retired_code_or_name_and_replacements_exist():
    rules = (*RULES, *LINT_RULES)
    gone = {name for code, retired in RETIRED.items() for name in (code, retired.name)}

    assert [rule.code for rule in rules if rule.code in gone or rule.name in gone] == []
    named = {code for retired in RETIRED.values() for code in re.findall(r"\bDDL?\d{3}\b", retired.instead)}
    assert named - {rule.code for rule in rules} == set()
    assert {*RETIRED_CHECKS.values()} <= {check.id for check in CHECKS}
    assert RETIRED_CHECKS.keys().isdisjoint(check.id for check in CHECKS)


def test_codes_and_names_are_well_formed():
    of_traces = [rule for check in checks_of(Command.TRACE) for rule in check.rules]
    patterns = [
        (rule, r"DDJ[123]\d\d" if rule in JOB_RULES else r"DDT1\d\d" if rule in of_traces else r"DD[1-9]\d\d")
        for rule in RULES
    ]
    of_lint = [(rule, r"DDL1\d\d") for rule in LINT_RULES]

    assert [rule.code for rule, pattern in (*patterns, *of_lint) if not re.fullmatch(pattern, rule.code)] == []
    assert [
        rule.name for rule, _ in (*patterns, *of_lint) if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|pauses", rule.name)
    ] == []


def test_the_codes_of_a_check_come_from_one_hundred():
    hundreds = {check.id: {rule.code[:3] for rule in check.rules} for check in CHECKS}
    hundreds["trials"] = {rule.code[:3] for rule in TRIAL_RULES}

    assert {name: found for name, found in hundreds.items() if len(found) != 1} == {}


def test_every_rule_page_has_the_four_sections_in_order():
    headings = {rule.code: [heading for heading in rule.sections if heading] for rule in (*RULES, *LINT_RULES)}

    assert {code: found for code, found in headings.items() if found != [*HEADINGS.values()]} == {}
    assert [rule.code for rule in (*RULES, *LINT_RULES) if not all(rule.sections[h] for h in headings[rule.code])] == []


def test_every_rule_fires_in_one_recording_and_is_silent_in_another():
    """A recording counts only if it has the facts that a rule needs."""
    files = [raw(situation) for situation in SITUATIONS]
    judged = [
        (_kinds(file), bool(file.get("trials")), {one["code"] for one in file["expected"]["findings"]})
        for file in files
    ]
    able = {
        rule.code: (
            [found for _, trials, found in judged if trials]
            if rule in TRIAL_RULES
            else [found for kinds, _, found in judged if kinds.issuperset(fact.KIND for fact in rule.needs)]
        )
        for rule in RULES
        if isinstance(rule, Rule) and rule not in JOB_RULES  # tests/features/jobs/logs has outputs for these
    }

    assert [code for code in able if not any(code in found for found in able[code])] == [], "fire nowhere"
    assert [code for code in able if all(code in found for found in able[code])] == [], "are silent nowhere"


def _kinds(file: dict[str, Any]) -> set[str]:
    return {reading["fact"]["kind"] for reading in file["readings"] if reading.get("fact")}


# --- sizes, imports, pages ------------------------------------------------------------------------


def test_no_module_is_longer_than_its_cap():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in _sources()}

    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_no_function_is_longer_than_its_cap():
    long = defaultdict(list)
    for path in _sources():
        for node in _functions(ast.parse(path.read_text())):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                long[path.relative_to(ROOT).as_posix()].append(f"{node.name}: {lines}")

    assert long == {}


def test_modules_below_the_sources_do_not_read_the_environment():
    rooms = (
        "checks", "ddp_doctor/remedies", "ddp_doctor/wording", "ddp_doctor/views", "ddp_doctor/probing",
        "ddp_doctor/settings", "ddp_doctor/parse", "ddp_doctor/facts", "ddp_doctor/knowledge",
        "ddp_doctor/model", "ddp_doctor/features/lint", "ddp_doctor/features/trace/reading",
        "ddp_doctor/features/trace/views", "ddp_doctor/features/trace/rules",
        *(f"ddp_doctor/features/jobs/{room}" for room in ("causes", "reading", "table", "views")),
        *(f"ddp_doctor/features/model/fit/{room}" for room in ("probing", "rules", "views")),
        *(f"ddp_doctor/features/model/{part}" for part in ("compile", "user_model")),
    )  # fmt: skip
    pure = [path for path in _sources() if path.relative_to(ROOT).as_posix().startswith(rooms)]

    assert [path.name for path in pure if _reads_environment(path)] == []


def _reads_environment(path: Path) -> bool:
    text = path.read_text()
    return ("environ" in text or "getenv" in text) and any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in ast.walk(ast.parse(text))
    )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_import_contract_holds():
    done = _run(str(Path(sys.executable).with_name("lint-imports")))

    assert done.returncode == 0, done.stdout


def test_no_modules_import_each_other_in_a_circle():
    """Includes imports for types only and imports inside functions."""
    imports = grimp.build_graph("ddp_doctor")

    modules = {name: imports.find_modules_directly_imported_by(name) for name in imports.modules}
    assert len(tuple(TopologicalSorter(modules).static_order())) == len(modules)


def test_tests_are_collected_without_torch_which_takes_each_worker_two_seconds(pytestconfig: pytest.Config):
    assert "torch" not in pytestconfig.stash[IMPORTED]


def test_the_command_line_starts_without_torch():
    modules = "ddp_doctor.cli.main, ddp_doctor.cli.run, ddp_doctor.features.lint.use_case, ddp_doctor.app"
    code = f"import {modules}, sys; print('torch' in sys.modules)"

    done = _run(sys.executable, "-c", code)

    assert done.stdout.strip() == "False", done.stderr


def test_evaluation_of_job_outputs_loads_no_check(tmp_path: Path):
    (tmp_path / "job.out").write_text("RuntimeError: CUDA error: no kernel image is available for execution\n")
    loaded = "[name for name in sys.modules if name.startswith('ddp_doctor.checks.')]"
    imports = "import sys; from ddp_doctor.features.jobs.logs.use_case import logs"
    code = f"{imports}; logs(['{tmp_path}/job.out']); print({loaded})"

    done = _run(sys.executable, "-c", code)

    assert done.stdout.strip() == "[]", done.stderr


def test_links_between_the_pages_have_targets():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    link = re.compile(r"\]\(([^)#:]+)(?:#([^)]+))?\)")
    links = {(page, page.parent / to, part) for page in pages for to, part in link.findall(page.read_text())}

    assert sorted(f"{page.name}: {to}" for page, to, _ in links if not to.exists()) == []
    assert sorted(f"{page.name}: {to}#{part}" for page, to, part in links if part not in _parts(to)) == []


def _parts(page: Path) -> set[str]:
    """Return the possible anchors in a link to this page; "" is the entire page."""
    text = page.read_text() if page.is_file() else ""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return {"", *named, *re.findall(r'<a id="(\w+)"></a>', text)}


PLANTED = {
    "ddp_doctor/facts/node/host.py": "import ddp_doctor.parse.redact",
    "ddp_doctor/views/software.py": "import ddp_doctor.wording.nodes",
    "ddp_doctor/probing/exchanges.py": "import ddp_doctor.sources.commands",
    "checks/cluster/torchrun.py": "import ddp_doctor.checks.node.host",
    "ddp_doctor/ranks/events.py": "import ddp_doctor.checks.collectives.allreduce",
    "ddp_doctor/agents/roll_call.py": "import ddp_doctor.checks.cluster.roll_call",
    "ddp_doctor/starters/endpoint.py": "import ddp_doctor.checks.node.gpus",
    "ddp_doctor/render/tables.py": "import ddp_doctor.checks.node.topology.nvlinks",
    "ddp_doctor/engine/hang/judge.py": "import ddp_doctor.checks.ddp.buffers",
    "ddp_doctor/engine/verdict.py": "import ddp_doctor.features.trace.report",
    "ddp_doctor/features/trace/views/windows.py": "import ddp_doctor.sources.job_files",
}


def test_an_import_against_the_contract_is_found(tmp_path: Path):
    for folder in ("ddp_doctor", "checks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, line in PLANTED.items():
        with (tmp_path / path).open("a") as module:
            module.write(f"\n{line}\n")

    argv = [Path(sys.executable).with_name("lint-imports")]
    done = to_its_end(argv, {**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path)

    for path, line in PLANTED.items():
        importer = path.removesuffix(".py").replace("/", ".").replace("checks.", "ddp_doctor.checks.")
        assert f"{importer} -> {line.removeprefix('import ')}" in done.stdout
    assert "No check imports another check BROKEN" in done.stdout
    assert "Checks are known through one door BROKEN" in done.stdout
    assert "The core imports no feature BROKEN" in done.stdout


GROUPS = ("node", "cluster", "collectives", "ddp")
#: The checks of features, which are in no folder of checks/.
OF_FEATURES = [*run_feature("model").checks, *(check for feature in features_in(None) for check in feature.checks)]
#: Checks that repeat another check of the same directory in a different way.
AGAIN = {"kernel_after": "kernel.afterwards", "rdma_after": "rdma.afterwards"}


def test_every_module_of_checks_is_registered_under_its_name():
    folders = [ROOT / "checks" / group for group in GROUPS]
    modules = {module.name for folder in folders for module in pkgutil.iter_modules([str(folder)])}
    names = {check.id: AGAIN.get(check.id, check.id) for check in every_check() if check not in OF_FEATURES}

    assert {module.name for module in pkgutil.iter_modules(ddp_doctor.checks.__path__)} == set(GROUPS)
    assert modules == {name for name in names.values() if "." not in name}
    for check in every_check():
        if check in OF_FEATURES:
            assert {rule.check for rule in check.rules} <= {check.id}
            continue
        assert check.probe.__module__.split(".", 3)[3] == names[check.id]
        assert {rule.check for rule in check.rules} <= {names[check.id].partition(".")[0]}


# --- waiting in tests -----------------------------------------------------------------------------

_CLOCK = re.compile(r"time\.(monotonic|perf_counter|time)(_ns)?")
_TOLD_OR_WAITED = re.compile(rf"\b({_CLOCK.pattern}|time\.sleep)\b")


def test_tests_neither_sleep_nor_compare_clock_readings():
    paths = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if not {"bench", "launchers"}.intersection(path.parts) and path.stem != "waiting"
    ]
    texts = {path: text for path in paths if _TOLD_OR_WAITED.search(text := path.read_text())}
    found = {path: _sleeps_and_comparisons(ast.parse(text)) for path, text in texts.items()}

    places = sorted(f"{path.relative_to(ROOT)}:{line}" for path, lines in found.items() for line in lines)
    assert places == [], "use wait_until or wait_forever of tests/waiting.py, or mark the test pytest.mark.timing"


def test_sleep_and_comparison_of_clock_readings_are_found():
    code = """
    def test_a():
        end, other = time.monotonic() + 5, 1
        product(end)
        took_s = end - began
        assert took_s < 3 and other < 3 and end is not None
        time.sleep(1)
    @pytest.mark.timing
    def test_b():
        assert time.time() < 3
    """
    assert _sleeps_and_comparisons(ast.parse(textwrap.dedent(code))) == ["6: took_s < 3", "7: time.sleep(1)"]


def _sleeps_and_comparisons(module: ast.Module) -> list[str]:
    """Return LINE: CODE of each sleep and each comparison of clock readings outside of ``timing``."""
    attributes = {name for name in _clock_names(module, set()) if "." in name}
    found = {}
    for part in _parts_without_timing(module):
        names = _clock_names(part, attributes)
        for node in ast.walk(part):
            match node:
                case ast.Call() if ast.unparse(node.func) == "time.sleep":
                    found[node.lineno] = ast.unparse(node)
                case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                    pass
                case ast.Compare() if any(_is_clock(side, names) for side in (node.left, *node.comparators)):
                    found[node.lineno] = ast.unparse(node)
    return [f"{line}: {code}" for line, code in sorted(found.items())]


def _parts_without_timing(tree: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """Yield the statements and functions of a module or class that is not marked ``timing``."""
    marks = [*getattr(tree, "decorator_list", ()), *(node for node in tree.body if isinstance(node, ast.Assign))]
    if not any("mark.timing" in ast.unparse(mark) for mark in marks):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield from _parts_without_timing(node)
            elif not any("mark.timing" in ast.unparse(mark) for mark in getattr(node, "decorator_list", ())):
                yield node


def _clock_names(tree: ast.AST, names: set[str]) -> set[str]:
    """Return these names and all names that are assigned from a clock reading below ``tree``."""
    kinds = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr
    for node in sorted((node for node in ast.walk(tree) if isinstance(node, kinds)), key=lambda node: node.lineno):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [*zip(target.elts, node.value.elts, strict=True)]
            names = names | {ast.unparse(name) for name, value in pairs if value and _is_clock(value, names)}
    return names


def _is_clock(value: ast.expr, names: set[str]) -> bool:
    """Return True for a clock reading, a name that holds one, and arithmetic with them."""
    match value:
        case ast.Call():
            return bool(_CLOCK.fullmatch(ast.unparse(value.func)))
        case ast.Name() | ast.Attribute():
            return ast.unparse(value) in names
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp() | ast.NamedExpr():
            return any(_is_clock(part, names) for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))
    return False
