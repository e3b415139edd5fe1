"""NCCL's messages that ddp-doctor searches for, compared with the messages of its releases."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.features.jobs.table import JOB_CAUSES
from ddp_doctor.model.report import LogsReport
from tests import elf
from tests.nccl_wheels import RELEASES, libnccl
from tests.planted.world import Ran

#: Values in place of a format of the C library or another text.
_PUT_IN = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


def named(ran: Ran) -> str:
    """Return the causes that ``ddp-doctor logs`` finds in the ranks' outputs as files."""
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-") as folder:
        files = [Path(folder) / f"rank{rank}.log" for rank, said in enumerate(ran.said) if said]
        for file, said in zip(files, filter(None, ran.said), strict=True):
            file.write_text(said)
        report = logs([str(file) for file in files]).report
    assert isinstance(report, LogsReport)
    return ", ".join(cause.name for cause in report.causes) or "nothing"


def has(texts: list[str], word: str) -> bool:
    """Return True if a library has a text that prints this word."""
    parts = [part for part in _PUT_IN.split(word) if len(part.strip()) > 3]
    pattern = re.compile(".*".join(map(re.escape, parts)))
    return bool(parts) and any(pattern.search(text) for text in texts)


def page() -> Iterator[str]:
    texts = {release: _texts(libnccl(release)) for release in RELEASES}
    yield "## Words\n\nSigns of causes in NCCL's own lines, and the releases whose library has their words.\n"
    yield f"| cause | sign | words | {' | '.join(RELEASES)} |\n|---|---|---|{'---|' * len(RELEASES)}"
    in_all = others = 0
    for cause in JOB_CAUSES:
        for name, sign in cause.signs.items():
            for word in sign.words if sign.tier == "nccl" else ():
                cells = [has(texts[release], word) for release in RELEASES]
                if all(cells):
                    in_all += 1
                elif any(cells):
                    marks = " | ".join("yes" if cell else "" for cell in cells)
                    yield f"| {cause.name} | {name} | `{word.strip()}` | {marks} |"
                else:
                    others += 1
    yield (
        f"\n{in_all} more words are in every release. {others} are in none of them: older releases, plug-ins, the"
        " driver and NCCL's callers say those, or NCCL puts them together from parts.\n"
    )


def _texts(library: Path) -> list[str]:
    found = re.findall(rb"[\x20-\x7e]{8,300}", elf.texts(library))
    return sorted({text.decode() for text in found if b" " in text})
