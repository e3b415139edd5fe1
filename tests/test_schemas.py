"""The commands' outputs are valid against the schemas that other programs use."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.cli import schemas
from ddp_doctor.features.lint.rules import RULES
from ddp_doctor.model.choices import USABLE, UsageError
from ddp_doctor.render import junit
from tests.cli.test_cli import doctor
from tests.features.fleet.test_fleet import made
from tests.features.lint.documents import OF_RULES
from tests.features.lint.test_command import FAULT, HEALTHY, SICK, WARNED, lint
from tests.recordings import SITUATIONS, judged, load
from tests.schemas import refused, refused_junit
from tests.schemas.kept import REPORTS, Comparison, kept, major, today

ROOT = Path(__file__).parent.parent
NAMES = {model: name for name, (model, _) in schemas.SCHEMAS.items()}
OLD = "import torch\nprint 'hello'\n"
SCRIPTS: dict[str, dict[str, str | bytes]] = {
    "nothing found": {"healthy.py": HEALTHY},
    "all suppressed": {"sick.py": SICK.replace(FAULT, f"{FAULT}  # noqa")},
    "one of two suppressed": {"sick.py": f"{SICK}{FAULT}  # noqa: DDL104\n"},
    "every severity": {"sick.py": SICK, "warned.py": WARNED},
    "does not parse": {"old.py": OLD},
    "is not text": {"bytes.py": b"\xff\xfe\x00"},
    "empty": {"empty.py": ""},
    "a path in other letters": {"обучение/訓練.py": SICK, "обучение/alt.py": OLD},
    "a path with spaces and signs": {"my scripts/a #1 100%25 [x]?.py": SICK, "a:b.py": OLD},
    "a name that is no UTF-8": {os.fsdecode(b"tr\xe4ning.py"): SICK, os.fsdecode(b"\xff.py"): OLD},
    "half a character": {
        "half.py": "import os, torch\nos.environ['NCCL_DEBUGS\\ud800'] = '\\ud800'\ntorch.save(1, '\\ud800')\n"
    },
    "a line of no ASCII": {"sick.py": SICK.replace(FAULT, f"print('\N{PILE OF POO}'); {FAULT}")},
}


def written(folder: Path) -> tuple[str, str, str]:
    sarif, report, junit = folder / "out.sarif", folder / "out.json", folder / "out.xml"
    lint("--sarif", str(sarif), "--json", str(report), "--junit", str(junit), ".", cwd=folder)
    return tuple(path.read_text(encoding="utf-8") for path in (sarif, report, junit))  # type: ignore[return-value]


@pytest.mark.parametrize("situation", SCRIPTS)
def test_output_of_lint_is_valid_in_every_situation(tmp_path: Path, situation: str):
    for name, text in SCRIPTS[situation].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    sarif, report, xml = written(tmp_path)

    assert refused("sarif", sarif) == []
    assert refused("lint-report", report) == []
    assert refused_junit(xml) == []


def test_output_of_lint_is_valid_for_every_rule(tmp_path: Path):
    one_each = {code: sample for sample in OF_RULES for _, code in sample.expected}
    for code, sample in one_each.items():
        (tmp_path / f"{code}.py").write_text(sample.text)
    (tmp_path / "random.py").touch()  # DDL170 is about files next to a script

    sarif, report, xml = written(tmp_path)

    found = {one["ruleId"] for one in json.loads(sarif)["runs"][0]["results"]}
    assert found == {rule.code for rule in RULES}
    assert refused("sarif", sarif) == []
    assert refused("lint-report", report) == []
    assert refused_junit(xml) == []


@pytest.fixture(scope="module")
def sarif(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sick")
    (folder / "sick.py").write_text(SICK)
    return written(folder)[0]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("invocations", 0, "startTimeUtc"), "2026-11-22T07:00:00+01:00"),
        (("results", 0, "level"), "info"),
        (("results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
        (("results", 0, "locations", 0, "physicalLocation", "artifactLocation", "uri"), "a b.py"),
        (("results", 0, "color"), "red"),
    ],
)
def test_schema_of_sarif_refuses_invalid_logs(sarif: str, place: tuple[Any, ...], value: object):
    log = json.loads(sarif)
    part = log["runs"][0]
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value

    assert refused("sarif", json.dumps(log)) != []


def test_recordings_and_the_reports_on_them_are_valid():
    for situation in SITUATIONS[::4]:  # a second for each hundred
        report = judged(situation).report
        assert refused("recording", load(situation).model_dump_json()) == [], situation
        assert refused(NAMES[type(report)], report.as_json()) == [], situation
        xml = junit.render(report, load(situation))
        assert refused_junit(xml) == [], situation
        bad = [tag for tag in ("failure", "error") if f"<{tag} " in xml]
        assert bool(bad) == (report.verdict not in USABLE), situation


def test_reports_of_logs_attach_fleet_and_compare_are_valid(asked, tmp_path: Path):
    for day in range(1, 7):
        (tmp_path / f"{day}.json").write_text(json.dumps(made("node0", day, speed=1 + day / 100)))
    baseline, two = tmp_path / "baseline", [str(tmp_path / f"{day}.json") for day in (1, 2)]
    printed = {
        "logs-report": asked("logs", str(ROOT / "tests/features/jobs/logs/example/slurm-4711.out"), "--json", "-"),
        "attach-report": asked("replay", str(ROOT / "tests/features/jobs/attach/hung-loader.json"), "--json", "-"),
        "fleet-report": asked("fleet", str(tmp_path), "--json", "-", "--write-baseline", str(baseline)),
        "report": asked("compare", *two, "--json", "-"),
    }

    for name, done in printed.items():
        assert refused(name, done.stdout) == [], name
    assert refused("baseline", baseline.read_text()) == []


def test_schema_of_junit_refuses_invalid_files():
    xml = junit.render(judged("hang/rank-is-stopped").report, load("hang/rank-is-stopped"))

    for right, wrong in (('time="5.000"', 'time="5 s"'), ("failure", "fault"), (' name="scenario"', "")):
        assert right in xml
        assert refused_junit(xml.replace(right, wrong)) != [], wrong


@pytest.mark.parametrize("name", REPORTS)
def test_report_has_all_fields_of_its_last_version(name: str):
    if major(today(name)) == major(kept(name)):
        assert Comparison(kept(name), today(name)).lost() == []


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda new: new["properties"].pop("summary"), "$.summary is gone"),
        (lambda new: new["$defs"]["Finding"]["properties"].pop("code"), "Finding.code is gone"),
        (lambda new: new["$defs"]["Verdict"]["enum"].remove("unsure"), "Verdict: enum without unsure"),
        (lambda new: new["$defs"]["Finding"]["required"].remove("code"), "Finding: required without code"),
        (lambda new: new["properties"]["duration_s"].update(type="string"), "$.duration_s: type was number, is string"),
        (
            lambda new: new["$defs"]["CheckResult"]["properties"]["reason"].pop("anyOf"),
            "CheckResult.reason: other types",
        ),
        (lambda new: new["properties"].update(news={"type": "string"}), None),
    ],
)
def test_removed_fields_of_a_report_are_found_and_added_ones_allowed(
    change: Callable[[dict[str, Any]], object], lost: str | None
):
    new = today("report")
    change(new)

    assert Comparison(kept("report"), new).lost() == ([lost] if lost else [])


def test_schema_without_a_name_lists_all():
    assert [line.partition(" ")[0] for line in schemas.text(None).splitlines()] == [*schemas.SCHEMAS]


def test_unknown_schema_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown schema 'raport'; run `ddp-doctor schema` to list all schemas"):
        schemas.text("raport")


@pytest.mark.parametrize("name", ["report", "env-report", "lint-report", "recording"])
def test_every_field_of_a_schema_is_described(name: str):
    schema = today(name)
    fields = {
        f"{where}.{field}": told
        for where, model in {name: schema, **schema["$defs"]}.items()
        for field, told in model.get("properties", {}).items()
    }
    assert [field for field, told in fields.items() if not told.get("description")] == []


def test_the_report_on_settings_is_valid(tmp_path: Path):
    settings = {"NCCL_SOCKET_IFNAME": "no such", "NCCL_DEBUG": "info", "NCCL_P2P_DISABLE": "1"}

    done = doctor("env", "--json", "-", env={**settings, "XDG_STATE_HOME": str(tmp_path)})

    assert refused("env-report", done.stdout) == []
