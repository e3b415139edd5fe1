"""The plan of a run: the document that ``run --plan --json`` writes. No process is started for it."""

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import NotRun
from ddp_doctor.model.report import Tool

PLAN_SCHEMA_VERSION = "1.0"


class PlannedNode(Frozen):
    """A node that would be tested."""

    node_rank: int  # its number in the run
    hostname: str | None = None  # null if the launcher does not name its nodes
    leaf: str | None = None  # its leaf switch or rack, if --isolate knows it


class PlannedStep(Frozen):
    """Checks that would run one after the other at one place; on nodes, they run all at once."""

    where: Where  # the place: all nodes, or all their ranks
    checks: tuple[str, ...]  # ids, in order
    seconds: float  # expected at level standard, on healthy nodes
    node_minutes: float  # of all nodes
    rounds: int = 1  # number of repetitions, or for isolation the rounds with healthy nodes
    rounds_with_one_bad: int | None = None  # … and the approximate rounds with one bad node; null for other checks


class RunPlan(Frozen):
    """The steps of a run with these options."""

    schema_version: str = PLAN_SCHEMA_VERSION  # of this document
    tool: Tool  # the program that wrote it
    launcher: str  # what starts the nodes: slurm, ssh, torchrun, mpi, kubernetes; plain is the user
    nodes: tuple[PlannedNode, ...]  # by node rank
    ranks_per_node: int | None = None  # null: one per GPU, or 2 on CPUs
    steps: tuple[PlannedStep, ...]  # in order
    seconds: float  # expected for all steps, without waiting for nodes, torch's import and trials of fixes
    node_minutes: float  # … of all nodes
    most_seconds: float  # after that time no step starts: --budget, plus the time for --repeat and --soak
    not_run: tuple[NotRun, ...] = ()  # the checks that are omitted
