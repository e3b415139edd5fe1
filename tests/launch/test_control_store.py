"""A control store that does not start gives its process's error or a loopback interface that is down."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.model.context import Interface
from ddp_doctor.ranks import control_store


def server(*, alive: bool, log: str = "") -> Any:
    """A forkserver whose store never answers."""
    process = SimpleNamespace(
        pid=os.getpid() if alive else 0, exitcode=None if alive else 1, kill=lambda: None, join=lambda _s: None
    )
    return SimpleNamespace(fork=lambda *_: process, log=lambda: log)


def test_error_of_a_process_that_dies_is_reported(tmp_path):
    log = "Traceback (most recent call last):\nOSError: [Errno 24] Too many open files\n"
    with pytest.raises(
        RuntimeError, match=r"exited before it accepted connections: OSError: \[Errno 24\] Too many open files$"
    ):
        control_store.start(server(alive=False, log=log), tmp_path, "127.0.0.1", 0)


@pytest.mark.parametrize(("up", "end"), [(True, r"within 0 s$"), (False, r"within 0 s: lo is down$")])
def test_unreachable_store_names_a_loopback_interface_that_is_down(tmp_path, monkeypatch, up, end):
    lo = Interface(name="lo", loopback=True, up=up, addresses=("127.0.0.1/8",))
    monkeypatch.setattr(control_store, "interfaces", lambda: (lo,))
    monkeypatch.setattr(control_store, "WORKER_START_S", 0.01)
    with pytest.raises(RuntimeError, match=end):
        control_store.start(server(alive=True), tmp_path, "127.0.0.1", 0)
