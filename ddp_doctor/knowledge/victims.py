"""Messages that point away from the rank that prints them: a peer closed, or never answered.

Sources: gloo transport/tcp/pair.cc (Connection closed by peer, Read error, Timed out waiting),
c10d/socket.cpp and TCPStore.cpp (recvVector failed, Broken pipe), NCCL's ncclRemoteError and
ncclSystemError texts; all seen in torch 2.13 with planted faults.
"""

import re

_VICTIM = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out waiting|read error|write error"
    r"|socket (closed|timeout)|recvVector failed|sendBytes failed|remote (process|peer)"
    r"|connectFullMesh failed|ncclRemoteError|remote error|unexpected eof|wait timeout",
    re.IGNORECASE,
)


def blames_peer(message: str) -> bool:
    """Whether an exception's text tells of a peer's silence rather than of a fault of its own."""
    return _VICTIM.search(message) is not None
