"""A file system in memory with folders, files and symbolic links, in place of ddp_doctor.sources.machine.Files.

Writing the thousand files of a machine to a disk takes longer than all probes and rules together.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from ddp_doctor.model.context import Disk

MOST_LINKS = 40  # as Linux: a path through more of them is a circle


@dataclass(frozen=True)
class Link:
    target: str


Entry = Union[dict[str, "Entry"], bytes, Link]  # noqa: UP007  a name of itself in it


class MemoryFiles:
    """The tree. Paths are absolute; a link may be broken."""

    def __init__(self) -> None:
        self._top: dict[str, Entry] = {}
        self._folders: dict[str, dict[str, Entry]] = {}  # by path, while nothing is linked or removed

    # --- building ---------------------------------------------------------------------------------------

    def write(self, path: str, text: str | bytes = "") -> None:
        """A file, and the folders above it; links on the way are followed."""
        parent, name = path.rsplit("/", 1)
        self._made(parent)[name] = text.encode() if isinstance(text, str) else text

    def link(self, path: str, target: str) -> None:
        parent, name = path.rsplit("/", 1)
        self._made(parent)[name] = Link(target)
        self._folders.clear()

    def folder(self, path: str) -> None:
        self._made(path)

    def remove(self, path: str) -> None:
        parent, name = path.rsplit("/", 1)
        del self._made(parent)[name]
        self._folders.clear()

    def exists(self, path: str) -> bool:
        try:
            self._at(path)
        except OSError:
            return False
        return True

    def walk(self) -> Iterator[tuple[str, Entry]]:
        yield from _walk("", self._top)

    def save(self, root: Path) -> None:
        for path, entry in self.walk():
            at = root / path.lstrip("/")
            at.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(entry, Link):
                at.symlink_to(entry.target)
            elif isinstance(entry, bytes):
                at.write_bytes(entry)

    def _made(self, path: str) -> dict[str, Entry]:
        if path in self._folders:
            return self._folders[path]
        names = [name for name in path.split("/") if name]
        here: dict[str, Entry] = self._top
        for at, name in enumerate(names):
            entry = here.setdefault(name, {})
            if isinstance(entry, Link):
                entry = self._at("/" + "/".join(names[: at + 1]))
            assert isinstance(entry, dict), path
            here = entry
        self._folders[path] = here
        return here

    # --- what Files offers ------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        entry = self._at(path)
        if not isinstance(entry, bytes):
            raise _error(errno.EISDIR, path)
        return entry

    def listdir(self, path: str) -> list[str]:
        entry = self._at(path)
        if not isinstance(entry, dict):
            raise _error(errno.ENOTDIR, path)
        return sorted(entry)

    def readlink(self, path: str) -> str:
        entry = self._at(path, follow=False)
        if not isinstance(entry, Link):
            raise _error(errno.EINVAL, path)
        return entry.target

    def disk(self, path: str) -> Disk:
        raise _error(errno.ENOSYS, path)

    def _at(self, path: str, *, follow: bool = True) -> Entry:
        """Return the entry. Directories are cached, because probes read hundreds of files in few directories."""
        parent, _, name = path.rpartition("/")
        if parent not in self._folders:
            with suppress(OSError):
                folder = self._walked(parent)
                if isinstance(folder, dict):
                    self._folders[parent] = folder
        entry = self._folders.get(parent, {}).get(name)
        if entry is None or (isinstance(entry, Link) and follow):
            return self._walked(path, follow=follow)
        return entry

    def _walked(self, path: str, *, follow: bool = True) -> Entry:
        left = [name for name in path.split("/") if name not in ("", ".")][::-1]
        above: list[dict[str, Entry]] = []
        here: Entry = self._top
        links = 0
        while left:
            name = left.pop()
            if not isinstance(here, dict):
                raise _error(errno.ENOTDIR, path)
            if name == "..":
                here = above.pop() if above else here
                continue
            if name not in here:
                raise _error(errno.ENOENT, path)
            entry = here[name]
            if isinstance(entry, Link) and (left or follow):
                links += 1
                if links > MOST_LINKS:
                    raise _error(errno.ELOOP, path)
                if entry.target.startswith("/"):
                    above, here = [], self._top
                left += [part for part in entry.target.split("/") if part not in ("", ".")][::-1]
                continue
            above.append(here)
            here = entry
        return here


def _walk(path: str, entry: Entry) -> Iterator[tuple[str, Entry]]:
    if isinstance(entry, dict):
        for name, inside in entry.items():
            yield from _walk(f"{path}/{name}", inside)
    else:
        yield path, entry


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
