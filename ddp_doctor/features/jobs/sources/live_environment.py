"""The current environment of a process, read from its memory.

/proc/PID/environ holds the variables that a process was started with. A script may set its rank later: Ray Train,
Lightning and scripts below mp.spawn do. libc keeps the current variables in the array that ``environ`` points to.
The symbol is in the executable if it refers to it directly (a copy relocation), otherwise in libc.
"""

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddp_doctor.sources import proc

_SECTION, _SYMBOL, _POINTER = struct.Struct("<4xI8xQQQI"), struct.Struct("<IBBHQ8x"), struct.Struct("<Q")
_ELF64_LITTLE_ENDIAN, _PIE_OR_LIBRARY, _DYNAMIC_SYMBOLS = b"\x7fELF\x02\x01", 3, 11
_LIBC = re.compile(r"/(?:libc\.so\.6|libc-[\d.]+\.so|ld-musl-\w+\.so\.1|libc\.musl-\w+\.so\.1)$")
_LARGEST_FILE_BYTES = 1 << 26
_MOST_VARIABLES, _PAGE, _LONGEST_BYTES = 4096, 4096, 1 << 17


def current_environment(pid: int) -> dict[str, str] | None:
    """Return the variables of a process, those it set itself included; None if it may not be read.

    Returns the variables at its start if its memory may not be read (ptrace(2)).
    """
    at_start = proc.environment(pid)
    if at_start is None:
        return None
    with suppress(OSError, ValueError, struct.error), Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for at in _environ_pointers(pid):
            if variables := dict(_variables(memory.fileno(), at)):
                return variables
    return at_start


def _environ_pointers(pid: int) -> Iterator[int]:
    """Yield the addresses of ``environ`` in a process, starting with its executable."""
    starts: dict[str, int] = {}
    for line in (proc.read(f"/proc/{pid}/maps") or "").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and int(words[2], 16) == 0:
            starts.setdefault(words[5], int(words[0].partition("-")[0], 16))
    executable = str(Path(f"/proc/{pid}/exe").readlink())
    for path, start in starts.items():
        if path == executable or _LIBC.search(path):
            with suppress(OSError, struct.error):
                yield from _environ_in_file(proc.path_of(pid, path), start)


def _environ_in_file(path: str, start: int) -> Iterator[int]:
    with Path(path).open("rb") as file:
        data = file.read(_LARGEST_FILE_BYTES)
    if not data.startswith(_ELF64_LITTLE_ENDIAN):
        return
    base = start if struct.unpack_from("<H", data, 16)[0] == _PIE_OR_LIBRARY else 0
    (table,), (number,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    sections = [_SECTION.unpack_from(data, table + at * 64) for at in range(number)]
    for kind, _, offset, size, names in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        names_at = sections[names][2]
        for name, _, _, section, value in _SYMBOL.iter_unpack(data[offset : offset + size]):
            if section and data.startswith(b"environ\0", names_at + name):
                yield base + value


def _variables(memory: int, pointer: int) -> Iterator[tuple[str, str]]:
    (array,) = _POINTER.unpack(os.pread(memory, 8, pointer))
    for at in range(_MOST_VARIABLES):
        (text,) = _POINTER.unpack(os.pread(memory, 8, array + 8 * at))
        if not text:
            return
        name, is_one, value = _text(memory, text).partition("=")
        if is_one:
            yield name, value


def _text(memory: int, at: int) -> str:
    """Read page by page: the one after the text may not exist."""
    raw = b""
    while b"\0" not in raw and len(raw) < _LONGEST_BYTES:
        raw += os.pread(memory, _PAGE - (at + len(raw)) % _PAGE, at + len(raw))
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
