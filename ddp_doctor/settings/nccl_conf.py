"""nccl.conf: settings that NCCL adds to its environment, not visible from outside.

    # comment
    NCCL_SOCKET_IFNAME=eth0
    export NCCL_DEBUG=INFO          sets a variable called "export NCCL_DEBUG", which is never read
     NCCL_IB_HCA=mlx5_0             the leading space has the same effect
    NCCL_P2P_LEVEL

Source: NCCL src/misc/param.cc (setEnvFile, initEnvFunc), tested with libnccl 2.20.5 to 2.32.3: the user's file
is read before the system's, the first of two equal names counts, and files never override what is already set.
"""

from collections.abc import Mapping

from ddp_doctor.facts.node.nccl import ConfFile, ConfLine, NcclFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.network.nccl_plugins import CONF_FILE_SINCE, HOME_SINCE
from ddp_doctor.knowledge.versions import Version, release
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.parse.redact import is_withheld
from ddp_doctor.parse.text import as_utf8
from ddp_doctor.settings.names import is_recorded

SYSTEM_FILE = "/etc/nccl.conf"
#: The number of characters that NCCL keeps of a name or value.
LONGEST = 1023
#: A longer file is not an NCCL configuration.
MOST_LINES = 1000


def conf_lines(text: str) -> tuple[ConfLine, ...]:
    """Parse a file the way NCCL does, up to MOST_LINES lines."""
    found: list[ConfLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            found.append(_line(number, line.partition("\0")[0]))
        if len(found) > MOST_LINES:
            break
    return tuple(found[:MOST_LINES])


def _line(number: int, line: str) -> ConfLine:
    name, sign, value = line.partition("=")
    if not sign or not name:
        return ConfLine(number=number)
    bare = name.strip().removeprefix("export ").strip()
    if not is_recorded(bare):
        return ConfLine(number=number, name=_shown(name) if bare.isidentifier() else "")
    value = value[:LONGEST]
    return ConfLine(number=number, name=_shown(name), value=None if is_withheld(name, value) else _shown(value))


def _shown(text: str) -> str:
    return as_utf8(text[:LONGEST])


def set_by_files(files: tuple[ConfFile, ...]) -> Mapping[str, tuple[str, str]]:
    """Map each name that the files set to its value and ``path:line``; files are in NCCL's order."""
    found: dict[str, tuple[str, str]] = {}
    for file in files:
        for line in file.lines:
            if line.name and line.value is not None:
                found.setdefault(line.name, (line.value, f"{file.path}:{line.number}"))
    return found


def read_by(files: tuple[ConfFile, ...], nccl: Version = ()) -> tuple[ConfFile, ...]:
    """Return the files that this release of NCCL, or the newest, reads. A named file replaces the user's own."""
    if nccl and nccl < CONF_FILE_SINCE:
        ignored = {"named", "home"}
    elif any(file.reason == "named" for file in files):
        ignored = {"user", "home", "passwd"}
    else:
        ignored = {"home" if nccl and nccl < HOME_SINCE else "passwd"}
    return tuple(file for file in files if file.reason not in ignored)


def files_read(recording: Recording, nccl: FactAt[NcclFact]) -> tuple[ConfFile, ...]:
    """Return the files that NCCL on this node reads."""
    version = next((software.nccl_loaded for software in recording.at(Software, nccl.node)), None)
    return read_by(nccl.fact.conf, release(version or ""))
