"""How the tests run: examples without a clock, what all share, ``serial`` tests found without reading all modules."""

import gc
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import once
from tests.forked import Forked, forked

#: How long an example takes says how busy the machine is: no test of properties asks for it. Continuous integration
#: tries the same examples each time, so that a change is refused for what it does; every other run looks for new ones,
#: fifty a test: many runs of a few examples find what few runs of many do.
settings.register_profile(
    "steady",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("steady")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers, which then know the folder from their environment."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell in the background: the doctor would ignore it too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not _is_worker(config):
        os.environ[once.VARIABLE] = tempfile.mkdtemp(prefix="ddp-doctor-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        shutil.rmtree(os.environ.pop(once.VARIABLE), ignore_errors=True)


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """``asked("checks")`` is what ``ddp-doctor checks`` does, without its half second of imports."""
    with forked(tmp_path_factory.mktemp("streams")) as ask:
        yield ask


@pytest.fixture(scope="module")
def own_forkserver() -> Iterator[None]:
    """Python has one forkserver for each process, and other tests of this worker may have theirs open."""
    fresh = forkserver.ForkServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "_forkserver", fresh)
        for name in forkserver.__all__:
            patch.setattr(forkserver, name, getattr(fresh, name))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look through it for garbage took a third of the time, and more in every test."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


#: Fixtures that start a process that imports torch, and how many workers should start theirs. "ranks" is also what
#: some tests on a session call a parameter.
SHARED = {"ranks": 1, "session": 2}
#: Modules of the lab that only look at hosts.
BRIEF = {"test_hosts.py", "test_host_faults.py", "test_network_faults.py"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker's row begins with tests that start ranks, which wait for long, and ends with what only computes.

    Workers that are done take over the ends of rows: what shares ranks or a forkserver is not torn apart. In the lab,
    where nearly all start ranks, rows end with tests of a moment, so that nobody waits long for the last. It comes
    last, after what the marks leave out: the scheduler parts what is left.
    """
    if not _is_worker(config):
        return
    in_lab = re.search(r"(?<!not )\blab\b", config.option.markexpr)
    workers = config.workerinput["workercount"]  # type: ignore[attr-defined]
    first = [
        item for item in items if item.get_closest_marker("ranks") or (in_lab and item.path.name not in BRIEF)
    ]
    begins = set(first)
    rest = [item for item in items if item not in begins]
    heads: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for group in sorted(_groups(first), key=len, reverse=True):
        min(heads, key=len).extend(group)
    left = len(items)
    items.clear()
    for row, head in enumerate(heads):  # the scheduler parts them like this
        size = left // (workers - row)
        items += [*head, *rest[: max(size - len(head), 0)]]
        del rest[: max(size - len(head), 0)]
        left -= size
    items += rest


def _groups(items: list[pytest.Item]) -> Iterable[list[pytest.Item]]:
    """Tests that run on one worker: those of modules that share a fixture, dealt to so many, or of another module."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    groups: dict[object, list[pytest.Item]] = {}
    dealt = dict.fromkeys(SHARED, 0)
    for path, tests in modules.items():
        uses = {name for item in tests for name in getattr(item, "fixturenames", ())}
        shared = next((fixture for fixture in reversed(SHARED) if fixture in uses), None)
        key: object = path
        if shared is not None:
            key = (shared, dealt[shared] % SHARED[shared])
            dealt[shared] += 1
        groups.setdefault(key, []).extend(tests)
    return groups.values()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only serial tests are wanted, modules without any are not imported: all of them take some seconds."""
    only_serial = re.search(r"(?<!not )\bserial\b", config.option.markexpr)
    is_module = collection_path.suffix == ".py"
    return True if only_serial and is_module and "mark.serial" not in collection_path.read_text() else None
