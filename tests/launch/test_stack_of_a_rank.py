"""The position of a rank, as it reports it."""

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ddp_doctor.ranks.worker.main import whole_stack
from tests.waiting import LIMIT_S


def stands_in(*functions: Callable[[threading.Event, threading.Event], Any]) -> list[str]:
    """The names on the stack of the first function's thread, among threads of the others that Python did not start."""
    release, idents = threading.Event(), []
    for function in functions:
        stands = threading.Event()
        idents.append(_thread.start_new_thread(function, (stands, release)))
        assert stands.wait(LIMIT_S)
    known = threading.Thread(target=release.wait, daemon=True)
    known.start()
    try:
        frames = {one: frame for one, frame in sys._current_frames().items() if one in {*idents, known.ident}}
        return [frame.name for frame in whole_stack(frames, idents[0])]
    finally:
        release.set()
        known.join()


def _engine_run_backward(stands: threading.Event, release: threading.Event) -> None:
    """Behave like torch's function in torch/autograd/graph.py, which waits for autograd's threads."""
    lock = _thread.allocate_lock()
    lock.acquire()

    def end() -> None:
        release.wait()
        lock.release()

    threading.Thread(target=end).start()
    stands.set()
    lock.acquire()


def hook(stands: threading.Event, release: threading.Event) -> None:
    stands.set()
    release.wait()


def test_position_of_a_rank_is_a_hook_in_the_autograd_thread_of_a_gpu():
    """Seen with torch 2.9.1 on simulated GPUs: the main thread shows only the call of backward."""
    stack = stands_in(_engine_run_backward, hook)

    assert stack[:2] == ["_engine_run_backward", "hook"]


@pytest.mark.parametrize("functions", [(_engine_run_backward,), (_engine_run_backward, hook, hook)])
def test_no_thread_or_several_threads_do_not_extend_the_stack(functions: Any):
    assert stands_in(*functions) == ["_engine_run_backward"]


def test_outside_a_backward_the_main_thread_is_enough():
    def forward(stands: threading.Event, release: threading.Event) -> None:
        stands.set()
        release.wait()

    assert stands_in(forward, hook)[0] == "forward"
    assert "hook" not in stands_in(forward, hook)
