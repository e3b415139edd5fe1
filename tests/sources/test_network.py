"""This machine's interfaces and resolver, and the helper that asks libnccl."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddp_doctor.sources import child_nccl_interface, network
from tests.waiting import LIMIT_S

CC = shutil.which("cc")
HELPER = child_nccl_interface.__file__


def test_loopback_is_here_and_interfaces_come_by_index():
    found = network.interfaces()
    loopback = next(one for one in found if one.loopback)
    assert "127.0.0.1/8" in loopback.addresses
    assert (loopback.up, loopback.running) == (True, True)
    assert [one.name for one in found] == [name for _, name in socket.if_nameindex()]
    for one in found:
        kinds = [ipaddress.ip_interface(address).version for address in one.addresses]
        assert kinds == sorted(kinds)
        assert one.mtu > 0


def test_a_mask_becomes_a_prefix_length():
    assert network._prefix_length("255.255.252.0", socket.AF_INET) == 22
    assert network._prefix_length("ffff:ffff:ffff:ffff::", socket.AF_INET6) == 64
    assert (network._prefix_length(None, socket.AF_INET), network._prefix_length(None, socket.AF_INET6)) == (32, 128)


def test_localhost_resolves_to_loopback():
    assert "127.0.0.1" in network.resolve("localhost", 5.0)


def test_invalid_name_is_a_resolver_error():
    with pytest.raises(OSError, match=r"\S"):
        network.resolve("no such name.invalid", 10.0)


def test_resolver_that_does_not_answer_is_abandoned(monkeypatch):
    answers, returned = threading.Event(), threading.Event()

    def asleep(*_: object, **__: object) -> list[object]:
        answers.wait(LIMIT_S)
        returned.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", asleep)
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        network.resolve("node0", 0.1)
    assert not returned.is_set()
    answers.set()
    assert returned.wait(LIMIT_S)


def libnccl(folder: Path, body: str) -> dict[str, object]:
    """Return the helper's answer for a libnccl.so.2 whose ncclGetUniqueId has this body."""
    if CC is None:
        pytest.skip("needs a C compiler (cc) to build a stand-in library")
    code = (
        "#include <stdlib.h>\n#include <string.h>\n"
        "int ncclGetVersion(int *v) { *v = 23203; return 0; }\n"
        'const char *ncclGetLastError(void *c) { return "Bootstrap : no socket interface found"; }\n'
        f"int ncclGetUniqueId(unsigned char *id) {{ {body} }}\n"
    )
    library = folder / "libnccl.so.2"
    subprocess.run((CC, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)), input=code, text=True, check=True)
    env = {"LD_LIBRARY_PATH": f"/nowhere:{folder}"}
    done = subprocess.run((sys.executable, HELPER), env=env, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def written(sockaddr: bytes) -> str:
    """C that puts a sockaddr where bootstrap.h has it."""
    return "".join(f"id[{8 + at}] = {byte};" for at, byte in enumerate(sockaddr)) + "return 0;"


def test_the_helper_reads_an_ipv4_address_from_the_id(tmp_path):
    family = socket.AF_INET.to_bytes(2, sys.byteorder)
    body = written(family + b"\x12\x34" + bytes((10, 0, 0, 7)))
    assert libnccl(tmp_path, body) == {"version_code": 23203, "address": "10.0.0.7"}


def test_the_helper_reads_an_ipv6_address_with_its_scope(tmp_path):
    family, index = socket.AF_INET6.to_bytes(2, sys.byteorder), socket.if_nametoindex("lo")
    packed = socket.inet_pton(socket.AF_INET6, "fe80::7")
    body = written(family + b"\x12\x34" + b"\0\0\0\0" + packed + index.to_bytes(4, sys.byteorder))
    assert libnccl(tmp_path, body) == {"version_code": 23203, "address": "fe80::7%lo"}


def test_helper_returns_the_error_message_of_nccl(tmp_path):
    answer = libnccl(tmp_path, "return 5;")
    assert (answer["status"], answer["error"]) == (5, "Bootstrap : no socket interface found")


def test_helper_refuses_an_id_of_another_format(tmp_path):
    assert "absent" in libnccl(tmp_path, "memset(id, 0xab, 128); return 0;")


def test_loader_searches_if_no_copy_is_found(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert child_nccl_interface.find() == "libnccl.so.2"


def test_helper_reports_why_a_file_cannot_be_loaded(tmp_path):
    (tmp_path / "libnccl.so.2").write_text("no library")
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run((sys.executable, HELPER), env=env, capture_output=True, text=True, check=True)
    assert "libnccl.so.2" in json.loads(done.stdout)["absent"]
