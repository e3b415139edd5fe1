"""baseline: whether the run is as fast as earlier healthy runs on the same hardware.

Raw input: this run's measurements, each compared with the healthy runs in the file of ``--baseline``::

    allreduce_busbw of 4 MiB   0.58 GB/s here   median 0.89, deviation 0.04, slowest 0.81 of ten healthy runs

Why it matters to DDP: other checks compare a node that lost a third of its speed with its peers. If all nodes became
slower, or a node runs alone, only its own past shows it.
"""

from collections.abc import Iterator, Sequence
from shlex import quote

from ddp_doctor.facts.cluster import BaselineFact, HeldAgainst, Preflight, RunDifferencesFact, TracesFact
from ddp_doctor.knowledge.baselines import BEST_PATH, FEWEST_RUNS, FEWEST_STEPS, in_words, is_outlier, loss, noise
from ddp_doctor.knowledge.severity import WARNING_SHARE, of_lost_share, of_slowdown
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact, Skip
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator, remedy
from ddp_doctor.views.compared_traces import changes, efficiency, other_gpus
from ddp_doctor.wording.findings import NOBODY, Who, counted, likely, possible, proved
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit, node_pair
from ddp_doctor.wording.preflight import reached, share
from ddp_doctor.wording.ranks import capital


def probe(_ctx: Context) -> Fact:
    """Skip: the measurements are compared with the baseline after the run."""
    raise Skip("the run ended before the comparison with its baseline")


@rule("DD830", "slower-than-its-baseline", Consequence.SLOWER, BaselineFact)
def slower_than_its_baseline(recording: Recording) -> Iterator[Draft]:
    """A node, a path between nodes or a run is slower than the healthy runs before it.

    Finds: Reports bandwidths, rates and computing times that are worse than in all healthy runs of the baseline and
        differ by more than noise. Noise is five standard deviations, estimated from the median absolute deviation, and
        at least 10% for values of a single GPU or 15% for values across a network. A node is named for a value that was
        measured only on it, or if even its best path to another node is slower while other nodes are not affected.
        Otherwise the pairs are named, or no node. Severity is error at three times slower. With fewer than five runs,
        noise is unknown and severity is info. If a job is compared with ddp-doctor's run before it, the finding reports
        the share of that speed that the job reaches, and names no node.
    Why: DDP runs at the speed of its slowest rank. A job that became a third slower prints no error.
    Remedy: Check what changed on that node since the baseline was written: clocks and power limits of its GPUs, the
        negotiated speed of its links, other programs. If the change was intended, write a new baseline.
    See: docs/how-to/watch-a-fleet.md
    """
    fact = recording.first(BaselineFact)
    compared = fact.compared if fact else ()
    if fact is not None and fact.preflight is not None:
        yield from _of_job(fact, fact.preflight)
        return
    rest = [each for each in compared if is_outlier(each.name, each.value, each.median, each.mad, each.worst)]
    of_paths, tested = ({each.nodes for each in some if _is_path(each)} for some in (rest, compared))
    is_everywhere = of_paths == tested  # then the network is slow, not a node
    nodes = {each.nodes[0] for each in rest if len(each.nodes) == 1 and not (is_everywhere and _is_path(each))}
    for node in sorted(nodes):
        own = [each for each in rest if node in each.nodes or (len(nodes) == 1 and not each.nodes)]
        rest = [each for each in rest if each not in own]
        gpus = {each.gpu for each in own}
        who = Who((node_culprit(recording, node),), host(recording, node))
        if len(gpus) == 1 and None not in gpus:  # all slow values belong to one GPU
            [gpu] = gpus
            of_gpu = who.culprits[0].model_copy(update={"kind": "gpu", "gpu": gpu})
            who = Who((of_gpu,), f"GPU {gpu} of {who.names}")
        yield _draft(who, own, recording)
    if is_everywhere and tested and rest:
        yield _draft(Who(NOBODY, "The network between all nodes"), rest, recording)
        return
    pairs = grouped((each.nodes, each) for each in rest if len(each.nodes) == 2)
    for pair, own in pairs.items():
        name = f"The path between {hosts(recording, pair)}"
        yield _draft(Who((node_pair(recording, *pair),), name), own, recording)
    if rest and not nodes and not pairs:
        yield _draft(Who(NOBODY, "The run"), rest, recording)


def _of_job(fact: BaselineFact, preflight: Preflight) -> Iterator[Draft]:
    """Yield one finding for a job compared with the run before it: all sizes in one sentence, without a culprit."""
    if any(is_outlier(each.name, each.value, each.median, each.mad) for each in fact.compared):
        yield possible(
            NOBODY,
            capital(reached(fact, preflight)),
            [
                Evidence(
                    text=f"{in_words(each.name, each.labels)}: {100 * share(each):.0f}%",
                    value=each.value,
                    unit=each.unit,
                    expected=each.median,
                    expected_from=f"the run in {fact.file}",
                )
                for each in sorted(fact.compared, key=lambda each: (each.name, int(each.labels.get("bytes", 0))))
            ],
            by_operator(
                "Measure again on these nodes without the job; if they are as fast as"
                " before, the job's ranks wait for each other",
                "ddp-doctor run --level thorough",
                cost="nodes unavailable until then",
            ),
            detail="In a job, a collective also waits for its peers' computation, which is"
            " not a network fault. Small messages measure latency and are skipped.",
            severity=Severity.INFO,
        )


def _is_path(each: HeldAgainst) -> bool:
    return BEST_PATH in each.labels.items()


def _draft(who: Who, slow: Sequence[HeldAgainst], recording: Recording) -> Draft:
    ordered = sorted(slow, key=lambda each: (len(each.nodes) > 1, -_loss(each)))
    alike = grouped(((each.name, *sorted(each.labels.items()), each.nodes), each) for each in ordered)
    worst, runs = _loss(ordered[0]), min(each.runs for each in ordered)
    known = runs >= FEWEST_RUNS
    make, severity = (likely, of_lost_share(worst)) if known else (possible, Severity.INFO)
    healthy = f"its baseline of {runs} healthy runs" if known else "the run it is compared with"
    return make(
        who,
        f"{{who}} is {100 * worst:.0f}% slower than {healthy}",
        [_evidence(each, len(others), recording) for each, *others in alike.values()],
        by_operator("Check what changed on it since: clocks and power limits, negotiated link speeds, other programs"),
        detail="" if known else f"The noise is known from {FEWEST_RUNS} runs on (ddp-doctor fleet --write-baseline).",
        severity=severity,
    )


def _loss(each: HeldAgainst) -> float:
    return loss(each.name, each.value, each.median)


def _evidence(each: HeldAgainst, others: int, recording: Recording) -> Evidence:
    """Return the evidence from the slowest of several equal measurements, such as the GPUs of a node."""
    on = ", the best path of" if _is_path(each) else " on"
    where = f"{on} {host(recording, each.nodes[0])}" if len(each.nodes) == 1 else ""
    if len(each.nodes) == 2:
        where = f" between {hosts(recording, each.nodes)}"
    if each.gpu is not None:
        where += f", GPU {each.gpu}"
    if others:
        where += f", the slowest of {others + 1} such"
    usual = f", where {100 * noise(each.name, each.median, each.mad):.0f}% is noise"
    margin = f"{100 * _loss(each):.0f}% slower{usual if each.runs >= FEWEST_RUNS else ''}"
    return Evidence(
        text=f"{in_words(each.name, each.labels)}{where}",
        value=each.value,
        unit=each.unit,
        expected=each.median,
        expected_from=f"median of {each.runs} run{'s' if each.runs > 1 else ''}; {margin}",
    )


@rule("DD831", "not-as-in-its-baseline", Consequence.KNOWN, RunDifferencesFact)
def not_as_in_its_baseline(recording: Recording) -> Iterator[Draft]:
    """Versions, settings or hardware differ from the baseline or the run that is compared.

    Finds: Reports differences in the releases of torch, CUDA, NCCL, the driver, Python and the kernel, in GPUs, ports,
        CPUs and numbers of ranks, and in the settings of NCCL, torch and gloo, if both sides are known. ``compare`` of
        two runs also lists findings that only one of them has, and all other variables that `ddp-doctor env` knows. A
        comparison with a baseline skips settings that name hardware of a host, such as NCCL_SOCKET_IFNAME. Values that
        are known for only one side are listed but do not count as differences.
    Why: A job usually became slower because something changed. Equal speed shows only that the change did no harm to
        the measured values.
    Remedy: If the speed also changed, revert the changes one by one, and measure each time.
    See: docs/how-to/watch-a-fleet.md
    """
    fact = recording.first(RunDifferencesFact)
    if fact is None or not (fact.differ or fact.only_before or fact.only_now):
        return
    names = [counted(len(some), f"{kind} finding") for some, kind in _kinds_of_findings(fact) if some]
    names += [each.name for each in fact.differ]
    yield proved(
        NOBODY,
        f"Differs from {fact.file}: {name_list(names)}",
        [
            *(
                Evidence(text=f"{each.name}: {each.before or 'not set'} before, {each.now or 'not set'} now")
                for each in fact.differ
            ),
            *(Evidence(text=f"{kind} finding: {line}") for some, kind in _kinds_of_findings(fact) for line in some),
        ],
    )


def _kinds_of_findings(fact: RunDifferencesFact) -> tuple[tuple[tuple[str, ...], str], ...]:
    return (fact.only_now, "new"), (fact.only_before, "earlier")


@rule("DD832", "traced-step-changed", Consequence.SLOWER, TracesFact)
def traced_step_changed(recording: Recording) -> Iterator[Draft]:
    """A step takes more or less time than in the traces that it is compared with.

    Finds: Reports the median step of two traces with the same number of ranks if it differs by more than 3% and by more
        than three times the variation between the steps of one trace, and the parts of the step that changed as much.
        If the batches differ, steps are scaled to the same number of samples. Severity is warning from 10% longer,
        error from three times as long, and info otherwise. It is also info if a trace has fewer than three steps,
        because noise is then unknown.
    Why: The part that grew shows where to look: the code, the loader, another rank or the network.
    Remedy: Follow the advice of `ddp-doctor trace` for the slower trace.
    See: docs/how-to/compare-traces.md
    """
    fact = recording.first(TracesFact)
    if fact is None or fact.before.ranks != fact.now.ranks or other_gpus(fact):
        return
    step = changes(fact)[0]
    longer = step.more / step.before
    if not step.is_seen:
        return
    much = (
        f"{longer + 1:.2g} times as long as"
        if longer >= 1
        else f"{abs(longer):.0%} {'longer' if longer > 0 else 'less'} than"
    )
    yield _of_traces(fact, f"A step takes {much} in {fact.before.file!r}: {_changed(fact)}", _severity(fact, longer))


@rule("DD833", "more-ranks-for-their-work", Consequence.SLOWER, TracesFact)
def more_ranks(recording: Recording) -> Iterator[Draft]:
    """Traces with fewer and with more ranks show how well the job scales, and which parts limit it.

    Finds: Reports traces of jobs of different sizes. The scaling efficiency is the work per time of a rank in the
        larger job, divided by the same in the smaller job. It is based on the samples per step if known. Otherwise, all
        ranks are assumed to have the same batch. Severity is warning below 90%, error below a third, and info
        otherwise.
    Why: Twice the GPUs cost twice as much. The parts of the step that grew explain why the job is less than twice as
        fast.
    Remedy: Follow the advice of `ddp-doctor trace` for the larger job.
    See: docs/how-to/compare-traces.md
    """
    fact = recording.first(TracesFact)
    if fact is None or fact.before.ranks == fact.now.ranks or other_gpus(fact):
        return
    few, many = sorted((fact.before.ranks, fact.now.ranks))
    share = efficiency(fact)
    yield _of_traces(
        fact,
        f"{many} ranks do {share * many / few:.2g} times the work of {counted(few, 'rank')} (scaling"
        f" efficiency {share:.0%}): {_changed(fact, 1 if fact.now.ranks == many else -1)}",
        _severity(fact, 1 / share - 1),
        "" if fact.before.samples and fact.now.samples else "Assumes the same batch on every rank in both.",
    )


@rule("DD834", "traces-of-other-gpus", Consequence.KNOWN, TracesFact)
def traces_of_other_gpus(recording: Recording) -> Iterator[Draft]:
    """The compared traces were recorded on different GPUs.

    Finds: Reports two traces whose ranks ran on different models of GPUs, or a trace of GPUs and a trace of CPUs. Then
        no step is reported as slower, and no scaling efficiency is computed. The table still shows both.
    Why: The difference between the machines hides what changed in the job.
    Remedy: Compare traces of the same model of GPU.
    See: docs/how-to/compare-traces.md
    """
    fact = recording.first(TracesFact)
    if fact is None or not other_gpus(fact):
        return
    now, before = (name_list(side.gpus) or "CPUs" for side in (fact.now, fact.before))
    step = changes(fact)[0]
    yield proved(
        NOBODY,
        f"The traces are of different GPUs: {before} in {fact.before.file!r}, {now} in {fact.now.file!r}",
        Evidence(
            text=f"step of {counted(fact.now.ranks, 'rank')} on {now}",
            value=step.now / 1e6,
            unit="s",
            expected=step.before / 1e6,
            expected_from=f"{counted(fact.before.ranks, 'rank')} on {before}",
        ),
        detail="So neither a slowdown nor a scaling efficiency follows from them.",
    )


def _severity(fact: TracesFact, longer: float) -> Severity:
    if longer < WARNING_SHARE or not changes(fact)[0].is_seen or _has_few_steps(fact):
        return Severity.INFO
    return of_slowdown(longer + 1)


def _has_few_steps(fact: TracesFact) -> bool:
    return min(fact.before.steps, fact.now.steps) < FEWEST_STEPS


def _changed(fact: TracesFact, sign: int = 1) -> str:
    """Return ``waiting +12.3 ms, compute -1.1 ms``: the changed parts, largest first; -1 reverses the comparison."""
    seen = sorted((each for each in changes(fact)[1:] if each.is_seen), key=lambda each: -abs(each.more))
    return name_list([f"{each.part} {sign * each.more / 1e3:+.3g} ms" for each in seen]) or "no part by more than noise"


def _of_traces(fact: TracesFact, title: str, severity: Severity, detail: str = "") -> Draft:
    again = "On shared machines, two runs of one job also differ. Trace both again to be sure."
    few = f"With fewer than {FEWEST_STEPS} steps, the noise is unknown." if _has_few_steps(fact) else ""
    problems = [f"{each.file}: {each.problem}." for each in (fact.before, fact.now) if each.problem]
    make = possible if few or problems else likely
    slower = max((fact.before, fact.now), key=lambda each: each.parts["step"].median_us)
    return make(
        NOBODY,
        title,
        [
            Evidence(
                text=each.part if each.part == "step" else f"{each.part}, per step",
                value=each.now / 1e6,
                unit="s",
                expected=each.before / 1e6,
                expected_from=f"{fact.before.file}; noise {each.noise / 1e3:.3g} ms",
            )
            for each in changes(fact)
            if each.is_seen
        ],
        remedy("Find the cause in the trace", f"ddp-doctor trace {quote(slower.file)}", scope="code"),
        detail=" ".join(filter(None, (detail, few, *problems, again))),
        severity=severity,
    )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the parts of a step of both traces, and the scaling efficiency if their numbers of ranks differ."""
    fact = recording.first(TracesFact)
    if fact is None:
        return
    for each in changes(fact):
        for name, value in (("before", each.before), ("now", each.now), ("noise", each.noise)):
            labels: dict[str, str | int | float] = {"part": each.part, "of": name}
            yield Measurement(name="traced_step", value=value / 1e6, unit="s", labels=labels)
    if fact.before.ranks != fact.now.ranks and not other_gpus(fact):
        yield Measurement(name="scaling_efficiency", value=efficiency(fact), unit="")


CHECK = Check(
    id="baseline",
    title="The run is as fast as its baseline",
    where=Where.AFTERWARDS,
    probe=probe,
    facts=(BaselineFact, RunDifferencesFact, TracesFact),
    rules=(slower_than_its_baseline, not_as_in_its_baseline, traced_step_changed, more_ranks, traces_of_other_gpus),
    needs_baseline=True,
    measurements=measurements,
)
