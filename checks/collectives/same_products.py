"""Same products: whether devices that multiply the same matrices always get the same bits.

Raw input: none; it is measured on every rank on its own device, as a sum of the bits of each product:

    rank 1  bfloat16 on NVIDIA H100 80GB HBM3: of 262144 products 26 are unlike its others of the same matrices

Why it matters: a device that intermittently computes wrong results raises no error. DDP averages its gradients into
those of all ranks, so training is wrong everywhere. The matrices hold numbers of so few bits that no intermediate sum
is rounded: neither the order of additions nor the library that chooses it changes a product. A difference is a fault,
and a vote finds the odd device.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from operator import ne
from typing import TYPE_CHECKING, NamedTuple

from ddp_doctor.facts.collectives import SameProductsFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Level, Status, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.exchanges import queued_s
from ddp_doctor.probing.products import MEMORY_BYTES, PAIRS, matrices, rows
from ddp_doctor.probing.rank_identity import finish, gpu_identity, training_dtype
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import gpus_by_rank
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, proved
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprit, rank_of, ranks_at

if TYPE_CHECKING:
    import torch

Multiplied = FactAt[SameProductsFact]

#: Minimum number of products, and minimum and maximum duration (judgment). Meta's tests next to jobs are as short, and
#: find faults because they are repeated for months (Ripple, in Dixit et al., 2022).
PRODUCTS, _LEAST_S, _MOST_S = 30_000, 1.0, 6.0
#: Part of the time until the check's deadline for a rank that waits for a processor, which its duration does not count.
_LATEST = 0.75
#: Products of all pairs between two clock readings.
_ROUNDS = 8
#: With fewer than three equal ranks it is unknown which one is wrong.
_FEWEST_TO_VOTE = 3
#: torch settings that allow cuBLAS to round intermediate results.
_ROUNDING = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def probe(ctx: RankContext) -> SameProductsFact:
    """Multiply on all ranks at once."""
    if ctx.device.startswith("cuda") and ctx.gpu_memory_bytes < MEMORY_BYTES:
        raise Skip(
            f"ddp-doctor may use {ctx.gpu_memory_bytes >> 20} MiB of GPU memory, but this test needs"
            f" {MEMORY_BYTES >> 20} MiB"
        )
    with ctx.step("products", "of the same matrices"):
        sums, seconds = multiplied(ctx)
    usual = sums.mode(dim=0).values
    numbers = (sums != usual).flatten().nonzero()
    uuid, name = gpu_identity(ctx.device)
    return SameProductsFact(
        device=ctx.device,
        gpu_uuid=uuid,
        alike={"type": str(training_dtype(ctx.device)).removeprefix("torch."), "device": name or "CPU"},
        products=sums.numel(),
        seconds=seconds,
        exact=tuple(f"{value & (2**64 - 1):x}" for value in usual.tolist()),
        differing=len(numbers),
        first_differing=int(numbers[0].item()) if len(numbers) else None,
    )


def multiplied(ctx: RankContext) -> tuple["torch.Tensor", float]:
    """Return the bit sums of the products, a row for each round over all pairs, and the seconds it took.

    The sum wraps around at 64 bits, so one flipped bit always changes it.
    """
    import torch

    left, right = matrices(ctx.device, rows(ctx.device))
    out, sums, settings = torch.empty_like(left), list[torch.Tensor](), torch.backends.cuda.matmul
    machine, latest_s = ctx.machine(ctx.remaining()), _LATEST * ctx.remaining()
    started, spent, waited = ctx.clock(), 0.0, queued_s(machine)
    with ExitStack() as at_the_end:
        for name in _ROUNDING:
            at_the_end.callback(setattr, settings, name, getattr(settings, name))
            setattr(settings, name, False)
        while (
            spent < latest_s
            and (spent < _LEAST_S or len(sums) * PAIRS < PRODUCTS)
            and (spent < _MOST_S or spent - (queued_s(machine) - waited) < _MOST_S)
        ):
            for _ in range(_ROUNDS):
                torch.bmm(left, right, out=out)
                sums.append(out.view(torch.int64).sum((1, 2)))
            finish(ctx.device)
            spent = ctx.clock() - started
    return torch.stack(sums).cpu(), spent


class Alike(NamedTuple):
    """Ranks that must have the same products: correct ranks, and odd ranks with their number of differing pairs."""

    sound: Sequence[Multiplied]
    odd: Sequence[tuple[Multiplied, int]]

    @property
    def ranks(self) -> Sequence[Multiplied]:
        """The correct and the odd ranks."""
        return [*self.sound, *(rank for rank, _ in self.odd)]

    @property
    def is_clear(self) -> bool:
        """True if more than half of three or more agree."""
        return len(self.ranks) >= _FEWEST_TO_VOTE and 2 * len(self.sound) > len(self.ranks)


@once_a_recording
def by_kind(recording: Recording) -> Sequence[Alike]:
    """Return all ranks, grouped by type, model of device and number of products."""
    groups = grouped(
        ((len(rank.fact.exact), *sorted(rank.fact.alike.items())), rank) for rank in recording.facts(SameProductsFact)
    )
    found = []
    for ranks in groups.values():
        [(usual, _)] = Counter(rank.fact.exact for rank in ranks).most_common(1)
        unlike = [(rank, sum(map(ne, rank.fact.exact, usual))) for rank in ranks]
        sound = [rank for rank, pairs in unlike if not pairs and not rank.fact.differing]
        found.append(Alike(sound, [(rank, pairs) for rank, pairs in unlike if pairs or rank.fact.differing]))
    return found


@rule("DD640", "rank-computes-wrong-products", Consequence.WRONG, SameProductsFact)
def rank_computes_wrong_products(recording: Recording) -> Iterator[Draft]:
    """A device computes different bits than identical devices for the same matrix products.

    Finds: Reports ranks that differ, intermittently or each time for some of the matrices, from a majority that agrees
        in all products, among three or more ranks with the same device model and type. No product is rounded on the
        way, so no library explains the difference.
    Why: No error is raised. The rank's wrong gradients are averaged into all ranks' gradients, and training continues.
    Remedy: Take the node out of service, and have the GPU, or CPU and memory, tested and replaced.
    See: https://arxiv.org/abs/2203.08989 (Dixit et al., Detecting silent data corruptions in the wild)
        docs/explanation/measurements.md
    """
    for group in by_kind(recording):
        if group.odd and group.is_clear:
            several, names = len(group.odd) > 1, ranks_at(recording, (rank_of(rank) for rank, _ in group.odd))
            yield proved(
                [_culprit(recording, rank) for rank, _ in group.odd],
                f"{capital(names)} {'multiply' if several else 'multiplies'} matrices"
                f" wrongly: {'their' if several else 'its'} products differ from those of {len(group.sound)} ranks with"
                " the same kind of device",
                _evidence(recording, group),
                _GPU if group.sound[0].fact.device.startswith("cuda") else _CPU,
                detail="Training would continue with wrong gradients.",
            )


def _culprit(recording: Recording, rank: Multiplied) -> Culprit:
    """Return the rank, or its GPU, as culprit."""
    culprit = rank_culprit(recording, rank_of(rank))
    of_gpu = {"kind": "gpu", "name": rank.fact.gpu_uuid} if rank.fact.device.startswith("cuda") else {}
    return culprit.model_copy(update=of_gpu)


def _evidence(recording: Recording, group: Alike) -> list[Evidence]:
    lines = []
    for rank, pairs in group.odd[:LINES_OF_EVIDENCE]:
        fact, parts = rank.fact, []
        if fact.differing:
            of = f"{fact.differing} of {fact.products} products unlike its others of the same matrices"
            parts.append(f"{of}, number {fact.first_differing} first")
        if pairs:
            parts.append(f"each time another product than usual of {pairs} of {len(fact.exact)} pairs of matrices")
        lines.append(Evidence(text=f"{rank_at(recording, rank_of(rank))}: {' and '.join(parts)}"))
    sound = ranks_at(recording, map(rank_of, group.sound)) if group.sound else "nobody"
    return [*lines, Evidence(text=f"the usual products, every time: {sound}; {_kind(group.ranks[0])}")]


def _kind(rank: Multiplied) -> str:
    return " on ".join(rank.fact.alike.values())


_on_node = partial(by_operator, cost="node unavailable until fixed")
_GPU = _on_node(
    "Drain the node and test the GPU; replace it if it fails or still computes wrongly",
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
    "dcgmi diag -r 3   # a quarter of an hour; -r 4 takes longer",
    references=("https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html",),
)
_CPU = _on_node(
    "Drain the node and test its memory and CPUs; replace them if they fail or still compute wrongly",
    "sudo dmesg | grep -i -e edac -e mce",
    "stress-ng --cpu 0 --verify --timeout 30m",
    "sudo memtester 4G 1   # or Memtest86+ at boot, which reaches all of it",
)
_THIRD = by_operator(
    "Run again with at least three ranks on this device model, to find the faulty rank",
    "ddp-doctor run --only same_products",
    cost="one minute of these nodes",
)


@rule("DD641", "alike-ranks-compute-different-products", Consequence.WRONG, SameProductsFact)
def alike_ranks_compute_different_products(recording: Recording) -> Iterator[Draft]:
    """Products that should be identical differ, and it is unknown which are correct.

    Finds: Reports two ranks with the same device that differ, or several without an agreeing majority. Also reports a
        rank with a unique device whose products of the same matrices differ from each other.
    Why: One device computes wrong results, or all of them or their library do, and nothing else shows it.
    Remedy: Run the check again with a third device of the same kind: among three, the different one is named.
    See: docs/explanation/measurements.md
    """
    for group in by_kind(recording):
        if not group.odd or group.is_clear:
            continue
        ranks, who = ranks_at(recording, map(rank_of, group.ranks)), NOBODY
        whose = "the faulty rank is unknown" if group.sound else "no rank is right every time"
        what = f"products of the same matrices differ, and {whose}"
        if len(group.ranks) == 1:
            who, what = (_culprit(recording, group.ranks[0]),), "its own products of the same matrices differ"
        yield likely(who, f"{capital(ranks)}: {what}", _evidence(recording, group), _THIRD)


def _not_tested(recording: Recording) -> dict[int, tuple[str, str]]:
    """Return what is missing and why, by rank."""
    missing = {
        reading.rank or 0: (_NOT_COMPARED, reading.reason or "")
        for reading in recording.of_check(CHECK.id)
        if reading.status is Status.SKIPPED
    }
    for group in by_kind(recording):
        for rank in group.ranks:
            if len(group.ranks) == 1 and not group.odd:
                missing[rank_of(rank)] = _NOT_COMPARED, f"no other rank multiplied in {_kind(rank)}"
            elif rank.fact.products < PRODUCTS:
                missing[rank_of(rank)] = _FEWER, f"{rank.fact.products} products in {rank.fact.seconds:.0f} s"
    return missing


_NOT_COMPARED, _FEWER = "products not compared with another rank's", f"fewer than {PRODUCTS} products"


def untested(recording: Recording) -> str:
    """Return why no device was tested; "" if one was."""
    missing = _not_tested(recording)
    is_all = missing.keys() >= {rank_of(rank) for rank in recording.facts(SameProductsFact)}
    return next((f"{what}: {why}" for what, why in missing.values() if is_all), "")


@rule("DD642", "products-not-compared", Consequence.KNOWN, SameProductsFact)
def products_not_compared(recording: Recording) -> Iterator[Draft]:
    """A rank's products were not compared with another rank's, or fewer than usual were compared.

    Finds: Reports ranks without another rank of the same kind, ranks without enough memory, and ranks that are too slow
        for 30,000 products. If the check finds nothing else, it counts as skipped.
    Why: Devices that were not compared were not tested, and may compute wrong results.
    Remedy: Run the check with more devices of the same kind.
    See: docs/explanation/measurements.md
    """
    missing = _not_tested(recording)
    for what, ranks in grouped((what, rank) for rank, (what, _) in missing.items()).items():
        yield proved(
            NOBODY,
            f"{capital(ranks_at(recording, ranks))}: {what}",
            [Evidence(text=f"{rank_at(recording, one)}: {missing[one][1]}") for one in ranks[:LINES_OF_EVIDENCE]],
        )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the products per second, for each rank and its GPU."""
    indices = gpus_by_rank(recording)
    for rank in recording.facts(SameProductsFact):
        labels: dict[str, str | int | float] = {"rank": rank_of(rank), "node": rank.node}
        if (index := indices.get(rank_of(rank))) is not None:
            labels["gpu"] = index
        if rank.fact.seconds:
            rate = rank.fact.products / rank.fact.seconds
            yield Measurement(name="product_rate", value=rate, unit="1/s", labels=labels)


CHECK = Check(
    id="same_products",
    title="Alike devices compute the same",
    where=Where.RANK,
    probe=probe,
    facts=(SameProductsFact,),
    rules=(rank_computes_wrong_products, alike_ranks_compute_different_products, products_not_compared),
    level=Level.THOROUGH,
    cost_s=2.0,
    deadline_s=20.0,
    measurements=measurements,
    untested=untested,
)
