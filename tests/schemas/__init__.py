"""The schemas by which others read what the commands write: our own of docs/reference, those of SARIF and JUnit."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import xmlschema

_PUBLISHED = Path(__file__).parents[2] / "docs" / "reference"
_FILES = {
    "sarif": Path(__file__).parent / "sarif-2.1.0.json",
    **{
        name: _PUBLISHED / f"{name}.schema.json"
        for name in ("report", "lint-report", "env-report", "trace-report", "run-plan", "recording")
    },
}
# With a Z at its end, as SARIF asks for in section 3.9.
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def refused(schema: str, text: str) -> list[str]:
    """What a schema says against a text, with the places."""
    found = _validator(schema).iter_errors(json.loads(text))
    return [f"{error.json_path}: {error.message}" for error in found]


def refused_junit(text: str) -> list[str]:
    """The same of JUnit XML."""
    return [f"{error.path}: {error.reason}" for error in _junit().iter_errors(text)]


@cache
def _junit() -> Any:
    return xmlschema.XMLSchema(str(Path(__file__).with_name("junit-10.xsd")))


@cache
def _validator(schema: str) -> Any:
    """Of formats too, as far as somebody checks them; jsonschema passes over the others in silence."""
    checker = jsonschema.FormatChecker()
    checker.checks("date-time")(lambda text: _UTC.fullmatch(text) is not None)
    assert {"uri", "uri-reference"} <= set(checker.checkers), "rfc3986-validator is not installed"
    read = json.loads(_FILES[schema].read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(read)
    kind.check_schema(read)
    return kind(read, format_checker=checker)
