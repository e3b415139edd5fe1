"""The fixed vocabularies of the command line, the recording and the report."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Literal

#: The place of the fault that made a job fail, which decides who has to act.
Domain = Literal["code", "data", "host", "gpu", "network", "scheduler", "unknown"]
#: Whether starting the same job again may help.
Restart = Literal["no", "on the same nodes", "on other nodes", "unknown"]


class Command(str, Enum):
    """The command that made a recording, and its properties."""

    RUN = "run"
    PROLOG = "prolog"
    TOPOLOGY = "topology"
    ENV = "env"
    LOGS = "logs"
    ATTACH = "attach"
    COMPARE = "compare"
    FLEET = "fleet"
    LINT = "lint"
    TRACE = "trace"
    FIT = "fit"
    OTHER = "another"  # of a newer release: all its records are evaluated

    @classmethod
    def _missing_(cls, value: object) -> "Command":  # noqa: ARG003 - as Enum calls it
        return cls.OTHER

    @property
    def has_ranks(self) -> bool:
        """Return True if the command starts ranks."""
        return self in (Command.RUN, Command.FIT)

    @property
    def is_of_one_node(self) -> bool:
        """Return True if the command checks only its own node, without ranks and other nodes."""
        return self in (Command.PROLOG, Command.TOPOLOGY, Command.ENV)

    @property
    def is_of_root(self) -> bool:
        """Return True if root runs the command before a job, without the job's settings, limits and torch."""
        return self is Command.PROLOG

    @property
    def has_one_subject(self) -> bool:
        """Return True if the command checks a single thing, which its verdict names."""
        return self in (Command.TOPOLOGY, Command.ENV, Command.COMPARE)


class Severity(str, Enum):
    """The severity of a finding. Error: the job does not start, hangs, is wrong or at least 3 times slower."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def at_least(self, other: "Severity") -> bool:
        """Return True if this severity is as bad as ``other`` or worse."""
        order = [Severity.INFO, Severity.WARNING, Severity.ERROR]
        return order.index(self) >= order.index(other)


class Consequence(str, Enum):
    """The effect of a fault on a job, which decides the severity of its rule."""

    FAILS = "the job does not start, or fails"
    HANGS = "the job hangs"
    WRONG = "results are wrong, or ranks drift apart"
    MUCH_SLOWER = "at least 3 times slower"
    REQUIRED = "less than was required"
    SLOWER = "slower"
    COST = "costs speed or memory"
    RISK = "a risk"
    NO_EFFECT = "a setting without effect"
    KNOWN = "worth knowing"

    @property
    def severity(self) -> Severity:
        """The default severity of findings; for SLOWER, the severity of a slowdown that was not measured."""
        if self in (Consequence.SLOWER, Consequence.COST, Consequence.RISK):
            return Severity.WARNING
        return Severity.INFO if self in (Consequence.NO_EFFECT, Consequence.KNOWN) else Severity.ERROR


class FailOn(str, Enum):
    """The lowest severity that makes the exit code 1."""

    ERROR = "error"
    WARNING = "warning"


class OutputFormat(str, Enum):
    """The format of printed findings."""

    FULL = "full"
    CONCISE = "concise"  # one line each
    GITHUB = "github"  # annotations of GitHub Actions
    JSONL = "jsonl"  # one JSON object per line


class Confidence(str, Enum):
    """How certain a finding is about its cause."""

    PROVED = "proved"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Verdict(str, Enum):
    """The result of a run, or of one of its nodes, by its worst finding."""

    HEALTHY = "healthy"  # nothing above info
    DEGRADED = "degraded"  # a warning: the job works, at a cost or a risk
    UNHEALTHY = "unhealthy"  # an error: the job does not start, hangs, is wrong or at least three times slower
    UNSURE = "unsure"  # not enough could be evaluated, or a serious fault is only possible


WORST_FIRST = (Verdict.UNHEALTHY, Verdict.UNSURE, Verdict.DEGRADED, Verdict.HEALTHY)
#: The verdicts of nodes that jobs may run on.
USABLE = (Verdict.HEALTHY, Verdict.DEGRADED)


class Level(str, Enum):
    """The amount of tests in a run."""

    QUICK = "quick"
    STANDARD = "standard"
    THOROUGH = "thorough"

    def includes(self, other: "Level") -> bool:
        """Return True if a run at this level includes the checks of level ``other``."""
        order = [Level.QUICK, Level.STANDARD, Level.THOROUGH]
        return order.index(self) >= order.index(other)


class Backend(str, Enum):
    """The requested process-group backend; ``auto`` is NCCL if there are GPUs, otherwise gloo."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


class Where(str, Enum):
    """The place where a probe runs."""

    NODE = "node"  # once per node, in the agent
    NODES = "nodes"  # once per node, in the agent, after all nodes of a run have checked in
    LAUNCHER = "launcher"  # on ranks that the job's own launcher, torchrun, started
    RANK = "rank"  # on ranks that the agent started
    GROUPS = "groups"  # in trials of groups of nodes that the head plans; the reading is the head's
    AFTERWARDS = "afterwards"  # once per node, in the agent, after the ranks have exited
    FILES = "files"  # on no machine: it evaluates given files

    @property
    def needs_ranks(self) -> bool:
        """Return True if ranks must be started for it."""
        return self in (Where.LAUNCHER, Where.RANK, Where.GROUPS)


class Status(str, Enum):
    """The outcome of one probe. Only ``collected`` has a fact; the others have a reason."""

    COLLECTED = "collected"
    ABSENT = "absent"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


class CheckStatus(str, Enum):
    """The outcome of one check in the report."""

    PASSED = "passed"
    FOUND = "found"
    SKIPPED = "skipped"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class Detail(Enum):
    """The amount of a report that is printed."""

    VERDICT = "findings and verdict"
    SCREEN = "what fits a screen where all is well"
    ALL = "every check"


class ExitCode(int, Enum):
    """The process exit codes (docs/explanation/verdicts.md)."""

    HEALTHY = 0
    UNHEALTHY = 1
    USAGE = 2
    UNSURE = 3
    INTERRUPTED = 130


def exit_code(verdict: Verdict, fail_on: FailOn = FailOn.ERROR) -> ExitCode:
    """Return the exit code of this verdict. With ``--fail-on warning``, a degraded run fails."""
    fails = verdict is Verdict.UNHEALTHY or (verdict is Verdict.DEGRADED and fail_on is FailOn.WARNING)
    return ExitCode.UNHEALTHY if fails else ExitCode.UNSURE if verdict is Verdict.UNSURE else ExitCode.HEALTHY


class UsageError(Exception):
    """The user asked for something impossible. The message is one sentence with what to do."""


@contextmanager
def as_usage_error(kind: type[Exception] = ValueError) -> Iterator[None]:
    """Raise UsageError with the message of an error of this kind, which describes what is wrong and what to do."""
    try:
        yield
    except kind as error:
        raise UsageError(str(error)) from error
