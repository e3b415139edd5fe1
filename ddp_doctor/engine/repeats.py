"""Repeat the test of all ranks for --repeat and --soak, to find how often it fails and when it began to fail.

Each repeat is an unjudged trial of fresh processes: they meet, reduce numbers with a known sum, and are timed. With
several nodes, the head orders it.
"""

import time
from collections.abc import Iterable

from ddp_doctor.agents.framing import RunIsOver
from ddp_doctor.engine.isolation.group_tests import group_test
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.partial_recording import PartialRecording, interrupted_after
from ddp_doctor.facts.collectives import GroupTest, RepeatsFact
from ddp_doctor.knowledge.deadlines import MOST_REPEATS
from ddp_doctor.model.check import REPEATS, Check
from ddp_doctor.model.finding import Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings.trials import GROUP_BYTES, HUNG_RATIO, NCCL_TRIAL_S
from ddp_doctor.views.rates import FAILED, telling
from ddp_doctor.wording.repeats import clock, failures

#: If the first this many repeats all fail, or the last this many are inconclusive, the test stops.
_ENOUGH = 5


def repeat(checks: Iterable[Check], agent: Agent | None, recording: Recording, partial: PartialRecording) -> float:
    """Test all ranks the requested number of times or duration; return the seconds that it took.

    However it ends, ``partial`` has the tests so far. Errors that end the run are raised.
    """
    settled = {reading.check for reading in recording.readings} | {each.check for each in recording.not_run}
    check = next((check for check in checks if check.id == REPEATS and check.id not in settled), None)
    if check is None:
        return 0.0
    if agent is None or agent.world.world_size < check.min_ranks:
        why = f"needs {check.min_ranks} ranks, 1 is all this run has" if agent else "no message from a node"
        partial.leave_out((check,), why)
        return 0.0
    agent.node_ranks.run.progress(check.id)
    tests, stopped, began = list[GroupTest](), "", time.monotonic()
    try:
        stopped = _repeat(agent, tests, began)
    except BaseException as error:
        ran = f"{failures(tests)} in {len(tests)} repeats" if tests else "no repeat had ended"
        is_over = isinstance(error, RunIsOver) and str(error) != "interrupted"  # on any node
        stopped = f"{error}; {ran}" if is_over else interrupted_after(time.monotonic() - began, ran)
        raise
    finally:
        fact, took_s = RepeatsFact(tests=tuple(tests), stopped=stopped), time.monotonic() - began
        took = {"duration_s": round(took_s, 3)}
        partial.readings.append(fact.collected(check.id).model_copy(update=took))
    return took_s


def _repeat(agent: Agent, tests: list[GroupTest], began: float) -> str:
    """Fill ``tests``; return why it ended before all requested repeats ran, or an empty string."""
    options, world = agent.node_ranks.run.options, agent.world
    until = began + (options.soak_s or float("inf"))
    most = options.repeat if options.repeat > 1 and not options.isolate else MOST_REPEATS
    apart_s = (options.soak_s or 0.0) / MOST_REPEATS
    everybody = Reproducer(kind="all_reduce", size_bytes=GROUP_BYTES[world.backend])
    while (told := len(telling(tests))) < most and (at := time.monotonic()) < until:
        left_s = min(until - at, (at - began) / told * (most - told) if told else float("inf"))
        left = f", {clock(left_s)} left" if left_s < float("inf") else ""
        agent.node_ranks.run.progress(f"repeat {len(tests) + 1}, {failures(tests)}{left}")
        result = agent.attempt(everybody, (), NCCL_TRIAL_S)  # for all backends, because a busy machine is slow
        test = group_test(len(tests), range(world.nnodes), result, at - began)
        longest_s = max((each.duration_s for each in tests if each.outcome == "passed"), default=0.0)
        if test.outcome == "hung" and test.duration_s < HUNG_RATIO * longest_s:
            why = f"no end in {test.duration_s:.0f} s, where others took up to {longest_s:.0f} s"
            test = test.model_copy(update={"outcome": "unknown", "reason": why})
        tests.append(test)
        if result.cut_short is not None:
            return result.cut_short
        if test.outcome == "lost" or (agent.group is not None and agent.group.silent()):
            return "a node fell silent"
        if all(test.outcome in FAILED for test in tests) and len(tests) == _ENOUGH < most:
            return f"each of the first {_ENOUGH} failed"
        if len(tests) >= _ENOUGH and all(test.outcome == "unknown" for test in tests[-_ENOUGH:]):
            return f"nothing followed from the last {_ENOUGH}: {test.reason}"
        time.sleep(max(min(began + len(tests) * apart_s, until) - time.monotonic(), 0.0))
    return ""
