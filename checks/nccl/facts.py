"""What NCCL would read and load on a node, and of which nodes the rules on plug-ins speak."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.facts.software import Software
from ddp_doctor.knowledge.nccl_plugins import CONF_FILE_SINCE, HOME_SINCE, PluginKind
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Evidence
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.parse.nccl_conf import ConfFile
from ddp_doctor.views.software import with_gpus


class Plugin(Frozen):
    """One plug-in that is named, or that lies where NCCL looks."""

    kind: PluginKind
    asked: str  # as it is named, or the default's file name
    setting: str | None = None  # the variable that names it; None: NCCL's own default
    path: str | None = None  # the file that would be loaded
    brought_by: str | None = None  # LD_LIBRARY_PATH=FOLDER, LD_PRELOAD=FILE; None: the linker's own places
    missing: tuple[str, ...] = ()  # libraries that it needs and that nobody has
    elsewhere: tuple[str, ...] = ()  # folders that hold it, where the linker does not look
    unclear: bool = False  # named by a path relative to the folder that the job starts in

    @property
    def works(self) -> bool:
        """Whether NCCL can load it, as far as this tells."""
        return self.unclear or (self.path is not None and not self.missing)


class NcclFact(Fact):
    """What NCCL would read and load here."""

    KIND: ClassVar[str] = "nccl/1"

    conf: tuple[ConfFile, ...] = ()  # in NCCL's order
    overruled: dict[str, str] = Field(
        default_factory=dict
    )  # the environment's values of names that files set
    plugins: tuple[Plugin, ...] = ()
    network: str | None = None  # NCCL_NET, of the environment or a file
    efa_devices: tuple[str, ...] = ()

    def networks(self) -> tuple[Plugin, ...]:
        """The network plug-ins that would be tried."""
        return tuple(one for one in self.plugins if one.kind == "net")


def files_read(recording: Recording, seen: Seen[NcclFact]) -> tuple[ConfFile, ...]:
    """The files that the NCCL of this node reads: which one is ~'s depends on its version."""
    version = next((one.nccl_loaded for one in recording.at(Software, seen.node)), None)
    number = release(version or "")
    ignored = {"home" if number and number < HOME_SINCE else "passwd"}
    if number and number < CONF_FILE_SINCE:
        ignored.add("named")
    return tuple(one for one in seen.fact.conf if one.reason not in ignored)


def of_gpu_nodes(recording: Recording) -> list[Seen[NcclFact]]:
    """The nodes whose job uses NCCL. A prolog does not know the job's LD_LIBRARY_PATH."""
    nodes = {seen.node for seen in with_gpus(recording)}
    return [seen for seen in recording.facts(NcclFact) if seen.node in nodes]


def observed(text: str, expected_from: str) -> Evidence:
    """What was read, and what it was held against."""
    return Evidence(check="nccl", text=text, expected_from=expected_from)
