"""All planted machines and faults with all releases: what NCCL did, as a page of tables.

    python -m tests.planted.table build/planted.md

Needs root, as the lab does, a C compiler and NVIDIA's wheels (1.5 GB); takes about an hour.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from os import environ
from pathlib import Path

from tests.nccl_wheels import RELEASES, libnccl
from tests.once import VARIABLE
from tests.planted import predictions
from tests.planted.faults import FAULTS, Fault, end
from tests.planted.machines import MACHINES
from tests.planted.world import Machines

_HEAD = """# What the real NCCL does on planted machines

The unchanged libnccl of NVIDIA's wheels, run on machines without a GPU: PCI tree, NVML, CUDA and verbs are stand-ins
([how](../docs/adr/0020-the-real-nccl-on-planted-gpus.md)). Search of the topology, transports, messages and results are
NCCL's own; kernels do nothing, so nothing of time, bandwidth or broken hardware shows. **Nothing of this was seen on a
GPU.**
`make planted-all` writes this page.
"""


def main(page: Path) -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-") as share:
        environ[VARIABLE] = share
        lines = [_HEAD, *predictions.lines(), "", *_faults()]
    page.write_text("\n".join(lines) + "\n")


def _faults() -> Iterator[str]:
    yield "## Faults\n\nOf two ranks: how each ends (the code of NCCL's result, a signal, a hang), and NCCL's line.\n"
    yield "| fault | release | rank 0 | rank 1 | NCCL says |\n|---|---|---|---|---|"
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
    ends = " | ".join(
        end(code) if rank not in how.get("missing", ()) else "-" for rank, code in enumerate(ran.codes)
    )
    return f"| {fault.name} | {release} | {ends} | {line.replace('|', '&#124;')[:200]} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
