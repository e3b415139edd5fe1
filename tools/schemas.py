"""The schemas of docs/reference, in which the comment beside or above a field in the code describes it.

The comments are read when the pages are written: descriptions in the models themselves would be built at each start.
"""

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

#: Of what is written; facts have names of their own, and any JSON stands for them in a recording.
_ROOMS = ("ddp_doctor.model.", "ddp_doctor.lint.report")


def schema(model: type[BaseModel]) -> str:
    """The schema of what is written of a model."""
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(mode="serialization")
    models = {each.__name__: each for each in _all_below(BaseModel) if each.__module__.startswith(_ROOMS)}
    for name, definition in ((model.__name__, made), *made.get("$defs", {}).items()):
        said = _comments(models[name]) if name in models else {}
        for field, described in definition.get("properties", {}).items():
            if field in said:
                described.setdefault("description", said[field])
    return json.dumps(made, indent=2) + "\n"


def _all_below(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for below in base.__subclasses__():
        yield below
        yield from _all_below(below)


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """What the comments say of each field, also of those that the model inherits."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            lines = textwrap.dedent(inspect.getsource(each)).splitlines()
            [definition] = ast.parse("\n".join(lines)).body
            fields = definition.body if isinstance(definition, ast.ClassDef) else []
            for field in fields:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    words = _beside_or_above(lines, field)
                    found |= {field.target.id: f"{words[0].upper()}{words[1:].rstrip('.')}."} if words else {}
    return found


def _beside_or_above(lines: Sequence[str], field: ast.AnnAssign) -> str:
    beside = [line.partition("  # ")[2] for line in lines[field.lineno - 1 : field.end_lineno]]
    above = itertools.takewhile(lambda line: line.strip().startswith("#:"), reversed(lines[: field.lineno - 1]))
    words = [line.strip().removeprefix("#:").strip() for line in above][::-1]
    return " ".join(filter(None, [*words, *beside]))
