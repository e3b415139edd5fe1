"""The schemas of written files: our own, SARIF and JUnit."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import xmlschema

from ddp_doctor.cli import schemas

# With a Z at its end, as SARIF asks for in section 3.9.
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def refused(schema: str, text: str) -> list[str]:
    """Return a schema's errors in a text, with their places."""
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
    """Validate formats as well, if there is a checker; jsonschema silently ignores the others."""
    checker = jsonschema.FormatChecker()
    checker.checks("date-time")(lambda text: _UTC.fullmatch(text) is not None)
    assert {"uri", "uri-reference"} <= set(checker.checkers), "rfc3986-validator is not installed"
    read = (
        json.loads(Path(__file__).with_name("sarif-2.1.0.json").read_text(encoding="utf-8"))
        if schema == "sarif"
        else json.loads(schemas.text(schema))
    )
    kind = jsonschema.validators.validator_for(read)
    kind.check_schema(read)
    return kind(read, format_checker=checker)
