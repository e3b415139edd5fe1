"""The way to the endpoint: each obstacle under its own name, on real sockets."""

import socket
import subprocess
import sys
import threading
import time

import pytest

from ddp_doctor.facts.cluster import AttemptSeen
from ddp_doctor.ranks.control_store import ALL_ADDRESSES, listen
from ddp_doctor.starters import endpoint
from ddp_doctor.starters.endpoint import approach, holder_of, is_held_by_launcher, is_mine, resolve
from tests.once import free_port
from tests.waiting import LIMIT_S


def _in(seconds: float) -> float:
    return time.monotonic() + seconds


def test_port_with_a_listener_is_connected():
    with listen("127.0.0.1", 0) as server:
        way = approach("127.0.0.1", server.getsockname()[1], _in(LIMIT_S), lambda _text: None)

    assert (way.outcome, way.address, way.met_at) == ("connected", "127.0.0.1", "127.0.0.1")


def test_port_without_a_listener_is_refused_until_the_time_is_up():
    told: list[str] = []

    way = approach("127.0.0.1", free_port(), _in(0.3), told.append)

    assert way.outcome == "refused"
    assert "no process listens yet on 127.0.0.1" in told[0]


def test_a_head_that_starts_late_is_found():
    port = free_port()
    servers: list[socket.socket] = []
    starting = threading.Timer(0.2, lambda: servers.append(listen(ALL_ADDRESSES, port)))
    starting.start()

    way = approach("127.0.0.1", port, _in(LIMIT_S), lambda _text: None)

    starting.join()
    servers[0].close()
    assert way.outcome == "connected"


def test_filter_that_answers_once_a_second_is_not_a_dropping_one(monkeypatch: pytest.MonkeyPatch):
    attempts = iter(
        [
            AttemptSeen(address="10.0.0.1", outcome="refused", error="Connection refused", rejected_by="10.0.0.1"),
            AttemptSeen(address="10.0.0.1", outcome="timed_out"),
        ]
    )
    monkeypatch.setattr(endpoint, "_connect", lambda *_: (next(attempts), ""))

    way = approach("10.0.0.1", 29400, _in(0.1), lambda _text: None)

    assert (way.outcome, way.is_rejected) == ("refused", True)


def test_a_port_that_is_reset_is_not_rejected_by_a_filter():
    assert not approach("127.0.0.1", free_port(), _in(0), lambda _text: None).is_rejected


def test_a_port_that_the_launcher_of_this_process_holds_is_the_jobs_own():
    ask = "import sys; from ddp_doctor.starters.endpoint import is_held_by_launcher as it; print(it(int(sys.argv[1])))"
    with listen("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        said = subprocess.run((sys.executable, "-c", ask, str(port)), check=True, capture_output=True, text=True)
        assert not is_held_by_launcher(port)  # it is this process itself

    assert said.stdout == "True\n"


def test_unresolvable_name_is_reported_long_before_the_join_timeout():
    way = approach("no-such-host.invalid", 29400, _in(0.1), lambda _text: None)

    assert way.outcome == "unresolved"
    assert way.error


def test_a_listener_everywhere_answers_on_both_families():
    with listen(ALL_ADDRESSES, 0) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", *(["::1"] if server.family == socket.AF_INET6 else [])):
            assert approach(host, port, _in(2), lambda _text: None).outcome == "connected"


def test_own_addresses_are_distinguished_from_others():
    assert is_mine(("192.0.2.1", "127.0.0.1"))
    assert not is_mine(("192.0.2.1",))


def test_holder_of_a_port_is_shown_with_its_pid():
    with listen("127.0.0.1", 0) as server:
        assert "pid" in holder_of(server.getsockname()[1])
    assert holder_of(free_port()) == ""


def test_localhost_resolves_and_the_error_of_a_wrong_name_is_kept():
    assert "127.0.0.1" in resolve("localhost")[0]
    addresses, error = resolve("no-such-host.invalid")
    assert (addresses, bool(error)) == ((), True)
