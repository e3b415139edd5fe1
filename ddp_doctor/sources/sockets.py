"""TCP between the agents of a run: a listener that answers, and the connections to it.

A message is one letter, a length in four bytes (big endian), and that many bytes of content::

    H token          -> H            the caller is of this run; strangers are dropped
    R 0..64 bytes    -> R the same   a round trip
    S n bytes        -> S            n bytes have arrived; they are counted, never kept
    T n, then bytes  -> T, then S    the same for a large n: T is the turn, given to one caller at a time
    Q JSON           -> Q JSON       a question to the agent

Everything is bounded: the content by its kind, a connection by its deadline, connections by their number.
"""

import contextlib
import errno
import hmac
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

from ddp_doctor.knowledge.network.path_quality import BURST_BYTES
from ddp_doctor.model.base import Json
from ddp_doctor.model.context import TcpInfo
from ddp_doctor.parse.json_value import NotJson, json_object

Answer = Callable[[Mapping[str, Json]], Mapping[str, Json]]

#: Maximum bytes of a question or an answer, and of a transfer.
LONGEST_JSON = 64 * 1024
LONGEST_TRANSFER = 256 * 1024 * 1024
#: A transfer up to this size does not need a turn.
FREE_TRANSFER = BURST_BYTES
#: How long a caller may take to show the token, which may be set only later, and how long its connection may last.
HELLO_S = 5.0
CONNECTION_S = 60.0
#: How long one caller may keep the turn.
TURN_S = 5.0

_HEADER = struct.Struct("!cI")
_LONGEST = {b"H": 256, b"R": 64, b"S": FREE_TRANSFER, b"T": LONGEST_TRANSFER, b"Q": LONGEST_JSON}
#: Not compressible: some networks compress what they carry.
_NOISE = memoryview(os.urandom(FREE_TRANSFER))
#: struct tcp_info of linux/tcp.h: positions of tcpi_snd_mss and tcpi_total_retrans, and the length up to their end.
_MSS_AT, _RETRANSMITS_AT, _TCP_INFO_BYTES = 16, 100, 104


class Listener:
    """Answers the agents of one run on a port that the kernel chose, in daemon threads.

    ``answer`` is called, in any thread, with the question of another agent. The constructor raises OSError if no port
    is available. The other methods neither raise nor wait.
    """

    def __init__(self, answer: Answer | None = None, *, connections: int = 256) -> None:
        self._answer = answer or (lambda _: {})
        self._most = connections
        self._token: bytes | None = None
        self._admitted = threading.Event()
        self._stopped = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        try:  # on all addresses of this host, of both families if the kernel has both
            self._server = socket.create_server(("", 0), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
        except (OSError, ValueError):  # a kernel without IPv6
            self._server = socket.create_server(("", 0), backlog=256)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def admit(self, token: str) -> None:
        """Answer callers that show this token from now on. Earlier callers are waiting."""
        self._token = token.encode()
        self._admitted.set()

    def stop(self) -> None:
        """Close the port and all connections; does not wait."""
        with self._lock:
            self._stopped = True
            sockets = [self._server, *self._open]
        for opened in sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it, unlike close()

    def _accept(self) -> None:
        with self._server:
            while not self._stopped:
                try:
                    caller, _ = self._server.accept()
                except OSError:  # stopped, or out of file descriptors for a while
                    time.sleep(0.02)
                    continue
                self._welcome(caller)

    def _welcome(self, caller: socket.socket) -> None:
        with self._lock:
            if self._stopped or len(self._open) >= self._most:
                caller.close()
                return
            self._open.add(caller)
        try:
            threading.Thread(target=self._serve, args=(caller,), name="line", daemon=True).start()
        except RuntimeError:  # no more threads
            self._forget(caller)

    def _serve(self, caller: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                hello = _Stream(caller, HELLO_S)
                kind, length = hello.header()
                shown = hello.content(length)
                if not self._admitted.wait(hello.left()):
                    return
                if kind != b"H" or not hmac.compare_digest(shown, self._token or b""):
                    return  # not a caller of this run
                hello.write(b"H")
                self._converse(_Stream(caller, CONNECTION_S))
        finally:
            self._forget(caller)

    def _forget(self, caller: socket.socket) -> None:
        with self._lock:
            self._open.discard(caller)
        caller.close()

    def _converse(self, stream: "_Stream") -> None:
        while True:
            kind, length = stream.header()
            if kind == b"R":
                stream.write(b"R", stream.content(length))
            elif kind == b"S":
                stream.swallow(length)
                stream.write(b"S")
            elif kind == b"T":
                self._take_turn(stream, length)
            elif kind == b"Q":
                question = _object(stream.content(length))
                try:
                    reply = _packed(self._answer(question))
                except Exception as error:  # an error of the agent must not end the thread with a traceback
                    raise _foreign(f"no answer: {error}") from error
                stream.write(b"Q", reply)
            else:
                raise _foreign("a second hello")

    def _take_turn(self, stream: "_Stream", length: int) -> None:
        if not self._turn.acquire(timeout=stream.left()):
            raise _late()
        try:
            transfer = stream.part(TURN_S)
            transfer.write(b"T")
            transfer.swallow(length)
            transfer.write(b"S")
        finally:
            self._turn.release()


class TcpLine:
    """A connection to a listener that has recognized this agent: a ``Line`` for probes.

    After an error, close the line: the answer may still arrive and be mistaken for another one.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def round_trip(self, timeout_s: float) -> float:
        """Return the seconds until eight bytes came back."""
        started = time.monotonic()
        self._talk(timeout_s, b"R", b"12345678")
        return time.monotonic() - started

    def send(self, size: int, timeout_s: float) -> float:
        """Return the seconds until the peer acknowledged ``size`` bytes, for many bytes counted from its turn.

        Raises OSError with EBUSY if the turn did not come within ``timeout_s``.
        """
        if size > FREE_TRANSFER:
            turn = _Stream(self._socket, timeout_s)
            try:
                turn.announce(b"T", size)
                turn.expect(b"T")
            except TimeoutError as error:
                raise OSError(errno.EBUSY, "the peer was busy with other transfers") from error
        started = time.monotonic()
        stream = _Stream(self._socket, timeout_s)
        if size <= FREE_TRANSFER:
            stream.write(b"S", _NOISE[:size])
        else:
            stream.pour(size)
        stream.expect(b"S")
        return time.monotonic() - started

    def tcp(self) -> TcpInfo | None:
        """Return the kernel's counts of this connection, or None if it reports none."""
        try:
            raw = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (mss,), (retransmits,) = (struct.unpack_from("=I", raw, at) for at in (_MSS_AT, _RETRANSMITS_AT))
        except (OSError, struct.error):
            return None
        return TcpInfo(retransmits=retransmits, mss_bytes=mss)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def ask(self, question: Mapping[str, Json], timeout_s: float) -> dict[str, Json]:
        """Return the answer of the agent at the other end."""
        return _object(self._talk(timeout_s, b"Q", _packed(question)))

    def _talk(self, timeout_s: float, kind: bytes, content: bytes) -> bytes:
        stream = _Stream(self._socket, timeout_s)
        stream.write(kind, content)
        return stream.expect(kind)


def dial(address: str, port: int, token: str, timeout_s: float) -> TcpLine:
    """Connect to a listener and be recognized by it.

    ``address`` is numeric, IPv4 or IPv6, with a scope (``fe80::1%eth0``) if it needs one. Raises OSError with its
    errno: TimeoutError (ETIMEDOUT) without an answer to the connection request, ECONNREFUSED, EHOSTUNREACH,
    ENETUNREACH. Once connected, ETIME without an answer to the hello, and EPROTO if the answer is not from an agent of
    this run.
    """
    ends_at = time.monotonic() + timeout_s
    family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        try:
            connection.connect(target)
        except TimeoutError as error:
            raise _late() from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = _Stream(connection, ends_at - time.monotonic())
        try:
            stream.write(b"H", token.encode())
            stream.expect(b"H")
        except TimeoutError as error:
            raise OSError(errno.ETIME, "connected, but received no answer") from error
    except BaseException:
        connection.close()
        raise
    return TcpLine(connection)


class _Stream:
    """Messages on a socket, all within one deadline."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._socket = connection
        self._ends_at = time.monotonic() + timeout_s

    def part(self, timeout_s: float) -> "_Stream":
        return _Stream(self._socket, min(timeout_s, self.left()))

    def left(self) -> float:
        """Return the remaining seconds. Raises TimeoutError if there are none."""
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise _late()
        return left_s

    def header(self) -> tuple[bytes, int]:
        """Return kind and length of the next message. Raises OSError (EPROTO) for a message that no agent sends."""
        kind, length = _HEADER.unpack(self.content(_HEADER.size))
        if length > _LONGEST.get(kind, -1):
            raise _foreign(f"received an unexpected message of kind {kind!r} ({length} bytes)")
        return kind, length

    def content(self, length: int) -> bytes:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            view = view[self._into(view) :]
        return bytes(content)

    def swallow(self, length: int) -> None:
        view = memoryview(bytearray(min(length, FREE_TRANSFER)))
        while length:
            length -= self._into(view[:length])

    def write(self, kind: bytes, content: "bytes | memoryview" = b"") -> None:
        self._send(b"".join((_HEADER.pack(kind, len(content)), content)))

    def announce(self, kind: bytes, length: int) -> None:
        self._send(_HEADER.pack(kind, length))

    def pour(self, length: int) -> None:
        while length:
            length -= self._send(_NOISE[:length])

    def expect(self, kind: bytes) -> bytes:
        """Return the content of the answer. Raises OSError (EPROTO) if it is not an answer of this kind."""
        found, length = self.header()
        if found != kind:
            raise _foreign(f"received an answer of kind {found!r} instead of {kind!r}")
        return b"" if kind in {b"S", b"T"} else self.content(length)

    def _into(self, view: memoryview) -> int:
        self._socket.settimeout(self.left())
        try:
            count = self._socket.recv_into(view)
        except TimeoutError as error:
            raise _late() from error
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
        return count

    def _send(self, content: "bytes | memoryview") -> int:
        self._socket.settimeout(self.left())
        try:
            self._socket.sendall(content)
        except TimeoutError as error:
            raise _late() from error
        return len(content)


def _packed(content: Mapping[str, Json]) -> bytes:
    packed = json.dumps(content).encode()
    if len(packed) > LONGEST_JSON:
        raise _foreign(f"a message of {len(packed)} bytes exceeds the limit of {LONGEST_JSON} bytes")
    return packed


def _object(content: bytes) -> dict[str, Json]:
    try:
        return json_object(content)
    except NotJson as error:
        raise _foreign(str(error)) from error


def _foreign(what: str) -> OSError:
    return OSError(errno.EPROTO, what)


def _late() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
