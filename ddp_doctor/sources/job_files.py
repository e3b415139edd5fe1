"""The output of a job, as streams of bytes: files, directories, globs, stdin, compressed files and archives.

Nothing is unpacked to disk, only stdin blocks, and the reason for each unreadable input is a sentence.
"""

import glob
import io
import os
import re
import stat
import sys
import tarfile
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from ddp_doctor.parse.text import as_utf8, plain
from ddp_doctor.sources.unpacking import DAMAGED, ZIP, Bounded, CannotUnpack, Counted, unpacked

#: Further files are skipped: a directory of an entire cluster's jobs, or a malicious archive.
MOST_FILES = 10_000
CHUNK_BYTES = 1 << 20
#: Chunks of a stream that cannot be read backwards, kept for the last lines.
_TAIL_CHUNKS = 4
#: Maximum distance from the end to search for the last lines.
_MOST_BACKWARDS_BYTES = 64 << 20
_HEAD_BYTES = 1 << 16
_DIGITS = re.compile(r"(\d+)")
_KINDS = (
    (stat.S_ISFIFO, "it is a named pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
    (stat.S_ISDIR, "it is a folder that was a file a moment ago"),
)


class JobFile:
    """An input, to be read before the next is requested. ``unread``: why it was not read, or not completely."""

    def __init__(
        self,
        name: str,
        unread: str | None = None,
        stream: IO[bytes] | None = None,
        modified_s: float | None = None,
        again: int | None = None,
        packed: Counted | None = None,
    ) -> None:
        self.name = plain(as_utf8(name))
        self.unread = unread
        self.modified_s = modified_s
        self.size_bytes = 0  # unpacked bytes that were read
        self.first = 0  # the byte of the file where reading began
        self._stream = stream
        self._tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
        self._packed = packed
        self._again = again  # the descriptor of a file that can be read backwards
        self.head = self._read(_HEAD_BYTES)

    def _read(self, size: int) -> bytes:
        """Return this many bytes, or fewer at the end. Sets ``unread`` if reading stops early."""
        parts = []
        while size > 0 and self._stream is not None and self.unread is None:
            try:
                part = self._stream.read(size)
            except EOFError:
                self.unread = "it is truncated"
            except (CannotUnpack, *DAMAGED) as error:
                self.unread = str(error) if isinstance(error, CannotUnpack) else f"it is damaged: {_sentence(error)}"
            else:
                if not part:
                    break
                parts.append(part)
                size -= len(part)
        data = b"".join(parts)
        self.size_bytes += len(data)
        return data

    @property
    def packed_bytes(self) -> int:
        """The number of bytes on disk that were read for it, if known."""
        return self._packed.count if self._packed else self.size_bytes

    def all(self, most_bytes: int) -> bytes | None:
        """Return the content, or None if it is longer than ``most_bytes``."""
        data = self.head + self._read(most_bytes - len(self.head) + 1)
        return data if len(data) <= most_bytes else None

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in pieces that end anywhere."""
        data = self.head
        while data:
            yield data
            data = self._read(CHUNK_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in pieces that end with a line end, except for lines that are longer than a piece."""
        carried, data = b"", self.head + self._read(CHUNK_BYTES - len(self.head))
        while data:
            data = carried + data
            end = data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1
            if not end and len(data) >= CHUNK_BYTES:
                end = len(data)
            carried = data[end:]
            if end:
                self._tail.append(data[:end])
                yield data[:end]
            data = self._read(CHUNK_BYTES)
        if carried:
            self._tail.append(carried)
            yield carried

    def backwards(self) -> Iterator[bytes]:
        """Yield the content that is kept or can be read again, in pieces, the last first."""
        if self._again is None:
            yield from reversed(self._tail)
            return
        stop, carried = self.size_bytes, b""
        least = max(0, stop - _MOST_BACKWARDS_BYTES)
        while stop > least:
            start = max(stop - CHUNK_BYTES, 0)
            try:
                data = os.pread(self._again, stop - start, self.first + start) + carried
            except OSError:
                return
            cut = data.find(b"\n") + 1 if start else 0
            carried, stop = data[:cut] if cut else b"", start
            if len(data) > cut:
                yield data[cut:]


def _sentence(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__


def total_bytes(paths: Sequence[str]) -> int:
    """Return the size on disk of the files of these paths, without stdin."""
    total = 0
    for path, unread in _paths(paths):
        if unread is None and path != "-":
            with suppress(OSError, ValueError):
                total += Path(path).stat().st_size
    return total


def job_files(paths: Sequence[str], starts: Mapping[str, int] = MappingProxyType({})) -> Iterator[JobFile]:
    """Yield all inputs of these paths, in order. Each must be read before the next is requested.

    ``starts``: the position to begin at in a file, in bytes, by its path.
    """
    count = 0
    for path, unread in _paths(paths):
        for file in _opened(path, starts.get(path, 0)) if unread is None else (JobFile(path, unread),):
            count += 1
            if count > MOST_FILES:
                yield JobFile(file.name, f"it and what follows are beyond the {MOST_FILES:,} files that are read")
                return
            yield file


def _paths(paths: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each file once, and the reason for each path that cannot be read."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if path == "-":
            yield path, None
            continue
        found = [path] if os.path.lexists(path) else sorted(glob.glob(path, recursive=True))  # noqa: PTH207  a pattern may be absolute
        if not found:
            yield path, "there is no such file"
        for name in found:
            for file in _files_below(name) if Path(name).is_dir() else (name,):
                try:
                    status = Path(file).stat()
                except (OSError, ValueError) as error:
                    yield file, f"it cannot be read: {_sentence(error)}"
                    continue
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield file, None


def _files_below(folder: str) -> Iterator[str]:
    """Yield the files below a directory, by name; links to directories are not followed."""
    count = 0
    for where, folders, files in os.walk(folder):
        folders.sort(key=_numbers_in)
        for file in sorted(files, key=_numbers_in):
            yield str(Path(where, file))
            count += 1
            if count > MOST_FILES:
                return


def _numbers_in(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() and len(part) < 10 else 0, part) for part in _DIGITS.split(name)]


def _opened(path: str, start: int) -> Iterator[JobFile]:
    if path == "-":
        yield from _streams("stdin", Counted(io.FileIO(sys.stdin.fileno(), closefd=False)), None)
        return
    try:
        # O_NONBLOCK: opening a FIFO that took a file's place must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        yield JobFile(path, f"it cannot be opened: {_sentence(error)}")
        return
    with io.FileIO(descriptor) as file:
        status = os.fstat(descriptor)
        wrong = next((words for test, words in _KINDS if test(status.st_mode)), None)
        if wrong:
            yield JobFile(path, f"{wrong}, and only files are read")
            return
        first = file.seek(start if start <= status.st_size else 0)  # it may have been truncated since
        for found in _streams(path, Counted(file), status.st_mtime):
            found.first = first
            yield found


def _streams(name: str, file: Counted, modified_s: float | None) -> Iterator[JobFile]:
    raw: io.BufferedReader[Any] = io.BufferedReader(file, _HEAD_BYTES)
    try:
        head = _peeked(raw)
    except OSError as error:
        yield JobFile(name, f"it cannot be read: {_sentence(error)}")
        return
    if head.startswith(ZIP):
        yield from _zip_members(name, file)
        return
    stream = raw
    try:
        stream = unpacked(head, Counted(raw)) or raw
        if stream is not raw:
            head = _peeked(stream)
    except (CannotUnpack, *DAMAGED) as error:
        yield JobFile(name, str(error) if isinstance(error, CannotUnpack) else f"it is damaged: {_sentence(error)}")
        return
    if _is_tar(head):
        yield from _tar_members(name, stream)
        return
    again = file.file.fileno() if stream is raw and isinstance(file.file, io.FileIO) and modified_s else None
    yield JobFile(name, None, stream, modified_s, again, file)


def _peeked(stream: "io.BufferedReader[Any]") -> bytes:
    return stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _tar_members(name: str, stream: "io.BufferedReader[Any]") -> Iterator[JobFile]:
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if not member.isdir():
                    content = archive.extractfile(member) if member.isreg() else None
                    yield _member(name, member.name, content, member.mtime)
    except (CannotUnpack, *DAMAGED) as error:
        yield JobFile(name, f"the archive is truncated or damaged: {_sentence(error)}")


def _zip_members(name: str, file: Counted) -> Iterator[JobFile]:
    if not isinstance(file.file, io.FileIO) or not file.file.seekable():
        yield JobFile(name, "a zip archive cannot be read from a pipe; name the file")
        return
    file.file.seek(0)
    try:
        with zipfile.ZipFile(file.file) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    with _zip_content(archive, info) as content:
                        yield _member(name, info.filename, content, None)
    except (CannotUnpack, *DAMAGED) as error:
        yield JobFile(name, f"the archive cannot be read: {_sentence(error)}")


@contextmanager
def _zip_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[IO[bytes] | None]:
    """Yield a member's bytes, or None if it is not a file. Its size is bounded by its size in the archive."""
    mode = info.external_attr >> 16
    if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
        yield None
        return
    with archive.open(info) as content:
        packed = Counted(content)
        packed.count = info.compress_size
        yield io.BufferedReader(Bounded(content, packed))


def _member(archive: str, name: str, content: IO[bytes] | None, modified_s: float | None) -> JobFile:
    shown = f"{archive}:{name}"
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return JobFile(shown, "its path leads out of the archive")
    if content is None:
        return JobFile(shown, "it is a link or a device, and only files are read")
    raw: io.BufferedReader[Any] = io.BufferedReader(Counted(content), _HEAD_BYTES)
    try:
        stream = unpacked(_peeked(raw), Counted(raw)) or raw
        head = _peeked(stream)
    except (CannotUnpack, *DAMAGED) as error:
        return JobFile(shown, f"it cannot be read: {_sentence(error)}")
    if _is_tar(head) or head.startswith(ZIP):
        return JobFile(shown, "it is an archive within an archive; unpack the outer one")
    return JobFile(shown, None, stream, modified_s)
