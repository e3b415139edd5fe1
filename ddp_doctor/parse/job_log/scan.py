"""Signs in lines of output."""

import re
from collections.abc import Iterable, Iterator, Sequence

from ddp_doctor.facts.job_log import LogLine, SignSeen
from ddp_doctor.knowledge.job_causes import SIGNS

_PREFIX = re.compile(r"^(?:\[default\d+\]:)?(?:\[rank(?P<rank>\d+)\]:|\d+:)? ?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def signs_in(name: str, lines: Iterable[bytes]) -> Iterator[SignSeen]:
    """The signs in the lines of one file."""
    texts = [line.decode(errors="replace") for line in lines]
    for number, text in enumerate(texts, 1):
        for sign, _ in SIGNS.values():
            if not any(words in text for words in sign.words):
                continue
            prefix = _PREFIX.match(text)
            rank = int(prefix["rank"]) if prefix and prefix["rank"] else None
            if sign.id == "exception":
                yield _exception(name, number, texts, rank)
            elif found := re.search(sign.pattern, "\n".join(texts[number - 1 : number - 1 + sign.lines])):
                values = {key: value for key, value in found.groupdict().items() if value is not None}
                where = LogLine(file=name, line=number, text=text[:400])
                yield SignSeen(sign=sign.id, where=where, rank=rank, values=values)


def _exception(name: str, first: int, texts: Sequence[str], rank: int | None) -> SignSeen:
    """The traceback that begins on this line."""
    at = first
    while at < len(texts) - 1 and _PREFIX.sub("", texts[at])[:1] in ("", " "):
        at += 1
    text = _PREFIX.sub("", texts[at]) if at < len(texts) else ""
    kind, _, message = text.partition(": ")
    frames = [":".join(frame[:2]) for frame in _FRAME.findall("\n".join(texts[first:at]))]
    own = [frame for frame in frames if "/usr/lib/" not in frame]
    values = {
        "type": kind.rstrip(":"),
        "message": message,
        "where": (own or frames or [""])[-1],
        "first_line": str(first),
    }
    return SignSeen(
        sign="exception", where=LogLine(file=name, line=at + 1, text=text[:400]), rank=rank, values=values
    )
