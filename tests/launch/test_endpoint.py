"""The way to the endpoint: each obstacle under its own name, on real sockets."""

import socket
import threading
import time

import pytest

from ddp_doctor.ranks.control_store import ALL_ADDRESSES, listen
from ddp_doctor.starters.endpoint import approach, holder_of, is_mine, resolve
from tests.once import free_port


def _in(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_port_that_is_listened_on_is_connected_to():
    with listen("127.0.0.1", 0) as server:
        way = approach("127.0.0.1", server.getsockname()[1], _in(5), lambda _text: None)

    assert (way.outcome, way.address, way.met_at) == ("connected", "127.0.0.1", "127.0.0.1")


@pytest.mark.serial
def test_a_port_that_nobody_listens_on_is_refused_until_the_time_is_up():
    told: list[str] = []
    started = time.monotonic()

    way = approach("127.0.0.1", free_port(), _in(0.6), told.append)

    assert way.outcome == "refused"
    assert 0.5 < time.monotonic() - started < 3.0
    assert "nobody listens yet on 127.0.0.1" in told[0]


def test_a_head_that_starts_late_is_found():
    port = free_port()
    servers: list[socket.socket] = []
    starting = threading.Timer(0.5, lambda: servers.append(listen(ALL_ADDRESSES, port)))
    starting.start()

    way = approach("127.0.0.1", port, _in(60), lambda _text: None)

    starting.join()
    servers[0].close()
    assert way.outcome == "connected"


def test_a_name_that_does_not_resolve_is_given_up_long_before_the_join_timeout():
    way = approach("no-such-host.invalid", 29400, _in(0.1), lambda _text: None)

    assert way.outcome == "unresolved"
    assert way.error


def test_a_listener_everywhere_answers_on_both_families():
    with listen(ALL_ADDRESSES, 0) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", *(["::1"] if server.family == socket.AF_INET6 else [])):
            assert approach(host, port, _in(2), lambda _text: None).outcome == "connected"


def test_own_addresses_are_told_from_others():
    assert is_mine(("192.0.2.1", "127.0.0.1"))
    assert not is_mine(("192.0.2.1",))


def test_the_holder_of_a_port_is_named():
    with listen("127.0.0.1", 0) as server:
        assert "pid" in holder_of(server.getsockname()[1])
    assert holder_of(free_port()) == ""


def test_localhost_resolves_and_the_error_of_a_wrong_name_is_kept():
    assert "127.0.0.1" in resolve("localhost")[0]
    addresses, error = resolve("no-such-host.invalid")
    assert (addresses, bool(error)) == ((), True)
