"""All simulated machines and faults with all releases: NCCL's behavior as a page of tables.

    python -m tests.planted.table docs/reference/nccl-planted.md

Needs root, as the lab does, a C compiler and NVIDIA's wheels (1.5 GB); takes an hour or more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from os import environ
from pathlib import Path

from tests.nccl_wheels import RELEASES, libnccl
from tests.once import VARIABLE
from tests.planted import predictions, settings, words
from tests.planted.faults import FAULTS, Fault, end
from tests.planted.machines import MACHINES
from tests.planted.world import Machines

_HEAD = """<!-- Written by `make planted-all`; edit tests/planted instead. -->

# What the real NCCL does on planted machines

The unchanged libnccl of NVIDIA's wheels, run on machines without a GPU: PCI tree, NVML, CUDA and verbs are stand-ins
([how](../adr/0020-the-real-nccl-on-planted-gpus.md)). Search of the topology, transports, messages and results are
NCCL's own; kernels do nothing, so nothing of time, bandwidth or broken hardware shows. **Nothing of this was seen on a
GPU.**
NCCL {releases}, {day}.
"""


def main(page: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-") as share:
        environ[VARIABLE] = share
        day = datetime.now(tz=timezone.utc).date()
        head = _HEAD.format(releases=", ".join(RELEASES), day=day)
        lines = [head, *_faults(), "", *words.page(), "", *_settings()]
        page.write_text("\n".join(lines) + "\n")
        beside = page.with_name(f"{page.stem}-machines.md")
        beside.write_text("\n".join((head, *predictions.lines())) + "\n")


def _faults() -> Iterator[str]:
    yield (
        "## Faults\n\nOf two ranks: how each ends (the code of NCCL's result, a signal, a hang), NCCL's line, and the"
        " cause that `ddp-doctor logs` names. These are ranks without torch: no time-out, no launcher that tells of"
        " an exit code. Where both ranks may notice a fault, how each ends depends on which is first, and differs"
        " between runs.\n"
    )
    yield "| fault | release | rank 0 | rank 1 | NCCL says | logs names |\n|---|---|---|---|---|---|"
    dgx = next(kind for kind in MACHINES if kind.name == "two DGX H100").build()
    for hosts in (1, 2):
        with Machines(dgx[:hosts]) as planted:
            for fault in (fault for fault in FAULTS if fault.hosts == hosts):
                yield from (_row(planted, fault, release) for release in RELEASES)


def _row(planted: Machines, fault: Fault, release: str) -> str:
    how = dict(fault.how)
    if fault.other:
        other = fault.other if fault.other != release else RELEASES[-1]
        how["told"] = {1: {"library": libnccl(other)}}
    ran = planted.run(libnccl(release), 2, **how)
    says, _ = fault.seen_by(release)
    line = next(iter(ran.lines(says)), "**not said**") if says else "nothing"
    ends = " | ".join(end(code) if rank not in how.get("missing", ()) else "-" for rank, code in enumerate(ran.codes))
    return f"| {fault.name} | {release} | {ends} | {line.replace('|', '&#124;')[:200]} | {words.named(ran)} |"


def _settings() -> Iterator[str]:
    dgx = next(kind for kind in MACHINES if kind.name == "two DGX H100").build()
    with Machines(dgx[:1]) as one, Machines(dgx) as two:
        yield from settings.page(settings.Plants(one, two))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
