"""Judging without Python's garbage collector: what rules and reports make stays, and has no cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Do not search for cycles meanwhile, and later leave out the objects that exist by then.

    With 32,768 ranks the search took 5 of 7 s of the rules, 3 of 4 s of the report, 3 s of the terminal.
    Objects without references are freed all the same.
    """
    enabled = gc.isenabled()
    gc.disable()
    _keep_what_is_freed()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@cache
def _keep_what_is_freed() -> None:
    """Let glibc keep what this process frees, for what it needs next: lint takes a twentieth less.

    It raises the size from which on memory goes back to the kernel when one block of more than that is freed.
    """
    bytes(16 << 20)
