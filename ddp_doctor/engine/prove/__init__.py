"""Proving remedies: trials with and without their settings, and what follows from them.

experiments.py picks what can be tried, tries it and reads the trials; proofs.py, pure, puts the outcome on the
findings, live and on replay alike.
"""

from collections.abc import Sequence

from ddp_doctor.agents.agent_group import RUN_IS_OVER
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.prove.experiments import Spoiled, Trials, attempt_of, candidates
from ddp_doctor.model.finding import Finding, Reproducer, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Arm, Attempt, Experiment
from ddp_doctor.ranks.run import Run

__all__ = ["prove"]

_OPTED_OUT = "left out by --no-prove"
_NO_RANKS = "this run could start no ranks to try it with"


def prove(
    recording: Recording,
    findings: Sequence[Finding],
    run: Run,
    agent: Agent | None,
    kept: list[Experiment],
) -> None:
    """Try the remedies of the findings on the agent's ranks, as long as the run has time; fills ``kept``."""

    def attempt(arm: Arm, reproducer: Reproducer, settings: Sequence[Setting], limit_s: float) -> Attempt:
        assert agent is not None
        try:
            result = agent.attempt(reproducer, settings, limit_s)
        except RUN_IS_OVER:
            raise
        except Exception as error:
            raise Spoiled(f"the trial failed itself: {type(error).__name__}: {error}") from error
        if result.cut_short is not None:
            raise Spoiled(f"cut short: {result.cut_short}")
        return attempt_of(arm, result)

    why_none = _OPTED_OUT if not recording.options.prove else _NO_RANKS if agent is None else None
    backend = recording.world.backend if recording.world else ""
    trying = Trials(attempt, run.until, kept, backend, run.progress)
    for alternatives in candidates(recording, findings, run.env):
        if agent is not None and agent.node_ranks.lost_helper() is not None:
            why_none = _NO_RANKS
        trying.compare(alternatives, why_none)
