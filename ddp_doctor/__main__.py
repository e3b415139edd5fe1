"""Entry point of ``ddp-doctor`` and of ``python -m ddp_doctor``.

Do not import large modules at module level: multiprocessing runs the module-level code of the console script again in
every worker.
"""

import os
import sys
from collections.abc import Callable


def main(at_the_end: Callable[[], object] = lambda: None) -> None:
    """Run the command line and exit with its exit code, after ``at_the_end``."""
    _search_own_modules_first()
    import gc
    import signal

    # Objects created by imports stay alive. Searching them for cycles every 700 objects took a twentieth of a prolog.
    gc.set_threshold(10_000)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup or in a background job
            signal.signal(number, lambda *_: _leave(at_the_end))
    from ddp_doctor.cli import streams

    streams.prepare()
    from ddp_doctor.cli.main import entry

    entry(at_the_end)


def _search_own_modules_first() -> None:
    """Search Python's library before PYTHONPATH, and the directory of ``python -m`` last.

    That directory may contain the user's own random.py or torch.py. ddp-doctor must report such a file, not import it.
    """
    library = os.__file__.rpartition("/")[0]
    own = (library, f"{library}/lib-dynload")
    here = sys.path[0] if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False) else None
    sys.path.sort(key=lambda entry: 0 if entry in own else 2 if entry == here else 1)


def _leave(at_the_end: Callable[[], object]) -> None:
    """Exit with 130 before a run has its own signal handlers; there is nothing else to clean up or report.

    It must not raise an exception, which would appear as another error in the interrupted code, such as an import.
    """
    try:
        at_the_end()
        os.write(2, b"ddp-doctor: interrupted before anything was tested\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
