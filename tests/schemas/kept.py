"""The schemas of the reports as last published, for comparison with the current ones.

    python -m tests.schemas.kept

keeps the current ones instead: for a release, or after the major version of the reports was raised.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddp_doctor.cli import schemas

_KEPT = Path(__file__).with_name("kept.json")
REPORTS = ("report", "env-report", "logs-report", "attach-report", "lint-report")
#: Words for people, which may change.
_WORDS = ("description", "title", "default")


def today(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(schemas.text(name))
    return schema


def kept(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(_KEPT.read_text(encoding="utf-8"))[name]
    return schema


def major(schema: dict[str, Any]) -> int:
    return int(schema["properties"]["schema_version"]["default"].partition(".")[0])


class Comparison:
    """Collects what readers of an old document would miss in a new one."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str]] = set()

    def lost(self) -> list[str]:
        return list(self._part(self._old, self._new, "$"))

    def _part(self, old: dict[str, Any], new: dict[str, Any], place: str) -> Iterator[str]:
        if "$ref" in old and "$ref" in new:
            names = (_name(old), _name(new))
            if names not in self._seen:
                self._seen.add(names)
                yield from self._part(self._old["$defs"][names[0]], self._new["$defs"][names[1]], names[0])
            return
        yield from _lost_of_itself(old, new, place)
        for number, (was, is_now) in enumerate(zip(old.get("anyOf", ()), new.get("anyOf", ()), strict=False)):
            yield from self._part(was, is_now, f"{place}|{number}")
        for name, was in old.get("properties", {}).items():
            if name in new.get("properties", {}):
                yield from self._part(was, new["properties"][name], f"{place}.{name}")
            else:
                yield f"{place}.{name} is gone"
        for key in ("items", "additionalProperties"):
            if isinstance(old.get(key), dict):
                yield from self._part(old[key], new.get(key) or {}, f"{place}[]")


def _lost_of_itself(old: dict[str, Any], new: dict[str, Any], place: str) -> Iterator[str]:
    """Yield the losses of the schema itself, without its parts."""
    for key in ("$ref", "type", "const", "format"):
        if old.get(key) != new.get(key):
            yield f"{place}: {key} was {old.get(key)}, is {new.get(key)}"
    for key in ("enum", "required"):
        if gone := [each for each in old.get(key, ()) if each not in new.get(key, ())]:
            yield f"{place}: {key} without {', '.join(map(str, gone))}"
    if len(old.get("anyOf", ())) != len(new.get("anyOf", ())):
        yield f"{place}: other types"


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _without_words(schema: Any, *, is_fields: bool = False) -> Any:
    """Remove texts. With ``is_fields``, keys are field names and are kept, even a field called title."""
    if isinstance(schema, list):
        return [_without_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept_keys = (key for key in schema if is_fields or key not in _WORDS)
    return {key: _without_words(schema[key], is_fields=key in ("properties", "$defs")) for key in kept_keys}


def _keep() -> None:
    schemas = {}
    for name in REPORTS:
        schemas[name] = _without_words(today(name))
        version = today(name)["properties"]["schema_version"]["default"]
        schemas[name]["properties"]["schema_version"]["default"] = version
    _KEPT.write_text(json.dumps(schemas, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _keep()
