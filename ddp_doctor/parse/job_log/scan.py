"""Signs in lines of output."""

import re
from collections.abc import Iterable, Iterator

from ddp_doctor.facts.job_log import LogLine, SignSeen
from ddp_doctor.knowledge.job_causes import SIGNS


def signs_in(name: str, lines: Iterable[bytes]) -> Iterator[SignSeen]:
    """The signs in the lines of one file."""
    texts = [line.decode(errors="replace") for line in lines]
    for number, text in enumerate(texts, 1):
        for sign, _ in SIGNS.values():
            block = "\n".join(texts[number - 1 : number - 1 + sign.lines])
            if any(words in text for words in sign.words) and (found := re.search(sign.pattern, block)):
                values = {key: value for key, value in found.groupdict().items() if value is not None}
                yield SignSeen(
                    sign=sign.id, where=LogLine(file=name, line=number, text=text[:400]), values=values
                )
