"""Select the checks to run, with the reasons against the other checks."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_doctor.knowledge.retired import RETIRED_CHECKS
from ddp_doctor.model.check import COLLECTIVES, COMPILE, ISOLATION, JOB_COLLECTIVES, MESH, REPEATS, STRAGGLERS, Check
from ddp_doctor.model.choices import Backend, Level, UsageError, Where
from ddp_doctor.model.error_text import did_you_mean, quoted
from ddp_doctor.model.recording import NOT_SELECTED, SKIPPED_BY_NAME, NotRun, Options

#: The prefix of the reason for checks that the budget excludes.
TOO_DEAR = "does not fit the budget"


@dataclass(frozen=True)
class Plan:
    """The selected checks in order, and the skipped checks with their reasons."""

    checks: tuple[Check, ...]
    not_run: tuple[NotRun, ...] = ()

    def at(self, *where: Where) -> tuple[Check, ...]:
        """Return the selected checks that run in these places."""
        return tuple(check for check in self.checks if check.where in where)


def make_plan(options: Options, checks: Sequence[Check], nnodes: int = 1) -> Plan:
    """Select checks by name, level, number of nodes, the user's model and time. Raises UsageError.

    The checks that decide whether ranks use GPUs always run if ranks start or an option requires GPUs.
    """
    _require_known(options, checks)
    if options.isolate and nnodes == 1:
        raise UsageError("--isolate requires several nodes, but this run has one; add --hosts or --nnodes")
    chosen, not_run = [], []
    for check in checks:
        reason = _reason_against(check, options, nnodes)
        if reason is None:
            chosen.append(check)
        else:
            not_run.append(NotRun(check=check.id, reason=reason))
    _require_run(options, checks, chosen)
    _require_named(options)
    if not any(check.where.needs_ranks for check in chosen):
        idle = [check for check in chosen if check.where is Where.AFTERWARDS]
        not_run += [NotRun(check=check.id, reason="no ranks run, after which it looks") for check in idle]
        chosen = [check for check in chosen if check not in idle]
    kept = list[Check]()  # essential checks first, and the cheaper ones first within both groups
    for check in sorted(chosen, key=lambda check: (not check.is_essential, check.cost_s)):
        if _needs_s([*kept, check]) <= options.budget_s:
            kept.append(check)
    asks_for_gpus = options.require_gpus or options.backend is Backend.NCCL
    decides = asks_for_gpus or any(check.where.needs_ranks for check in kept)
    kept = [check for check in checks if check in kept or (decides and check.decides_world)]
    too_dear = f"{TOO_DEAR} of {options.budget_s:g} s; --budget {math.ceil(_needs_s(chosen))} is enough for all"
    not_run += [NotRun(check=check.id, reason=too_dear) for check in chosen if check not in kept]
    return Plan(tuple(kept), tuple(not_run))


def _require_known(options: Options, checks: Sequence[Check]) -> None:
    known = {check.id for check in checks}
    for name in (*options.only, *options.skip):
        if name not in known:
            raise UsageError(no_such_check(name, checks))
    if both := [name for name in options.only if name in options.skip]:
        raise UsageError(f"--only and --skip both list {both[0]}; remove it from one of them")
    if alone := [check.id for check in checks if check.needs_baseline and check.id in options.only]:
        raise UsageError(
            f"{alone[0]} only compares other checks' results; use --baseline FILE instead of --only {alone[0]}"
        )


def no_such_check(name: str, checks: Sequence[Check]) -> str:
    """Return a message with similar checks: by prefix, spelling or a word of the title."""
    wanted = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    ids = [check.id for check in checks]
    titled = [
        check.id
        for check in checks
        if wanted and any(word.startswith(wanted) for word in re.findall(r"\w+", check.title.lower()))
    ]
    hint = did_you_mean(RETIRED_CHECKS.get(wanted, wanted), ids, titled)
    return f"unknown check {quoted(name)}; {hint or 'run `ddp-doctor explain` to list all checks'}"


def _require_run(options: Options, checks: Sequence[Check], chosen: Sequence[Check]) -> None:
    """Raise UsageError if --model is given, and --only or --skip excludes all checks that would run it."""
    own, model = next((check.id for check in checks if check.needs_model), None), options.model
    runs = [check.id for check in chosen if check.runs_model(model)]
    if not (options.compile or COMPILE in options.only):
        runs = [check for check in runs if check != COMPILE]  # compile runs the model only if it is compiled
    if own is None or not model or runs:
        return
    if own in options.skip or (options.only and own not in options.only):
        way = f"add {own} to --only" if options.only else f"remove {own} from --skip"
        raise UsageError(f"--model {quoted(model)} would not be tested; {way}, or omit --model")


def _require_named(options: Options) -> None:
    """Raise UsageError if an option has no effect without its check, or a selected check lacks its option."""
    for given, option, check in (
        (options.collectives, "--collective", COLLECTIVES),
        (options.min_busbw, "--min-busbw", COLLECTIVES),
        (options.mesh, "--mesh", MESH),
        (options.replay, "--collectives-of", JOB_COLLECTIVES),
        (options.repeats_all, "--repeat" if options.soak_s is None else "--soak", REPEATS),
        (options.isolate, "--isolate", ISOLATION),
        (options.data, "--data", STRAGGLERS),
    ):
        if given and (check in options.skip or (options.only and check not in options.only)):
            way = f"add {check} to --only" if options.only else f"remove {check} from --skip"
            raise UsageError(f"{option} has no effect without the check {check}; {way}")
        has_what_it_needs = given or check in (COLLECTIVES, STRAGGLERS) or (check == MESH and options.model)
        if check in options.only and not has_what_it_needs:
            raise UsageError(f"--only {check} requires {option}; add {option}, or remove {check} from --only")


def _reason_against(check: Check, options: Options, nnodes: int) -> str | None:
    needed, reason = check.from_level(options.model), None
    of_groups = {ISOLATION: ("--isolate", options.isolate), REPEATS: ("--repeat or --soak", options.repeats_all)}
    option, is_given = of_groups.get(check.id, ("", True))
    if check.id == STRAGGLERS and (options.data or options.isolate):
        needed = Level.QUICK
    if check.id in options.skip:
        reason = SKIPPED_BY_NAME
    elif options.only and check.id not in options.only:
        reason = NOT_SELECTED
    elif check.parts and not check.parts(options):
        reason = f"needs {check.parts_by}"
    elif not check.parts and not options.only and not options.level.includes(needed):
        reason = f"needs --level {needed.value}"
    elif check.where is Where.NODES and nnodes == 1:
        reason = "needs two nodes: --nnodes"
    elif check.needs_baseline:
        reason = "needs healthy runs to compare with: --baseline"
    elif check.needs_model and not options.model:
        reason = "needs a model of yours: --model"
    elif check.needs_mesh and not (options.mesh or options.model):
        reason = "needs the mesh of your job: --mesh"
    elif check.needs_job and options.replay is None:
        reason = "needs the collectives of a job: --collectives-of"
    elif not is_given:
        reason = f"needs {option}"
    return reason


def _needs_s(checks: Sequence[Check]) -> float:
    """Return the duration of checks: checks of a node run in parallel, and repeats have a separate time."""
    at_once = [check.cost_s for check in checks if check.where is Where.NODE]
    one_by_one = [check.cost_s for check in checks if check.where is not Where.NODE and check.id != REPEATS]
    return max(at_once, default=0.0) + sum(one_by_one)
