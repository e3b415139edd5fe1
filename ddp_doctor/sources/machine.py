"""The real machine behind the ``Context`` that node probes get."""

import os
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import CommandResult, Disk, Interface
from ddp_doctor.model.recording import World
from ddp_doctor.sources import network
from ddp_doctor.sources.commands import run_command
from ddp_doctor.sources.files import Files

#: Commands end this long before the probe's deadline, so that the probe itself can still say which one
#: hung. It covers the wait for a killed process (REAP_PATIENCE_S).
MARGIN_S = 0.5


class LiveContext:
    """One probe's view of this machine; ``raw`` holds what the probe kept.

    ``env`` is the environment of the job, for the probe and for every command; this class never reads
    the process's own. ``deadline`` is on the clock of ``time.monotonic``. ``root`` moves the files only.
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
        self.env = env
        self.deadline = deadline
        self.node = node
        self.world = world or World()
        self.level = level
        self.raw: str | None = None
        self._files = Files(root)

    def clock(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        """Run a command without a shell; it is killed after ``timeout_s`` or shortly before the deadline."""
        left_s = self.deadline - self.clock() - MARGIN_S
        return run_command(argv, self.env, left_s if timeout_s is None else min(timeout_s, left_s))

    def child(self, name: str, *args: str) -> CommandResult:
        """Run sources/child_NAME.py with this interpreter, isolated where this one is."""
        script = Path(__file__).with_name(f"child_{name}.py")
        isolated = ("-I",) if sys.flags.isolated else ()
        return self.run((sys.executable, *isolated, str(script), *args))

    def read(self, path: str) -> str:
        """The text of a file."""
        return self._files.read(path)

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a file."""
        return self._files.read_bytes(path)

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder."""
        return self._files.listdir(path)

    def readlink(self, path: str) -> str:
        """Where a symbolic link points to."""
        return self._files.readlink(path)

    def disk(self, path: str) -> Disk:
        """Size of the file system that holds ``path``."""
        return self._files.disk(path)

    def limit(self, name: str) -> int | None:
        """The soft limit ``RLIMIT_<name>``; None is unlimited."""
        number: int = getattr(resource, f"RLIMIT_{name}")
        soft, _ = resource.getrlimit(number)
        return None if soft == resource.RLIM_INFINITY else soft

    def cpus(self) -> int:
        """How many logical CPUs this process may run on."""
        return len(os.sched_getaffinity(0))

    def interfaces(self) -> tuple[Interface, ...]:
        """The network interfaces, in the kernel's order."""
        return network.interfaces()

    def hostname(self) -> str:
        """This host's name."""
        return socket.gethostname()

    def resolve(self, name: str, timeout_s: float) -> tuple[str, ...]:
        """The addresses of a host name, in the resolver's order."""
        return network.resolve(name, timeout_s)

    def keep(self, raw: str) -> None:
        """Keep raw text; what is kept later is appended."""
        self.raw = raw if self.raw is None else f"{self.raw}\n{raw}"
