"""The kind of a file: ddp-doctor's own JSON, a notebook, a script, or torchelastic's error file."""

import re
from datetime import datetime, timezone

from ddp_doctor.model.base import Json
from ddp_doctor.parse.json_value import OTHER_SHAPE, json_value

RECORDING = "a recording of ddp-doctor"
REPORT = "a report of ddp-doctor"
FLEET_REPORT = "a report of ddp-doctor on a fleet"
BASELINE = "a baseline of ddp-doctor"
JSON = "JSON"  # of another program
PYTHON = "a Python script"
SHELL = "a shell script"
#: The command that reads each kind.
READ_BY = {RECORDING: "replay", PYTHON: "lint", SHELL: "env --from"}
#: By keys that no other kind of file has together.
_KINDS = (
    ({"readings", "run_id"}, RECORDING),
    ({"verdict", "left_out", "outliers"}, FLEET_REPORT),
    ({"verdict", "exit_code", "findings"}, REPORT),
    ({"baseline", "hardware"}, BASELINE),
    ({"runs", "version", "$schema"}, "a report in SARIF"),
    ({"cells", "nbformat"}, "a Jupyter notebook"),
)
#: Files that ``lint`` checks with the rules about launches: by name, or by a line.
_LAUNCH_NAMES = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".yaml", ".yml", ".env")
_LAUNCH_LINES = re.compile(r"^(?:#SBATCH\b|apiVersion:|num_machines:|FROM \S|[\w.-]+[ \t]+slots=\d)", re.MULTILINE)
_DEEPSPEED = re.compile(r'"(?:train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)"\s*:')
_LINE_END = re.compile(r"[\r\n]")
_PYTHON = re.compile(r"#!.*\bpython")
_SHELL = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")


def file_kind(text: str) -> str | None:
    """Return the kind of a text by its first line or its keys, or None if it is unknown."""
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


def is_launch(text: str, name: str) -> bool:
    """Return True if a file starts or configures a job: a job script, a manifest, a launcher's configuration."""
    if name.endswith(".py") or file_kind(text) == PYTHON:
        return False
    if text.lstrip().startswith("{"):
        return _DEEPSPEED.search(text) is not None
    return name.endswith(_LAUNCH_NAMES) or file_kind(text) == SHELL or _LAUNCH_LINES.search(text) is not None


def json_kind(data: Json) -> str | None:
    """Return the kind of a JSON value, such as "a report of ddp-doctor", or None for another program's."""
    keys = data.keys() if isinstance(data, dict) else set[str]()
    return next((kind for names, kind in _KINDS if keys >= names), None)


def is_recording(head: bytes) -> bool:
    """Return True if a file is a recording of ddp-doctor."""
    return head.lstrip()[:1] == b"{" and b'"schema_version"' in head and b'"run_id"' in head


def is_error_file(head: bytes, name: str) -> bool:
    """Return True if a file is the error.json that torchelastic's @record writes on an exception."""
    return re.match(rb'\s*\{\s*"message"\s*:', head) is not None and (
        b'"extraInfo"' in head or name.endswith("error.json")
    )


def text_of_error_file(data: bytes) -> str:
    """Return the traceback of an error file as the process would have printed it. Raises ValueError.

    torch/distributed/elastic/multiprocessing/errors/error_handler.py: {"message": {"message": …, "extraInfo":
    {"py_callstack": …, "timestamp": seconds as text}}}, or a text as the outer message.
    """
    try:
        message = json_value(data)["message"]
        extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
        text = extra.get("py_callstack") or (message["message"] if isinstance(message, dict) else message)
        seconds = extra.get("timestamp")
        when = f"{datetime.fromtimestamp(int(seconds), timezone.utc):%Y-%m-%dT%H:%M:%SZ} " if seconds else ""
    except (*OTHER_SHAPE, OSError) as error:
        raise ValueError("it is not a torchelastic error file, or it is truncated") from error
    return "".join(f"{when}{line}\n" for line in str(text).splitlines())
