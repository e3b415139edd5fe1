"""Plain sockets, to try a path between hosts without torch; run in the hosts, prints JSON.

python wire.py serve PORT            answers with what it is sent, in full, to any number of clients
python wire.py mute PORT             holds the port and never says a word
python wire.py dial HOST PORT [BYTES] [TIMEOUT_S]
"""

import errno
import json
import socket
import statistics
import sys
import threading
import time


def serve(port: int) -> None:
    """Echo, on all IPv4 and IPv6 addresses. Every connection begins with the length of the burst to come."""
    listener = _listener(port)
    print("ready", flush=True)
    while True:
        connection, _address = listener.accept()
        threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def mute(port: int) -> None:
    """Hold the port: accept connections without answering."""
    listener = _listener(port)
    print("ready", flush=True)
    kept = []
    while True:
        kept.append(listener.accept())


def dial(host: str, port: int, size: int = 0, timeout_s: float = 2.0) -> dict[str, object]:
    """Connect, 9 round trips, and a burst of ``size`` bytes that comes back when it is complete."""
    said: dict[str, object] = {}
    started = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            said["connect_s"] = time.monotonic() - started
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(size.to_bytes(8, "big"))
            said["round_trip_s"] = statistics.median(_round_trip(connection) for _ in range(9))
            started = time.monotonic()
            connection.sendall(bytes(size))
            _receive(connection, 1)
            said["bytes_per_s"] = size / (time.monotonic() - started)
    except OSError as error:
        said |= {"error": _name(error), "error_after_s": time.monotonic() - started}
    return said


def _name(error: OSError) -> str:
    """Return ``ECONNREFUSED`` and similar; ``timeout`` and unresolvable names have no number."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, socket.gaierror):
        return "no such name"
    return errno.errorcode.get(error.errno or 0, error.__class__.__name__)


def _listener(port: int) -> socket.socket:
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)


def _echo(connection: socket.socket) -> None:
    size = int.from_bytes(_receive(connection, 8), "big")
    for _ in range(9):
        connection.sendall(_receive(connection, 1))
    _receive(connection, size)
    connection.sendall(b"x")


def _round_trip(connection: socket.socket) -> float:
    started = time.monotonic()
    connection.sendall(b"x")
    _receive(connection, 1)
    return time.monotonic() - started


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionResetError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "dial":
        print(json.dumps(dial(rest[0], int(rest[1]), *map(int, rest[2:3]), *map(float, rest[3:4]))))
    else:
        {"serve": serve, "mute": mute}[what](int(rest[0]))
