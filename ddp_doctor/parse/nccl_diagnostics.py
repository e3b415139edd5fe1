"""The output of NCCL's diagnostics (since 2.31.2), with NCCL_RUN_DIAGNOSTICS and NCCL_RUN_RAS_DIAGNOSTICS set to 1.

    planted-0:18 NCCL DIAG === RAS Diagnostics ===
    planted-0:18 NCCL DIAG === NCCL Diagnostics ===
    planted-0:18 NCCL DIAG [INFO] p2p: only 1/2 GPU-to-GPU peer accesses passed verification
    planted-0:18 NCCL DIAG [INFO] p2p: write mismatch srcRank=0 srcCudaDev=0 … dstRank=1 … path=NVL handle=…; check …
    planted-0:18 NCCL DIAG NCCL diagnostics completed in 4.6 ms across 2 ranks
    planted-0:18 NCCL DIAG [OK]   ECC: no uncorrected volatile errors across 2 ranks in comm 0x2dcf4ec33680ece5
    planted-0:18 NCCL DIAG RAS diagnostics completed in 44.8 ms across 2 ranks

All lines go to stdout, regardless of NCCL_DEBUG_FILE. Most lines come from rank 0, and lines about a path from the
first rank of its node. RAS answers after the group is made (libnccl 2.32.3 on simulated GPUs).
"""

import re
from itertools import islice

from ddp_doctor.facts.collectives import NcclDiagnostic
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld

#: For one process. A node of eight GPUs has 56 paths.
_MOST_LINES = 200
#: If RAS is off, the line has no brackets: "NCCL DIAG INFO RAS diagnostics skipped: NCCL_RAS_ENABLE=0".
_LINE = re.compile(r"NCCL DIAG \[?(OK|INFO)\b\]? {0,3}([^\r\n]{1,500})")
_COMMUNICATOR = re.compile(r" in comm 0x[0-9a-f]{1,16}(?:/0x[0-9a-f]{1,16})*")
_PATH = re.compile(r"p2p: [^=]{1,60} srcRank=(\d{1,7}) .{0,100}?dstRank=(\d{1,7}) (?:.{0,60}?path=(\w{1,8}))?")
#: In ddp-doctor's trials, NCCL's log has a file for each rank, so different values of this variable are expected.
_OWN = "NCCL_DEBUG_FILE"


def parse_nccl_diagnostics(text: str) -> tuple[NcclDiagnostic, ...]:
    """Return the results in the output of one process, without duplicates."""
    found = {}
    for line in islice(_LINE.finditer(text), _MOST_LINES):
        said = _COMMUNICATOR.sub("", line[2]).rstrip()
        path = _PATH.match(said)
        found[said] = NcclDiagnostic(
            ok=line[1] == "OK",
            text=KEPT_BACK if is_withheld("", said) else said,
            ranks=(int(path[1]), int(path[2])) if path else None,
            path=path[3] or "" if path else "",
        )
    return tuple(line for said, line in found.items() if _OWN not in said)


def still_printing(text: str) -> bool:
    """Return True if a report in the output of rank 0 has begun but not ended."""
    pairs = (("=== NCCL Diag", "NCCL diagnostics completed"), ("=== RAS Diag", "RAS diagnostics completed"))
    return any(f"NCCL DIAG {begin}" in text and f"NCCL DIAG {end}" not in text for begin, end in pairs)
