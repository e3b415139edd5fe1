"""Messages that point away from the rank that prints them: a peer closed, did not answer, or sent unexpected data.

A message about a fault of the rank's own host never points to a peer, whatever else it contains: NCCL puts both under
"unhandled system error".

The signs in a job's output use the same words (table/pointers.py of jobs). The words are in this module because a
failing rank reads its own exception, perhaps without a file descriptor to import those tables.

Sources: gloo transport/tcp/pair.cc (Connection closed by peer, Read error, Timed out waiting, Application timeout
caused pair closure), c10d/socket.cpp, Utils.hpp, TCPStore.cpp and FileStore.cpp (recvVector failed, Failed to recv, got
0 bytes, Timeout waiting for key, Broken pipe, client socket has timed out, seconds waiting for clients),
ProcessGroupNCCL.cpp (Watchdog caught collective operation timeout, communicator was aborted), connect(2), NCCL's
ncclRemoteError and ncclSystemError texts. torch 2.15 c10d/nccl2, WorkNCCL.cpp and ProcessGroupNCCL.cpp (NCCL operation
timed out, NCCL operation failed, Operation timed out after, Work timed out during finalize, Failed to initialize NCCL
communicator timed out after): "NCCL operation failed" stands for any error, including a peer's. So do NCCL's result
words (nccl.h, ncclGetErrorString), so its last warning counts if there is one. Unexpected data: NCCL 2.27 bootstrap.cc,
misc/socket.cc, proxy.cc, transport/net_socket.cc and net_ib.cc, seen with different settings on two ranks; gloo
transport/tcp/{pair,unbound_buffer}.cc; torch c10d/ProcessGroupWrapper.cpp and reducer.cpp. Local faults: gloo
transport/tcp/device.cc, NCCL bootstrap.cc and init.cc, the CUDA runtime's error strings, errno(3).
"""

import re

#: Words of such messages, as their sources write them.
PEER_GONE = (
    "Connection closed", "Connection reset", "Broken pipe", "Read error", "Write error", "Socket closed",
    "Socket Timeout", "recvVector failed", "recvValue failed", "sendBytes failed", "remote process", "remote peer",
    "connectFullMesh failed", "ncclRemoteError", "remote error", "unexpected EOF", "wait timeout",
    "communicator was aborted", "Application timeout caused pair closure", "client socket has failed to connect",
    "Software caused connection abort", "NCCL operation failed",
)  # fmt: skip
#: … of a peer's host without a listening process, not yet or no longer.
PEER_REFUSES = ("Connection refused",)
#: … of a peer's host without a route to it.
PEER_UNREACHED = ("No route to host", "Connection timed out")
#: Words of NCCL for a peer's exit, and for all other kinds of faults.
OF_ANYTHING = ("unhandled system error", "ncclSystemError")
#: Timeouts: a peer was silent. In a job's output, other signs read them in more detail.
_PEER_SILENT = (
    "timed out waiting", "watchdog caught collective operation timeout", "client socket has timed out",
    "NCCL operation timed out", "work timed out during finalize", "NCCL communicator timed out after",
    "failed to pass monitoredBarrier", "successfully reached monitoredBarrier", "in store based barrier",
    "Timeout waiting for key", "waiting for clients",
)  # fmt: skip
#: A peer sent data that this rank does not expect: the two disagree, and the rank that reads first reports it.
_UNFIT = re.compile(
    r"connecting to address.{0,80} with family \d+ is neither|message truncated ?: receiv\w+ \d+ bytes instead of"
    r"|mismatch in info from procs"
    r"|rank \d+ of \d+ ranks has already checked in|wrong (?:type|magic) \w+ != |wrong socket type "
    r"|version mismatch with remote peer"
    r"|Mismatched response size|Proxy append mismatch|doesn't match any expected response"
    r"|posted incorrect receive info|Unexpected connections are not empty|number of devices=\d+ as remote"
    r"|op\.preamble|op\.nwritten|Received data size doesn't match expected size|distributed collective mismatch"
    r"|Detected mismatch between collectives on ranks|DDP expects same model across all ranks"
    r"|appears not to match .{1,40} of the same param in process",
    re.IGNORECASE,
)
_VICTIM = re.compile(
    "|".join(map(re.escape, (*PEER_GONE, *PEER_REFUSES, *PEER_UNREACHED, *OF_ANYTHING, *_PEER_SILENT)))
    + r"|failed to (recv, got|send, sent) 0 bytes|socket .{0,200} timed out|operation timed out after \d+ ms"
    r"|other (?:rank|worker|node)s? (?:that )?(?:didn|did|do|have|has|are|is|was|were)\b"
    r"|Got completion (?:from peer|with error)|Proxy Call to rank|ncclProxyClientGetFd call to tpRank"
    r"|Error encountered progressing operation|" + _UNFIT.pattern,
    re.IGNORECASE,
)
#: NCCL's words for the kind of an error. They do not show whose error it is, while its last warning does.
_RESULT = re.compile(r"ncclSystemError[^\n]*|unhandled system error|NCCL operation failed", re.IGNORECASE)
_LAST_WARNING = re.compile(r"last error:\s*(?P<said>\S[^\n]*)", re.IGNORECASE)
#: A last warning with such words may be about a peer. NCCL 2.32 also leaves two in healthy runs (seen without GDRCopy,
#: and without libibverbs), which are not about any fault.
_MAY_BE_A_PEERS = re.compile(
    r"connect|socket|time(?:d |-)?out|refused|unreach|remote|peer|recv|send|accept|proxy|bootstrap"
    r"|lib wrapper not initialized",
    re.IGNORECASE,
)
_OWN_HOST = re.compile(
    r"unable to find address for|no socket interface found|duplicate gpu detected|invalid device ordinal"
    r"|no space left on device|cannot allocate memory|too many open files|out of memory",
    re.IGNORECASE,
)


def blames_peer(message: str) -> bool:
    """Return True if an exception's text is about a peer instead of a fault of the rank itself."""
    warning = _LAST_WARNING.search(message)
    if warning is not None and not _MAY_BE_A_PEERS.search(warning["said"]):
        message = _RESULT.sub("", message)
    return not names_own_host(message) and _VICTIM.search(message) is not None


def is_unfit(message: str) -> bool:
    """Return True if a text says that a peer sent unexpected data. The two disagree, and neither is proven wrong."""
    return _UNFIT.search(message) is not None


def names_own_host(message: str) -> bool:
    """Return True if a text names a fault of the host that printed it."""
    return _OWN_HOST.search(message) is not None
