"""Samples of a rank's speed, taken in turns, so that a machine never runs more ranks at once than it has cores for
them.

If a thread loses its core, a loop that only reads the clock shows a gap, as in the kernel's osnoise and hwlatdetect.
The kernel's counters show the cause::

    /proc/thread-self/schedstat   4242424 63004 17           ns run, ns ready and waiting, turns on a CPU (sched-stats)
    cpu.stat of the control group throttled_usec 51000       in which its quota stopped it
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from pydantic import Field

from ddp_doctor.facts.collectives import Sample, StragglersFact
from ddp_doctor.knowledge import stragglers
from ddp_doctor.knowledge.network.path_quality import JUDGED_MESSAGE_BYTES
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Misused, Skip
from ddp_doctor.parse import cgroup
from ddp_doctor.parse.software import last_line
from ddp_doctor.probing.all_reduces import agreed, meet
from ddp_doctor.probing.exchanges import exchange_rate
from ddp_doctor.probing.host_limits import busiest, reader
from ddp_doctor.probing.kernel_files import first_line, names_in, text_of
from ddp_doctor.probing.products import MEMORY_BYTES, PAIRS, matrices, rows
from ddp_doctor.probing.rank_identity import finish, gpu_identity

#: Size of an exchange between GPUs: too large for latency to matter, small relative to the memory of a rank.
_ON_GPU_BYTES = 16 << 20


def waves(cpus_of: Mapping[int, Sequence[int]], number: int) -> list[dict[int, int]]:
    """Return the turns of one sample for one machine's ranks. Within a turn, each rank gets a different first CPU.

    Ranks that may run on few CPUs choose first. The order differs between samples and is the same on all these ranks.
    """
    chance = Random(number)  # noqa: S311 - nothing is kept secret by it
    found: list[dict[int, int]] = []
    for rank in sorted(chance.sample(sorted(cpus_of), len(cpus_of)), key=lambda rank: len(cpus_of[rank])):
        cpus = chance.sample(cpus_of[rank], len(cpus_of[rank]))
        turn = next((turn for turn in found if not set(cpus) <= {*turn.values()}), {})
        if not turn:
            found.append(turn)
        turn[rank] = next(cpu for cpu in cpus if cpu not in turn.values())
    return found


def ring(ranks: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of neighbors in turns of disjoint pairs: the even, the odd, and the last of an odd ring."""
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks if ranks > 2 else ranks - 1)]
    whole = pairs[: ranks - 1] if ranks % 2 else pairs
    return [turn for turn in (whole[0::2], whole[1::2], pairs[len(whole) :]) if turn]


class _Data(Frozen):
    """The answer of sources/child_data.py."""

    problem: str = ""
    read_bytes_per_s: dict[str, float] = Field(default_factory=dict)


class _Place(Frozen):
    """A rank's machine, CPUs and problem with --data, as sent to the other ranks."""

    machine: str
    cpus: tuple[int, ...]
    problem: str


class RankSamples:
    """One rank's measurements, and its waits for the other ranks."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.machine = ctx.machine(ctx.remaining())
        self.read = reader(self.machine)
        self.began = ctx.clock()
        self.data = _Data()
        self.cpus = tuple(sorted(os.sched_getaffinity(0)))

    def measure(self) -> StragglersFact:
        """Take as many samples as fit. Raises Skip if too few do, Misused if no rank can read --data."""
        ctx = self.ctx
        if agreed(ctx, float(ctx.device.startswith("cuda") and ctx.gpu_memory_bytes < MEMORY_BYTES)):
            raise Skip(
                f"on one of the GPUs, ddp-doctor may use less memory than the {MEMORY_BYTES >> 20} MiB that this"
                " test needs"
            )
        with ctx.step("look at the data"):
            self._read_data(0.0, 0)
        boot = first_line(self.machine, "/proc/sys/kernel/random/boot_id") or f"node {ctx.node}"
        mine = _Place(machine=boot, cpus=self.cpus, problem=self.data.problem)
        with ctx.step("exchange", "places"):
            places = [_Place.model_validate_json(text) for text in ctx.exchange("places", mine.model_dump_json())]
        if all(place.problem for place in places):
            raise Misused(f"cannot read --data {quoted(ctx.options.data)}: {self.data.problem}")
        mates = {rank: place.cpus for rank, place in enumerate(places) if place.machine == boot}
        samples = tuple(self._samples(mates))
        with ctx.step("look at other processes"):
            waits = median(sample.waited_share or 0.0 for sample in samples) > 1 - 1 / stragglers.SLOWER
            others = busiest(self.machine) if waits else ()
        meet(ctx)
        names = {name for cpu in self.cpus for name in names_in(self.machine, f"/sys/devices/system/cpu/cpu{cpu}")}
        model = re.search(r"^model name\s*: (.*)$", text_of(self.machine, "/proc/cpuinfo") or "", re.MULTILINE)
        return StragglersFact(
            device=ctx.device,
            model=gpu_identity(ctx.device)[1] or (model[1] if model else "CPU"),
            machine=boot,
            cpus=self.cpus,
            samples=samples,
            quota_cpus=cgroup.limits(self.read).cpu_quota_cpus,
            numa_nodes=tuple(sorted(name for name in names if re.fullmatch(r"node\d{1,6}", name))),
            busiest=others,
            data_problem=self.data.problem,
        )

    def _samples(self, mates: Mapping[int, Sequence[int]]) -> Iterator[Sample]:
        ctx, needed_s = self.ctx, 0.0
        most_s = stragglers.SHARE_OF_CHECK * min(ctx.remaining(), ctx.budget_s)
        left, right = matrices(ctx.device, rows(ctx.device))
        for number in range(stragglers.SAMPLES):
            turns = waves(mates, number)
            turns += [{}] * (int(agreed(ctx, len(turns))) - len(turns))  # as many as on the machine with the most turns
            needed_s = needed_s or len(turns) * (stragglers.READS_S * bool(ctx.options.data) + stragglers.SAMPLE_S)
            missing = max(stragglers.FEWEST_SAMPLES - number, 1)
            if agreed(ctx, self._spent_s() + missing * needed_s) > most_s:
                if number >= stragglers.FEWEST_SAMPLES:
                    return
                raise Skip(
                    f"{missing} measurements do not fit in the time budget, because ranks that share a core are"
                    f" measured one after another ({len(turns)} turns)"
                )
            began, found = self._spent_s(), list[Sample]()
            for turn, at in enumerate(turns):
                # Idle ranks enter the step too, because steps of ranks are matched by number.
                with ctx.step("sample", f"{number + 1}, turn {turn + 1} of {len(turns)}"):
                    if ctx.group_rank in at:
                        found.append(self._sample(left, right, at[ctx.group_rank], number))
                meet(ctx)
            needed_s = self._spent_s() - began
            yield found[0].model_copy(update={"exchanged_gb_per_s": self._exchanged()})

    def _spent_s(self) -> float:
        return max(self.ctx.clock() - self.began, 1e-9)

    def _sample(self, left: Any, right: Any, cpu: int, number: int) -> Sample:
        at_s = self._spent_s()
        os.sched_setaffinity(0, {cpu})  # only its first CPU; it may move, as in a job
        os.sched_setaffinity(0, self.cpus)
        products_per_s = self._products(left, right)
        stopped_s, waited_s = cgroup.throttled_s(self.read), self._waited_s()
        spun_s, taken_s, longest_gap_s = spin(stragglers.SPIN_S)
        now_stopped_s, now_waited_s = cgroup.throttled_s(self.read), self._waited_s()
        return Sample(
            at_s=at_s,
            products_per_s=products_per_s,
            taken_share=taken_s / spun_s,
            longest_gap_s=longest_gap_s,
            waited_share=None if waited_s is None else ((now_waited_s or 0) - waited_s) / spun_s,
            throttled_share=None if stopped_s is None else ((now_stopped_s or 0) - stopped_s) / spun_s,
            read_bytes_per_s=self._read_data(stragglers.READ_S, number),
        )

    def _products(self, left: Any, right: Any) -> float:
        """Return the products per second of this thread's CPU time; on a GPU, of wall time, because it waits."""
        import torch

        ctx, done = self.ctx, 0
        clock = ctx.clock if ctx.device.startswith("cuda") else time.thread_time
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the other cores belong to other ranks
        torch.bmm(left, right)
        finish(ctx.device)
        began, until = clock(), ctx.clock() + stragglers.PRODUCTS_S
        while not done or ctx.clock() < until:
            torch.bmm(left, right)
            finish(ctx.device)
            done += PAIRS
        torch.set_num_threads(threads)
        return done / max(clock() - began, 1e-9)

    def _waited_s(self) -> float | None:
        """Return the seconds that this thread was ready but not running, or None if the kernel does not count them."""
        fields = (text_of(self.machine, "/proc/thread-self/schedstat") or "").split()
        return int(fields[1]) / 1e9 if len(fields) == 3 and fields[1].isdecimal() else None

    def _read_data(self, seconds: float, number: int) -> dict[str, float]:
        """Read some of --data in a new process, which is killed if it hangs; skipped after a problem."""
        path = self.ctx.options.data
        if not path or self.data.problem:
            return {}
        seed, most = number * self.ctx.world_size + self.ctx.rank, (stragglers.READ_BYTES, stragglers.READ_FILES)
        asked = map(str, (seconds, seed, *most, stragglers.WORKERS))
        result = self.ctx.machine(stragglers.READS_HANG_S).child("data", path, *asked)
        if result.queued_s > stragglers.READS_QUEUED_SHARE * stragglers.READS_HANG_S:
            return {}
        if result.status == "timed_out":
            self.data = _Data(problem=f"a read did not end within {stragglers.READS_HANG_S:g} s")
        elif not result.ok:
            self.data = _Data(problem=last_line(result.stderr) or "no answer")
        else:
            self.data = _Data.model_validate_json(last_line(result.stdout))
        return self.data.read_bytes_per_s

    def _exchanged(self) -> dict[int, float]:
        """Return the rates of the exchanges with each neighbor, in GB/s each way."""
        ctx, found = self.ctx, dict[int, float]()
        size = _ON_GPU_BYTES if ctx.device.startswith("cuda") else JUDGED_MESSAGE_BYTES
        for turn in ring(ctx.world_size):
            peers = [ctx.ranks[sum(pair) - ctx.group_rank] for pair in turn if ctx.group_rank in pair]
            if not peers or (min(ctx.rank, *peers), max(ctx.rank, *peers)) in ctx.skip_pairs:
                with ctx.step("send_recv", "rests", peers=(ctx.rank,)):
                    continue
            found[peers[0]] = exchange_rate(ctx, ctx.ranks.index(peers[0]), peers[0], size)
        return found


def spin(seconds: float) -> tuple[float, float, float]:
    """Spin on the clock; return the loop's duration, the part of it lost in gaps, and the longest gap, in seconds."""
    clock, taken, longest = time.perf_counter, 0.0, 0.0
    began = last = clock()
    while last - began < seconds:
        now = clock()
        if now - last > stragglers.GAP_S:
            taken, longest = taken + now - last, max(longest, now - last)
        last = now
    return last - began, taken, longest
