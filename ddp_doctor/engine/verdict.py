"""Derive the verdict of the run and of each node, the exit code, and the verdict line."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten

from ddp_doctor.engine.asked import NotAsAsked, had_ranks, listed, not_run
from ddp_doctor.engine.diagnose import Diagnosis, is_judged, is_of_cause
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.engine.plan import TOO_DEAR
from ddp_doctor.facts.collectives import P2pFact, RepeatsFact
from ddp_doctor.facts.node.env_vars import SettingText
from ddp_doctor.features import Recorded, feature_of, recorded_by, run_feature
from ddp_doctor.knowledge.retired import RETIRED_CHECKS
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import BASELINE, GPUS, STRAGGLERS, Check
from ddp_doctor.model.choices import CheckStatus, Command, ExitCode, Severity, Status, Verdict, exit_code
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Culprit, Finding
from ddp_doctor.model.recording import INTERRUPTED_AFTER, NOT_SELECTED, OWN_PROCESS, SKIPPED_BY_NAME, Recording, World
from ddp_doctor.model.report import CheckResult, Measurement, NodeVerdict, Report, Tool, finished_at
from ddp_doctor.views.gpus import nccl_without_gpu
from ddp_doctor.views.node_traits import node_traits, other_settings
from ddp_doctor.views.open_files import out_of_files
from ddp_doctor.views.software import backend_of_ranks
from ddp_doctor.wording.findings import counted, short_count
from ddp_doctor.wording.nodes import first_names, hosts, name_list
from ddp_doctor.wording.ranks import capital, ranks_at
from ddp_doctor.wording.repeats import none_failed

#: Maximum number of checks listed in the verdict line.
_NAMED = 16
#: Maximum length of a reason in the verdict line.
_REASON = 200


@no_garbage_collection()
def report(recording: Recording, diagnosis: Diagnosis, checks: Sequence[Check]) -> Report:
    """Return the complete report of a recording."""
    results = check_results(recording, diagnosis.findings, checks)
    unmet = not_run(recording, results)
    results = [_in_part(result, unmet) for result in results]
    verdict = _verdict(recording, diagnosis, results, unmet)
    is_misused = verdict is Verdict.UNSURE and _misuse(recording, diagnosis)
    code = ExitCode.USAGE if is_misused else exit_code(verdict, recording.options.fail_on)
    return Report(
        tool=Tool(version=recording.tool_version),
        run_id=recording.run_id,
        started_at=recording.started_at,
        finished_at=finished_at(recording.started_at, recording.duration_s),
        duration_s=round(recording.duration_s, 3),
        job=recording.job,
        world=_world(recording),
        nodes=_node_verdicts(recording, diagnosis.findings, verdict),
        verdict=verdict,
        exit_code=(ExitCode.INTERRUPTED if recording.interrupted else code).value,
        summary=summary(recording, verdict, results, diagnosis, unmet),
        checks=tuple(results),
        findings=diagnosis.findings,
        measurements=tuple(measurements(recording, checks)),
    )


def _world(recording: Recording) -> World | None:
    """Return the world with the backend that the ranks recorded; it has no ranks if the command does not start any."""
    if recording.world is None:
        return None
    if not recording.command.has_ranks:
        return recording.world.model_copy(update={"nproc_per_node": 0, "world_size": 0, "backend": "none"})
    return recording.world.model_copy(update={"backend_impl": backend_of_ranks(recording)})


def _in_part(result: CheckResult, unmet: Sequence[NotAsAsked]) -> CheckResult:
    """Return the result as skipped if it passed but only a part of the request ran."""
    whys = [each.why for each in unmet if each.check == result.id]
    if not whys or result.status is not CheckStatus.PASSED or result.reason:
        return result
    return result.model_copy(update={"status": CheckStatus.SKIPPED, "reason": whys[0]})


def _verdict(
    recording: Recording, diagnosis: Diagnosis, results: Sequence[CheckResult], unmet: Sequence[NotAsAsked]
) -> Verdict:
    """Return unhealthy for an error; unsure for a possible error or too few results; otherwise by the warnings."""
    if any(finding.is_certain_error for finding in diagnosis.findings):
        return Verdict.UNHEALTHY
    severities = {finding.severity for finding in diagnosis.findings}
    judged = any(reading.check not in RETIRED_CHECKS for reading in recording.collected()) and _any_ran(results)
    cannot_tell = nccl_without_gpu(recording) or _unknown(recording) or unmet or _unclear(recording, diagnosis)
    if Severity.ERROR in severities or not judged or diagnosis.failures or recording.interrupted or cannot_tell:
        return Verdict.UNSURE
    if any(is_of_cause(finding.code) and finding.severity is Severity.WARNING for finding in diagnosis.findings):
        return Verdict.UNSURE  # a job may hang
    if any(result.status in (CheckStatus.FAILED, CheckStatus.TIMED_OUT) for result in results):
        return Verdict.UNSURE  # lesser findings do not make up for missing results
    return Verdict.DEGRADED if Severity.WARNING in severities else Verdict.HEALTHY


def _any_ran(results: Sequence[CheckResult]) -> bool:
    return any(result.status is not CheckStatus.SKIPPED for result in results)


def _node_verdicts(recording: Recording, findings: Sequence[Finding], verdict: Verdict) -> tuple[NodeVerdict, ...]:
    """Return the verdict of each node with a known name or number; ``verdict`` is the run's.

    Unhealthy: an error names the node, or one of its ranks, GPUs or links. Unsure: the node may be the cause, or too
    little of it was seen. Degraded: a warning names it. The only node of a run gets the run's verdict.
    """
    world = recording.world
    if world is None:
        return ()
    absent = [node for finding in findings for node in finding.missing]
    ranks = sorted(
        {node.node_rank for node in world.nodes}
        | {*range(len(world.expected_hosts))}
        | {node.node_rank for node in absent if node.node_rank is not None}
    )
    by_host = {host: rank for rank, host in enumerate(world.expected_hosts)}
    by_host |= {node.hostname: node.node_rank for node in world.nodes}
    by_node: dict[int, list[str]] = {rank: [] for rank in ranks}
    blamed, suspected, warned, anybody = set[int](), set[int](), set[int](), False
    for finding in findings:
        nodes = [_nodes_of(culprit, world, by_host) for culprit in finding.culprits]
        fingerprint = finding.fingerprint  # sorts all culprits
        for rank in set().union(*nodes):
            by_node.setdefault(rank, []).append(fingerprint)
        if finding.is_certain_error:
            blamed |= set().union(*(each for each in nodes if len(each) == 1))
        if finding.severity is Severity.ERROR:
            suspected |= set().union(*nodes)
            anybody |= not finding.culprits
        elif finding.severity is Severity.WARNING:
            warned |= set().union(*nodes)
    seen = {reading.node for reading in recording.readings if reading.status is Status.COLLECTED}
    bad = (Status.FAILED, Status.TIMED_OUT)
    stuck = {reading.node for reading in recording.readings if reading.status in bad}

    def verdict_of(rank: int) -> Verdict:
        if len(ranks) == 1:
            return verdict
        if rank in blamed:
            return Verdict.UNHEALTHY
        unsure = verdict is Verdict.UNSURE and not stuck  # the run is unsure
        if unsure or anybody or rank in suspected or rank in stuck or rank not in seen:
            return Verdict.UNSURE
        return Verdict.DEGRADED if rank in warned else Verdict.HEALTHY

    traits, settings = node_traits(recording), other_settings(recording)
    return tuple(
        NodeVerdict(
            node_rank=rank,
            hostname=world.hostname(rank),
            verdict=verdict_of(rank),
            findings=tuple(dict.fromkeys(by_node[rank])),
            traits=traits.get(rank, {}),
            settings=settings.get(rank),
        )
        for rank in ranks
    )


def _nodes_of(culprit: Culprit, world: World, by_host: Mapping[str, int]) -> set[int]:
    """Return one node, two for a pair of nodes, or none for a setting or file of the job."""
    nodes: set[int] = set()
    ends = ((culprit.node_rank, culprit.node, culprit.rank), (None, culprit.peer_node, culprit.peer_rank))
    for node_rank, host, rank in ends:
        if node_rank is not None:
            nodes.add(node_rank)
        elif host is not None:
            nodes |= {by_host[host]} if host in by_host else set()
        elif rank is not None:
            nodes.add(world.node_of(rank))
    return nodes


def _unknown(recording: Recording) -> str:
    feature = recorded_by(recording.command)
    return "" if feature is None else feature.unknown(recording)


def _unclear(recording: Recording, diagnosis: Diagnosis) -> tuple[str, Sequence[str]] | None:
    feature = feature_of(recording.command)
    return None if feature is None else feature.unclear(diagnosis.findings)


def _misuse(recording: Recording, diagnosis: Diagnosis) -> str | None:
    """Return why a request is unusable, if that is the only reason for missing results."""
    if refused := nccl_without_gpu(recording):
        return refused
    bad = [reading for reading in recording.readings if reading.status in _BAD]
    if not bad or diagnosis.failures or not all(reading.misused for reading in bad):
        return None
    if bad[0].check in (BASELINE, STRAGGLERS):
        return bad[0].reason
    return f"cannot use {recording.options.typed_model}: {bad[0].reason}"


def check_results(recording: Recording, findings: Sequence[Finding], checks: Sequence[Check]) -> list[CheckResult]:
    """Return one result per check in order; unknown checks come last, by their readings."""
    reasons = {left_out.check: left_out.reason for left_out in recording.not_run}
    known = {check.id: check for check in checks}
    titles = {check.id: check.title for check in checks}
    titles |= {r.check: r.check for r in recording.readings if r.check not in known}
    found = {
        item.check for finding in findings if finding.severity.at_least(Severity.WARNING) for item in finding.evidence
    }
    results = []
    for check_id, title in titles.items():
        readings = recording.of_check(check_id)
        if (readings or check_id in reasons) and is_judged(recording.command, check_id):
            status, reason = _status(recording, readings, reasons.get(check_id), check_id in found)
            if check_id in RETIRED_CHECKS and status is CheckStatus.PASSED:
                status, reason = CheckStatus.SKIPPED, "not judged: this check no longer exists"
            if status is CheckStatus.PASSED and check_id in known and (why := known[check_id].untested(recording)):
                status, reason = CheckStatus.SKIPPED, why
            duration_s = round(max((reading.duration_s for reading in readings), default=0.0), 3)
            result = CheckResult(id=check_id, title=title, status=status, reason=reason, duration_s=duration_s)
            results.append(result)
    return results


def _status(
    recording: Recording, readings: Sequence[Reading], left_out: str | None, found: bool
) -> tuple[CheckStatus, str | None]:
    """Return the status by the worst reading: a rank that timed out counts even if its peers passed."""
    by_status = grouped((reading.status, reading) for reading in readings)
    feature = recorded_by(recording.command)
    in_parts = () if feature is None else feature.in_parts
    has_part = any(reading.check in in_parts for reading in by_status.get(Status.COLLECTED, ()))
    for bad, becomes in _BAD.items():
        if bad in by_status and not has_part:
            return becomes, _reason(recording, by_status[bad], readings)
    if left_out in (NOT_SELECTED, SKIPPED_BY_NAME):  # it ran only to decide the world
        return CheckStatus.FOUND if found else CheckStatus.SKIPPED, None if found else left_out
    idle = [reading for status in _IDLE for reading in by_status.get(status, ())]
    skipped = by_status.get(Status.SKIPPED, ())
    cut_short = [reading for reading in skipped if (reading.reason or "").startswith(INTERRUPTED_AFTER)]
    if cut_short:  # other ranks' readings of it are not a result
        return CheckStatus.SKIPPED, _reason(recording, cut_short, cut_short)
    if Status.COLLECTED in by_status:
        why = _reason(recording, idle, readings) if idle and recording.nnodes > 1 else left_out
        parts = {reading.part: f"{reading.part}: {reading.reason}" for reading in idle if reading.part}
        return CheckStatus.FOUND if found else CheckStatus.PASSED, "; ".join(parts.values()) or why
    missing = found and not skipped  # something that the node should have
    why = _reason(recording, idle, readings) if idle and not missing else left_out
    return (CheckStatus.FOUND, None) if missing else (CheckStatus.SKIPPED, why)


_BAD = {Status.TIMED_OUT: CheckStatus.TIMED_OUT, Status.FAILED: CheckStatus.FAILED}
_IDLE = (Status.ABSENT, Status.SKIPPED)


def _reason(recording: Recording, some: Sequence[Reading], of: Sequence[Reading]) -> str | None:
    """Return the reason of the first of these readings, and where it applies if that is not everywhere."""
    where = _where(recording, some) if len(some) < len(of) else ""
    return f"on {where}: {some[0].reason}" if where else some[0].reason


def _where(recording: Recording, readings: Sequence[Reading]) -> str:
    """Return the nodes or ranks of readings; empty on a single node."""
    if recording.nnodes == 1:
        return ""
    ranks = [reading.rank for reading in readings if reading.rank is not None]
    nodes = dict.fromkeys(reading.node for reading in readings)
    return ranks_at(recording, ranks) if ranks else hosts(recording, nodes)


def measurements(recording: Recording, checks: Sequence[Check]) -> list[Measurement]:
    """Return the numbers of every check that measured something."""
    measuring = (check.measurements for check in checks if check.measurements is not None)
    return [measurement for measured in measuring for measurement in measured(recording)]


def summary(
    recording: Recording,
    verdict: Verdict,
    results: Sequence[CheckResult],
    diagnosis: Diagnosis,
    unmet: Sequence[NotAsAsked],
) -> str:
    """Return the verdict and its reason, or the worst finding, in one or a few sentences."""
    if (feature := recorded_by(recording.command)) is not None and feature.summary is not None:
        return _in_sentences(feature.summary(recording, verdict, diagnosis), *_ignored(diagnosis))
    if recording.interrupted:
        cut = [result for result in results if (result.reason or "").startswith(INTERRUPTED_AFTER)]
        during = f"{cut[0].id} was {cut[0].reason}. " if cut else ""
        return f"Interrupted: {during}{'Only' if cut else 'only'} part was tested ({' '.join(_scope(recording))})."
    if verdict is Verdict.UNHEALTHY:
        return f"{_label(recording, diagnosis)}{_worst(diagnosis, Severity.ERROR)}."
    if verdict is Verdict.UNSURE and (misuse := _misuse(recording, diagnosis)):
        return _in_sentences(f"Error: {misuse.removesuffix('.')}", *_ignored(diagnosis))
    if verdict is Verdict.UNSURE:
        why = _why_unsure(recording, results, diagnosis, unmet).removesuffix(".")
        if diagnosis.findings and diagnosis.findings[0].severity is Severity.ERROR:
            why = _worst(diagnosis, Severity.ERROR, "a possible fault, not proved")
        why, more = _unclear(recording, diagnosis) or (why, ())
        return _in_sentences(f"Unsure: {why}", *more, *_ignored(diagnosis))
    judged, more = _of_command(recording, diagnosis)
    if verdict is Verdict.DEGRADED:
        judged = f"{_label(recording, diagnosis)}{_worst(diagnosis, Severity.WARNING)}"
    return _in_sentences(judged, *more, *_ignored(diagnosis))


def _in_sentences(*parts: str) -> str:
    return " ".join(f"{capital(part.removesuffix('.'))}{'.' * (part[-1] != '?')}" for part in parts if part)


def _of_command(recording: Recording, diagnosis: Diagnosis) -> tuple[str, Sequence[str]]:
    """Return what a healthy verdict says, and what it adds, as a degraded verdict does."""
    command = recording.command
    if (feature := feature_of(command)) is not None and feature.healthy is not None:
        return feature.healthy(recording, diagnosis.findings)
    if command in (Command.ENV, Command.TOPOLOGY):
        text = recording.first(SettingText)
        of = "topology" if command is Command.TOPOLOGY else "settings"
        of += " and the launch" if text is not None and text.launches else ""
        return f"No errors or warnings in the {of}", ("Nothing else was tested",)
    what, where = _scope(recording)
    return f"Healthy: {what} passed {where}{_model(recording)}", (*_untested(recording), *_left_out(recording))


def _label(recording: Recording, diagnosis: Diagnosis) -> str:
    """Return the label before the worst finding."""
    if recording.command in (Command.ENV, Command.TOPOLOGY):
        severities = [finding.severity for finding in diagnosis.findings]
        kinds = [(severities.count(kind), kind.value) for kind in (Severity.ERROR, Severity.WARNING)]
        return f"Found {name_list([counted(number, word) for number, word in kinds if number])}: "
    feature, is_warning = feature_of(recording.command), diagnosis.findings[0].severity is Severity.WARNING
    if isinstance(feature, Recorded) and feature.has_plain_errors and not is_warning:
        return ""
    if feature is not None and feature.label:
        return f"{feature.label}: "
    return "Degraded: " if is_warning else "Unhealthy: "


def _worst(diagnosis: Diagnosis, severity: Severity, note: str = "") -> str:
    """Return the title of the first finding, a note on it, and how many more are as severe."""
    others = sum(finding.severity is severity for finding in diagnosis.findings) - 1
    more = f"and {others} more finding{'s' if others > 1 else ''}" if others else ""
    notes = "; ".join(filter(None, (note, more)))
    return f"{diagnosis.findings[0].title.rstrip('.')}{f' ({notes})' if notes else ''}"


def _why_unsure(
    recording: Recording, results: Sequence[CheckResult], diagnosis: Diagnosis, unmet: Sequence[NotAsAsked]
) -> str:
    stuck = [r for r in results if r.status in (CheckStatus.FAILED, CheckStatus.TIMED_OUT)]
    reasons = {result.reason or "" for result in stuck}
    reason = shorten(reasons.pop(), _REASON, placeholder=" ...") if len(reasons) == 1 else ""
    asked = listed(unmet) if unmet and not stuck and not diagnosis.failures else None
    asked = asked or (None if stuck else _unknown(recording))
    if certain := reason if OWN_PROCESS in reason or recording.command is Command.ENV else asked:
        return f"{certain}."
    measured = any(reading.fact is not None and reading.check not in RETIRED_CHECKS for reading in recording.readings)
    measured = measured and _any_ran(results)
    reads_files = recorded_by(recording.command) is not None and not recording.command.has_ranks
    if not measured and (recording.command is Command.ENV or reads_files) and results:
        return f"{shorten(results[0].reason or '', _REASON, placeholder=' ...')}."
    if measured and diagnosis.failures:
        return f"rule {diagnosis.failures[0][0]} of ddp-doctor failed."
    names = ", ".join(result.id if reason else _stuck_where(recording, result.id) for result in stuck)
    if measured and out_of_files(recording):  # a prolog has other limits than the job: not a fault
        return f"{names} gave no result: ddp-doctor reached its limit of open files (ulimit -n)."
    what = f"{names} gave no result" if measured else "nothing could be measured"
    if _has_parts(recording, stuck):
        what = f"{names} could be evaluated only in part"
        reason = reason.partition("; ")[0]  # the findings have the rest
    if reason or not measured:
        between = " " if measured and reason.startswith("on ") else ": "
        return f"{what}{between if reason else ''}{reason}."
    return f"{what}, and no finding explains it."


def _stuck_where(recording: Recording, check_id: str) -> str:
    """Return ``gpus on node2``, or only the check if it could not be evaluated anywhere."""
    readings, stuck = recording.of_check(check_id), _bad_readings(recording, check_id)
    where = _where(recording, stuck) if len(stuck) < len(readings) else ""
    return f"{check_id} on {where}" if where else check_id


def _has_parts(recording: Recording, stuck: Sequence[CheckResult]) -> bool:
    """Return True if each of these checks has a partial result, such as some rows of a matrix."""
    bad = [reading for result in stuck for reading in _bad_readings(recording, result.id)]
    return bool(bad) and all(reading.fact is not None for reading in bad)


def _bad_readings(recording: Recording, check_id: str) -> list[Reading]:
    return [reading for reading in recording.of_check(check_id) if reading.status in _BAD]


def _scope(recording: Recording) -> tuple[str, str]:
    """Return ``2 ranks on 1 node`` and ``over gloo``, or ``4 checks`` and ``on this node``."""
    if (feature := recorded_by(recording.command)) is not None and feature.scope is not None:
        return feature.scope(recording), ""
    world = recording.world
    passed = {reading.check for reading in recording.collected()}
    if world is None or not had_ranks(recording.readings):
        return counted(
            len(passed), "check"
        ), "on this node" if recording.nnodes == 1 else f"on {recording.nnodes} nodes"
    impl = backend_of_ranks(recording)
    over = f"{world.backend} ({impl})" if impl not in (None, world.backend) else world.backend
    return f"{counted(world.world_size, 'rank')} on {counted(world.nnodes, 'node')}", f"over {over}"


def _model(recording: Recording) -> str:
    """Return the trained model, as in `` with a built-in model (1M parameters)``, or an empty text without one."""
    from ddp_doctor.facts.ddp.gradients import GradientSync  # not needed by a prolog

    if recording.options.model:
        return run_feature("model").words(recording)
    own = recording.first(GradientSync)
    return f" with a built-in model ({short_count(own.elements)} parameters)" if own else ""


def _untested(recording: Recording) -> Iterator[str]:
    if recording.command.is_of_root:
        if recording.options.require_gpus is None and any(
            reading.status is Status.ABSENT for reading in recording.of_check(GPUS)
        ):
            yield "It has no GPU; use --require-gpus to require some"
        return
    if recording.world is None or not had_ranks(recording.collected()):
        return
    if recording.world.backend == "gloo":
        yield "GPUs and NCCL were not tested"
    if recording.world.world_size == 1:
        yield "Nothing between ranks was tested, because there is only one"
    if (nodes := recording.world.foreign_nodes) > 1:
        yield f"Nothing between the {nodes} nodes of this world was tested"
    if repeats := recording.first(RepeatsFact):
        yield none_failed(repeats.tests)


def _left_out(recording: Recording) -> Iterator[str]:
    """Yield the checks that did not fit the budget."""
    names = list(dict.fromkeys(each.check for each in recording.not_run if each.reason.startswith(TOO_DEAR)))
    if names:
        budget = recording.options.budget_s
        yield f"Not tested within the budget of {budget:g} s: {first_names(names, _NAMED)}"
    if pairs := max((rank.fact.not_measured for rank in recording.facts(P2pFact)), default=0):
        yield f"{counted(pairs, 'pair')} of ranks {'was' if pairs == 1 else 'were'} not measured because time ran out"


def _ignored(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what --ignore suppressed: the reader of a verdict may not know the command line."""
    return (f"Ignored: {', '.join(diagnosis.ignored)}",) if diagnosis.ignored else ()
