"""The listener and its lines over real connections on the loopback interface."""

import contextlib
import errno
import json
import random
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping

import pytest

from ddp_doctor.model.base import Json
from ddp_doctor.sources import sockets
from ddp_doctor.sources.sockets import Listener, dial
from tests.once import free_port
from tests.waiting import LIMIT_S, wait_until

TOKEN = "the run's secret"
BIG = 3 * sockets.FREE_TRANSFER


def _has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6_loopback(), reason="the loopback interface has no IPv6 address")


def _answer(question):
    return {"you asked": question["n"]} if "n" in question else {}


def ask(address: str, port: int, token: str, question: Mapping[str, Json], timeout_s: float) -> dict[str, Json]:
    line = dial(address, port, token, timeout_s)
    try:
        return line.ask(question, timeout_s)
    finally:
        line.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener(_answer)
    one.admit(TOKEN)
    yield one
    one.stop()


@pytest.fixture
def line(listener) -> Iterator[sockets.TcpLine]:
    one = dial("127.0.0.1", listener.port, TOKEN, LIMIT_S)
    yield one
    one.close()


@contextlib.contextmanager
def raw(port: int, *sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as one:
        for part in sent:
            one.sendall(part)
        yield one


def closed_by_peer(one: socket.socket) -> bool:
    """Return True if the other end closes within the socket's timeout, whatever it sends before."""
    try:
        while one.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


# --- lines ----------------------------------------------------------------------------------------


def test_a_line_makes_round_trips_and_sends_small_and_large(line):
    assert line.round_trip(LIMIT_S) > 0
    assert line.send(1, LIMIT_S) > 0
    assert line.send(sockets.FREE_TRANSFER, LIMIT_S) > 0
    assert line.send(BIG, LIMIT_S) > 0
    assert line.round_trip(LIMIT_S) > 0


def test_kernel_reports_values_of_a_line(line):
    line.round_trip(LIMIT_S)

    told = line.tcp()

    assert told is not None
    assert told.retransmits == 0
    assert 500 < told.mss_bytes < 70_000


def test_closed_line_has_no_values(line):
    line.close()

    assert line.tcp() is None


@needs_ipv6
def test_listener_is_reachable_over_ipv6(listener):
    line = dial("::1", listener.port, TOKEN, LIMIT_S)

    assert line.round_trip(LIMIT_S) > 0
    line.close()
    line = dial("::ffff:127.0.0.1", listener.port, TOKEN, LIMIT_S)
    assert line.round_trip(LIMIT_S) > 0
    line.close()


def test_a_scope_names_its_interface():
    with pytest.raises(OSError, match=r"."):
        dial("fe80::1%lo", 1, TOKEN, 0.1)


def test_without_ipv6_the_listener_takes_ipv4(monkeypatch):
    real = socket.create_server

    def no_ipv6(address, **options):
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6 here")
        return real(address, **options)

    monkeypatch.setattr(socket, "create_server", no_ipv6)
    listener = Listener()
    listener.admit(TOKEN)

    line = dial("127.0.0.1", listener.port, TOKEN, LIMIT_S)
    assert line.round_trip(LIMIT_S) > 0
    line.close()
    listener.stop()


# --- failures keep their errno --------------------------------------------------------------------


def test_a_closed_port_refuses():
    with pytest.raises(ConnectionRefusedError) as raised:
        dial("127.0.0.1", free_port(), TOKEN, 1)

    assert raised.value.errno == errno.ECONNREFUSED


def test_full_queue_times_out():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        with pytest.raises(TimeoutError) as raised:
            dial("127.0.0.1", server.getsockname()[1], TOKEN, 0.1)

    assert raised.value.errno == errno.ETIMEDOUT


def test_mute_program_on_the_port_is_distinguished_from_a_firewall():
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(OSError, match="no answer") as raised:
        dial("127.0.0.1", mute.getsockname()[1], TOKEN, 0.1)

    assert raised.value.errno == errno.ETIME


def test_foreign_program_on_the_port_is_recognized():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as caller:
                caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                caller.recv(100)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(OSError, match="message of kind b'S'") as raised:
            dial("127.0.0.1", server.getsockname()[1], TOKEN, LIMIT_S)
        thread.join(LIMIT_S)

    assert raised.value.errno == errno.EPROTO


def test_host_name_is_not_an_address():
    with pytest.raises(socket.gaierror):
        dial("localhost", 80, TOKEN, 1)


def test_a_peer_that_stops_answering_times_out_in_time(listener, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_recognise_and_fall_silent, args=(server,), daemon=True).start()
        line = dial("127.0.0.1", server.getsockname()[1], TOKEN, LIMIT_S)
        for attempt in (line.round_trip, lambda s: line.send(BIG, s)):
            with pytest.raises(OSError, match=r"."):
                attempt(0.1)
        line.close()


def _recognise_and_fall_silent(server: socket.socket) -> None:
    """Accept the caller, then stay silent until the other end is closed."""
    caller, _ = server.accept()
    caller.recv(100)
    caller.sendall(struct.pack("!cI", b"H", 0))
    while caller.recv(1 << 20):
        pass
    caller.close()


def test_a_line_to_a_stopped_listener_is_reset(listener, line):
    listener.stop()
    wait_until(lambda: not listener._open, "the listener has closed the line")

    with pytest.raises(ConnectionError) as raised:
        line.round_trip(LIMIT_S)

    assert raised.value.errno in {errno.ECONNRESET, errno.EPIPE}
    with pytest.raises(ConnectionRefusedError):
        dial("127.0.0.1", listener.port, TOKEN, 1)


# --- one large transfer at a time -----------------------------------------------------------------


def test_large_transfers_take_turns_and_small_ones_do_not_wait(listener):
    lines = [dial("127.0.0.1", listener.port, TOKEN, LIMIT_S) for _ in range(3)]
    listener._turn.acquire()
    threads = [threading.Thread(target=one.send, args=(BIG, LIMIT_S)) for one in lines[:2]]
    for thread in threads:
        thread.start()

    lines[2].send(1000, LIMIT_S)  # while the others wait
    assert all(thread.is_alive() for thread in threads)
    listener._turn.release()
    for thread in threads:
        thread.join(LIMIT_S)

    assert not any(thread.is_alive() for thread in threads)
    for one in lines:
        one.close()


def test_caller_that_never_gets_a_turn_gets_a_busy_error(listener, line):
    listener._turn.acquire()

    with pytest.raises(OSError, match="busy") as raised:
        line.send(BIG, 0.1)

    assert raised.value.errno == errno.EBUSY
    listener._turn.release()


def test_caller_that_leaves_during_a_transfer_releases_its_turn(listener, line):
    hello = struct.pack("!cI", b"H", len(TOKEN)) + TOKEN.encode()
    with raw(listener.port, hello, struct.pack("!cI", b"T", BIG), b"x" * 1000) as one:
        one.recv(10)

    assert line.send(BIG, LIMIT_S) > 0


# --- questions ------------------------------------------------------------------------------------


def test_a_question_is_answered(listener):
    assert ask("127.0.0.1", listener.port, TOKEN, {"n": 3}, LIMIT_S) == {"you asked": 3}


def test_agent_without_answers_returns_an_empty_one():
    listener = Listener()
    listener.admit(TOKEN)

    assert ask("127.0.0.1", listener.port, TOKEN, {"n": 3}, LIMIT_S) == {}
    listener.stop()


def test_agent_that_fails_to_answer_closes_the_line_and_continues():
    def fail(_):
        raise ZeroDivisionError

    listener = Listener(fail)
    listener.admit(TOKEN)

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            ask("127.0.0.1", listener.port, TOKEN, {}, LIMIT_S)
    listener.stop()


def test_a_question_or_an_answer_that_is_too_long_is_refused(listener):
    with pytest.raises(OSError, match="exceeds the limit"):
        ask("127.0.0.1", listener.port, TOKEN, {"n": "x" * sockets.LONGEST_JSON}, LIMIT_S)
    with pytest.raises(ConnectionResetError):  # the answer is some bytes longer than the question
        ask("127.0.0.1", listener.port, TOKEN, {"n": "x" * (sockets.LONGEST_JSON - 9)}, LIMIT_S)


@pytest.mark.parametrize("answer", [b"[1]", b"{", b"[" * 60_000, b"\xff", b"null"])
def test_answer_that_is_not_an_object_is_refused(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            with server.accept()[0] as caller:
                caller.recv(100)
                caller.sendall(struct.pack("!cI", b"H", 0))
                caller.recv(1000)
                caller.sendall(struct.pack("!cI", b"Q", len(answer)) + answer)
                caller.recv(1)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(
            OSError, match=r"not JSON|not a JSON object|nested too deeply|not a text file|it is empty"
        ) as raised:
            ask("127.0.0.1", server.getsockname()[1], TOKEN, {}, LIMIT_S)
        thread.join(LIMIT_S)

    assert raised.value.errno == errno.EPROTO


# --- strangers and hostile input ------------------------------------------------------------------


def test_caller_waits_until_the_token_is_known():
    listener = Listener()
    threading.Timer(0.1, listener.admit, (TOKEN,)).start()

    line = dial("127.0.0.1", listener.port, TOKEN, LIMIT_S)

    assert line.round_trip(LIMIT_S) > 0
    line.close()
    listener.stop()


@pytest.mark.parametrize("shown", ["", "the run's secreT", "x" * 256, "é"])
def test_strangers_are_dropped(listener, shown):
    with pytest.raises(ConnectionError):
        dial("127.0.0.1", listener.port, shown, LIMIT_S)


def test_the_right_token_in_the_wrong_message_is_dropped(listener):
    with raw(listener.port, struct.pack("!cI", b"Q", len(TOKEN)) + TOKEN.encode()) as one:
        assert closed_by_peer(one)


def test_a_second_hello_is_dropped(listener):
    hello = struct.pack("!cI", b"H", len(TOKEN)) + TOKEN.encode()
    with raw(listener.port, hello, hello) as one:
        assert closed_by_peer(one)


@pytest.mark.parametrize("kind", [b"H", b"R", b"S", b"T", b"Q", b"X", b"\0"])
def test_a_huge_length_is_dropped_at_once(listener, kind):
    hello = struct.pack("!cI", b"H", len(TOKEN)) + TOKEN.encode()
    for known in (b"", hello):
        with raw(listener.port, known, struct.pack("!cI", kind, 2**32 - 1)) as one:
            assert closed_by_peer(one)


def test_a_slow_loris_is_dropped_at_its_deadline(monkeypatch):
    monkeypatch.setattr(sockets, "HELLO_S", 0.15)
    listener = Listener()
    listener.admit(TOKEN)

    with raw(listener.port) as one:
        with contextlib.suppress(OSError):
            for letter in b"H\0\0\0\x10" + b"x" * 11:
                one.sendall(bytes((letter,)))
                select.select((one,), (), (), 0.05)  # readable once it is dropped
        assert closed_by_peer(one)

    listener.stop()


def test_garbage_and_half_messages_leave_the_listener_answering(listener):
    chance = random.Random(20)
    hello = struct.pack("!cI", b"H", len(TOKEN)) + TOKEN.encode()
    for _ in range(150):
        start = hello if chance.random() < 0.6 else b""
        kind = chance.choice([b"R", b"S", b"T", b"Q", chance.randbytes(1)])
        length = chance.choice([0, 1, 8, 64, 65, 1000, 65536, 65537, chance.getrandbits(32)])
        body = chance.randbytes(chance.randrange(min(length, 2000) + 1))
        with contextlib.suppress(OSError), raw(listener.port, start, struct.pack("!cI", kind, length), body):
            pass

    assert ask("127.0.0.1", listener.port, TOKEN, {"n": 1}, LIMIT_S) == {"you asked": 1}
    wait_until(lambda: not listener._open)


@pytest.mark.parametrize("question", [b"[1]", b"{", b"[" * 60_000, b"\xff", b"null", b""])
def test_question_that_is_not_an_object_is_dropped(listener, question):
    hello = struct.pack("!cI", b"H", len(TOKEN)) + TOKEN.encode()
    with raw(listener.port, hello, struct.pack("!cI", b"Q", len(question)) + question) as one:
        assert closed_by_peer(one)


def test_more_connections_than_bounded_are_closed_and_later_ones_taken():
    listener = Listener(connections=2)
    listener.admit(TOKEN)
    lines = [dial("127.0.0.1", listener.port, TOKEN, LIMIT_S) for _ in range(2)]

    with pytest.raises(ConnectionError):
        dial("127.0.0.1", listener.port, TOKEN, LIMIT_S)
    lines[0].close()
    wait_until(lambda: len(listener._open) < 2)

    line = dial("127.0.0.1", listener.port, TOKEN, LIMIT_S)
    assert line.round_trip(LIMIT_S) > 0
    for one in (*lines, line):
        one.close()
    listener.stop()


def test_stop_does_not_wait_and_ends_all_threads(listener, line, monkeypatch):
    monkeypatch.setattr(sockets, "HELLO_S", 10 * LIMIT_S)
    before = {thread for thread in threading.enumerate() if thread.name in {"listener", "line"}}
    with raw(listener.port, b"H"):
        listener.stop()
        listener.stop()
    for thread in before:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in before)


def test_the_longest_question_is_counted_in_bytes():
    assert len(json.dumps({"n": "x" * (sockets.LONGEST_JSON - 9)})) == sockets.LONGEST_JSON
