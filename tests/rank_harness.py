"""Real ranks for tests: forked processes joined by gloo, started once per module.

A spawned server imports torch once and forks the ranks (1.5 s instead of 1.5 s a rank). Each rank then
runs the module-level functions it is sent, on a world of any of the ranks::

    with Ranks(4, preload=(__name__,)) as ranks:
        results = ranks.run(scenario, on=(1, 3))   # scenario(ctx) on original ranks 1 and 3
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from typing_extensions import Self

from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import Context, ModelMesh
from ddp_doctor.model.recording import Options
from ddp_doctor.sources.gpu_watch import NvmlWatch
from ddp_doctor.sources.machine import LiveContext
from tests.waiting import LIMIT_S

#: Imported by the server before it forks; otherwise each rank would import it.
_TORCH = ("torch.distributed", "torch.nn.parallel", "torch._dynamo.utils")


@dataclass
class HarnessContext:
    """A RankContext whose steps are kept in a list of (name, detail)."""

    rank: int
    group_rank: int
    world_size: int
    ranks: tuple[int, ...]
    local_rank: int
    group: Any
    store: Any = None
    backend: str = "gloo"
    device: str = "cpu"
    env: Mapping[str, str] = field(default_factory=dict)
    node: int = 0
    options: Options = field(default_factory=Options)
    part: str = ""
    level: Level = Level.STANDARD
    budget_s: float = 60.0
    deadline: float = field(default_factory=lambda: time.monotonic() + LIMIT_S)
    init_s: float = 0.01
    backend_impl: str | None = "gloo"
    bound_device: str | None = None
    started_ago_s: float = 0.1
    skip_pairs: frozenset[tuple[int, int]] = frozenset()
    gpu_memory_bytes: int = 0
    model: str = ""
    model_mesh: ModelMesh = ((), None)
    nodes: tuple[int, ...] = ()
    raw: str | None = None
    steps: list[tuple[str, str]] = field(default_factory=list)

    def clock(self) -> float:
        return time.monotonic()

    def remaining(self) -> float:
        return self.deadline - self.clock()

    @contextmanager
    def step(
        self, name: str, detail: str = "", *, peers: Sequence[int] = (), deadline_s: float | None = None
    ) -> Iterator[None]:
        self.steps.append((name, detail))
        yield

    @contextmanager
    def within(self, axis: str, members: Sequence[int]) -> Iterator[None]:
        yield

    def exchange(self, name: str, text: str) -> tuple[str, ...]:
        """Over a store, as in a run: object collectives need numpy."""
        self.store.set(f"{name}/{self.group_rank}", text)
        return tuple(self.store.get(f"{name}/{other}").decode() for other in range(self.world_size))

    def new_folder(self) -> str:
        return tempfile.mkdtemp()

    def keep(self, raw: str) -> None:
        self.raw = raw

    def machine(self, within_s: float) -> Context:
        return LiveContext(self.env or os.environ, min(self.deadline, self.clock() + within_s))

    def watch_gpu(self, uuid: str | None) -> NvmlWatch:
        return NvmlWatch(uuid)


@dataclass
class Result:
    """The result of one rank in a scenario; ``error`` is a traceback."""

    rank: int
    value: Any = None
    error: str | None = None
    steps: tuple[tuple[str, str], ...] = ()
    duration_s: float = 0.0


class Ranks:
    """``size`` processes, each one rank of a gloo world."""

    def __init__(self, size: int, preload: Sequence[str] = ()) -> None:
        self.size = size
        self._preload = (*_TORCH, *preload)
        self._stuck = False

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(self.size)]
        self._folder = tempfile.TemporaryDirectory(prefix="rank-harness-")
        self._pipes = [ours for ours, _ in pipes]
        theirs = [end for _, end in pipes]
        store = str(Path(self._folder.name) / "store")
        self._server = spawn.Process(target=_serve, args=(theirs, store, self._preload), daemon=False)
        self._server.start()
        for end in theirs:
            end.close()
        self._receive()  # each rank says once that it has joined
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._server.join(0 if self._stuck else LIMIT_S)
        if self._server.exitcode is None and self._server.pid is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.join()
        self._folder.cleanup()

    def run(self, scenario: Callable[..., Any], *args: Any, on: Sequence[int] | None = None) -> list[Result]:
        """Run ``scenario(ctx, *args)`` on the ranks ``on`` (all by default), as a separate world."""
        world = tuple(range(self.size) if on is None else on)
        for pipe in self._pipes:  # new_group is a collective, so idle ranks also get the world
            pipe.send((world, scenario, args))
        return [one for one in self._receive() if one.rank in world]

    def facts(self, scenario: Callable[..., Any], *args: Any, on: Sequence[int] | None = None) -> list[Any]:
        """Return the values of ``run``, one per rank. Raises AssertionError if a rank raised."""
        results = self.run(scenario, *args, on=on)
        for one in results:
            assert one.error is None, f"rank {one.rank}: {one.error}"
        return [one.value for one in results]

    def _receive(self) -> list[Result]:
        """Return one result of each rank. A rank without a result breaks the world for all later runs."""
        assert not self._stuck, "an earlier scenario never ended"
        results, silent = [], list(self._pipes)
        while silent and (ready := wait(silent, LIMIT_S)):
            for pipe in ready:
                assert isinstance(pipe, Connection)
                results.append(pipe.recv())
                silent.remove(pipe)
        self._stuck = bool(silent)
        errors = "\n".join(f"rank {one.rank}: {one.error}" for one in results if one.error)
        assert not silent, f"{len(silent)} ranks said nothing for {LIMIT_S:g} s\n{errors}"
        return sorted(results, key=lambda one: one.rank)


def _serve(pipes: list[Connection], store: str, preload: Sequence[str]) -> None:
    import gc
    import importlib
    import warnings

    os.setsid()  # one kill ends the server and its ranks
    gc.disable()
    warnings.simplefilter("ignore")  # torch without numpy, and its deprecations
    for module in preload:
        importlib.import_module(module)
    gc.freeze()  # what the ranks share stays shared, and no collection of theirs looks through all of torch
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(rank, pipes, store)) for rank in range(len(pipes))]
    for process in ranks:
        process.start()
    for pipe in pipes:
        pipe.close()
    for process in ranks:
        process.join()


def _rank(rank: int, pipes: list[Connection], store: str) -> None:
    import torch
    import torch.distributed as dist

    for other, end in enumerate(pipes):
        if other != rank:
            end.close()
    torch.set_num_threads(1)
    size = len(pipes)
    stores: Any = dist  # they are exported without type information
    said = _store(stores, rank, store)
    dist.init_process_group("gloo", store=said, rank=rank, world_size=size)
    groups: dict[tuple[int, ...], Any] = {tuple(range(size)): dist.group.WORLD}
    pipes[rank].send(Result(rank))
    for run in itertools.count():
        try:
            world, scenario, args = pipes[rank].recv()
        except EOFError:
            os._exit(0)
        if world not in groups:
            groups[world] = dist.new_group(list(world))
        if rank not in world:
            pipes[rank].send(Result(rank))
            continue
        ctx = HarnessContext(
            *(rank, world.index(rank), len(world), world),
            local_rank=rank,
            group=groups[world],
            store=stores.PrefixStore(f"run{run}", said),
            nodes=(0,) * len(world),
        )
        pipes[rank].send(_run(ctx, scenario, args))


def _store(stores: Any, rank: int, path: str) -> Any:
    """A store of the first rank, whose port is in a file: each wait for a key in a file looks again every 10 ms."""
    files = stores.FileStore(path, -1)
    port = 0 if rank == 0 else int(files.get("port"))
    store = stores.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        files.set("port", str(store.port))
    return store


def _run(ctx: HarnessContext, scenario: Callable[..., Any], args: tuple[Any, ...]) -> Result:
    started = time.monotonic()
    try:
        value, error = scenario(ctx, *args), None
    except Exception:
        value, error = None, traceback.format_exc()
    return Result(ctx.rank, value, error, tuple(ctx.steps), time.monotonic() - started)
