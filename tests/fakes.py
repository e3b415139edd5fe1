"""A machine made of dictionaries, for probes that run once per node."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from socket import EAI_NONAME, gaierror

from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import CommandResult, Disk, Interface
from ddp_doctor.model.recording import World


@dataclass
class FakeContext:
    """Files, links, commands and helper scripts by name; whatever is not given does not exist."""

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | OSError] = field(default_factory=dict)
    data: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, CommandResult | str] = field(default_factory=dict)
    children: Mapping[str, CommandResult | str] = field(default_factory=dict)
    disks: Mapping[str, Disk] = field(default_factory=dict)
    limits: Mapping[str, int | None] = field(default_factory=dict)
    cpu_count: int = 8
    network: Sequence[Interface] = ()
    host: str = "node0"
    names: Mapping[str, tuple[str, ...] | OSError] = field(default_factory=dict)
    node: int = 0
    world: World = field(default_factory=World)
    level: Level = Level.STANDARD
    deadline: float = 1e9
    raw: str | None = None

    def clock(self) -> float:
        return 0.0

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        return self._result(self.commands, argv[0], tuple(argv))

    def child(self, name: str, *args: str) -> CommandResult:
        return self._result(self.children, name, (name, *args))

    def read(self, path: str) -> str:
        text = self.files.get(path)
        if text is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if isinstance(text, OSError):
            raise text
        return text

    def read_bytes(self, path: str) -> bytes:
        return self.data[path] if path in self.data else self.read(path).encode()

    def listdir(self, path: str) -> list[str]:
        if path.rstrip("/") not in self._folders:
            raise FileNotFoundError(2, "No such file or directory", path)
        return sorted(self._folders[path.rstrip("/")])

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        """The names in each folder: some probes list a hundred, of trees of thousands of files."""
        folders: dict[str, set[str]] = {}
        for path in (*self.files, *self.links):
            name = path
            while name:
                name, _, last = name.rpartition("/")
                names = folders.setdefault(name, set())
                if last in names:
                    break  # and so are the folders above it
                names.add(last)
        return folders

    def readlink(self, path: str) -> str:
        target = self.links.get(posixpath.normpath(path))
        if target is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return target

    def disk(self, path: str) -> Disk:
        if path not in self.disks:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.disks[path]

    def limit(self, name: str) -> int | None:
        return self.limits.get(name)

    def cpus(self) -> int:
        return self.cpu_count

    def interfaces(self) -> tuple[Interface, ...]:
        return tuple(self.network)

    def hostname(self) -> str:
        return self.host

    def resolve(self, name: str, timeout_s: float) -> tuple[str, ...]:
        known = self.names.get(name, gaierror(EAI_NONAME, "Name or service not known"))
        if isinstance(known, OSError):
            raise known
        return known

    def keep(self, raw: str) -> None:
        self.raw = raw

    @staticmethod
    def _result(table: Mapping[str, CommandResult | str], name: str, argv: tuple[str, ...]) -> CommandResult:
        known = table.get(name)
        if known is None:
            return CommandResult(argv, "missing")
        if isinstance(known, str):
            return CommandResult(argv, "ended", 0, known)
        return known
