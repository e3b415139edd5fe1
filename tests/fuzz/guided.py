"""The coverage-guided fuzzer: ``python -m tests.fuzz.guided [--seconds 20 | --inputs 500] [TARGET ...]``.

Each parser runs in a separate process under atheris (libFuzzer), starting from its seeds, with inputs of up to 64 KiB.
``--seconds`` tries new inputs in each run; ``--inputs`` tries the same ones. A crash is any exception that the parser's
docstring does not name, a hang is more than a second of CPU time. Prints one line for each. Exit code 1 if one was
found; its input is kept in ``build/fuzz``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import NoReturn

from tests.fuzz.target import Target

LONGEST_INPUT_BYTES = 64 * 1024
LONGEST_CPU_S = 1.0
KEPT = Path("build") / "fuzz"
_INSTRUMENTED = (
    "ddp_doctor.parse",
    "ddp_doctor.features.lint",
    "ddp_doctor.knowledge",
    "ddp_doctor.model",
    "ddp_doctor.app.recordings",
)
_ENCODING = ("utf-8", "surrogateescape")


class TookTooLong(Exception):
    """An input that a parser works on for more than a second."""


def main(arguments: list[str]) -> int:
    import atheris

    # It prints each module on stderr.
    with redirect_stderr(StringIO()), atheris.instrument_imports(include=list(_INSTRUMENTED)):
        from tests.fuzz.targets import TARGETS
    options = _options(arguments)
    known = {target.name: target for target in TARGETS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        sys.stderr.write(f"no such target: {' '.join(unknown)}; there are: {' '.join(known)}\n")
        return 2
    until = ("-seed=1", f"-runs={options.inputs}") if options.inputs else (f"-max_total_time={options.seconds}",)
    with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        outcomes = list(side_by_side.map(lambda name: _fuzzed(known[name], until), options.names or known))
    fell = sum(not well for _, well in outcomes)
    print(f"{sum(runs for runs, _ in outcomes)} inputs to {len(outcomes)} parsers, of which {fell} fell")
    return 1 if fell else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--seconds", type=int, default=20, help="for each target")
    until.add_argument("--inputs", type=int, help="for each target, and the same ones each time")
    parser.add_argument("names", nargs="*", metavar="TARGET", help="module.function; all without it")
    return parser.parse_args(arguments)


def _fuzzed(target: Target, until: Sequence[str]) -> tuple[int, bool]:
    """Return the number of inputs, and whether all passed. Runs in a fork, because instrumenting parsers is slow."""
    kept = KEPT / target.name
    kept.mkdir(parents=True, exist_ok=True)
    log = kept / "log"
    child = os.fork()
    if child == 0:
        _fuzz_for_ever(target, until, log)
    well = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    told = log.read_text("utf-8", "replace")
    runs = re.search(r"number_of_executed_units: (\d+)", told)
    count = int(runs[1]) if runs else 0
    well = well and count > 0
    print(f"{target.name}: {count} inputs" if well else f"{target.name}: FELL\n{_end_of(told)}", flush=True)
    return count, well


def _end_of(told: str) -> str:
    """Return the traceback that the fuzzer prints before its statistics."""
    start = max(told.find("Uncaught Python exception"), 0)
    return told[start : start + 4000] if start else told[-4000:]


def _fuzz_for_ever(target: Target, until: Sequence[str], log: Path) -> NoReturn:
    """Run the fuzzer in this process, which libFuzzer ends itself; output goes to ``log``."""
    import atheris

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    limits = (
        *until,
        f"-max_len={LONGEST_INPUT_BYTES}",
        "-rss_limit_mb=4096",
        "-timeout=30",
        "-print_final_stats=1",
        f"-artifact_prefix={log.parent}/",
    )
    corpus = log.parent / "corpus"
    shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir()
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed.encode(*_ENCODING)[:LONGEST_INPUT_BYTES])
    atheris.Setup([sys.argv[0], *limits, str(corpus)], _tried(target.call, target.refuses))
    atheris.Fuzz()
    os._exit(0)


def _tried(call: Callable[[str], object], refuses: tuple[type[Exception], ...]) -> Callable[[bytes], None]:
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
    sys.exit(main(sys.argv[1:]))
