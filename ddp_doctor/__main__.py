"""Entry point of ``ddp-doctor`` and of ``python -m ddp_doctor``.

Nothing heavy may be imported at module level: multiprocessing runs the console script's
module-level code again in every worker.
"""


def main() -> None:
    """Run the command line and leave the process with the doctor's exit code."""
    from ddp_doctor.cli import entry

    entry()


if __name__ == "__main__":
    main()
