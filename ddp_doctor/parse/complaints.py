"""What NCCL and torch say before they fail: the lines that name a cause.

    node0:52:81 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-A1b2C3 to 9637892 bytes,
        error: No space left on device (28)
    node0:52:81 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-x (size 9637888)
    node0:52:81 [0] transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size
        2097152 : CUDA error 1 'invalid argument'.
    [2026-01-15 10:00:00] node0:52:81 [0] mnnvl.cc:71 NCCL WARN MNNVL (cliqueSize 8) is available but not working on
        this system. Check the IMEX configuration (nvidia-imex-ctl -N).
    node0:52:81 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two
        devices'
    node0:52:81 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory
        errno 12
    node0:52:81 [0] transport/net_ib.cc:2259 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40412> with status=12
        opcode=0 len=0 vendor err 129 (Send) localGid … hca mlx5_0

torch repeats the last of them, without its place, behind "Last error:", or "NCCL Last Error:" where nccl2 does; some
exceptions of nccl2 leave it out. Sources: torch 2.15 c10d/nccl2/NCCLBootstrap.cpp (createNcclComm) and
ProcessGroupNCCL.cpp (NCCLException); NCCL 2.7 to 2.30, src/init.cc (ncclGetLastError), src/misc/shmutils.cc and
src/include/shm.h, src/transport/{nvls,shm,p2p,net_ib}.cc, src/mnnvl.cc, src/misc/ibvwrap.cc; 12 is libibverbs'
IBV_WC_RETRY_EXC_ERR (enum ibv_wc_status), printed by name or number.

What torch says where a process group meets a tensor of another GPU than its own.

    ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1

Source: torch 2.15 c10d/nccl2/ProcessGroupNCCL.cpp (ensureInitialized).
"""

import re
from typing import Literal

from ddp_doctor.model.base import Frozen

Kind = Literal["shm", "nvls", "mnnvl", "cumem-host", "p2p", "memlock", "rdma-timeout"]

#: The longest text that is kept of a line.
_MOST = 300
_WARN = r"NCCL WARN "
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("shm", re.compile(r"Error: failed to (?:extend|create) [^\n]{0,20}/dev/shm/\S{1,80}[^\n]{0,200}")),
    ("shm", re.compile(r"Error while creating shared memory segment [^\n]{1,200}")),
    ("shm", re.compile(r"Call to (?:posix_)?fallocate failed : No space left on device")),
    ("nvls", re.compile(r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory[^\n]{0,200}")),
    ("nvls", re.compile(rf"(?<=nvls\.cc):\d{{1,5}} (?:\(\w{{1,80}}\) )?{_WARN}[^\n]{{1,200}}")),
    ("mnnvl", re.compile(r"MNNVL \(cliqueSize \d{1,5}\) is available but not working[^\n]{0,200}")),
    (
        "cumem-host",
        re.compile(rf"(?<=transport/shm\.cc):\d{{1,5}} (?:\(\w{{1,80}}\) )?{_WARN}Cuda failure [^\n]{{1,200}}"),
    ),
    ("p2p", re.compile(rf"(?<=transport/p2p\.cc):\d{{1,5}} (?:\(\w{{1,80}}\) )?{_WARN}Cuda failure [^\n]{{1,200}}")),
    ("p2p", re.compile(r"failed to open CUDA IPC handle : [^\n]{1,200}")),
    ("memlock", re.compile(r"Call to ibv_\w{1,40} failed(?: with error)?[ :]{1,3}Cannot allocate memory[^\n]{0,80}")),
    (
        "rdma-timeout",
        re.compile(
            r"Got completion (?:from peer \S{1,80} )?with (?:error |status=)(?:[^()\n]{1,60}\()?12\b[^\n]{0,200}"
        ),
    ),
)
#: A text without any of these has no line that is read here: a quick test, for the logs of thousands of ranks.
_SIGNS = (
    "NCCL WARN",
    "Error: failed to",
    "Error while",
    "Call to ",
    "Failed to bind",
    "MNNVL (",
    "Got completion",
    "failed to open",
)
_LAST_ERROR = re.compile(r"last error:", re.IGNORECASE)
_WARNING = re.compile(r"NCCL WARN ([^\n]{1,300})")
_PREFIX = re.compile(rf"^:\d{{1,5}} (?:\(\w{{1,80}}\) )?{_WARN}")


class Complaint(Frozen):
    """One cause, and the words in which NCCL named it."""

    kind: Kind
    text: str

    @property
    def denied(self) -> bool:
        """Whether permission was missing, and not room."""
        return "ermission denied" in self.text or "not permitted" in self.text


def complaints(text: str) -> tuple[Complaint, ...]:
    """The first line of each kind, in the order of the table above; () for a log without any."""
    found: dict[Kind, Complaint] = {}
    for kind, pattern in _PATTERNS if any(words in text for words in _SIGNS) else ():
        match = pattern.search(text)
        if match is not None and kind not in found:
            found[kind] = Complaint(kind=kind, text=_PREFIX.sub("", match[0]).strip()[:_MOST])
    return tuple(found.values())


def with_last_warning(message: str, log: str) -> str:
    """An exception's text, with NCCL's last warning behind it where it is NCCL's and repeats none."""
    if "nccl" not in message.lower() or _LAST_ERROR.search(message):
        return message
    warnings = _WARNING.findall(log)
    return f"{message}\nLast error:\n{warnings[-1].strip()}" if warnings else message


_ELSEWHERE = re.compile(
    r"is bound to device (?P<bound>cuda(?::\d{1,5})?) but an operation was issued on (?P<used>cuda(?::\d{1,5})?)"
)


class UsedElsewhere(Frozen):
    """The device of the group, and the one that the operation used."""

    bound: str
    used: str


def used_elsewhere(message: str) -> UsedElsewhere | None:
    """Both devices, where this is what a message says."""
    match = _ELSEWHERE.search(message)
    return None if match is None else UsedElsewhere(bound=match["bound"], used=match["used"])
