"""Large traces, made of a real one: its events once more, later, until the file is as large as asked for."""

import gzip
import re
from pathlib import Path

_NUMBERS = re.compile(rb'("ts": |ProfilerStep#)([0-9.]+)')


def repeat(source: Path, megabytes: int, target: Path, rank: int | None = None) -> None:
    """Write events of ``source`` again and again, each time behind the last; as another rank, if one is given."""
    raw = source.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]", 0, text.rindex(b'"traceName"')) if b'"traceName"' in text else text.rindex(b"]")
    head, events, tail = text[:begin], text[begin:end].strip().rstrip(b","), text[end:]
    if rank is not None:
        head = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, head)
    parts = _NUMBERS.split(events)
    times = [float(number) for kind, number in zip(parts[1::3], parts[2::3], strict=True) if kind.startswith(b'"ts')]
    lasts, steps = max(times) - min(times) + 1000, len(set(re.findall(rb"ProfilerStep#\d+", events)))
    written = 0
    with target.open("wb") as file:
        file.write(head)
        for turn in range(max(megabytes * 1_000_000 // len(events), 1)):
            for at in range(2, len(parts), 3):
                if parts[at - 1].startswith(b'"ts'):
                    parts[at] = b"%.3f" % (times[at // 3] + lasts * turn) if turn else parts[at]
            piece = b"".join(parts)
            if turn:
                piece = re.sub(
                    rb"ProfilerStep#(\d+)",
                    lambda found, on=turn * steps: b"ProfilerStep#%d" % (int(found[1]) + on),
                    piece,
                )
            written += file.write((b",\n" if turn else b"\n") + piece)
        file.write(b"\n  " + tail)
