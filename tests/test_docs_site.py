"""The pages of the site before it is built. `make docs` builds it and checks every link."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks import every_check
from ddp_doctor.cli.main import app
from ddp_doctor.cli.schemas import SCHEMAS, schema
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.choices import ExitCode
from ddp_doctor.settings.table import variables
from tests.once import once
from tools import docs_site, reference
from tools.man_page import man_page

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def staged() -> Path:
    return once("site", docs_site.stage)


def text(staged: Path, page: str) -> str:
    return (staged / "docs/reference" / page).read_text(encoding="utf-8")


def commands() -> set[str]:
    import typer

    group: Any = typer.main.get_command(app)
    return set(group.list_commands(None))


def test_every_rule_has_a_section_on_one_page(staged: Path):
    for rule in (*all_rules(), *LINT_RULES):
        page, _, anchor = reference.PAGES[rule.code].partition("#")
        assert text(staged, page).count(f"## {rule.code} {rule.name} {{#{anchor}}}\n") == 1


def test_reference_covers_every_check_command_variable_and_exit_code(staged: Path):
    assert {path.stem for path in (staged / "docs/reference/checks").iterdir()} == {each.id for each in every_check()}
    assert set(re.findall(r"^## ddp-doctor (\S+)$", text(staged, "cli.md"), re.MULTILINE)) == commands()
    assert set(re.findall(r"^\| ([A-Z_a-z0-9]+) \|", text(staged, "variables.md"), re.MULTILINE)) >= {*variables()}
    rows = re.findall(r"^\| (\d+) \|", text(staged, "exit-codes.md"), re.MULTILINE)
    assert rows == [str(code.value) for code in ExitCode]


def test_schemas_share_one_file_of_definitions(staged: Path):
    defs = json.loads(text(staged, "schemas/defs.json"))["$defs"]
    for name in SCHEMAS:
        shared = text(staged, f"schemas/{name}.json")
        assert json.loads(shared.replace('"defs.json#', '"#')) | {"$defs": schema(name)["$defs"]} == schema(name)
        assert {*re.findall(r'"defs\.json#/\$defs/(\w+)"', shared)} <= defs.keys()


def test_codes_in_prose_become_links_and_code_stays():
    page = "# DD401\n\nDD401, `explain DD401`, [DD401](x.md), DD999\n\n```text\nDD401\n```\n"
    link = "[DD401](../reference/checks/topology.md#DD401)"
    with_links = docs_site.with_links(page, "../reference")

    assert with_links == page.replace("\n\nDD401, ", f"\n\n{link}, ")


def test_navigation_lists_every_page_once(staged: Path):
    listed = json.dumps(docs_site.navigation((staged / "docs/README.md").read_text(encoding="utf-8")))
    found = re.findall(r'"(docs/[^"]+\.md)"', listed)
    pages = {path.relative_to(staged).as_posix() for path in staged.glob("docs/**/*.md")}

    assert sorted(found) == sorted(page for page in pages if "/adr/0" not in page)


def test_every_decision_is_listed():
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (ROOT / "docs/adr/README.md").read_text(encoding="utf-8"))

    assert listed == sorted(path.name for path in (ROOT / "docs/adr").glob("0*.md"))


def test_no_generated_page_is_committed():
    committed = {path.name for path in (ROOT / "docs/reference").iterdir()}

    assert committed == {"compatibility.md", "exit-codes.md", "nccl-planted.md", "nccl-planted-machines.md"}


def test_manual_page_has_every_command_and_exit_code():
    page = man_page()

    assert set(re.findall(r"^\.SS ddp\\-doctor (\S+)$", page, re.MULTILINE)) == commands()
    assert re.findall(r"^\.B (\d+)$", page, re.MULTILINE) == [str(code.value) for code in ExitCode]
