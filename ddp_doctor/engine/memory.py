"""Judging without Python's garbage collector: what rules and reports make stays, and has no cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Do not search for cycles meanwhile, and later leave out the objects that exist by then.

    With 32,768 ranks the search took 5 of 7 s of the rules, 3 of 4 s of the report, 3 s of the terminal.
    Objects without references are freed all the same.
    """
    enabled = gc.isenabled()
    gc.disable()
    bytes(16 << 20)  # freed at once, so that glibc keeps what is freed later: lint takes a twentieth less
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
