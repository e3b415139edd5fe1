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
    b"NVLS multicast", b"NCCL INFO Connected ", b"NCCL INFO Pattern ", b"Bootstrap : Using ", b"Bootstrap: Using ",
    b"cudaDriverVersion ", b"any optimal provider", b"net plugin ", b"oaded coll plugin ", b"oaded external ",
    b"Using tuner plugin ", b"NET/OFI Initializing ", b" coll channels", b"Init COMPLETE", b" - COMPLETE",
)  # fmt: skip
_CHANNEL = re.compile(
    rb"\n(?:\[[^\]\n]{1,100}\](?:<\w{6}>)?:? ?|\([^)\n]{1,100}\) "
    rb"|\d{1,7}: |\d{4}-\d\d-\d\d\S{1,30} ){0,4}"
    rb"([^\s:\[\]]{1,255}:\d{1,10}):\d{1,10}"
    rb" (?:\[-?\d{1,3}\] )?NCCL INFO (?:Channel|Ring|CollNet) \d{1,5}(?:/\d{1,5})? : ([^\n\r]{1,300})"
)
_INFO = b"NCCL INFO "
_PROCESS = re.compile(rb"([^\s:\[\]]{1,255}:\d{1,10}):\d{1,10} (?:\[-?\d{1,3}\] )?$")
_VERSION = re.compile(rb"NCCL version \d+\.\d+\.\d+(?:\+cuda[\d.]+)?")
#: The end of a line of which another process wrote over the beginning.
_TORN = re.compile(rb"comm 0x[0-9a-f]{1,16} rank \d{1,7} nranks .{0,200}COMPLETE")
_DEVICE = re.compile(rb"comm 0x[0-9a-f]+ rank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,3})")
#: Processes of which lines are kept; of further ones only their ranks.
_MOST_PROCESSES = 1_024
_MOST_HEADS = 20_000


class NcclLines:
    """INFO lines by process, ``host:pid``, each pair of ranks and transport once, up to MOST_CHARACTERS."""

    def __init__(self) -> None:
        self.texts: dict[
            bytes, dict[bytes, bytes]
        ] = {}  # by process, in order: without channel number, the line
        self._room: dict[bytes, int] = {}
        self._full: set[bytes] = set()  # processes that have no room left
        self._heads: dict[bytes, bytes] = {}
        #: A line of its own, without a process.
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
        head, info, text = line.partition(_INFO)
        if not info:
            if self.version is None and (bare := _VERSION.search(line)):
                self.version = bare[0].decode()
            if torn := _TORN.search(line):
                self._add(b"", torn[0], torn[0])
            return
        process = self._heads.get(head) or self._process(head)
        if process is None or process in self._full:
            return
        if b" nranks " in text and (device := _DEVICE.search(text)):
            rank, ranks, gpu = (int(number) for number in device.groups())
            if process not in self.ranks or ranks > self.ranks[process][1]:
                self.ranks[process] = (rank, ranks, gpu)
        self._add(process, text.rstrip(), text.rstrip())

    def _process(self, head: bytes) -> bytes | None:
        """``node1:8811`` of what stands before "NCCL INFO"; few differ, but for times."""
        found = _PROCESS.search(head)
        if found and len(self._heads) < _MOST_HEADS:
            self._heads[head] = found[1]
        return found[1] if found else None

    def _add(self, process: bytes, key: bytes, text: bytes) -> None:
        kept = self.texts.get(process)
        if kept is None:
            if len(self.texts) >= _MOST_PROCESSES:
                return
            kept = self.texts[process] = {}
        if key in kept or process in self._full:
            return
        room = self._room.get(process, MOST_CHARACTERS) - len(text) - 1
        if room < 0:
            self._full.add(process)
            return
        self._room[process] = room
        kept[key] = text


def transport_facts(
    lines: Mapping[bytes, Mapping[bytes, bytes]], version: str | None
) -> dict[bytes, NcclTransportFact]:
    """What the lines of each process, HOST:PID, say. One is empty: of lines without a process."""
    facts = {}
    for process, kept in (lines or {b"": {}}).items():
        said = digest(text.decode("utf-8", "replace") for text in kept.values())
        fact = parse_nccl_log(said if version is None or "NCCL version" in said else f"{said}\n{version}")
        if fact != NcclTransportFact():
            host = process.decode("utf-8", "replace").rpartition(":")[0] or None
            settings = {name: masked(value) for name, value in fact.settings.items()}
            facts[process] = fact.model_copy(update={"settings": settings, "host": host})
    return facts
