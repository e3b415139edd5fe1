"""Entry point of ``ddp-doctor`` and of ``python -m ddp_doctor``.

Nothing heavy may be imported at module level: multiprocessing runs the console script's
module-level code again in every worker.
"""

import os
import signal


def main() -> None:
    """Run the command line and leave the process with the doctor's exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (
            signal.getsignal(number) is not signal.SIG_IGN
        ):  # by nohup, or a shell that starts it in the background
            signal.signal(number, _leave)
    from ddp_doctor.cli import streams

    streams.prepare()
    from ddp_doctor.cli.main import entry

    entry()


def _leave(_number: int, _frame: object) -> None:
    """Until a run takes the signals over there is nothing to clean up and nothing to report."""
    os.write(2, b"ddp-doctor: interrupted before anything was tested\n")
    os._exit(130)


if __name__ == "__main__":
    main()
