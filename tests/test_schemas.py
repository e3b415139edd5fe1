"""What the commands write is valid against the schemas by which others read it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.lint.rules import RULES
from tests.cli.test_cli import doctor
from tests.lint.documents import OF_RULES
from tests.lint.test_command import FAULT, HEALTHY, SICK, WARNED, lint
from tests.recorded import SITUATIONS, judged, load
from tests.schemas import refused
from tools.generate_docs import REFERENCE

OLD = "import torch\nprint 'hello'\n"
SCRIPTS: dict[str, dict[str, str | bytes]] = {
    "nothing found": {"healthy.py": HEALTHY},
    "all suppressed": {"sick.py": SICK.replace(FAULT, f"{FAULT}  # noqa")},
    "one of two suppressed": {"sick.py": f"{SICK}{FAULT}  # noqa: DDL104\n"},
    "every severity": {"sick.py": SICK, "warned.py": WARNED},
    "does not parse": {"old.py": OLD},
    "is no text": {"bytes.py": b"\xff\xfe\x00"},
    "empty": {"empty.py": ""},
    "a path in other letters": {"обучение/訓練.py": SICK, "обучение/alt.py": OLD},
    "a path with spaces and signs": {"my scripts/a #1 100%25 [x]?.py": SICK, "a:b.py": OLD},
    "a name that is no UTF-8": {os.fsdecode(b"tr\xe4ning.py"): SICK, os.fsdecode(b"\xff.py"): OLD},
    "half a character": {
        "half.py": "import os, torch\nos.environ['NCCL_DEBUGS\\ud800'] = '\\ud800'\ntorch.save(1, '\\ud800')\n"
    },
    "a line of no ASCII": {"sick.py": SICK.replace(FAULT, f"print('\N{PILE OF POO}'); {FAULT}")},
}


def written(folder: Path) -> tuple[str, str]:
    """What lint writes of a folder as SARIF and as JSON."""
    sarif, report = folder / "out.sarif", folder / "out.json"
    lint("--sarif", str(sarif), "--json", str(report), ".", cwd=folder)
    return sarif.read_text(encoding="utf-8"), report.read_text(encoding="utf-8")


@pytest.mark.parametrize("situation", SCRIPTS)
def test_what_lint_writes_is_valid_in_every_situation(tmp_path: Path, situation: str):
    for name, text in SCRIPTS[situation].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    sarif, report = written(tmp_path)

    assert refused("sarif", sarif) == []
    assert refused("lint-report", report) == []


def test_what_lint_writes_of_every_rule_is_valid(tmp_path: Path):
    for sample in OF_RULES:
        (tmp_path / f"{sample}.py").write_text(sample.text)
    (tmp_path / "random.py").touch()  # DDL170 is about what lies beside a script

    sarif, report = written(tmp_path)

    found = {one["ruleId"] for one in json.loads(sarif)["runs"][0]["results"]}
    assert found == {rule.code for rule in RULES}
    assert refused("sarif", sarif) == []
    assert refused("lint-report", report) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("invocations", 0, "startTimeUtc"), "2026-11-22T07:00:00+01:00"),
        (("results", 0, "level"), "info"),
        (("results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
        (("results", 0, "locations", 0, "physicalLocation", "artifactLocation", "uri"), "a b.py"),
        (("results", 0, "colour"), "red"),
    ],
)
def test_the_schema_of_sarif_would_refuse_what_is_wrong(
    tmp_path: Path, place: tuple[Any, ...], value: object
):
    (tmp_path / "sick.py").write_text(SICK)
    log = json.loads(written(tmp_path)[0])
    part = log["runs"][0]
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value

    assert refused("sarif", json.dumps(log)) != []


def test_recordings_and_the_reports_on_them_are_valid():
    for situation in SITUATIONS[::4]:  # a second for each hundred
        assert refused("recording", load(situation).model_dump_json()) == [], situation
        assert refused("report", judged(situation).report.as_json()) == [], situation


@pytest.mark.parametrize("name", ["report", "env-report", "lint-report", "recording"])
def test_every_field_of_a_schema_is_described(name: str):
    schema = json.loads((REFERENCE / f"{name}.schema.json").read_text(encoding="utf-8"))
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
