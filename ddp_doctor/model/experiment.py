"""What was tried to prove a remedy: trials without and with its settings, in turns. Evidence, no opinion."""

from typing import Literal

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.finding import Reproducer, Setting

Arm = Literal["control", "treatment"]


class Attempt(Frozen):
    """One trial in fresh processes; ``control`` is the environment as it was."""

    arm: Arm
    outcome: Literal["passed", "hung", "failed"]
    bytes_per_s: float | None = None  # of the slowest rank, the median of its repetitions
    reason: str = ""  # what a rank said that failed
    unread: tuple[str, ...] = ()  # settings of the treatment that the library did not say it had read
    duration_s: float = 0.0


class Experiment(Frozen):
    """The attempts to prove one remedy of one finding; without any, ``reason`` says why."""

    code: str  # the finding's
    settings: tuple[Setting, ...]  # the remedy's
    reproducer: Reproducer
    attempts: tuple[Attempt, ...] = ()
    reason: str | None = None
