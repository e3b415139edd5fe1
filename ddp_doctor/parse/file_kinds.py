"""What a file is that was given to the wrong command: ddp-doctor's own JSON, a notebook, a script."""

import re

from ddp_doctor.model.base import Json
from ddp_doctor.parse.json_value import json_value

RECORDING = "a recording of ddp-doctor"
REPORT = "a report of ddp-doctor"
FLEET_REPORT = "a report of ddp-doctor on a fleet"
BASELINE = "a baseline of ddp-doctor"
JSON = "JSON"  # of another program
PYTHON = "a Python script"
SHELL = "a shell script"
#: The command that reads it.
READ_BY = {RECORDING: "replay", PYTHON: "lint", SHELL: "env --from"}
#: By keys that stand together in no other file.
_KINDS = (
    ({"readings", "run_id"}, RECORDING),
    ({"verdict", "left_out", "outliers"}, FLEET_REPORT),
    ({"verdict", "exit_code", "findings"}, REPORT),
    ({"baseline", "hardware"}, BASELINE),
    ({"runs", "version", "$schema"}, "a report in SARIF"),
    ({"cells", "nbformat"}, "a Jupyter notebook"),
)
_LINE_END = re.compile(r"[\r\n]")
_PYTHON = re.compile(r"#!.*\bpython")
_SHELL = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")


def file_kind(text: str) -> str | None:
    """What this text is, by its first line or its keys; None where nothing here knows it."""
    first = _LINE_END.split(text, maxsplit=1)[0]
    if _PYTHON.match(first):
        return PYTHON
    if _SHELL.match(first):
        return SHELL
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return None
    try:
        return json_kind(json_value(text)) or JSON
    except ValueError:
        return None


def json_kind(data: Json) -> str | None:
    """What this JSON value is: "a report of ddp-doctor"; None for another program's."""
    keys = data.keys() if isinstance(data, dict) else set[str]()
    return next((kind for names, kind in _KINDS if keys >= names), None)
