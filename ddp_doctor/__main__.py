"""Entry point of ``ddp-doctor`` and of ``python -m ddp_doctor``.

Nothing heavy may be imported at module level: multiprocessing runs the console script's
module-level code again in every worker.
"""

import os
import sys
from collections.abc import Callable


def main(at_the_end: Callable[[], object] = lambda: None) -> None:
    """Run the command line and leave the process with the doctor's exit code, after ``at_the_end``."""
    _search_own_modules_first()
    import gc
    import signal

    # What imports make stays: to search it for cycles every 700 objects was a twentieth of a prolog.
    gc.set_threshold(10_000)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup, or a shell that starts it in the background
            signal.signal(number, lambda *_: _leave(at_the_end))
    from ddp_doctor.cli import streams

    streams.prepare()
    from ddp_doctor.cli.main import entry

    entry(at_the_end)


def _search_own_modules_first() -> None:
    """Find Python's library before what PYTHONPATH names, and all of that before the folder of ``python -m``.

    The user's random.py or torch.py may stand there, of which the doctor is to tell, not to die.
    """
    library = os.__file__.rpartition("/")[0]
    own = (library, f"{library}/lib-dynload")
    here = sys.path[0] if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False) else None
    sys.path.sort(key=lambda entry: 0 if entry in own else 2 if entry == here else 1)


def _leave(at_the_end: Callable[[], object]) -> None:
    """Until a run takes the signals over there is nothing else to clean up and nothing to report.

    Nothing may be raised from here: it would come out of what was interrupted, such as an import, as another error.
    """
    try:
        at_the_end()
        os.write(2, b"ddp-doctor: interrupted before anything was tested\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
