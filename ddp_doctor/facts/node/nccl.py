"""What NCCL would read and load on a node."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge.network.nccl_plugins import PluginKind
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: Why NCCL reads a file: configured, in the user's folder, in $HOME where that is another than the passwd entry's,
#: in that entry's, or in /etc.
Reason = Literal["named", "user", "home", "passwd", "system"]


class ConfLine(Frozen):
    """One line that is neither blank nor a comment."""

    number: int
    name: str | None = None  # None: there is no "="; NCCL passes the line over
    value: str | None = None  # None: kept back, like a credential or no setting of NCCL's


class ConfFile(Frozen):
    """One file that NCCL would read."""

    path: str
    reason: Reason
    lines: tuple[ConfLine, ...] = ()
    problem: str | None = None  # why it cannot be read, or not whole


class Plugin(Frozen):
    """One plug-in that is named, or that lies where NCCL searches."""

    kind: PluginKind
    asked: str  # as it is named, or the default's file name
    setting: str | None = None  # the variable that names it; None: NCCL's own default
    path: str | None = None  # the file that would be loaded
    brought_by: str | None = None  # LD_LIBRARY_PATH=FOLDER, LD_PRELOAD=FILE; None: the linker's own places
    missing: tuple[str, ...] = ()  # libraries that it needs and that are nowhere
    elsewhere: tuple[str, ...] = ()  # folders that hold it, that the linker does not search
    unclear: bool = False  # named by a path relative to the folder that the job starts in

    @property
    def works(self) -> bool:
        """Whether NCCL can load it, as far as this shows."""
        return self.unclear or (self.path is not None and not self.missing)


class NcclFact(Fact):
    """What NCCL would read and load here."""

    KIND: ClassVar[str] = "nccl/1"

    conf: tuple[ConfFile, ...] = ()  # in NCCL's order
    overruled: dict[str, str] = Field(default_factory=dict)  # the environment's values of names that files set
    plugins: tuple[Plugin, ...] = ()
    network: str | None = None  # NCCL_NET, of the environment or a file
    efa_devices: tuple[str, ...] = ()

    def networks(self) -> tuple[Plugin, ...]:
        """The network plug-ins that would be tried."""
        return tuple(plugin for plugin in self.plugins if plugin.kind == "net")
