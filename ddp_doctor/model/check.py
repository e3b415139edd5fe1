"""A check: one subject, the probe that reads it, and the rules that judge what it read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import Rule

#: The checks that the engine knows by name.
ENV_VARS, NCCL, GPUS, ROLL_CALL, REPEATS = "env_vars", "nccl", "gpus", "roll_call", "repeats"
PROCESS_GROUP, COLLECTIVES, MESH, JOB_COLLECTIVES = "process_group", "collectives", "mesh", "job_collectives"
P2P, USER_MODEL, COMPILE, STEP_TIME, BASELINE = "p2p", "user_model", "compile", "step_time", "baseline"
SOFTWARE, FIT, FIT_MEASURED = "software", "fit", "fit_measured"
ISOLATION, STRAGGLERS = "isolation", "stragglers"

#: ``Callable[[Context], Fact]`` on a node, ``Callable[[RankContext], Fact]`` on a rank; ``where``
#: tells which, so the parameter cannot be one static type.
Probe = Callable[[Any], Fact]


@dataclass(frozen=True)
class Check:
    """One entry of CHECKS.

    ``cost_s`` is the expected time at level standard, for the budget; ``deadline_s`` is when the
    agent judges a rank check that has not ended, or abandons a node probe.
    """

    id: str
    title: str
    where: Where
    probe: Probe
    facts: tuple[type[Fact], ...]
    rules: tuple[Rule, ...] = ()
    level: Level = Level.QUICK
    still_s: float | None = None  # … and when it judges one in which no rank does anything; None: not before
    min_ranks: int = 1
    cost_s: float = 0.2
    deadline_s: float = 10.0
    is_essential: bool = False  # a verdict rests on it, so a short budget leaves it out last
    stops_ranks: bool = False  # with an error of its rules, ranks of several nodes are not worth starting
    needs_baseline: bool = False  # measurements of healthy runs, from --baseline; no probe of it ever runs
    needs_model: bool = False  # the user's own, from --model
    needs_mesh: bool = False  # from --mesh or the user's model; and all ranks, for a mesh is of all
    needs_job: bool = False  # its collectives, from --collectives-of; all its ranks take part, or none
    level_with_model: Level | None = None  # from which it runs on the user's own, in place of the doctor's
    #: What it does one after the other, each with the whole deadline and a reading of its own: a rank that hangs in one
    #: of them costs only that one.
    parts: Callable[[Options], tuple[str, ...]] | None = None
    parts_by: str = ""  # the options that name parts, for a sentence
    #: The rules on whether ranks can use GPUs. A check with such rules looks wherever ranks start; they judge what it
    #: read where nobody selected it, too.
    decides_world: tuple[Rule, ...] = ()
    measurements: Callable[[Recording], Iterable[Measurement]] | None = None
    untested: Callable[[Recording], str] = lambda _recording: ""  # why what its ranks read passes nothing
    #: What its ranks have in their environment besides; then its trial is its own, comes last, and judges no rank.
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def group(self) -> str:
        """What it is about: the package of its facts, which is that of its module, too; empty where it records none."""
        group = self.facts[0].__module__.split(".")[2] if self.facts else ""
        return {"ddp": "DDP"}.get(group, group)

    def from_level(self, model: str) -> Level:
        """The level from which it runs, with the user's own model or none ("")."""
        return self.level_with_model if model and self.level_with_model else self.level

    def runs_model(self, model: str) -> bool:
        """Whether code of the user's own model runs in it."""
        return self.needs_model or bool(model and self.level_with_model)
