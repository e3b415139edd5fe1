"""The fixed vocabularies of the command line, the recording and the report."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Literal

#: Where a fault is that made a job fail: what decides who has to act.
Domain = Literal["code", "data", "host", "gpu", "network", "scheduler", "unknown"]
#: Whether starting the same job again may help.
Restart = Literal["no", "on the same nodes", "on other nodes", "unknown"]


class Command(str, Enum):
    """The command that made a recording, and what that says of it."""

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
    OTHER = "another"  # of a newer release: all that it recorded is judged

    @classmethod
    def _missing_(cls, value: object) -> "Command":  # noqa: ARG003 - as Enum calls it
        return cls.OTHER

    @property
    def has_ranks(self) -> bool:
        """Whether it starts ranks."""
        return self in (Command.RUN, Command.FIT)

    @property
    def is_of_one_node(self) -> bool:
        """Whether it looks at nothing but its own node: at no ranks and no other nodes."""
        return self in (Command.PROLOG, Command.TOPOLOGY, Command.ENV)

    @property
    def is_of_root(self) -> bool:
        """Whether root runs it before a job: the process has neither the job's settings and limits nor its torch."""
        return self is Command.PROLOG

    @property
    def has_one_subject(self) -> bool:
        """Return True if the command checks a single thing, which its verdict names."""
        return self in (Command.TOPOLOGY, Command.ENV, Command.COMPARE)


class Severity(str, Enum):
    """How bad a finding is (DESIGN: error = will not start, hangs, is wrong, or at least 3 times slower)."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def at_least(self, other: "Severity") -> bool:
        """Whether this severity is as bad as ``other`` or worse."""
        order = [Severity.INFO, Severity.WARNING, Severity.ERROR]
        return order.index(self) >= order.index(other)


class Consequence(str, Enum):
    """What a fault does to a job, from which the severity of a rule follows."""

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
        """The severity unless a finding knows better; of SLOWER, that of a slowdown that was not measured."""
        if self in (Consequence.SLOWER, Consequence.COST, Consequence.RISK):
            return Severity.WARNING
        return Severity.INFO if self in (Consequence.NO_EFFECT, Consequence.KNOWN) else Severity.ERROR


class FailOn(str, Enum):
    """The lowest severity that makes the exit code 1."""

    ERROR = "error"
    WARNING = "warning"


class OutputFormat(str, Enum):
    """How findings are printed."""

    FULL = "full"
    CONCISE = "concise"  # one line each
    GITHUB = "github"  # annotations of GitHub Actions
    JSONL = "jsonl"  # one JSON object a line


class Confidence(str, Enum):
    """How sure a finding is of its cause."""

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
    """How much a run tests."""

    QUICK = "quick"
    STANDARD = "standard"
    THOROUGH = "thorough"

    def includes(self, other: "Level") -> bool:
        """Whether a run at this level contains the checks of level ``other``."""
        order = [Level.QUICK, Level.STANDARD, Level.THOROUGH]
        return order.index(self) >= order.index(other)


class Backend(str, Enum):
    """The process-group backend asked for; ``auto`` is NCCL where there are GPUs, else gloo."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


class Where(str, Enum):
    """Where a probe runs."""

    NODE = "node"  # once per node, in the agent
    NODES = "nodes"  # once per node, in the agent, when all nodes of a run have met
    LAUNCHER = "launcher"  # on ranks that the job's own launcher, torchrun, started
    RANK = "rank"  # on ranks that the agent started
    GROUPS = "groups"  # in trials of some nodes by themselves, which the head plans; the reading is the head's
    AFTERWARDS = "afterwards"  # once per node, in the agent, when the ranks have ended
    FILES = "files"  # nowhere: it judges files that are given

    @property
    def needs_ranks(self) -> bool:
        """Whether ranks must be started for it."""
        return self in (Where.LAUNCHER, Where.RANK, Where.GROUPS)


class Status(str, Enum):
    """What became of one probe. Only ``collected`` carries a fact; the others carry a reason."""

    COLLECTED = "collected"
    ABSENT = "absent"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


class CheckStatus(str, Enum):
    """What the report says of one check."""

    PASSED = "passed"
    FOUND = "found"
    SKIPPED = "skipped"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class Detail(Enum):
    """How much of a report is printed."""

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
    """The exit code of this verdict. With ``--fail-on warning`` a degraded run fails."""
    fails = verdict is Verdict.UNHEALTHY or (verdict is Verdict.DEGRADED and fail_on is FailOn.WARNING)
    return ExitCode.UNHEALTHY if fails else ExitCode.UNSURE if verdict is Verdict.UNSURE else ExitCode.HEALTHY


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one sentence with what to do."""


@contextmanager
def as_usage_error(kind: type[Exception] = ValueError) -> Iterator[None]:
    """An error of this kind says here what is wrong with what was asked, and what to do. Raises UsageError for it."""
    try:
        yield
    except kind as error:
        raise UsageError(str(error)) from error
