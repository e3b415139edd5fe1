"""Large traces: the events of a real one are repeated with later times until the file has the requested size."""

import gzip
import re
from pathlib import Path

_NUMBERS = re.compile(rb'("ts": |ProfilerStep#)([0-9.]+)')


def repeat(source: Path, megabytes: int, target: Path, rank: int | None = None) -> None:
    """Write the events of ``source`` repeatedly, each time after the last; as another rank, if one is given."""
    raw = source.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]", 0, text.rindex(b'"traceName"')) if b'"traceName"' in text else text.rindex(b"]")
    head, events, tail = text[:begin], text[begin:end].strip().rstrip(b","), text[end:]
    if rank is not None:
        head = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, head)
    parts = _NUMBERS.split(events)
    times = {at + 2: float(parts[at + 2]) for at in range(0, len(parts) - 2, 3) if parts[at + 1].startswith(b'"ts')}
    numbers = {at + 2: int(parts[at + 2]) for at in range(0, len(parts) - 2, 3) if at + 2 not in times}
    lasts, steps = max(times.values()) - min(times.values()) + 1000, len(set(numbers.values()))
    with target.open("wb") as file:
        file.write(head)
        for turn in range(max(megabytes * 1_000_000 // len(events), 1)):
            for at, moment in times.items():
                parts[at] = b"%.3f" % (moment + lasts * turn)
            for at, number in numbers.items():
                parts[at] = b"%d" % (number + steps * turn)
            file.write(b",\n" if turn else b"\n")
            file.write(b"".join(parts))
        file.write(b"\n  " + tail)
