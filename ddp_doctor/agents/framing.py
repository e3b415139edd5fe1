"""Values on their way through the control store: compressed JSON in parts, and what is taken for one.

The store has no authentication, as torchrun's has none, so that anybody may have written what is read. A value of one
part, as nearly all are, stands under the key itself: on a slow path each key costs two round trips. Of a larger one
``mark`` stands there and tells how many parts lie under ``KEY/0``, ``KEY/1`` …::

    b'x…'        b'{"parts": 2}'        b'"stuck"'   (a word of the first who spoke is not compressed)

A part is smaller than the 8 MiB from which on the store drops a connection (torch TCPStoreLibUvBackend.cpp).
"""

import zlib
from collections.abc import Sequence

from pydantic_core import from_json, to_json

from ddp_doctor.model.base import Json

_PART_BYTES = 4 * 1024 * 1024
#: What a value may grow to when it is unpacked, and so in how many parts it may come.
_LARGEST_BYTES = 256 * 1024 * 1024
_MOST_PARTS = _LARGEST_BYTES // _PART_BYTES

#: Ends "node2 sent …" and the like.
JUNK = "what cannot be read (another release of ddp-doctor?)"


class Unreadable(Exception):
    """What came from another node is nothing that this release writes."""


def packed(value: Json) -> list[bytes]:
    """A value in parts. A number that is not finite becomes null, as in a recording."""
    whole = zlib.compress(to_json(value, inf_nan_mode="null"), 1)
    return [whole[at : at + _PART_BYTES] for at in range(0, len(whole), _PART_BYTES)]


def is_part(text: bytes) -> bool:
    """Whether it is a part, and no JSON: by how zlib begins (RFC 1950, deflate with a window of 32 KiB)."""
    return text.startswith(b"x")


def mark(parts: int) -> bytes:
    """What stands under the key of a value in so many parts."""
    return to_json({"parts": parts})


def number_of_parts(said: Json) -> int | None:
    """In how many parts a value comes, by what stands under its key; None where it stands there itself.

    Raises Unreadable.
    """
    if not (isinstance(said, dict) and "parts" in said):
        return None
    parts = said["parts"]
    if type(parts) is not int or not 1 <= parts <= _MOST_PARTS:
        raise Unreadable("a value in no number of parts")
    return parts


def unpacked(parts: Sequence[bytes]) -> Json:
    """The value in these parts. Raises Unreadable."""
    unpack = zlib.decompressobj()
    try:
        text = unpack.decompress(b"".join(parts), _LARGEST_BYTES)
    except zlib.error as error:
        raise Unreadable(str(error)) from error
    if not unpack.eof:
        raise Unreadable("a value that is cut short or too large")
    return plain(text)


def plain(text: bytes) -> Json:
    """The value in a text. Raises Unreadable for what is no JSON, NaN and nesting deeper than 200 included."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise Unreadable(str(error)) from error
