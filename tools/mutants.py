"""Print which tests kill which mutants of some files: ``make mutants FILES=checks/node/host/rules.py``.

A mutant is a file with one changed token. Recordings and hand-written tests that fail with it kill it. No file changes:
pytest collects the tests once, and a fork of that process replaces functions and runs the tests that need the file.
Lines that run during imports, such as decorators and constants, are not changed. No library fits: mutmut skips
decorated functions, so all rules, and cosmic-ray does not report which tests failed.
"""

import argparse
import gc
import os
import re
import signal
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import CO_OPTIMIZED
from itertools import pairwise, repeat, zip_longest
from pathlib import Path
from tempfile import TemporaryFile
from types import CodeType, FunctionType
from typing import NamedTuple, TextIO

import pytest

from ddp_doctor.checks import every_check

RECORDINGS = "tests/test_recordings.py"
MARKS = "not (ranks or serial or lab or planted or planted_torch or gpu or bench or fuzz)"
OPTIONS = ["-q", "--assert=plain", "--tb=native", "--capture=no", "-p", "no:cacheprovider", "-m", MARKS]
CALLS = {"any", "all", "min", "max", "proved", "likely", "possible"}
PAIRS = "any all,min max,likely possible,LIKELY POSSIBLE,INFO WARNING,< <=,> >=,== !=,and or,True False,continue break"
SWAPS = dict(pair.split() for pair in f"{PAIRS},proved likely,PROVED LIKELY,WARNING ERROR,return pass".split(","))
SWAPS = {new: old for old, new in SWAPS.items()} | SWAPS | {"in": "not in", "is": "is not", "not": "", "if": "if not"}


class _Mutant(NamedTuple):
    file: str
    codes: dict[CodeType, CodeType]  # of the functions that it replaces; without any, all fail
    change: str = ""


def _codes(code: CodeType) -> list[CodeType]:
    return [code, *(inner for each in code.co_consts if isinstance(each, CodeType) for inner in _codes(each))]


def _mutants(file: str) -> Iterator[_Mutant]:
    lines = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    names = {token.string for token in tokens} | {"any", "all", "min", "max"}
    codes = _codes(compile("".join(lines), file, "exec"))
    imported = {line for code in codes if not code.co_flags & CO_OPTIMIZED for *_, line in code.co_lines()}
    for token, after in pairwise(tokens):
        (row, begin), (_, end), old = token.start, token.end, token.string
        new = f"({old} + 1)" if token.type == tokenize.NUMBER else SWAPS.get(old, old)
        is_name = {old, new}.isdisjoint(CALLS) or (after.string == "(" and new in names)
        if new != old and is_name and (old, after.string) != ("is", "not") and row not in imported:
            head, tail = lines[row - 1][:begin], lines[row - 1][end:]
            change = f"{os.path.relpath(file)}:{row}: {head.lstrip()}[{old} to {new or 'nothing'}]{tail.rstrip()}"
            with suppress(SyntaxError, ValueError):  # a constant condition drops inner functions
                code = compile("".join([*lines[: row - 1], head + new + tail, *lines[row:]]), file, "exec")
                yield _Mutant(file, dict(zip(codes, _codes(code), strict=True)), change)


class _Mutation:  # a plug-in that runs the tests in forks, once for each mutant
    def __init__(self, mutants: list[_Mutant]) -> None:
        self.mutants, self.killers, self.tests = mutants, list[list[str]](), list[str]()
        self.out, self.functions = sys.stdout, list[FunctionType]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 10)  # seconds of processor time; the signal ends the fork
        self.out.write(f"begins {nodeid}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.out.write(f"failed {report.nodeid}\n" if report.failed else "")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        every_check()  # imports all checks
        gc.unfreeze()  # tests/conftest.py hides all objects from get_objects
        self.functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        gc.freeze()
        items = [item for item in session.items if "[" in item.name or not item.nodeid.startswith(RECORDINGS)]
        files = dict.fromkeys(mutant.file for mutant in self.mutants)
        with ThreadPoolExecutor(2) as pool:
            broken, *need = pool.map(self.failed, map(_Mutant, ["", *files], repeat({})), repeat(items))
            needed = {file: {*tests} - {*broken} for file, tests in zip(files, need, strict=True)}
            chosen = [[item for item in items if item.nodeid in needed[mutant.file]] for mutant in self.mutants]
            self.killers = list(pool.map(self.failed, self.mutants, chosen))
        self.tests = [item.nodeid for item in items if item.nodeid not in broken]
        return True

    def failed(self, mutant: _Mutant, items: list[pytest.Item]) -> list[str]:
        with TemporaryFile("w+", buffering=1) as out:
            pid = os.fork()
            if not pid:
                try:
                    self.run(mutant, items, out)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            out.seek(0)
            lines = out.read().splitlines()
        return [line[len("failed ") :] for line in lines if line.startswith("failed") or line is lines[-1] != "ended"]

    def run(self, mutant: _Mutant, items: list[pytest.Item], out: TextIO) -> None:
        self.out = out
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for function in self.functions:
            if function.__code__.co_filename == mutant.file and (mutant.codes or not function.__closure__):
                function.__code__ = mutant.codes.get(function.__code__, (lambda *_, **__: 1 / 0).__code__)
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self.out.write("ended\n")


def main() -> None:
    """Print the mutants of some files and the tests that kill them."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--tests", nargs="*", help="default: those that import the module or its package")
    parser.add_argument("--sample", type=int, help="mutants per file, evenly spread; default: all")
    given = parser.parse_args()
    os.environ["CI"] = "1"  # hypothesis then tries the same examples each time
    found, tests = list[_Mutant](), {RECORDINGS, *(given.tests or ())}
    for name in given.files:
        file = Path("ddp_doctor" if name.startswith("checks/") else "", name)
        mention = rf"(?m)^from {'.'.join(file.parts[:-1][:3])}(\.| import .*\b){Path(file.parts[:4][-1]).stem}\b"
        modules = [] if given.tests else Path("tests").rglob("test_*.py")
        tests |= {str(path) for path in modules if re.search(mention, path.read_text(encoding="utf-8"))}
        every = list(_mutants(str(file.absolute())))
        count = min(given.sample or len(every), len(every))
        found += [every[at * len(every) // count] for at in range(count)]
    mutation = _Mutation(found)
    pytest.main([*OPTIONS, *sorted(tests)], [mutation])
    counts = Counter({test.partition("[")[0]: 0 for test in mutation.tests if not test.startswith(RECORDINGS)})
    for mutant, killers in zip(found, mutation.killers, strict=True):
        by_hand = [*dict.fromkeys(test.partition("[")[0] for test in killers if not test.startswith(RECORDINGS))]
        recordings = sum(test.startswith(RECORDINGS) for test in killers)
        kind = "killed by recordings" if recordings else "killed only by other tests" if by_hand else "alive"
        counts.update([f"{os.path.relpath(mutant.file)}: {kind}", *(() if recordings else by_hand)])
        sys.stdout.write(f"{mutant.change}  {kind}: {recordings} recordings, {' '.join(by_hand)}\n")
    sys.stdout.write("Mutants that recordings leave alive, by the tests that kill them, and all mutants:\n")
    sys.stdout.writelines(f"{number:4} {text}\n" for text, number in counts.items())


if __name__ == "__main__":
    main()
