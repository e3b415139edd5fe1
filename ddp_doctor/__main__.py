"""Entry point of ``ddp-doctor`` and of ``python -m ddp_doctor``.

Nothing heavy may be imported at module level: multiprocessing runs the console script's
module-level code again in every worker.
"""

import io
import os
import signal
import sys


def main() -> None:
    """Run the command line and leave the process with the doctor's exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without the degree sign must not end the report
    from ddp_doctor.cli import entry

    entry()


def _replace_closed_streams() -> None:
    """Python has no object for a stream that was closed before it, and sockets would take its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)  # what this process starts would have the same trouble
            setattr(sys, name, os.fdopen(nothing, "r" if name == "stdin" else "w", encoding="utf-8"))


def _leave(_number: int, _frame: object) -> None:
    """Until a run takes the signals over there is nothing to clean up and nothing to report."""
    os.write(2, b"ddp-doctor: interrupted before anything was tested\n")
    os._exit(130)


if __name__ == "__main__":
    main()
