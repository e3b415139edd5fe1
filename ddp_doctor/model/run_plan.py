"""The plan of a run: what ``run --plan --json`` writes. Nothing was started for it."""

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import NotRun
from ddp_doctor.model.report import Tool

PLAN_SCHEMA_VERSION = "1.0"


class PlannedNode(Frozen):
    """A node that would be tested."""

    node_rank: int  # its number in the run
    hostname: str | None = None  # null where the launcher does not name its nodes
    leaf: str | None = None  # its leaf switch or rack, where --isolate knows it


class PlannedStep(Frozen):
    """Checks that would run one after the other at one place, those of nodes all at once."""

    where: Where  # the place; each is all nodes, or all their ranks
    checks: tuple[str, ...]  # ids, in order
    seconds: float  # expected at level standard, of healthy nodes
    node_minutes: float  # of all nodes
    rounds: int = 1  # how often, or of isolation the rounds of healthy nodes
    rounds_with_one_bad: int | None = None  # … and about as many of nodes of which one is bad; null of all others


class RunPlan(Frozen):
    """What a run with these options would do."""

    schema_version: str = PLAN_SCHEMA_VERSION  # of this document
    tool: Tool  # who wrote it
    launcher: str  # who starts the nodes: slurm, ssh, torchrun, mpi, kubernetes; plain is the user
    nodes: tuple[PlannedNode, ...]  # by node rank
    ranks_per_node: int | None = None  # null: one for each GPU, or 2 on CPUs
    steps: tuple[PlannedStep, ...]  # in order
    seconds: float  # expected of all steps; waiting for nodes, torch's import and trials of remedies come on top
    node_minutes: float  # … of all nodes
    most_seconds: float  # after which nothing new begins: --budget, and what --repeat and --soak ask for besides
    not_run: tuple[NotRun, ...] = ()  # the checks that are left out
