"""The contents of a shared library: the texts of its read-only data, and the addresses of its functions.

Written for 64-bit little-endian ELF files, the format of NVIDIA's and torch's wheels for Linux. Reads only the
requested sections, not the surrounding half gigabyte.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def texts(library: Path) -> bytes:
    """Return the section .rodata with the program's string constants, each followed by a zero."""
    return _sections(library, ".rodata")[".rodata"]


def names(read_only: bytes, prefix: str) -> set[str]:
    """Return the uppercase texts that begin with a prefix. Data without a zero may precede a text."""
    word = rb"[A-Z0-9_]"
    found = re.finditer(prefix.encode() + word + rb"+\0", read_only)
    return {
        match.group()[:-1].decode()
        for match in found
        if not re.match(word, read_only[match.start() - 1 : match.start()])
    }


def functions(library: Path) -> Iterator[tuple[str, int]]:
    """The name of every function, as the compiler mangled it, and its address in the library."""
    found = _sections(library, ".symtab", ".strtab")
    strings = found[".strtab"]
    for name, _, _, _, address, _ in _SYMBOL.iter_unpack(found[".symtab"]):
        yield strings[name : strings.index(0, name)].decode(), address


def _sections(library: Path, *wanted: str) -> dict[str, bytes]:
    with library.open("rb") as file:
        start = _at(file, 40, "<Q")[0]
        size, count, of_names = _at(file, 58, "<HHH")
        headers = [_HEADER.unpack(_read(file, start + size * n, _HEADER.size)) for n in range(count)]
        titles = _read(file, headers[of_names][4], headers[of_names][5])
        named = {titles[h[0] : titles.index(0, h[0])].decode(): h for h in headers}
        return {name: _read(file, named[name][4], named[name][5]) for name in wanted}


def _at(file: BinaryIO, offset: int, form: str) -> tuple[int, ...]:
    return struct.unpack(form, _read(file, offset, struct.calcsize(form)))


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
