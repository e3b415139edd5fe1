"""Run one part of the tests, which the Makefile selects by their marks.

    python -m tools.run_tests NAME MARKS JUNIT PYTHON [OPTION ...] -- [ARGUMENT ...]

NAME is the target of make. JUNIT is a file for the results, or empty. PYTHON is a command that takes ``-m pytest``.
If the arguments select no test of this part, it prints one line and exits with 0.
The tests do not see what make exports for another make: some of them run make themselves.
"""

import os
import subprocess
import sys

import pytest

#: With these variables, a make below the tests would take over options and variables of the one above.
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS")


def main(argv: list[str]) -> int:
    """Replace this process by pytest, or return an exit code if the arguments select no test."""
    name, marks, junit, python = argv[:4]
    end = argv.index("--")
    options, arguments = argv[4:end], argv[end + 1 :]
    if arguments:
        listing = (sys.executable, "-m", "pytest", "-m", marks, "--collect-only", "-qq", *arguments)
        listed = subprocess.run(listing, capture_output=True, text=True, check=False)
        if listed.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            sys.stdout.write(f"make {name}: ARGS selects no test of this part; `make help` lists the other parts\n")
            return 0
        if listed.returncode != pytest.ExitCode.OK:
            sys.stdout.write(listed.stdout + listed.stderr)
            return listed.returncode
    results = [f"--junit-xml={junit}"] if junit else []
    command = [*python.split(), "-m", "pytest", "-m", marks, *options, *results, *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    return os.execve(command[0], command, environment)  # noqa: S606 - the developer's own command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
