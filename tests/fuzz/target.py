"""The description of a parser for the fuzzers, and a machine whose every file has the current text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.fakes import FakeContext

#: The names in every directory of that machine: names that some parser searches for.
NAMES = (
    *("0000:61:00.0", "0000:61:00.4", "mlx5_0", "efa_0", "eth0", "bond0", "uverbs0", "nvidia0", "nvidiactl", "kfd"),
    *("0", "1", "2", "5403", "accel0", "nvidia_peermem", "link_downed", "libibverbs.so.1", "mlx5.driver"),
)


@dataclass(frozen=True)
class Target:
    """``call`` hands the text to ``parses``; ``refuses`` is what its docstring says that it raises."""

    parses: Callable[..., object]
    call: Callable[[str], object]
    seeds: tuple[str, ...]
    refuses: tuple[type[Exception], ...] = ()

    @property
    def name(self) -> str:
        """The name ``module.function``, in the format of NOT_FOREIGN."""
        return f"{self.parses.__module__.rpartition('.')[2]}.{self.parses.__name__}"


def direct(parses: Callable[[str], object], *seeds: str, refuses: type[Exception] | None = None) -> Target:
    return Target(parses, parses, seeds, (refuses,) if refuses else ())


class Machine(FakeContext):
    """A machine with only files and links; every directory has NAMES."""

    def listdir(self, path: str) -> list[str]:
        return sorted(NAMES)

    def read_bytes(self, path: str) -> bytes:
        return self.read(path).encode("utf-8", "surrogatepass")


class _Everywhere(Mapping[str, str]):
    """Files that all hold the same text, or the parts of it between form feeds one after the other."""

    def __init__(self, text: str) -> None:
        self._parts = text.split("\f")
        self._next = 0

    def __getitem__(self, path: str) -> str:
        self._next += 1
        return self._parts[(self._next - 1) % len(self._parts)]

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter(())


def machine(text: str) -> FakeContext:
    return Machine(env={"HOME": "/root"}, files=_Everywhere(text), links=_Everywhere(text))


def reader(text: str) -> Callable[[str], str]:
    """Return a reader that gives the text, or its next part, for every path."""
    return _Everywhere(text).__getitem__
