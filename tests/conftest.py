"""Settings and fixtures of all tests: environment, hypothesis, collection by marks, order of tests in workers."""

import gc
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import once
from tests.forked import Forked, forked

# The same examples in each run, and no limit on their time, which depends on the load: a change is rejected for what it
# does. `--hypothesis-profile=search` looks for new ones.
for profile, examples in (("steady", 50), ("search", 1000)):
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=profile == "steady",
        database=None,
    )
settings.load_profile("steady")


#: Variables of a shell, job or user that could affect tests: variables of jobs, terminal settings, locale and time
#: zone, switches of Python. Selected GPUs stay selected.
_LEFTOVER = re.compile(
    r"(?:NCCL|GLOO|TORCH|TORCHELASTIC|PET|SLURM|OMPI|PMI|PMIX|HYDRA|MASTER|LOCAL|GROUP|ROLE|JOB_COMPLETION|UCX|OMP|GOMP|KMP"
    r"|MKL|OPENBLAS|XDG|LC)_\w+|RANK|WORLD_SIZE|NODE_RANK|NNODES|DDP_DOCTOR_(?!BENCH|FAULT_TABLE)\w+"
    r"|TERM|COLUMNS|LINES|NO_COLOR|(?:FORCE|CLI)_?COLOR(?:_FORCE)?|TZ|LANG|LANGUAGE|CDPATH|BASH_ENV|ENV"
    r"|PYTHON(?:PATH|STARTUP|WARNINGS|UTF8|COERCECLOCALE|IOENCODING|UNBUFFERED|OPTIMIZE|DEVMODE|FAULTHANDLER|SAFEPATH)"
)
#: Open files that any login of today may have.
_FILES = 1024


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _inherit_nothing_odd() -> None:
    """Restore the process state of a login, which background scripts, nohup or a strict site change."""
    for number in set(signal.valid_signals()) - {signal.SIGPIPE, signal.SIGXFSZ}:  # those Python itself ignores
        if signal.getsignal(number) is signal.SIG_IGN:
            by_python = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if by_python else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(_FILES, hard)), hard))
    for name in filter(_LEFTOVER.fullmatch, list(os.environ)):
        del os.environ[name]
    time.tzset()


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers, which then know the folder from their environment."""
    _inherit_nothing_odd()
    if not _is_worker(config):
        share = Path(tempfile.mkdtemp(prefix="ddp-doctor-tests-"))
        os.environ[once.VARIABLE] = str(share)
        # Recordings do not go to the user's home, which may be missing or read-only.
        home, temporary = share / "home", share / "t"
        home.mkdir()
        temporary.mkdir()
        share.chmod(0o711)  # munged does not start if others cannot reach its socket
        os.environ["HOME"] = str(home)
        os.environ["TMPDIR"] = str(temporary)  # killed programs leave files behind


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        shutil.rmtree(os.environ.pop(once.VARIABLE), ignore_errors=True)


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """``asked("explain")`` does what ``ddp-doctor explain`` does, without its half second of imports."""
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


#: The modules imported after collection, by worker.
IMPORTED = pytest.StashKey[frozenset[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exclude collected items from garbage collection and collect rarely: it took a third of the time."""
    gc.disable()
    gc.set_threshold(100_000)
    collected = yield
    gc.freeze()
    gc.enable()
    session.config.stash[IMPORTED] = frozenset(sys.modules)
    return collected


#: Fixtures that start a process with torch, and how many workers should start theirs (a parameter may be "ranks").
SHARED = {"ranks": 1, "session": 2}
#: Modules of the lab that only look at hosts.
BRIEF = {"test_hosts.py", "test_host_faults.py", "test_network_faults.py"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test that starts ranks without the mark that keeps it out of ``make test``."""
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    starts = {*SHARED, "play"}.intersection(getattr(item, "fixturenames", ())).difference(given)
    if starts and not {"ranks", "lab", "gpu"} & {mark.name for mark in item.iter_markers()}:
        raise pytest.UsageError(f"{item.nodeid} starts ranks ({', '.join(starts)}): mark it with pytest.mark.ranks")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order each worker's tests: tests that start ranks and wait come first, tests that only compute come last.

    Idle workers take over the ends of rows, so tests that share ranks or a forkserver stay together. In the lab, where
    nearly all tests start ranks, rows end with brief tests, so that no worker waits long for the last test. This hook
    runs last, after the deselection by marks, because the scheduler distributes the remaining tests.
    """
    if not _is_worker(config):
        return
    in_lab = "lab" in _required_marks(config)
    workers = config.workerinput["workercount"]  # type: ignore[attr-defined]
    first = [item for item in items if item.get_closest_marker("ranks") or (in_lab and item.path.name not in BRIEF)]
    begins = set(first)
    rest = [item for item in items if item not in begins]
    heads: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for group in sorted(_groups(first), key=lambda group: (_limit_s(group), len(group)), reverse=True):
        min(heads, key=len).extend(group)
    left = len(items)
    items.clear()
    for row, head in enumerate(heads):  # the scheduler parts them like this
        size = left // (workers - row)
        items += [*head, *rest[: max(size - len(head), 0)]]
        del rest[: max(size - len(head), 0)]
        left -= size
    items += rest


def _limit_s(group: list[pytest.Item]) -> float:
    """Return the longest timeout that its tests set, in seconds: long tests start first."""
    return max(mark.args[0] if (mark := item.get_closest_marker("timeout")) else 0.0 for item in group)


def _groups(items: list[pytest.Item]) -> Iterable[list[pytest.Item]]:
    """Yield the tests of one worker: of modules that share a fixture, dealt in parts, or of one other module."""
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


def _required_marks(config: pytest.Config) -> list[str]:
    """Return the marks that -m requires (any of them); empty if it requires none."""
    required = re.match(r"\(?(?!not )([a-z_]+(?: or [a-z_]+)*)", config.option.markexpr)
    return required[1].split(" or ") if required else []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules that do not mention a required mark: importing all modules takes some seconds."""
    required = _required_marks(config)
    if not required or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return None if any(f"mark.{mark}" in text for mark in required) else True
