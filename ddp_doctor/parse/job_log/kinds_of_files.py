"""Files beside a job's output that are told by their beginning."""

import re
from datetime import datetime, timezone

from ddp_doctor.parse.json_value import OTHER_SHAPE, json_value


def is_recording(head: bytes) -> bool:
    """Whether a file is a recording of ddp-doctor."""
    return head.lstrip()[:1] == b"{" and b'"schema_version"' in head and b'"run_id"' in head


def is_error_file(head: bytes, name: str) -> bool:
    """Whether a file is what torchelastic's @record writes on an exception, error.json."""
    return re.match(rb'\s*\{\s*"message"\s*:', head) is not None and (
        b'"extraInfo"' in head or name.endswith("error.json")
    )


def text_of_error_file(data: bytes) -> str:
    """Its traceback as the process would have printed it. Raises ValueError.

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
        raise ValueError("it is not what torchelastic writes into an error file, or is cut off") from error
    return "".join(f"{when}{line}\n" for line in str(text).splitlines())
