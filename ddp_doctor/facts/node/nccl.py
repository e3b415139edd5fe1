"""Facts about the files and plug-ins that NCCL would load on a node."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge.network.nccl_plugins import PluginKind
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: Why NCCL reads a file: configured, in the user's directory, in $HOME if it differs from the passwd entry's directory,
#: in that entry's directory, or in /etc.
Reason = Literal["named", "user", "home", "passwd", "system"]


class ConfLine(Frozen):
    """A line that is neither blank nor a comment."""

    number: int
    name: str | None = None  # None: there is no "="; NCCL ignores the line
    value: str | None = None  # None: withheld, looks like a credential or is not an NCCL setting


class ConfFile(Frozen):
    """A file that NCCL would read."""

    path: str
    reason: Reason
    lines: tuple[ConfLine, ...] = ()
    problem: str | None = None  # why it cannot be read, or not completely


class Plugin(Frozen):
    """A plug-in that is configured, or that is in a directory NCCL searches."""

    kind: PluginKind
    asked: str  # the configured name, or the default's file name
    setting: str | None = None  # the variable that names it; None: NCCL's own default
    path: str | None = None  # the file that would be loaded
    brought_by: str | None = None  # LD_LIBRARY_PATH=DIRECTORY, LD_PRELOAD=FILE; None: the linker's own places
    missing: tuple[str, ...] = ()  # libraries that it needs and that do not exist
    elsewhere: tuple[str, ...] = ()  # directories with it that the linker does not search
    unclear: bool = False  # named by a path relative to the job's working directory

    @property
    def works(self) -> bool:
        """Return True if NCCL can load it, according to these fields."""
        return self.unclear or (self.path is not None and not self.missing)


class NcclFact(Fact):
    """The files and plug-ins that NCCL would load on this node."""

    KIND: ClassVar[str] = "nccl/1"

    conf: tuple[ConfFile, ...] = ()  # in NCCL's order
    overruled: dict[str, str] = Field(default_factory=dict)  # values in the environment of names that files set
    plugins: tuple[Plugin, ...] = ()
    network: str | None = None  # NCCL_NET, from the environment or a file
    efa_devices: tuple[str, ...] = ()

    def networks(self) -> tuple[Plugin, ...]:
        """Return the network plug-ins that would be tried."""
        return tuple(plugin for plugin in self.plugins if plugin.kind == "net")
