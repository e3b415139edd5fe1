"""Measurements of healthy runs, and a run compared with them: facts for the rule of the check ``baseline``.

    allreduce_busbw of 4 MiB    0.89 GB/s in ten runs, deviation 0.04, the slowest 0.81    this run 0.58

A value is compared with values of the same name and labels. Numbers of nodes and ranks are not labels, because a
scheduler assigns them differently in each run. For a pair of ranks on one node the local ranks count, because links
within a node differ by design.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from statistics import median
from typing import NamedTuple

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import PLACES, read_json, validated
from ddp_doctor.facts.cluster import BaselineFact, HeldAgainst, Preflight, RunDifferencesFact, TraitDiffers
from ddp_doctor.features.fleet.baseline import BASELINE_SCHEMA_VERSION, Baseline, BaselineValue
from ddp_doctor.knowledge.baselines import BEST_PATH, COMPARABLE, FEWEST_RUNS, loss
from ddp_doctor.knowledge.ddp.payload import LATENCY_BOUND_BYTES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import BASELINE, ENV_VARS
from ddp_doctor.model.choices import USABLE, CheckStatus, Status, Verdict
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.report import LogsReport, Measurement, Report, Tool
from ddp_doctor.parse.file_kinds import BASELINE as BASELINE_FILE
from ddp_doctor.views.node_traits import HARDWARE, VERSIONS, is_setting
from ddp_doctor.wording.nodes import name_list

#: Labels that do not distinguish measurements; the type is not always known for other programs' numbers.
_UNTOLD = (*PLACES, "type")
#: Smaller messages measure latency.
_LEAST_BYTES = 4 * LATENCY_BOUND_BYTES
_SEEN = (CheckStatus.PASSED, CheckStatus.FOUND)
#: The trait that names the program that measured.
_MEASURED_BY, _OURS = "measured by", "ddp-doctor"


Labels = frozenset[tuple[str, str | int | float]]


class Figure(NamedTuple):
    """A comparable measurement, and the nodes that it was measured on."""

    name: str
    labels: Labels
    value: float
    unit: str
    nodes: tuple[int, ...]
    gpu: int | None = None


def figures(world: World | None, measured: Sequence[Measurement]) -> list[Figure]:
    """Return the measurements that other runs can be compared with.

    The best of several measurements between two nodes counts (directions, ranks), because noise makes them only slower.
    With three or more nodes, each node also has the best of its paths, which is slow if the node is.
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
    """Return the fastest figure of each kind for each set of nodes."""
    best: dict[tuple[object, ...], Figure] = {}
    for figure, nodes in of:
        key = (figure.name, figure.labels, nodes)
        if key not in best or loss(figure.name, figure.value, best[key].value) < 0:
            best[key] = figure._replace(nodes=nodes)
    return list(best.values())


def _figures(world: World | None, measured: Sequence[Measurement]) -> Iterator[Figure]:
    for each in measured:
        known = COMPARABLE.get(each.name)
        if known is None or int(each.labels.get("bytes", _LEAST_BYTES)) < _LEAST_BYTES:
            continue
        value = min(each.value, known.most) if known.most else each.value
        if isfinite(value) and value > 0:
            (nodes, place), gpu = _place(world, each), each.labels.get("gpu")
            labels = {name: label for name, label in each.labels.items() if name not in _UNTOLD}
            key = frozenset((labels | place).items())
            yield Figure(each.name, key, value, each.unit, nodes, None if gpu is None else int(gpu))


def _place(world: World | None, measured: Measurement) -> tuple[tuple[int, ...], dict[str, str | int | float]]:
    """Return the measured nodes and, for a pair, the labels that distinguish it from other pairs in any run."""
    labels = measured.labels
    if world is None:  # in a job's output
        return (), {}
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
    """Return what must be equal for a comparison: the shape of the world, and its nodes' most frequent hardware."""
    if world is None:
        return {}
    shape = {"nodes": f"{world.nnodes}"}
    if world.backend != "none":  # of a prolog
        shape |= {"ranks of a node": f"{world.nproc_per_node}", "backend": world.backend}
    for name in HARDWARE:
        known = Counter(node[name] for node in traits if name in node)
        if known:
            shape[name] = known.most_common(1)[0][0]
    return shape


class MeasuredRun(NamedTuple):
    """The part of a report that is kept for comparisons.

    ``settings_known``: whether a variable that is not among the traits was unset. ``settings`` are the variables in
    which nodes may differ, None if unknown; ``findings`` have one line per code.
    """

    verdict: Verdict
    tool: Tool
    finished_at: str
    hosts: tuple[str, ...]
    hardware: Mapping[str, str]
    figures: tuple[Figure, ...]
    traits: Mapping[str, str]
    settings_known: bool
    settings: Mapping[str, str] | None = None
    findings: Mapping[str, str] = {}


def measured_run(report: Report) -> MeasuredRun:
    """Return the measurements of a report, with its hardware and traits."""
    nodes = [node.traits for node in report.nodes]
    on, known = hardware(report.world, nodes), _traits(nodes)
    hosts = tuple(node.hostname for node in report.nodes)
    if isinstance(report, LogsReport):
        job = report.facts  # other programs measure over NCCL
        of_job = {"backend": "nccl" if job.measured_by else job.backend, "GPUs": job.gpus}
        on = {name: value for name, value in of_job.items() if value}
        hosts = job.nodes
        known = {
            "torch": job.torch,
            "NCCL": job.nccl and job.nccl.partition("+")[0],
            "network": ", ".join(job.network),
            "transports": ", ".join(job.transports),
            _MEASURED_BY: job.measured_by,
        }
    return MeasuredRun(
        report.verdict,
        report.tool,
        report.finished_at,
        hosts,
        on,
        tuple(figures(report.world, report.measurements)),
        {name: value for name, value in {**on, **known}.items() if value},
        any(check.id == ENV_VARS and check.status in _SEEN for check in report.checks),
        _all_alike([node.settings for node in report.nodes if node.settings is not None]),
        {found.code: f"{found.code} ({found.severity.value}) {found.title}" for found in reversed(report.findings)},
    )


def _all_alike(nodes: Sequence[Mapping[str, str]]) -> dict[str, str] | None:
    if not nodes:
        return None
    return {name: value for name, value in nodes[0].items() if all(node.get(name) == value for node in nodes)}


def _traits(nodes: Sequence[Mapping[str, str]]) -> dict[str, str | None]:
    """Return the traits of all nodes; if they differ, with the number of nodes per value."""
    found = {}
    for name in dict.fromkeys(name for node in nodes for name in node):
        counts = Counter(node.get(name, "not set" if is_setting(name) else "not known") for node in nodes)
        [(most, _), *others] = counts.most_common()
        found[name] = (
            ", ".join(f"{value} on {number} of {len(nodes)} nodes" for value, number in counts.most_common())
            if others
            else most
        )
    return {**found, _MEASURED_BY: _OURS}


def make_baseline(runs: Sequence[MeasuredRun]) -> Baseline | None:
    """Return a baseline of the usable runs on the most frequent hardware, or None if they are too few."""
    healthy = [run for run in runs if run.verdict in USABLE and run.figures]
    alike = max(grouped((frozenset(run.hardware.items()), run) for run in healthy).values(), key=len, default=[])
    return _baseline(alike, FEWEST_RUNS)


def _baseline(alike: Sequence[MeasuredRun], fewest: int) -> Baseline | None:
    found = grouped(
        ((figure.name, figure.labels, figure.unit), (number, figure.value))
        for number, run in enumerate(alike)
        for figure in run.figures
    )
    values = [_value(*key, each) for key, each in found.items() if len({run for run, _ in each}) >= fewest]
    if not values:
        return None
    traits = grouped((name, run.traits[name]) for run in alike for name in sorted(run.traits))
    return Baseline(
        schema_version=BASELINE_SCHEMA_VERSION,
        tool=alike[-1].tool,
        made_at=max(run.finished_at for run in alike),
        runs=len(alike),
        hosts=tuple(sorted({host for run in alike for host in run.hosts})),
        # None if runs differ
        traits={
            name: of_runs[0] if len(of_runs) == len(alike) and len({*of_runs}) == 1 else None
            for name, of_runs in sorted(traits.items())
        },
        settings_known=all(run.settings_known for run in alike),
        hardware=dict(alike[0].hardware),
        baseline=tuple(sorted(values, key=lambda each: (each.name, sorted(each.labels.items(), key=str)))),
    )


def _in_words(measured: Iterable[tuple[str, Labels]]) -> str:
    """Return ``all-reduce over 8 ranks (1, 4 MiB) and matrix products``."""
    sizes: dict[str, set[float]] = {}
    for name, labels in measured:
        known = dict(labels)
        over = f" over {known['ranks']} ranks" if "ranks" in known else ""
        words = COMPARABLE[name].words if name in COMPARABLE else name  # unknown: of a newer release
        of_name, size = sizes.setdefault(f"{words}{over}", set()), known.get("bytes")
        of_name |= {size / 2**20} if isinstance(size, int | float) else set()
    listed = {name: ", ".join(f"{size:g}" for size in sorted(known)) for name, known in sizes.items()}
    return name_list([f"{name} ({size} MiB)" if size else name for name, size in sorted(listed.items())])


def _value(name: str, labels: Labels, unit: str, of_runs: Sequence[tuple[int, float]]) -> BaselineValue:
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


def comparison_with(path: str) -> Callable[[Recording, Report], Recording]:
    """Read a baseline, and return the function that adds the comparison with it to a recording. Raises UsageError."""
    file = read_json(path)
    if file.kind != BASELINE_FILE:
        raise UsageError(
            f"{quoted(path)} is {file.kind or 'not a baseline of ddp-doctor'}; write a"
            " baseline with `ddp-doctor fleet REPORTS --write-baseline FILE`"
        )
    return partial(held_against, validated(Baseline, file, "baseline"), path)


def held_against(baseline: Baseline, file: str, recording: Recording, report: Report) -> Recording:
    """Add readings of the check ``baseline``: the report's measurements compared with the healthy runs."""
    readings = (*recording.readings, *compared(measured_run(report), baseline, file))
    left_out = tuple(each for each in recording.not_run if each.check != BASELINE)
    options = recording.options.model_copy(update={"baseline": file})
    return recording.model_copy(update={"options": options, "readings": readings, "not_run": left_out})


def compared(run: MeasuredRun, earlier: Baseline | MeasuredRun, file: str) -> tuple[Reading, ...]:
    """Return a reading of the measurements that both runs have on the same hardware, and one of the differences."""
    baseline = earlier if isinstance(earlier, Baseline) else _baseline([earlier], 1)
    beside = tuple(_held_against(run, baseline)) if baseline else ()
    differences = _differences(run, earlier, baseline, file)
    if other := [
        f"{name} {run.hardware[name]} here, {there} there"
        for name, there in earlier.hardware.items()
        if name in run.hardware and run.hardware[name] != there
    ]:
        why = f"{file} is of other hardware: {'; '.join(other)}"
        speed = Reading(check=BASELINE, status=Status.FAILED, reason=why, misused=True)
    elif not beside:
        why = f"nothing that was measured here is in {file}"
        if baseline is None:
            why = f"{file} has no measurement that another run can be compared with"
        speed = Reading(check=BASELINE, status=Status.SKIPPED, reason=why)
    else:
        preflight = None if isinstance(earlier, Baseline) else _preflight(run, earlier)
        fact = BaselineFact(file=file, runs=baseline.runs if baseline else 1, compared=beside, preflight=preflight)
        speed = fact.collected(BASELINE)
    if not (differences.differ or differences.only_before or differences.only_now or differences.left_out):
        return (speed,)
    return speed, differences.collected(BASELINE)


def _preflight(run: MeasuredRun, earlier: MeasuredRun) -> Preflight | None:
    """Return the earlier preflight if it is a ddp-doctor run and the other is a job's output, or None."""
    by = run.traits.get(_MEASURED_BY)
    if by in (None, _OURS) or earlier.traits.get(_MEASURED_BY) != _OURS:
        return None
    of_job, tested = ({host.partition(".")[0] for host in each.hosts} for each in (run, earlier))
    same = of_job <= tested if of_job and tested else None
    was_unhealthy = earlier.verdict is Verdict.UNHEALTHY
    return Preflight(finished_at=earlier.finished_at, same_nodes=same, was_unhealthy=was_unhealthy)


def _held_against(run: MeasuredRun, baseline: Baseline) -> Iterator[HeldAgainst]:
    known = {(each.name, frozenset(each.labels.items())): each for each in baseline.baseline}
    for figure in run.figures:
        of = known.get((figure.name, figure.labels))
        if of is not None and of.unit == figure.unit:
            yield HeldAgainst(**dict(of), value=figure.value, nodes=figure.nodes, gpu=figure.gpu)


def _differences(
    run: MeasuredRun, earlier: Baseline | MeasuredRun, baseline: Baseline | None, file: str
) -> RunDifferencesFact:
    """Return the known differences; traits known or measured in only one run are listed separately."""
    traits = {**earlier.hardware, **earlier.traits}
    names = [*VERSIONS]
    names += sorted({*run.traits, *traits}.difference(names))
    differ = list[TraitDiffers]()
    only_now, only_before = list[str](), list[str]()
    for name in names:
        now, then = run.traits.get(name), traits.get(name)
        both = name in run.traits and name in traits
        if now == then or (both and then is None):
            continue
        if both or (is_setting(name) and run.settings_known and earlier.settings_known):
            differ.append(TraitDiffers(name=name, before=then, now=now))
        else:
            (only_before if now is None else only_now).append(name)
    gone, new = tuple[str, ...](), tuple[str, ...]()
    if isinstance(earlier, MeasuredRun):
        if run.settings is not None and earlier.settings is not None:
            differ += [
                TraitDiffers(name=name, before=earlier.settings.get(name), now=run.settings.get(name))
                for name in sorted({*run.settings, *earlier.settings})
                if run.settings.get(name) != earlier.settings.get(name)
            ]
        if run.traits.get(_MEASURED_BY) == earlier.traits.get(_MEASURED_BY) == _OURS:
            gone = tuple(line for code, line in earlier.findings.items() if code not in run.findings)
            new = tuple(line for code, line in run.findings.items() if code not in earlier.findings)
    values = baseline.baseline if baseline else ()
    mine = {(figure.name, figure.labels) for figure in run.figures}
    theirs = {(value.name, frozenset(value.labels.items())) for value in values}
    left_out = [
        f"{what}: {listed}"
        for what, listed in (
            (f"measured only in {file}", _in_words(theirs - mine)),
            ("measured only here", _in_words(mine - theirs)),
            (f"known only of {file}", name_list(only_before)),
            ("known only here", name_list(only_now)),
        )
        if listed
    ]
    return RunDifferencesFact(file=file, differ=tuple(differ), only_before=gone, only_now=new, left_out=tuple(left_out))
