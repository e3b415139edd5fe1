"""Reading files of the machine, below a root that tests can move."""

import errno
import os
from pathlib import Path

from ddp_doctor.model.context import Disk

#: No file that a probe asks for (/proc, /sys, version and configuration files) comes near this size.
READ_LIMIT_BYTES = 8 * 1024 * 1024


class Files:
    """The file system as probes see it: absolute paths, looked up below ``root``."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)

    def read(self, path: str) -> str:
        """The text of a file; bytes that are not UTF-8 are replaced. Raises as ``read_bytes`` does."""
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a file.

        Raises OSError as open() does, and EFBIG for more than 8 MiB: half a file would be a wrong fact.
        """
        # O_NONBLOCK: opening a FIFO, or reading an empty one, must not wait for a writer.
        descriptor = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            data = bytearray()
            while chunk := file.read(65536):
                data += chunk
                if len(data) > READ_LIMIT_BYTES:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return bytes(data)

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder."""
        return sorted(entry.name for entry in self._at(path).iterdir())

    def readlink(self, path: str) -> str:
        """Where a symbolic link points to, as it stands in the link."""
        return str(self._at(path).readlink())

    def disk(self, path: str) -> Disk:
        """Size of the file system that holds ``path``; free is what an ordinary user may still take."""
        status, device = os.statvfs(self._at(path)), self._at(path).stat().st_dev
        return Disk(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, device)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")
