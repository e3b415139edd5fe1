"""The coverage-guided fuzzer: ``python -m tests.fuzz.guided [--seconds 20] [TARGET ...]``.

Each parser runs in a process of its own under atheris (libFuzzer), from its seeds, with inputs of up to 64 KiB.
A crash is any exception that the parser's docstring does not name, a hang more than a second of CPU time. Prints
one line for each; exit code 1, with the input kept in ``build/fuzz``, where one was found.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LONGEST_INPUT_BYTES = 64 * 1024
LONGEST_CPU_S = 1.0
KEPT = Path("build") / "fuzz"
_ENCODING = ("utf-8", "surrogateescape")


class TookTooLong(Exception):
    """An input that a parser works on for more than a second."""


def main(arguments: list[str]) -> int:
    """Fuzz each chosen target for so many seconds; 1 where a crash or a hang was found."""
    from tests.fuzz.targets import TARGETS

    options = _options(arguments)
    known = [target.name for target in TARGETS]
    unknown = [name for name in options.names if name not in known]
    if unknown:
        sys.stderr.write(f"no such target: {' '.join(unknown)}; there are: {' '.join(known)}\n")
        return 2
    outcomes = [_fuzzed(name, options.seconds) for name in options.names or known]
    print(f"{sum(runs for runs, _ in outcomes)} inputs, {sum(not well for _, well in outcomes)} targets fell")
    return 0 if all(well for _, well in outcomes) else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    parser.add_argument("names", nargs="*", metavar="TARGET", help="module.function; all without it")
    return parser.parse_args(arguments)


def _fuzzed(name: str, seconds: int) -> tuple[int, bool]:
    """How many inputs were tried, and whether none fell."""
    kept = KEPT / name
    kept.mkdir(parents=True, exist_ok=True)
    limits = (
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        "-rss_limit_mb=4096",
        "-timeout=30",
        "-print_final_stats=1",
        f"-artifact_prefix={kept}/",
    )
    command = (sys.executable, "-m", "tests.fuzz.guided", "--one", name, *limits)
    done = subprocess.run(command, capture_output=True, check=False, timeout=seconds + 120)
    told = done.stderr.decode("utf-8", "replace") + done.stdout.decode("utf-8", "replace")
    runs = re.search(r"number_of_executed_units: (\d+)", told)
    count = int(runs[1]) if runs else 0
    well = done.returncode == 0 and count > 0
    print(
        f"{name}: {count} inputs" if well else f"{name}: FELL after {count} inputs\n{_end_of(told)}",
        flush=True,
    )
    return count, well


def _end_of(told: str) -> str:
    """The traceback that the fuzzer prints, which stands before its own statistics."""
    start = max(told.find("Uncaught Python exception"), 0)
    return told[start : start + 4000] if start else told[-4000:]


def fuzz_one(name: str, limits: list[str]) -> None:
    """Run the fuzzer on one target in this process, which it ends itself."""
    import atheris

    with atheris.instrument_imports(include=["ddp_doctor"]):
        from tests.fuzz.targets import TARGETS
    target = next(one for one in TARGETS if one.name == name)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / str(number)).write_bytes(seed.encode(*_ENCODING)[:LONGEST_INPUT_BYTES])
        atheris.Setup([sys.argv[0], *limits, corpus], _tried(target.call, target.refuses))
        atheris.Fuzz()


def _tried(call: Callable[[str], object], refuses: tuple[type[Exception], ...]) -> Callable[[bytes], None]:
    """What the fuzzer calls with each input."""

    def one_input(data: bytes) -> None:
        text = data.decode(*_ENCODING)
        began = time.process_time()
        with contextlib.suppress(*refuses):
            call(text)
        took_s = time.process_time() - began
        if took_s > LONGEST_CPU_S:
            raise TookTooLong(f"{took_s:.1f} s for {len(data)} bytes")

    return one_input


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz_one(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
