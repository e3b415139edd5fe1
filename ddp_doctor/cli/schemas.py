"""The JSON schemas of what the commands write: ``ddp-doctor schema``.

The description of a field is the comment next to it or above it in the code. Comments are read when a schema is
printed: descriptions in the models would be built whenever ddp-doctor starts.
"""

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

from ddp_doctor.features import FEATURES, loadable
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import EnvReport, Report
from ddp_doctor.model.run_plan import RunPlan


def _of_features(*commands: str) -> dict[str, tuple[type[BaseModel], str]]:
    found = {name: each.report for name, each in loadable().items() if name in commands and each.report is not Report}
    return {f"{name}-report": (report, f"report of {name} (--json)") for name, report in found.items()}


#: Each schema by name: the model, and what writes such a document.
SCHEMAS: dict[str, tuple[type[BaseModel], str]] = {
    "report": (Report, "report of run, prolog, topology and compare (--json)"),
    "env-report": (EnvReport, "report of env (--json)"),
    **_of_features("logs", "attach", "fit"),  # listed before the others
    **_of_features(*FEATURES),
    "run-plan": (RunPlan, "plan of a run (run --plan --json)"),
    **{name: document for feature in loadable().values() for name, document in feature.documents.items()},
    "recording": (Recording, "recording of a run (--record)"),
}
#: Modules of these documents. A recording also holds facts, which may be any JSON.
_MODULES = ("ddp_doctor.model.", *(model.__module__ for model, _ in SCHEMAS.values()))


@cache
def text(name: str | None) -> str:
    """Return a schema as a self-contained document, or a line for each schema. Raises UsageError."""
    if name is None:
        width = max(map(len, SCHEMAS))
        return "".join(f"{each:<{width}}  {use}\n" for each, (_, use) in SCHEMAS.items())
    if name not in SCHEMAS:
        raise UsageError(f"unknown schema {name!r}; run `ddp-doctor schema` to list all schemas")
    return json.dumps(schema(name), indent=2) + "\n"


def schema(name: str) -> dict[str, Any]:
    """Return the schema of a document, with a description of each field."""
    model, _ = SCHEMAS[name]
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(mode="serialization")
    models = {each.__name__: each for each in _subclasses(BaseModel) if each.__module__.startswith(_MODULES)}
    for title, definition in ((model.__name__, made), *made.get("$defs", {}).items()):
        comments = _comments(models[title]) if title in models else {}
        for field, described in definition.get("properties", {}).items():
            if field in comments:
                described.setdefault("description", comments[field])
    return made


def _subclasses(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for below in base.__subclasses__():
        yield below
        yield from _subclasses(below)


@cache
def _comments(model: type[BaseModel]) -> dict[str, str]:
    """Return the comment of each field, including inherited fields."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            lines = textwrap.dedent(inspect.getsource(each)).splitlines()
            [definition] = ast.parse("\n".join(lines)).body
            fields = definition.body if isinstance(definition, ast.ClassDef) else []
            for field in fields:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    comment = _comment(lines, field)
                    found |= {field.target.id: f"{comment[0].upper()}{comment[1:].rstrip('.')}."} if comment else {}
    return found


def _comment(lines: Sequence[str], field: ast.AnnAssign) -> str:
    beside = [line.partition("  # ")[2] for line in lines[field.lineno - 1 : field.end_lineno]]
    above = itertools.takewhile(lambda line: line.strip().startswith("#:"), reversed(lines[: field.lineno - 1]))
    parts = [line.strip().removeprefix("#:").strip() for line in above][::-1]
    return " ".join(filter(None, [*parts, *beside]))
