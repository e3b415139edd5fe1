r"""The common reader of JSON from other programs: any value in any text encoding, or a sentence on why it is not JSON.

A byte-order mark and UTF-16, which PowerShell writes, are accepted. NaN and infinities, which Python accepts in JSON,
are errors, and so are numbers that are too large for a float, and brackets that are nested too deeply.
"""

import json
import math
import re

from ddp_doctor.model.base import Json

#: Errors that occur if a value has an unexpected shape: a list for an object, a text for a number.
OTHER_SHAPE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


#: An integer with this many digits is read as a float, which holds no number of 309 digits.
_MOST_DIGITS = 300
#: Two of them are one character. A single one is not a character, and no output accepts it.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The text is not JSON. The message describes it. ``at``: the position where reading ended."""

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(why)
        self.at = at


def text_in(data: bytes) -> str:
    """Return the text of a file in any encoding that JSON may have, without a byte-order mark. Raises NotJson."""
    try:
        return data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise NotJson("it is not a text file") from error


def json_value(data: str | bytes) -> Json:
    """Return the value in a text. Raises NotJson."""
    text = text_in(data) if isinstance(data, bytes) else data.removeprefix("\ufeff")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        why = f"line {error.lineno} is not JSON" if text.strip("\0 \r\n\t") else "it is empty"
        raise NotJson(why, error.pos) from error
    except RecursionError as error:
        raise NotJson("its JSON is nested too deeply") from error
    if _HALVES.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def json_object(data: str | bytes) -> dict[str, Json]:
    """Return the object in a text. Raises NotJson, including for a value of another kind."""
    value = json_value(data)
    if not isinstance(value, dict):
        raise NotJson("it is not a JSON object")
    return value


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise NotJson(f"{number[:20]} is not a finite number")
    return value


def _whole(number: str) -> int:
    return int(number) if len(number) < _MOST_DIGITS else int(_finite(number))


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)
