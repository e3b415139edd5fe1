"""Encode values for the control store: compressed JSON in parts.

The store has no authentication, as torchrun's has none, so any process may have written a value. Nearly all values have
one part, which is stored under the key itself, because on a slow path each key costs two round trips. For a larger
value the key holds ``mark``, the number of parts under ``KEY/0``, ``KEY/1`` …::

    b'x…'        b'{"parts": 2}'        b'"stuck"'   (the value of put_first is not compressed)

A part is smaller than 8 MiB, the size at which the store drops a connection (torch TCPStoreLibUvBackend.cpp).
"""

import zlib
from collections.abc import Sequence

from pydantic_core import from_json, to_json

from ddp_doctor.model.base import Json
from ddp_doctor.model.error_text import quoted

_PART_BYTES = 4 * 1024 * 1024
#: The largest unpacked value, and with it the largest number of parts.
_LARGEST_BYTES = 256 * 1024 * 1024
_MOST_PARTS = _LARGEST_BYTES // _PART_BYTES

_SAME_RELEASE = "install the same release of ddp-doctor on all nodes"
_UNREADABLE = "data that this ddp-doctor cannot read"
#: The end of messages such as "node2 sent …".
JUNK = f"{_UNREADABLE}; {_SAME_RELEASE}"


class RunIsOver(Exception):
    """Ends a run over several nodes for this node, whatever it does."""


class Unreadable(RunIsOver):
    """A value from another node that this release cannot read."""


def packed(value: Json) -> list[bytes]:
    """Return a value in parts. A number that is not finite becomes null, as in a recording."""
    whole = zlib.compress(to_json(value, inf_nan_mode="null"), 1)
    return [whole[at : at + _PART_BYTES] for at in range(0, len(whole), _PART_BYTES)]


def is_part(text: bytes) -> bool:
    """Return True for a compressed part, not JSON, by zlib's first byte (RFC 1950: deflate, a window of 32 KiB)."""
    return text.startswith(b"x")


def mark(parts: int) -> bytes:
    """Return the content of the key of a value with this many parts."""
    return to_json({"parts": parts})


def number_of_parts(content: Json) -> int | None:
    """Return the number of parts by the content of a key, or None if the content is the value itself.

    Raises Unreadable.
    """
    if not (isinstance(content, dict) and "parts" in content):
        return None
    parts = content["parts"]
    if type(parts) is not int or not 1 <= parts <= _MOST_PARTS:
        raise Unreadable(
            f"another node sent a message in {quoted(parts)} pieces, expected 1 to {_MOST_PARTS}; {_SAME_RELEASE}"
        )
    return parts


def unpacked(parts: Sequence[bytes]) -> Json:
    """Return the value in these parts. Raises Unreadable."""
    unpack = zlib.decompressobj()
    try:
        text = unpack.decompress(b"".join(parts), _LARGEST_BYTES)
    except zlib.error as error:
        raise Unreadable(f"another node sent {_UNREADABLE} ({error}); {_SAME_RELEASE}") from error
    if not unpack.eof:
        raise Unreadable(
            f"another node sent a message that is truncated or larger than {_LARGEST_BYTES >> 20} MiB; {_SAME_RELEASE}"
        )
    return plain(text)


def plain(text: bytes) -> Json:
    """Return the value in a text. Raises Unreadable for invalid JSON, including NaN and nesting deeper than 200."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise Unreadable(f"another node sent {_UNREADABLE} ({error}); {_SAME_RELEASE}") from error
