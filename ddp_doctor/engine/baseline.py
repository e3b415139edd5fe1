"""What healthy runs measured, and a run held against it: facts for the rule of the check ``baseline``.

    allreduce_busbw of 4 MiB    0.89 GB/s in ten runs, deviation 0.04, the slowest 0.81    this run 0.58

A value is compared with those of the same name and labels. Numbers of nodes and ranks are no labels: a scheduler gives
them out anew. Of a pair of ranks on one node the local ranks count, because links within a node differ by design.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import NamedTuple

from ddp_doctor.facts.cluster import BaselineFact, HeldAgainst
from ddp_doctor.knowledge.baselines import BEST_PATH, COMPARABLE, FEWEST_RUNS, LEAST_BYTES, loss
from ddp_doctor.model.base import grouped
from ddp_doctor.model.baseline import BASELINE_SCHEMA_VERSION, Baseline, BaselineValue
from ddp_doctor.model.choices import Status, Verdict
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.report import Measurement, Report, Tool
from ddp_doctor.views.node_traits import HARDWARE

CHECK_ID = "baseline"
_PLACES = ("node", "rank", "peer", "gpu")
#: Labels that are whole numbers in every report.
NUMBERS = ("bytes", *_PLACES)


Labels = frozenset[tuple[str, str | int | float]]


class Figure(NamedTuple):
    """One measurement that can be compared, and the nodes it was measured of."""

    name: str
    labels: Labels
    value: float
    unit: str
    nodes: tuple[int, ...]
    gpu: int | None = None


def figures(world: World | None, measured: Sequence[Measurement]) -> list[Figure]:
    """The measurements that other runs can be held against.

    Of several between two nodes, by direction or by rank, the best counts: chance makes one slow, and none fast. Of
    three nodes or more each has the best of its paths as well: it is slow where that is.
    """
    found = list(_figures(world, measured))
    paths = _best((figure, tuple(sorted(figure.nodes))) for figure in found if len(figure.nodes) == 2)
    of_nodes = _best((figure, (node,)) for figure in paths for node in figure.nodes)
    best = [figure._replace(labels=figure.labels | {BEST_PATH}) for figure in of_nodes]
    return [
        *(figure for figure in found if len(figure.nodes) < 2),
        *paths,
        *(best if world is not None and world.nnodes > 2 else ()),
    ]


def _best(of: Iterable[tuple[Figure, tuple[int, ...]]]) -> list[Figure]:
    """The fastest of those of the same kind, for each of these nodes."""
    best: dict[tuple[object, ...], Figure] = {}
    for figure, nodes in of:
        key = (figure.name, figure.labels, nodes)
        if key not in best or loss(figure.name, figure.value, best[key].value) < 0:
            best[key] = figure._replace(nodes=nodes)
    return list(best.values())


def _figures(world: World | None, measured: Sequence[Measurement]) -> Iterator[Figure]:
    for each in measured:
        known = COMPARABLE.get(each.name)
        if known is None or int(each.labels.get("bytes", LEAST_BYTES)) < LEAST_BYTES:
            continue
        value = min(each.value, known.most) if known.most else each.value
        if isfinite(value) and value > 0 and world is not None:
            (nodes, place), gpu = _place(world, each), each.labels.get("gpu")
            labels = {name: said for name, said in each.labels.items() if name not in _PLACES}
            key = frozenset((labels | place).items())
            yield Figure(each.name, key, value, each.unit, nodes, None if gpu is None else int(gpu))


def _place(world: World, measured: Measurement) -> tuple[tuple[int, ...], dict[str, str | int | float]]:
    """The nodes it was measured of and, of a pair, what tells it from others in any run."""
    labels = measured.labels
    rank, peer = (int(labels[name]) if name in labels else None for name in ("rank", "peer"))
    if "node" in labels:
        nodes = dict.fromkeys((int(labels["node"]), *(() if peer is None else (peer,))))
        return tuple(nodes), {}
    if rank is None or peer is None:
        return ((0,) if world.nnodes == 1 else ()) if rank is None else (world.node_of(rank),), {}
    nodes = dict.fromkeys((world.node_of(rank), world.node_of(peer)))
    if len(nodes) == 2:
        return tuple(nodes), {"between": "nodes"}
    return tuple(nodes), {"local_rank": world.local_rank(rank), "local_peer": world.local_rank(peer)}


def hardware(world: World | None, traits: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What must be equal for a comparison: the shape of the world, and what most of its nodes are made of."""
    if world is None:
        return {}
    shape = {
        "nodes": f"{world.nnodes}",
        "ranks of a node": f"{world.nproc_per_node}",
        "backend": world.backend,
    }
    for name in HARDWARE:
        known = Counter(node[name] for node in traits if name in node)
        if known:
            shape[name] = known.most_common(1)[0][0]
    return shape


class MeasuredRun(NamedTuple):
    """What is kept of a report to compare it with others."""

    verdict: Verdict
    tool: Tool
    finished_at: str
    hosts: tuple[str, ...]
    hardware: Mapping[str, str]
    figures: tuple[Figure, ...]


def measured_run(report: Report) -> MeasuredRun:
    """What is measured in a report, and on what."""
    return MeasuredRun(
        report.verdict,
        report.tool,
        report.finished_at,
        tuple(node.hostname for node in report.nodes),
        hardware(report.world, [node.traits for node in report.nodes]),
        tuple(figures(report.world, report.measurements)),
    )


def make_baseline(runs: Sequence[MeasuredRun], fewest: int = FEWEST_RUNS) -> Baseline | None:
    """Of the healthy ones of the most frequent hardware; None where they are fewer than ``fewest``."""
    healthy = [run for run in runs if run.verdict is Verdict.HEALTHY and run.figures]
    alike = max(
        grouped((frozenset(run.hardware.items()), run) for run in healthy).values(), key=len, default=[]
    )
    found = grouped(
        ((figure.name, figure.labels, figure.unit), (number, figure.value))
        for number, run in enumerate(alike)
        for figure in run.figures
    )
    values = [_value(*key, each) for key, each in found.items() if len({run for run, _ in each}) >= fewest]
    if not values:
        return None
    return Baseline(
        schema_version=BASELINE_SCHEMA_VERSION,
        tool=alike[-1].tool,
        made_at=max(run.finished_at for run in alike),
        runs=len(alike),
        hosts=tuple(sorted({host for run in alike for host in run.hosts})),
        hardware=dict(alike[0].hardware),
        baseline=tuple(sorted(values, key=lambda each: (each.name, sorted(each.labels.items(), key=str)))),
    )


def _value(
    name: str,
    labels: Labels,
    unit: str,
    of_runs: Sequence[tuple[int, float]],
) -> BaselineValue:
    values = [value for _, value in of_runs]
    middle = median(values)
    return BaselineValue(
        name=name,
        unit=unit,
        labels=dict(sorted(labels)),
        median=middle,
        mad=median(abs(value - middle) for value in values),
        worst=max(values, key=lambda value: loss(name, value, middle)),
        values=len(values),
        runs=len({run for run, _ in of_runs}),
    )


def held_against(recording: Recording, report: Report, baseline: Baseline, file: str) -> Recording:
    """The recording with a reading of the check ``baseline``: what its report measured beside the healthy runs."""
    reading = compared(measured_run(report), baseline, file)
    left_out = tuple(each for each in recording.not_run if each.check != reading.check)
    return recording.model_copy(update={"readings": (*recording.readings, reading), "not_run": left_out})


def compared(run: MeasuredRun, baseline: Baseline, file: str) -> Reading:
    """Each of its measurements that the baseline knows. Of other hardware none is."""
    other = [
        f"{name} {run.hardware[name]} here, {said} there"
        for name, said in baseline.hardware.items()
        if name in run.hardware and run.hardware[name] != said
    ]
    if other:
        why = f"the baseline {file} is of other hardware: {'; '.join(other)}"
        return Reading(check=CHECK_ID, status=Status.FAILED, reason=why, misused=True)
    known = {(each.name, frozenset(each.labels.items())): each for each in baseline.baseline}
    beside = tuple(
        HeldAgainst(
            name=figure.name,
            unit=figure.unit,
            labels=dict(figure.labels),
            nodes=figure.nodes,
            gpu=figure.gpu,
            value=figure.value,
            median=of.median,
            mad=of.mad,
            worst=of.worst,
            runs=of.runs,
        )
        for figure in run.figures
        if (of := known.get((figure.name, figure.labels))) is not None and of.unit == figure.unit
    )
    if not beside:
        why = f"nothing that was measured here is in the baseline {file}"
        return Reading(check=CHECK_ID, status=Status.SKIPPED, reason=why)
    fact = BaselineFact(file=file, runs=baseline.runs, compared=beside)
    return Reading(check=CHECK_ID, status=Status.COLLECTED, fact=fact.recorded())
