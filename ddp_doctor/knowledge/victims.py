"""Messages that point away from the rank that prints them: a peer closed, or never answered.

A message that names a fault of the rank's own host is never a victim's, whatever else it says: NCCL
puts both under "unhandled system error".

Sources: gloo transport/tcp/pair.cc (Connection closed by peer, Read error, Timed out waiting,
Application timeout caused pair closure), c10d/socket.cpp, Utils.hpp and TCPStore.cpp (recvVector failed,
Failed to recv, got 0 bytes, Broken pipe, client socket has timed out, seconds waiting for clients),
ProcessGroupNCCL.cpp (Watchdog caught collective operation timeout, communicator was aborted), connect(2),
NCCL's ncclRemoteError and ncclSystemError texts. Local faults: gloo transport/tcp/device.cc, NCCL bootstrap.cc
and init.cc, the CUDA runtime's error strings, errno(3).
"""

import re

_VICTIM = re.compile(
    r"connection (closed|reset|refused|timed out)|broken pipe|timed out waiting|read error|write error"
    r"|socket (closed|timeout)|recvVector failed|sendBytes failed|remote (process|peer)"
    r"|connectFullMesh failed|ncclRemoteError|remote error|unexpected eof|wait timeout"
    r"|no route to host|communicator was aborted|watchdog caught collective operation timeout"
    r"|application timeout caused pair closure|client socket has (timed out|failed to connect)"
    r"|failed to (recv, got|send, sent) 0 bytes|socket .{0,200} timed out|waiting for clients"
    r"|software caused connection abort"
    r"|ncclSystemError|unhandled system error",
    re.IGNORECASE,
)
_OWN_HOST = re.compile(
    r"unable to find address for|no socket interface found|duplicate gpu detected|invalid device ordinal"
    r"|no space left on device|cannot allocate memory|too many open files|out of memory",
    re.IGNORECASE,
)


def blames_peer(message: str) -> bool:
    """Whether an exception's text tells of a peer's silence rather than of a fault of its own."""
    return _OWN_HOST.search(message) is None and _VICTIM.search(message) is not None
