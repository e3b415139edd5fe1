"""DD622 - DD625: collectives with wrong or unrepeatable results, or that are too slow."""

from collections.abc import Iterator
from typing import NamedTuple

from ddp_doctor.facts.collectives import ELEMENTS, AllReduceFact, CollectiveFact
from ddp_doctor.knowledge.collectives import ALL_REDUCE, BARRIER, GROUPS, TABLE
from ddp_doctor.knowledge.network.expected_speed import Band
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.knowledge.topology.link_rates import BOUNDING
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Draft, Evidence, Reproducer
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import NO_TRIAL, by_operator, unset
from ddp_doctor.remedies.nccl import ONE_ALGORITHM, against_wrong_sums
from ddp_doctor.views.collective_sizes import mean_us
from ddp_doctor.views.expected_speed import expected
from ddp_doctor.views.transports import log_of
from ddp_doctor.wording.findings import NOBODY, finding, in_units, likely, proved
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, ranks_at
from ddp_doctor.wording.wrong_shares import Taken, shares_evidence, whose_share


@rule("DD622", "collective-is-wrong", Consequence.WRONG, CollectiveFact)
def collective_is_wrong(recording: Recording) -> Iterator[Draft]:
    """A collective returns different data than the ranks sent.

    Finds: Reports shares that arrive different from what their sender is known to have sent, sums that differ from the
        closed form, and barriers that ranks leave before all have entered. The check calls each collective with all
        types and operations that the backend offers, with odd lengths, strided tensors and each rank as the root. A
        rank is named if all data that it sends is wrong everywhere, or all data that it receives. If only one path is
        wrong, its two ends are named. Otherwise no rank is named: a single wrong element is a bit that flipped
        somewhere.
    Why: Data sent this way is silently wrong: parameters of FSDP and ZeRO, activations, tokens of experts.
    Remedy: On GPUs, set NCCL_P2P_DISABLE=1 to test whether peer-to-peer transfers corrupt data, then check for memory
        errors (nvidia-smi -q -d ECC). Otherwise, the library is the likely cause: try another NCCL or torch.
    See: nccl-tests, verifiable/: the same idea
    """
    for name, ranks in _by_part(recording).items():
        row = TABLE[name]
        faulty = [rank for rank in ranks if rank.fact.wrong or any(size.wrong for size in rank.fact.sizes)]
        if not faulty:
            continue
        early = (NOBODY, "a rank left it before every rank had entered")
        taken = [Taken(rank.rank or 0, rank.fact.wrong, tuple(rank.fact.sources)) for rank in ranks]
        culprits, whose = early if name == BARRIER else whose_share(recording, taken, to_root=row.to_root)
        in_sizes = [
            Evidence(text=f"{size.size_bytes} B on rank {rank.rank}: #wrong {size.wrong}", value=size.wrong, expected=0)
            for rank in faulty
            for size in rank.fact.sizes
            if size.wrong
        ]
        where = ranks_at(recording, [rank.rank or 0 for rank in faulty])
        yield finding(
            culprits,
            f"{row.words.capitalize()} returns wrong results on {where}: {whose}",
            [*shares_evidence((rank.rank or 0, wrong) for rank in faulty for wrong in rank.fact.wrong), *in_sizes][:6],
            *against_wrong_sums(recording),
            confidence=Confidence.PROVED,
            detail="Training that calls it would continue with wrong data.",
            reproduced_by=Reproducer(kind="all_reduce", size_bytes=4 * ELEMENTS) if name == ALL_REDUCE else None,
        )


def _by_part(recording: Recording) -> dict[str, list[FactAt[CollectiveFact]]]:
    return grouped((rank.fact.part, rank) for rank in recording.facts(CollectiveFact))


@rule("DD623", "collective-is-not-repeatable", Consequence.RISK, CollectiveFact, explained_by=("DD602",))
def collective_is_not_repeatable(recording: Recording) -> Iterator[Draft]:
    """A collective computes sums of equal inputs that differ in their last bits.

    Finds: Reports a rank on which the same inexact fp32 inputs gave two different results in one process group.
    Why: Runs cannot be reproduced bit for bit, and silent data corruption cannot be distinguished from noise.
    Remedy: Set one fixed algorithm (NCCL_ALGO=Ring) if repeatability matters. This reduces speed.
    See: NCCL user guide, NCCL_ALGO
    """
    unsteady = {}
    for name, ranks in _by_part(recording).items():
        if odd := [rank.rank or 0 for rank in ranks if rank.fact.repeatable is False]:
            unsteady[TABLE[name].words] = odd
    if unsteady:
        on = sorted({rank for ranks in unsteady.values() for rank in ranks})
        yield likely(
            (),
            f"{capital(name_list([*unsteady]))} {'is' if len(unsteady) == 1 else 'are'} not bit-for-bit reproducible"
            f" on {ranks_at(recording, on)}",
            Evidence(text="two float32 sums of equal inputs differ"),
            *((ONE_ALGORITHM,) if recording.on_nccl else ()),
        )


class Speed(NamedTuple):
    """A collective of one size: its bus bandwidth as in the report, and whether it was measured twice."""

    collective: str
    size_bytes: int
    busbw_gb_per_s: float
    again: bool


def speeds(recording: Recording) -> list[Speed]:
    """Return the better measurement, in place or not, of each collective and size over all ranks."""
    by_size = grouped(
        ((rank.fact.part, rank.fact.ranks, size.size_bytes, size.in_place), size)
        for rank in recording.facts(CollectiveFact)
        for size in rank.fact.sizes
        if rank.fact.part != GROUPS and not size.wrong
    )
    found = [
        Speed(name, size_bytes, size_bytes / mean_us(of) / 1e3 * TABLE[name].bus_factor(ranks), of[0].again)
        for (name, ranks, size_bytes, _), of in by_size.items()
    ]
    all_reduces = grouped(
        (size.size_bytes, size)
        for rank in recording.facts(AllReduceFact)
        for size in rank.fact.sizes
        if rank.rank is not None and not size.wrong
    )
    for size_bytes, of in all_reduces.items():
        slowest = min(of, key=lambda size: size.busbw_gb_per_s)
        found.append(Speed(ALL_REDUCE, size_bytes, slowest.busbw_gb_per_s, slowest.again))
    best = grouped(((speed.collective, speed.size_bytes), speed) for speed in found)
    return [max(best[key], key=lambda speed: speed.busbw_gb_per_s) for key in sorted(best)]


_COMPARE = by_operator(
    "Compare links, NICs and clocks of these nodes with a machine of the same type",
    "nvidia-smi topo -m",
    "nvidia-smi -q -d CLOCK,PERFORMANCE   # while the job runs",
    "grep -s . /sys/class/infiniband/*/ports/*/rate",
)
_COMPARE_SOCKETS = by_operator(
    "Check which other programs use the CPUs and NICs of these nodes", "top -b -n 1 | head -20", "ip -s link"
)


#: Findings that identify the link, NIC, setting or GPU that makes it slow.
_CAUSES = ("DD431", "DD434", "DD435", "DD436", "DD437", "DD441", "DD562", "DD607", "DD801", "DD803", "DD805")


@rule("DD624", "collective-slower-than-expected", Consequence.SLOWER, explained_by=_CAUSES)
def collective_slower_than_expected(recording: Recording) -> Iterator[Draft]:
    """A collective is slower than on other machines of this kind.

    Finds: Reports bus bandwidths below the range expected for this GPU, number of ranks, link, NICs, collective and
        size. The range is based on NCCL's own latencies and bandwidths, as it prints them on such a machine, with a
        launch cost fitted to published measurements. Between nodes over TCP, an all-reduce is compared with a bare
        socket between the same hosts. Only the largest sizes are evaluated, after two measurements. Not reported
        without a table for this machine, for all-to-all and send/recv, or if GPUs are shared or busy.
    Why: Every step waits for it. The ranks of a slow machine are all equally slow, so comparing them shows nothing.
    Remedy: First check the settings that limit NCCL, then other causes: links, NICs, clocks. The raw stream between the
        same hosts shows whether the network or NCCL is slow.
    See: docs/explanation/expected-bandwidth.md
    """
    worst: dict[str, tuple[Speed, Band]] = {}
    for speed in speeds(recording):  # the largest size of each collective counts
        band = expected(recording, speed.collective, speed.size_bytes) if speed.again else None
        if band is not None:
            worst[speed.collective] = speed, band
    slow = {name: each for name, each in worst.items() if each[0].busbw_gb_per_s < each[1].low}
    if not slow:
        return
    first, band = max(slow.values(), key=lambda each: each[1].low / each[0].busbw_gb_per_s)
    world = recording.world
    held = {
        name: value
        for node in range(world.nnodes if world else 0)
        for name, value in log_of(recording, node).settings.items()
        if name in BOUNDING
    }
    yield likely(
        NOBODY,
        f"{TABLE[first.collective].words.capitalize()} reaches {first.busbw_gb_per_s:.3g}"
        f" GB/s, {100 * (1 - first.busbw_gb_per_s / band.low):.0f}% below the expected rate",
        [_evidence(speed, of) for speed, of in slow.values()],
        *([unset(held, "NCCL then chooses by itself", proof=NO_TRIAL)] if held else []),
        _COMPARE_SOCKETS if band.high is None else _COMPARE,
        severity=of_slowdown(band.low / first.busbw_gb_per_s),
        detail=f"Measured twice, at the largest size. Below it: {name_list([TABLE[name].words for name in slow])};"
        f" an expectation is known of {len(worst)} of the collectives.",
        reproduced_by=Reproducer(kind="all_reduce", size_bytes=first.size_bytes) if ALL_REDUCE in slow else None,
    )


def _evidence(speed: Speed, band: Band) -> Evidence:
    upper = f" to {band.high:.3g}" if band.high is not None else " and more"
    return Evidence(
        text=f"{TABLE[speed.collective].words} of {in_units(speed.size_bytes)}, expected {band.low:.3g}{upper} GB/s",
        value=round(speed.busbw_gb_per_s, 3),
        unit="GB/s",
        expected=round(band.middle, 3),
        expected_from=band.source,
    )


@rule("DD625", "collective-below-its-floor", Consequence.REQUIRED, CollectiveFact)
def collective_below_its_floor(recording: Recording) -> Iterator[Draft]:
    """A collective is below this site's minimum bus bandwidth (--min-busbw).

    Finds: Reports a bus bandwidth, the better of two measurements, that is less than the value of --min-busbw.
    Why: The site has set a number for a healthy machine of this kind.
    Remedy: Check the other findings of this report about these nodes. If the minimum is above what the machine can
        reach, lower it.
    See: docs/how-to/measure-collectives.md
    """
    known = {(speed.collective, speed.size_bytes): speed for speed in speeds(recording)}
    ranks = next((rank.fact.ranks for rank in recording.facts(CollectiveFact)), 1)
    for least in recording.options.min_busbw:
        size = TABLE[least.collective].moved(least.size_bytes, ranks)
        speed, floor = known.get((least.collective, size)), least.bytes_per_s / 1e9
        if speed is None or speed.busbw_gb_per_s >= floor:
            continue
        band = expected(recording, least.collective, size)
        beyond = band is not None and band.high is not None and band.high < floor
        yield proved(
            NOBODY,
            f"{TABLE[least.collective].words.capitalize()} of {in_units(size)} reaches"
            f" {speed.busbw_gb_per_s:.3g} GB/s,"
            f" {100 * (1 - speed.busbw_gb_per_s / floor):.0f}% below the minimum of {floor:g}"
            " GB/s",
            [
                Evidence(
                    text=f"{least.collective}, mean of all ranks{', better of two' if speed.again else ''}",
                    value=float(f"{speed.busbw_gb_per_s:.3g}"),
                    unit="GB/s",
                    expected=floor,
                    expected_from="--min-busbw",
                ),
                *([_evidence(speed, band)] if band is not None else []),
            ],
            by_operator(
                "Lower the minimum; no machine of this type reaches it"
                if beyond
                else "Compare these nodes with nodes that reach it: run the same command on each node, then on pairs"
            ),
        )
