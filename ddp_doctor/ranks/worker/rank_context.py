"""The RankContext of a live worker: its place in the world, and steps written to its event file."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp_doctor.model.context import Context, GpuWatch, ModelMesh
from ddp_doctor.model.fact import Failed
from ddp_doctor.ranks import folders
from ddp_doctor.ranks.events import EventWriter
from ddp_doctor.ranks.spec import WorkerSpec
from ddp_doctor.ranks.store import exchange
from ddp_doctor.sources.proc import run_and_queued_s


class LiveRankContext:
    """Implements ddp_doctor.model.context.RankContext on a worker process."""

    def __init__(self, spec: WorkerSpec, events: EventWriter) -> None:
        self.rank = spec.rank
        self.group_rank = spec.group_rank
        self.ranks = spec.trial.ranks
        self.world_size = len(self.ranks)
        self.nodes = spec.nodes
        self.local_rank = spec.local_rank
        self.backend = spec.backend
        self.device = spec.device
        self.env: Mapping[str, str] = os.environ
        self.node = spec.node
        self.options = spec.options
        self.level = spec.options.level
        self.budget_s = spec.options.budget_s
        self.skip_pairs = frozenset(spec.skip_pairs)
        self.started_ago_s = time.monotonic() - spec.launched_at
        self.init_s = 0.0
        self.backend_impl: str | None = None
        self.bound_device: str | None = None
        self.gpu_memory_bytes = 0
        self.trial = spec.trial
        self.deadline = float("inf")
        self.group: Any = None
        self.store: Any = None
        self.model = spec.options.model
        self.model_mesh: ModelMesh = (), None
        self.raw: str | None = None
        self._events = events
        self._note = Path(spec.path("note"))
        self.part = ""
        self._check = ""
        self._seq = 0
        self._within: dict[str, Any] = {}

    def begin(self, check: str, deadline_s: float, part: str = "") -> None:
        """Enter a check, or a part of it: its deadline starts now, its step numbers with the check."""
        if check != self._check:
            self._seq = 0
        self._check, self.part, self.raw = check, part, None
        self.deadline = time.monotonic() + deadline_s
        self._events.write("check", check=check)

    def clock(self) -> float:
        """Return monotonic seconds, the same clock on all ranks of a node."""
        return time.monotonic()

    def remaining(self) -> float:
        """Return the seconds until the check's deadline."""
        return self.deadline - time.monotonic()

    def exchange(self, name: str, text: str) -> tuple[str, ...]:
        """Return the text of every rank under this name, by group rank (see the Protocol)."""
        if self.store is None:
            raise Failed("this check needs ddp-doctor's store, which is not available to ranks started by torchrun")
        return exchange(self.store, f"{self._check}/{name}", text, self.group_rank, self.world_size)

    def new_folder(self) -> str:
        """Create a directory in the working directory and return its path (see the Protocol)."""
        return folders.make_job_folder(self._note, Path.cwd())

    def keep(self, raw: str) -> None:
        """Keep raw text along with the fact."""
        self.raw = raw

    def watch_gpu(self, uuid: str | None) -> GpuWatch:
        """Return a watch on the GPU with this UUID, through NVML."""
        from ddp_doctor.sources.gpu_watch import NvmlWatch  # a rank without a GPU starts faster

        return NvmlWatch(uuid)

    def machine(self, within_s: float) -> Context:
        """Return this rank's machine (see the Protocol)."""
        from ddp_doctor.sources.machine import LiveContext  # a rank whose checks do not ask starts faster

        until = min(self.deadline, time.monotonic() + within_s)
        return LiveContext(self.env, until, node=self.node, level=self.level)

    @contextmanager
    def within(self, axis: str, members: Sequence[int]) -> Iterator[None]:
        """Mark the steps of this block as steps of one group (see the Protocol)."""
        self._within = {"axis": axis, "members": list(members)}
        try:
            yield
        finally:
            self._within = {}

    @contextmanager
    def step(
        self, name: str, detail: str = "", *, peers: Sequence[int] = (), deadline_s: float | None = None
    ) -> Iterator[None]:
        """Mark a step that may block (see the Protocol): ``enter`` with the caller's line, ``leave`` unless it raised.

        On a GPU a call returns before its work is done. The step ends when the device is idle, so a hang is
        inside the step that caused it.
        """
        caller = sys._getframe(2)  # noqa: SLF001 - the call site, behind contextlib, is the evidence
        self._seq += 1
        at = {"check": self._check, "seq": self._seq}
        what = {"name": name, "detail": detail, "peers": list(peers), "deadline_s": deadline_s, **self._within}
        self._events.write(
            "enter",
            **at,
            **what,
            queued_s=run_and_queued_s(os.getpid())[1],
            where=f"{caller.f_code.co_filename}:{caller.f_lineno}",
        )
        yield
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
        self._events.write("leave", **at)
