"""Reads compressed files and archives without unpacking them to disk, bounded in size and memory."""

import bz2
import importlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

#: A log of repeated lines is compressed to a hundredth, a file that is made to expand to a thousandth or less.
FREE_BYTES = 256 << 20
_LARGEST_RATIO = 250
_MOST_BYTES = 1 << 40
_LZMA_MEMORY_BYTES = 128 << 20
_PIECE = 1 << 18

GZIP, BZIP2, XZ, ZSTD, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
#: Errors that readers of damaged data raise.
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


class CannotUnpack(Exception):
    """The reason why a file cannot be unpacked. The message follows the file's name."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


class _Decompressor(Protocol):
    """The interface that bz2, lzma and zstd share."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Counted(io.RawIOBase):
    """A stream that counts the bytes that were read from it."""

    def __init__(self, file: "_Readable") -> None:
        self.file = file
        self.count = 0

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        data = self.file.read(len(buffer)) or b""
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


class Bounded(Counted):
    """The content of a compressed stream. Reading raises CannotUnpack if it expands too much."""

    def __init__(self, file: _Readable, packed: Counted) -> None:
        super().__init__(file)
        self._packed = packed

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase. Raises CannotUnpack if the content is too large."""
        read = super().readinto(buffer)
        if self.count > max(FREE_BYTES, min(self._packed.count * _LARGEST_RATIO, _MOST_BYTES)):
            raise CannotUnpack(f"it unpacks to more than {_LARGEST_RATIO} times its size, so the rest was not read")
        return read


class _Unpacked:
    """Consecutive streams, each compressed separately, as one stream."""

    def __init__(self, packed: Counted, new: Callable[[], _Decompressor]) -> None:
        self._packed, self._new = packed, new
        self._now = new()

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, b"" at the end. Raises EOFError if the stream is truncated."""
        while True:
            if self._now.eof:
                rest = self._now.unused_data or self._packed.read(_PIECE) or b""
                if not rest.strip(b"\0"):
                    return b""
                self._now = self._new()
            else:
                rest = (self._packed.read(_PIECE) or b"") if self._now.needs_input else b""
                if self._now.needs_input and not rest:
                    raise EOFError("it is truncated")
            if data := self._now.decompress(rest, size):
                return data


class _Gzip:
    """zlib's decompressor with the methods of the others."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _zstd_decompressor() -> Callable[[], _Decompressor]:
    """Return Python's own decompressor since 3.14, or the decompressor of an installed module."""
    for module in ("compression.zstd", "backports.zstd", "pyzstd"):
        try:
            found: Callable[[], _Decompressor] = importlib.import_module(module).ZstdDecompressor
        except ImportError:
            continue
        return found
    raise CannotUnpack("this Python cannot read zstd files; unpack the file with `zstd -d`")


def unpacked(head: bytes, file: Counted) -> "io.BufferedReader[Any] | None":
    """Return the content of a stream by its first bytes; None if not compressed. Raises CannotUnpack."""
    new: Callable[[], _Decompressor]
    if head.startswith(ZSTD):
        new = _zstd_decompressor()
    elif head.startswith(GZIP):
        new = _Gzip
    elif head.startswith(BZIP2):
        new = bz2.BZ2Decompressor
    elif head.startswith(XZ):
        new = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY_BYTES)
    else:
        return None
    return io.BufferedReader(Bounded(_Unpacked(file, new), file), _PIECE)
