"""NCCL's log cut down to what says who talks to whom over what: small enough to be kept of every rank.

    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    wk:8811:8840 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM      (the same pair again)
    wk:8811:8840 [0] NCCL INFO + PCI[24.0] - GPU/0-1b000 (0)                  (the topology that NCCL saw)

becomes ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``. A rank of an ordinary job writes 50 KB to 1 MB, nearly
all of it the same pairs on further channels.
"""

import re
from collections.abc import Iterable

from ddp_doctor.parse.nccl_log import says_something

#: Kept of one rank: 200 pairs. A world of thousands shows each rank's first connections, those of its rings.
MOST_CHARACTERS = 12_000
#: No line that is read is longer but the list of HCAs; NCCL itself cuts at 1024.
_LONGEST_LINE = 1100
_PREFIX = re.compile(r"^.{0,200}?NCCL INFO ")
_CHANNEL = re.compile(r"(?:Channel|Ring|CollNet) (\d{1,5}(?:/\d{1,5})?) : ")


def digest(lines: Iterable[str]) -> str:
    """The lines that parse_nccl_log reads, without prefix, each pair and transport once."""
    kept: list[str] = []
    seen: set[str] = set()
    room = MOST_CHARACTERS
    for whole in lines:
        line = whole[:_LONGEST_LINE]
        if not says_something(line):
            continue
        text = _PREFIX.sub("", line.rstrip(), count=1)
        key = _CHANNEL.sub("", text, count=1)
        if key in seen:
            continue
        room -= len(text) + 1
        if room < 0:
            break
        seen.add(key)
        kept.append(text)
    return "\n".join(kept)
