"""NCCL's INFO lines, a few of them for each process, as the input of parse/nccl_log.

Nearly all lines of an INFO log are about channels, with the same pair of ranks on each, or repeat what another
communicator printed. So lines about channels are made equal, a chunk at a time. Of the other lines, only new ones are
read.
"""

import re
from collections.abc import Iterable, Mapping

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.reading.prefix import LONGEST_PREFIX, clean
from ddp_doctor.parse.nccl_log import MOST_CHARACTERS, parse_nccl_log
from ddp_doctor.parse.redact import masked
from ddp_doctor.parse.text import plain

#: Words of the lines that are not about channels.
NCCL_WORDS = (
    b"NCCL version ", b" set by environment to ", b" set to ", b"NET/IB :", b"NET/IB: ", b"NET/Socket :",
    b"NET/Socket: ", b"Using network ", b" busId ", b" nRanks ", b"GPU Direct RDMA Disabled", b"P2P is disabled",
    b"libibverbs.so", b"cuMem host allocations", b"NVLS multicast", b"NCCL INFO Connected ", b"NCCL INFO Pattern ",
    b"Bootstrap : Using ", b"Bootstrap: Using ", b"cudaDriverVersion ", b"any optimal provider", b"net plugin ",
    b"oaded coll plugin ", b"oaded external ", b"Using tuner plugin ", b"NET/OFI Initializing ", b" coll channels",
    b"Init COMPLETE", b" - COMPLETE",
)  # fmt: skip
#: NCCL itself truncates a line at 1024.
_LONGEST_LINE = 1_100
_INFO = b"NCCL INFO "
_CHANNEL = re.compile(rb"NCCL INFO (?:Channel|Ring|CollNet) \d{1,5}(?:/\d{1,5})? : ")
_PROCESS = re.compile(r"([^\s:\[\]]{1,64}:\d{1,10}):\d{1,10} (?:\[-?\d{1,3}\] )?$")
_VERSION = re.compile(rb"NCCL version \d+\.\d+\.\d+(?:\+cuda[\d.]+)?")
#: The end of a line whose beginning another process overwrote.
_TORN = re.compile(rb"comm 0x[0-9a-f]{1,16} rank \d{1,7} nranks .{0,200}COMPLETE")
_DEVICE = re.compile(rb"comm 0x[0-9a-f]+ rank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,3})")
#: Maximum number of processes whose lines are kept. For further processes, only the ranks are kept.
_MOST_PROCESSES = 1_024
_MOST_HEADS = 20_000
#: "Init START" or "Init COMPLETE" is in the last characters of a line.
_WORD_AT_END = 16
#: Maximum for one process.
_MOST_INITS = 100


class NcclLines:
    """INFO lines by process, ``host:pid``, each pair of ranks and transport once, up to MOST_CHARACTERS."""

    def __init__(self) -> None:
        #: By process, in order: the text of a line without the number of its channel, and the text before that.
        self.texts: dict[bytes, dict[bytes, bytes]] = {}
        self._room: dict[bytes, int] = {}
        self._full: set[bytes] = set()  # processes that have no room left
        self._heads: dict[bytes, bytes] = {}
        #: NCCL's version, from a line without a process.
        self.version: str | None = None
        #: By process: the line numbers between which its communicators began and became complete.
        self.inits: dict[bytes, list[tuple[int, int]]] = {}
        self._begun: dict[bytes, int] = {}
        #: By process: its rank in its largest communicator, the size of that, and CUDA's index of the GPU.
        self.ranks: dict[bytes, tuple[int, int, int]] = {}

    def channels(self, chunk: bytes) -> None:
        """Take the lines about channels in a chunk of whole lines."""
        if b" via " not in chunk or _INFO not in chunk:
            return
        without_numbers = _CHANNEL.sub(b"\0", chunk)
        for line in dict.fromkeys(without_numbers.split(b"\n")):
            if b"\0" in line:
                head, _, channel = line.partition(b"\0")
                pair = channel[:_LONGEST_LINE].partition(b"\r")[0]
                if b" via " in pair and (process := self._process(head[-LONGEST_PREFIX:])):
                    self._keep(process, pair, b"CollNet 00 : " if b" via COLLNET" in pair else b"Channel 00 : ")

    def lines(self, chunk: bytes, places: Iterable[int], number: int = 1) -> None:
        """Take the lines of a chunk that have NCCL_WORDS at these places, in order. ``number`` is its first line."""
        end = counted = 0
        for at in places:
            if at >= end:
                start = chunk.rfind(b"\n", 0, at) + 1
                end = chunk.find(b"\n", at)
                if end < 0:
                    end = len(chunk)
                if b"Init " in chunk[max(start, end - _WORD_AT_END) : end]:
                    number += chunk.count(b"\n", counted, start)
                    counted = start
                    self._note_init(chunk[start:end], number)
                if end - start <= _LONGEST_LINE:
                    self._line(chunk[start:end])
                else:
                    self._line(chunk[max(start, at - _LONGEST_LINE) : min(end, at + _LONGEST_LINE)])

    def _note_init(self, line: bytes, number: int) -> None:
        process = self._process(line.partition(_INFO)[0][-LONGEST_PREFIX:])
        if b"Init START" in line:
            self._begun.setdefault(process, number)
        elif b"Init COMPLETE" in line and len(kept := self.inits.setdefault(process, [])) < _MOST_INITS:
            kept.append((self._begun.pop(process, 0 if not kept else number), number))

    def is_in_init(self, process: bytes, number: int) -> bool:
        """Return True if a process printed a line while it initialized a communicator that became complete."""
        return any(first <= number <= last for first, last in self.inits.get(process, ()))

    def _line(self, line: bytes) -> None:
        head, info, message = line.partition(_INFO)
        if not info:
            self._without_process(line)
            return
        process = self._process(head[-LONGEST_PREFIX:])
        text = message.rstrip()
        if not process or process in self._full or text in self.texts.get(process, ()):
            return
        if b" nranks " in text and (device := _DEVICE.search(text)):
            rank, ranks, gpu = (int(number) for number in device.groups())
            if process not in self.ranks or ranks > self.ranks[process][1]:
                self.ranks[process] = (rank, ranks, gpu)
        self._keep(process, text)

    def _without_process(self, line: bytes) -> None:
        if self.version is None and (bare := _VERSION.search(line)):
            self.version = bare[0].decode()
        if torn := _TORN.search(line):
            self._keep(b"", torn[0])

    def _process(self, head: bytes) -> bytes:
        key = head.rpartition(b":")[0]
        process = self._heads.get(key)
        if process is None:
            found = _PROCESS.search(clean(head))
            process = found[1].encode() if found else b""
            if len(self._heads) < _MOST_HEADS:
                self._heads[key] = process
        return process

    def _keep(self, process: bytes, text: bytes, before: bytes = b"") -> None:
        kept = self.texts.get(process)
        if kept is None:
            if len(self.texts) >= _MOST_PROCESSES:
                return
            kept = self.texts[process] = {}
        if text in kept or process in self._full:
            return
        room = self._room.get(process, MOST_CHARACTERS) - len(before) - len(text) - 1
        if room < 0:
            self._full.add(process)
            return
        self._room[process] = room
        kept[text] = before


def transport_facts(
    texts: Mapping[bytes, Mapping[bytes, bytes]], version: str | None
) -> dict[bytes, NcclTransportFact]:
    """Return the facts from the lines of each process, HOST:PID. The empty key is for lines without a process."""
    facts = {}
    for process, kept in (texts or {b"": {}}).items():
        lines = b"\n".join(before + text for text, before in kept.items()).decode("utf-8", "replace")
        log = "\n".join(map(plain, lines.split("\n")))
        fact = parse_nccl_log(log if version is None or "NCCL version" in log else f"{log}\n{version}")
        if fact != NcclTransportFact():
            host = process.decode("utf-8", "replace").rpartition(":")[0] or None
            settings = {name: masked(value) for name, value in fact.settings.items()}
            facts[process] = fact.model_copy(update={"settings": settings, "host": host})
    return facts
