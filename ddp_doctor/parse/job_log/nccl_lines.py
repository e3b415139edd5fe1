"""NCCL's INFO lines, few of them kept for each process: what parse/nccl_log reads.

Nearly all of an INFO log are lines of channels, the same pair of ranks on each. They are collected by one expression a
chunk, so that a line costs a microsecond and a pair is kept once.
"""

import re
from collections.abc import Mapping

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.parse.nccl_log import MOST_CHARACTERS, digest, parse_nccl_log
from ddp_doctor.parse.redact import masked

#: Words of the lines that are not of channels.
NCCL_WORDS = (
    b"NCCL version ", b" set by environment to ", b" set to ", b"NET/IB", b"NET/Socket", b"Using network ",
    b" busId ", b" nRanks ", b"GPU Direct RDMA ", b"P2P is disabled", b"libibverbs.so", b"cuMem host allocations",
    b"NVLS multicast", b"NCCL INFO Connected ", b"NCCL INFO Pattern ",
)  # fmt: skip
_CHANNEL = re.compile(
    rb"\n(?:\[[^\]\n]{1,100}\]:? ?|\d{1,7}: |\d{4}-\d\d-\d\d\S{1,30} ){0,4}([^\s:\[\]]{1,255}:\d{1,10}):\d{1,10}"
    rb" (?:\[-?\d{1,3}\] )?NCCL INFO (?:Channel|Ring|CollNet) \d{1,5}(?:/\d{1,5})? : ([^\n\r]{1,300})"
)
_PROCESS = re.compile(
    rb"([^\s:\[\]]{1,255}:\d{1,10}):\d{1,10} (?:\[(-?\d{1,3})\] )?NCCL INFO (.{0,1100})", re.DOTALL
)
_DEVICE = re.compile(rb"comm 0x[0-9a-f]+ rank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,3})")
#: Processes of which lines are kept; of further ones only their ranks.
_MOST_PROCESSES = 1_024


class NcclLines:
    """INFO lines by process, ``host:pid``, each pair of ranks and transport once, up to MOST_CHARACTERS."""

    def __init__(self) -> None:
        self.texts: dict[
            bytes, dict[bytes, bytes]
        ] = {}  # by process, in order: without channel number, the line
        self._room: dict[bytes, int] = {}
        self.version: str | None = None
        #: The largest communicator that a process was seen in: its rank there, the ranks, CUDA's number of the GPU.
        self.ranks: dict[bytes, tuple[int, int, int]] = {}

    def channels(self, chunk: bytes) -> None:
        """Take the lines of channels in a chunk of whole lines."""
        if b" via " not in chunk or not (b"NCCL INFO C" in chunk or b"NCCL INFO Ring" in chunk):
            return
        for process, text in dict.fromkeys(_CHANNEL.findall(b"\n" + chunk)):
            self._add(process, text, b"Channel 00 : " + text)

    def line(self, line: bytes) -> None:
        """Take a line with one of NCCL_WORDS."""
        found = _PROCESS.search(line)
        if found is None:
            if self.version is None and (bare := re.search(rb"NCCL version (\d+\.\d+\.\d+)", line)):
                self.version = bare[1].decode()
            return
        text = found[3].rstrip()
        if device := _DEVICE.search(text):
            rank, ranks, gpu = (int(number) for number in device.groups())
            if found[1] not in self.ranks or ranks > self.ranks[found[1]][1]:
                self.ranks[found[1]] = (rank, ranks, gpu)
        self._add(found[1], text, text)

    def _add(self, process: bytes, key: bytes, text: bytes) -> None:
        if process not in self.texts:
            if len(self.texts) >= _MOST_PROCESSES:
                return
            self.texts[process] = {}
        kept = self.texts[process]
        if key in kept:
            return
        room = self._room.get(process, MOST_CHARACTERS) - len(text) - 1
        if room >= 0:
            self._room[process] = room
            kept[key] = text


def transport_facts(
    lines: Mapping[bytes, Mapping[bytes, bytes]], version: str | None
) -> dict[bytes, NcclTransportFact]:
    """What the lines of each process say."""
    facts = {}
    for process, kept in lines.items():
        fact = parse_nccl_log(masked(digest(text.decode("utf-8", "replace") for text in kept.values())))
        if fact != NcclTransportFact():
            facts[process] = (
                fact if fact.version or not version else fact.model_copy(update={"version": version})
            )
    return facts
