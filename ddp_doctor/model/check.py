"""A check: one subject, the probe that reads it, and the rules that evaluate its readings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import Rule

#: The ids of checks that the engine refers to.
ENV_VARS, NCCL, GPUS, ROLL_CALL, REPEATS = "env_vars", "nccl", "gpus", "roll_call", "repeats"
PROCESS_GROUP, COLLECTIVES, MESH, JOB_COLLECTIVES = "process_group", "collectives", "mesh", "job_collectives"
P2P, USER_MODEL, COMPILE, STEP_TIME, BASELINE = "p2p", "user_model", "compile", "step_time", "baseline"
ISOLATION, STRAGGLERS = "isolation", "stragglers"

#: ``Callable[[Context], Fact]`` on a node, ``Callable[[RankContext], Fact]`` on a rank. ``where`` decides which, so the
#: parameter cannot be one static type.
Probe = Callable[[Any], Fact]


@dataclass(frozen=True)
class Check:
    """An entry of CHECKS.

    ``cost_s`` is the expected time at level standard, for the budget. ``deadline_s`` is when the agent evaluates a rank
    check that has not ended, or abandons a node probe.
    """

    id: str
    title: str
    where: Where
    probe: Probe
    facts: tuple[type[Fact], ...]
    rules: tuple[Rule, ...] = ()
    level: Level = Level.QUICK
    still_s: float | None = None  # … and when it evaluates a check whose ranks are all idle; None: not earlier
    min_ranks: int = 1
    cost_s: float = 0.2
    deadline_s: float = 10.0
    is_essential: bool = False  # a verdict rests on it, so a short budget skips it last
    stops_ranks: bool = False  # after an error of its rules, ranks of several nodes are not started
    needs_baseline: bool = False  # measurements of healthy runs, from --baseline; its probe never runs
    needs_model: bool = False  # the user's model, from --model
    needs_mesh: bool = False  # from --mesh or the user's model; and all ranks, because a mesh has all of them
    needs_job: bool = False  # a job's collectives, from --collectives-of; all its ranks take part, or none
    level_with_model: Level | None = None  # minimum level to run on the user's model instead of ddp-doctor's
    #: Its parts, run one after the other, each with the full deadline and a separate reading: a rank that hangs in one
    #: part only loses that part.
    parts: Callable[[Options], tuple[str, ...]] | None = None
    parts_by: str = ""  # the options that give the parts, for a sentence
    #: The rules on whether ranks can use GPUs. A check with such rules runs whenever ranks start, and the rules
    #: evaluate its readings even if it was not selected.
    decides_world: tuple[Rule, ...] = ()
    measurements: Callable[[Recording], Iterable[Measurement]] | None = None
    untested: Callable[[Recording], str] = lambda _recording: ""  # why its readings do not count as passed, or ""
    #: Additional environment variables of its ranks. Its trial is then separate and the last one, and no rank is
    #: evaluated.
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def group(self) -> str:
        """The subject: the package of its facts and of its module, or "" if it records no facts.

        Checks of the user's own model are of DDP.
        """
        if self.needs_model:
            return "DDP"
        group = self.facts[0].__module__.split(".")[2] if self.facts else ""
        return {"ddp": "DDP"}.get(group, group)

    def from_level(self, model: str) -> Level:
        """Return the minimum level to run it, with the user's model or without a model ("")."""
        return self.level_with_model if model and self.level_with_model else self.level

    def runs_model(self, model: str) -> bool:
        """Return True if it runs code of the user's model."""
        return self.needs_model or bool(model and self.level_with_model)
