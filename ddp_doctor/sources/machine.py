"""The real machine and the other nodes, behind the contexts that probes get."""

import errno
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import CommandResult, Disk, Interface, Line, Peer
from ddp_doctor.model.recording import World
from ddp_doctor.sources import network, sockets
from ddp_doctor.sources.commands import run_command

#: No file that a probe asks for (/proc, /sys, version and configuration files) comes near this size.
READ_LIMIT_BYTES = 8 * 1024 * 1024


class Files:
    """The file system for probes: absolute paths, resolved below ``root``."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)

    def read(self, path: str) -> str:
        """Return the text of a file; bytes that are not UTF-8 are replaced. Raises as ``read_bytes`` does."""
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raises OSError as open() does, and EFBIG for more than 8 MiB, because half a file would be a wrong fact.
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
        """Return the sorted names in a directory."""
        return sorted(entry.name for entry in self._at(path).iterdir())

    def readlink(self, path: str) -> str:
        """Return the target of a symbolic link, as it is in the link."""
        return str(self._at(path).readlink())

    def disk(self, path: str) -> Disk:
        """Return the size of the file system that holds ``path``; its free space is for an ordinary user."""
        status, device = os.statvfs(self._at(path)), self._at(path).stat().st_dev
        problem = None
        if status.f_flag & os.ST_RDONLY:
            problem = "is mounted read-only"
        elif not os.access(self._at(path), os.W_OK | os.X_OK):
            problem = "may not be written to by this user"
        elif status.f_files and not status.f_favail:  # some file systems count none
            problem = "has no room for one more file"
        return Disk(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, device, problem)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")


#: Commands end this long before the probe's deadline, so that the probe itself can still report which one hung. It
#: covers the wait for a killed process (REAP_PATIENCE_S).
MARGIN_S = 0.5


class LiveContext(Files):
    """The view of this machine for one probe; ``raw`` holds the text that the probe kept.

    ``env`` is the environment of the job, for the probe and for every command; this class never reads the environment
    of its own process. ``deadline`` is on the clock of ``time.monotonic``. ``root`` only moves the files.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        deadline: float,
        *,
        node: int = 0,
        world: World | None = None,
        level: Level = Level.STANDARD,
        root: str = "/",
    ) -> None:
        super().__init__(root)
        self.env = env
        self.deadline = deadline
        self.node = node
        self.world = world or World()
        self.level = level
        self.raw: str | None = None

    def clock(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        """Run a command without a shell; it is killed after ``timeout_s`` or shortly before the deadline."""
        left_s = self.deadline - self.clock() - MARGIN_S
        return run_command(argv, self.env, left_s if timeout_s is None else min(timeout_s, left_s))

    def child(self, name: str, *args: str) -> CommandResult:
        """Run sources/child_NAME.py with this interpreter, isolated if this interpreter is."""
        script = Path(__file__).with_name(f"child_{name}.py")
        isolated = ("-I",) if sys.flags.isolated else ()
        return self.run((sys.executable, *isolated, str(script), *args))

    def limit(self, name: str) -> int | None:
        """Return the soft limit ``RLIMIT_<name>``, or None if unlimited."""
        number: int = getattr(resource, f"RLIMIT_{name}")
        soft, _ = resource.getrlimit(number)
        return None if soft == resource.RLIM_INFINITY else soft

    def cpus(self) -> int:
        """Return the number of logical CPUs that this process may run on."""
        return len(os.sched_getaffinity(0))

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the network interfaces, in the kernel's order."""
        return network.interfaces()

    def hostname(self) -> str:
        """Return this host's name."""
        return socket.gethostname()

    def resolve(self, name: str, timeout_s: float) -> tuple[str, ...]:
        """Return the addresses of a host name, in the resolver's order."""
        return network.resolve(os.fsencode(name), timeout_s)

    def keep(self, raw: str) -> None:
        """Keep raw text; later text is appended."""
        self.raw = raw if self.raw is None else f"{self.raw}\n{raw}"


class LiveNodesContext(LiveContext):
    """The view of one node's machine and peers; ``secret`` identifies the node to their listeners."""

    def __init__(
        self,
        env: Mapping[str, str],
        deadline: float,
        *,
        node: int,
        world: World,
        level: Level,
        peers: tuple[Peer, ...],
        secret: str,
        clock_offset_s: float | None,
    ) -> None:
        super().__init__(env, deadline, node=node, world=world, level=level)
        self.peers = peers
        self.nproc = len(world.ranks_of(node))
        self.clock_offset_s = clock_offset_s
        self._secret = secret

    def dial(self, address: str, port: int, timeout_s: float) -> Line:
        """Connect to a peer's listener and be recognized by it."""
        return sockets.dial(address, port, self._secret, timeout_s)
