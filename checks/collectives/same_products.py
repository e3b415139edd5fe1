"""The same products: do alike devices that multiply the same matrices get the same bits, every time?

Raw input: none; measured on every rank on its own device, a sum of the bits of each product:

    rank 1  NVIDIA H100 80GB HBM3, torch 2.9.1+cu128: of 262144 products 26 are unlike its others of the same matrices

A device that now and then computes wrongly raises nothing. In DDP its gradients are averaged into those of all ranks,
and the training is wrong everywhere. The bits of a product depend on the order of additions, which the library chooses
by the device: only ranks with the same device, torch, library, settings and number of threads are compared, and the odd
one is found by vote. Half of the matrices hold -1, 0 and 1 alone: no order of additions changes their products, so that
another library is not taken for a fault.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ddp_doctor.facts.collectives import SameProductsFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Level, Severity, Status, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.rank_identity import finish, gpu_identity, training_dtype
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import gpus_by_rank
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, finding, possible, proved
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprit, rank_of, ranks_at

if TYPE_CHECKING:
    import torch

Multiplied = FactAt[SameProductsFact]

#: Pairs of matrices; the latter half is exact.
_PAIRS = 32
#: Rows: 4 us a product on one core at 145 GFLOP/s, and tiles for all multiprocessors of a GPU.
_ROWS, _ROWS_ON_GPU = 64, 512
#: All of them, what they are made of, and cuBLAS's workspace.
_MEMORY_BYTES = 256 * 2**20
#: So many at least, and for so long at least, unless the time is over (judgement). Meta's tests beside jobs are as
#: short, and find what they find by being repeated for months (Ripple, in Dixit et al., 2022).
PRODUCTS, _LEAST_S, _MOST_S = 30_000, 1.0, 6.0
#: Products of all pairs between two looks at the clock.
_ROUNDS = 8
#: Below three alike ranks nobody knows which is wrong.
_FEWEST_TO_VOTE = 3
#: Variables that math libraries read: they may change the order of additions.
_SETTINGS = ("MKL_", "CUBLAS", "DNNL_", "ONEDNN_", "OPENBLAS_", "BLIS_", "ATEN_CPU_", "NVIDIA_TF32_", "TORCH_BLAS_")
#: Fields of /proc/cpuinfo by which they choose their code, and the instructions among its flags.
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "cache size", "cpu", "CPU implementer", "CPU part", "Features")
_INSTRUCTIONS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "bmi")


def probe(ctx: RankContext) -> SameProductsFact:
    """Multiply on all ranks at once. Raises Skip where no other rank is alike, and this one's products are."""
    has_room = not ctx.device.startswith("cuda") or ctx.gpu_memory_bytes >= _MEMORY_BYTES
    alike = conditions(ctx) if has_room else {}
    mine = json.dumps(alike)
    with ctx.step("exchange", "who is alike"):
        are_alike = ctx.exchange("alike", mine).count(mine)
    if not has_room:
        raise Skip("too little memory is free on the GPU")
    with ctx.step("products", "of the same matrices"):
        sums, seconds = multiplied(ctx)
    usual = sums.mode(dim=0).values
    off = sums != usual
    numbers = off.flatten().nonzero()
    if are_alike < 2 and len(numbers) == 0:
        raise Skip(f"no other rank has the same device and libraries to compare with ({alike['device']})")
    told = tuple(f"{value & (2**64 - 1):x}" for value in usual.tolist())
    return SameProductsFact(
        device=ctx.device,
        gpu_uuid=gpu_identity(ctx.device)[0],
        alike=alike,
        products=sums.numel(),
        seconds=seconds,
        rounded=told[: _PAIRS // 2],
        exact=told[_PAIRS // 2 :],
        differing=len(numbers),
        differing_exact=int(off[:, _PAIRS // 2 :].sum().item()),
        first_differing=int(numbers[0].item()) if len(numbers) else None,
    )


def conditions(ctx: RankContext) -> dict[str, str]:
    """All that the bits of a product depend on, beside the matrices."""
    import torch

    # The releases of CUDA or ROCm are those of the build; those of MKL and oneDNN are told.
    build = str(torch.version.git_version) if ctx.device.startswith("cuda") else torch.__config__.show()
    settings = {name: value for name, value in sorted(ctx.env.items()) if name.startswith(_SETTINGS)}
    return {
        "device": _device(ctx),
        "library": f"torch {torch.__version__} ({_digest(build)})",
        "type": str(training_dtype(ctx.device)).removeprefix("torch."),
        "threads": f"{torch.get_num_threads()}",
        "settings": " ".join(f"{name}={value}" for name, value in settings.items()),
    }


def _device(ctx: RankContext) -> str:
    """The model of the GPU, or of the CPU with a digest of all by which libraries choose their code."""
    if ctx.device.startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_properties(ctx.device)
        return f"{gpu.name}, {gpu.multi_processor_count} multiprocessors"
    first, _, _ = ctx.cpuinfo().partition("\n\n")
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    known = [fields.get(name, "") for name in _CPU_FIELDS]
    known += sorted(flag for flag in fields.get("flags", "").split() if flag.startswith(_INSTRUCTIONS))
    name = fields.get("model name") or fields.get("cpu") or f"CPU of part number {fields.get('CPU part', 'not known')}"
    return f"{name} ({_digest(' '.join(known))})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def matrices(device: str, rows: int) -> "torch.Tensor":
    """Two of each pair, the same on all alike devices: made of integers, whose way to floats is exact everywhere."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    half, kind = (2, _PAIRS // 2, rows, rows), torch.int32
    rounded = torch.randint(-(2**23), 2**23, half, generator=generator, device=device, dtype=kind) / 2.0**23
    exact = torch.randint(-1, 2, half, generator=generator, device=device, dtype=kind)
    return torch.cat((rounded, exact), dim=1).to(training_dtype(device))


def multiplied(ctx: RankContext) -> tuple["torch.Tensor", float]:
    """The sum of the bits of each product, a row for each round over all pairs; and the seconds it took.

    The sum wraps around at 64 bits, so that one flipped bit always changes it.
    """
    import torch

    left, right = matrices(ctx.device, _ROWS_ON_GPU if ctx.device.startswith("cuda") else _ROWS)
    out, sums = torch.empty_like(left), list[torch.Tensor]()
    most_s = min(_MOST_S, ctx.remaining() / 2)
    started, spent = ctx.clock(), 0.0
    while spent < most_s and (spent < _LEAST_S or len(sums) * _PAIRS < PRODUCTS):
        for _ in range(_ROUNDS):
            torch.bmm(left, right, out=out)
            sums.append(out.view(torch.int64).sum((1, 2)))
        finish(ctx.device)
        spent = ctx.clock() - started
    return torch.stack(sums).cpu(), spent


@dataclass(frozen=True)
class Odd:
    """A rank whose products are not those of most alike ranks, or not the same every time."""

    rank: Multiplied
    pairs: int  # of how many its product is another than usual, each time
    exact: bool  # whether products of small integers are among those that differ: no library explains that

    @property
    def is_library(self) -> bool:
        """Whether another library, or another way through it, explains what differs: every sum that is rounded."""
        return not self.exact and not self.rank.fact.differing and self.pairs == len(self.rank.fact.rounded)


@dataclass(frozen=True)
class Alike:
    """Ranks that must have the same products: those that have, and the others."""

    ranks: Sequence[Multiplied]
    sound: Sequence[Multiplied]
    odd: Sequence[Odd]

    @property
    def is_clear(self) -> bool:
        """Whether more than half of three or more agree."""
        return len(self.ranks) >= _FEWEST_TO_VOTE and 2 * len(self.sound) > len(self.ranks)

    @property
    def wrong(self) -> Sequence[Odd]:
        """Those of the others whose device is at fault: no node has two libraries, another node may have another."""
        nodes = {rank.node for rank in self.sound}
        return [each for each in self.odd if not each.is_library or each.rank.node in nodes] if self.is_clear else ()


@once_a_recording
def by_kind(recording: Recording) -> Sequence[Alike]:
    """All ranks, by what their bits depend on."""
    groups = grouped((tuple(sorted(rank.fact.alike.items())), rank) for rank in recording.facts(SameProductsFact))
    return [_voted(ranks) for ranks in groups.values()]


def _voted(ranks: Sequence[Multiplied]) -> Alike:
    [(usual, _)] = Counter((*rank.fact.rounded, *rank.fact.exact) for rank in ranks).most_common(1)
    sound, odd = list[Multiplied](), list[Odd]()
    for rank in ranks:
        mine = (*rank.fact.rounded, *rank.fact.exact)
        unlike = [pair for pair, products in enumerate(zip(mine, usual, strict=False)) if products[0] != products[1]]
        exact = rank.fact.differing_exact > 0 or any(pair >= len(rank.fact.rounded) for pair in unlike)
        if unlike or rank.fact.differing:
            odd.append(Odd(rank, len(unlike), exact))
        else:
            sound.append(rank)
    return Alike(ranks, sound, odd)


@rule("DD640", "rank-computes-wrong-products", Severity.ERROR, SameProductsFact)
def rank_computes_wrong_products(recording: Recording) -> Iterator[Draft]:
    """A device that multiplies the same matrices to other bits than its equals.

    Finds: Among three or more ranks with the same device, torch, library, settings and threads, of which more than half
        agree in all products: those that do not, now and then, or each time for some of the matrices. Proved where
        products of small integers differ. Where on another node all others do, each time alike, another library may be
        the reason, and alike-ranks-compute-different-products tells.
    Why: Nothing is raised. Its wrong gradients are averaged into those of all ranks, and the training goes on.
    Remedy: Take the node out of use, and have the GPU, or CPU and memory, tested and exchanged.
    See: https://arxiv.org/abs/2203.08989 (Dixit et al., Detecting silent data corruptions in the wild)
        https://docs.nvidia.com/cuda/cublas/ (Results reproducibility: the same bits on GPUs of one kind)
        docs/explanation/measurements.md
    """
    for group in by_kind(recording):
        odd = group.wrong
        if odd:
            several = len(odd) > 1
            yield finding(
                [_culprit(recording, each.rank) for each in odd],
                f"{capital(_names(recording, odd))} {'multiply' if several else 'multiplies'} matrices wrongly: "
                f"{'their' if several else 'its'} products differ from those of {len(group.sound)} alike ranks",
                _evidence(recording, odd, group),
                _GPU if group.ranks[0].fact.device.startswith("cuda") else _CPU,
                confidence=Confidence.PROVED if all(each.exact for each in odd) else Confidence.LIKELY,
                detail="The training would go on, and its gradients would be wrong.",
            )


def _culprit(recording: Recording, rank: Multiplied) -> Culprit:
    """The rank, or its GPU."""
    culprit = rank_culprit(recording, rank_of(rank))
    of_gpu = {"kind": "gpu", "name": rank.fact.gpu_uuid} if rank.fact.device.startswith("cuda") else {}
    return culprit.model_copy(update=of_gpu)


def _names(recording: Recording, odd: Sequence[Odd]) -> str:
    return ranks_at(recording, (rank_of(each.rank) for each in odd))


def _evidence(recording: Recording, odd: Sequence[Odd], group: Alike) -> list[Evidence]:
    lines = []
    for each in odd[:LINES_OF_EVIDENCE]:
        fact, parts = each.rank.fact, []
        if fact.differing:
            of = f"{fact.differing} of {fact.products} products unlike its others of the same matrices"
            parts.append(f"{of}, number {fact.first_differing} first")
        if each.pairs:
            parts.append(f"each time another product than usual of {each.pairs} of {_PAIRS} pairs of matrices")
        integers = ", small integers among them" if each.exact else ""
        lines.append(Evidence(text=f"{rank_at(recording, rank_of(each.rank))}: {' and '.join(parts)}{integers}"))
    same = " and ".join(group.ranks[0].fact.alike.get(name, "not known") for name in ("device", "library"))
    sound = ranks_at(recording, map(rank_of, group.sound)) if group.sound else "nobody"
    return [*lines, Evidence(text=f"the usual products, every time: {sound}; alike in {same}")]


_on_node = partial(by_operator, cost="the node cannot be used meanwhile", undo=NOTHING_TO_UNDO)
_GPU = _on_node(
    "Take the node out of use; have the GPU tested, and exchanged if it fails or goes on to compute wrongly",
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
    "dcgmi diag -r 3   # a quarter of an hour; -r 4 takes longer",
    references=("https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html",),
)
_CPU = _on_node(
    "Take the node out of use; have its memory and CPUs tested, and exchanged if they fail or go on to compute wrongly",
    "sudo dmesg | grep -i -e edac -e mce",
    "stress-ng --cpu 0 --verify --timeout 30m",
    "sudo memtester 4G 1   # or Memtest86+ at boot, which reaches all of it",
)
_THIRD = by_operator(
    "Run it again with at least three ranks that have this device and these libraries: the odd one is named then",
    "ddp-doctor run --only same_products",
    cost="a minute of these nodes",
)


@rule("DD641", "alike-ranks-compute-different-products", Severity.WARNING, SameProductsFact)
def alike_ranks_compute_different_products(recording: Recording) -> Iterator[Draft]:
    """Products that should be the same and are not, with nobody to tell whose are right.

    Finds: Two alike ranks that differ, or more of which no majority agrees, or a rank without its like whose products
        differ from its own of the same matrices. An error where products of small integers do, which no library
        explains; information where most ranks differ from themselves: then it is the library. A rank of another node
        that differs from all others in every sum that is rounded may have another library, and is not named either.
    Why: One of the devices may compute wrongly, and nothing else shows it.
    Remedy: Run it again beside a third device of the same kind: among three the odd one is named.
    See: https://www.intel.com/content/www/us/en/docs/onemkl/developer-reference-dpcpp/2025-0/numerical-reproducibility.html
        docs/explanation/measurements.md
    """
    for group in by_kind(recording):
        wrong = group.wrong
        odd = [each for each in group.odd if each not in wrong]
        if not odd:
            continue
        restless = [each for each in odd if each.rank.fact.differing]
        is_library = len(restless) > max(1, len(group.ranks) / 2)
        is_exact = any(each.exact for each in odd)
        severity = Severity.ERROR if is_exact else Severity.INFO if is_library else Severity.WARNING
        why = "unsure whose are wrong" if not group.is_clear else "another library, or a fault"
        ranks = map(rank_of, group.ranks) if not group.is_clear else (rank_of(each.rank) for each in odd)
        yield possible(
            NOBODY,
            f"{capital(ranks_at(recording, ranks))}: the same matrices have different products; "
            + ("the library explains it" if severity is Severity.INFO else why),
            _evidence(recording, odd, group),
            *(() if severity is Severity.INFO else (_THIRD,)),
            severity=severity,
        )


@rule("DD642", "products-not-compared", Severity.INFO, SameProductsFact)
def products_not_compared(recording: Recording) -> Iterator[Draft]:
    """Ranks whose products were compared with no other's, or fewer of them than usual.

    Finds: Ranks that have no like among the others, or no memory for it, and those too slow for 30,000 products.
    Why: What was not compared was not tested: a device that computes wrongly may be among these.
    Remedy: Run it with more devices of the kind.
    See: docs/explanation/measurements.md
    """
    whys = {
        reading.rank or 0: reading.reason or ""
        for reading in recording.of_check(CHECK.id)
        if reading.status is Status.SKIPPED
    }
    for rank in recording.facts(SameProductsFact):
        if rank.fact.products < PRODUCTS:
            whys[rank_of(rank)] = f"{rank.fact.products} products in {rank.fact.seconds:.0f} s"
    if whys:
        yield proved(
            NOBODY,
            f"{capital(ranks_at(recording, whys))}: products not compared, or fewer than {PRODUCTS}",
            [
                Evidence(text=f"{rank_at(recording, rank)}: {why}")
                for rank, why in list(whys.items())[:LINES_OF_EVIDENCE]
            ],
        )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Products in a second, for each rank and its GPU."""
    indices = gpus_by_rank(recording)
    for rank in recording.facts(SameProductsFact):
        labels: dict[str, str | int | float] = {"rank": rank_of(rank), "node": rank.node}
        if (index := indices.get(rank_of(rank))) is not None:
            labels["gpu"] = index
        yield Measurement(name="product_rate", value=rank.fact.products / rank.fact.seconds, unit="1/s", labels=labels)


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
)
