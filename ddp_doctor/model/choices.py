"""The fixed vocabularies of the command line, the recording and the report."""

from enum import Enum
from typing import Literal

#: Where a fault is that made a job fail: what decides who has to act.
Domain = Literal["code", "data", "host", "gpu", "network", "scheduler", "unknown"]
#: Whether starting the same job again may help.
Restart = Literal["no", "on the same nodes", "on other nodes", "unknown"]


class Severity(str, Enum):
    """How bad a finding is (DESIGN: error = will not start, hangs, is wrong, or at least 3 times slower)."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def at_least(self, other: "Severity") -> bool:
        """Whether this severity is as bad as ``other`` or worse."""
        order = [Severity.INFO, Severity.WARNING, Severity.ERROR]
        return order.index(self) >= order.index(other)


class FailOn(str, Enum):
    """The least severity that makes the verdict sick."""

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
    """What the doctor says of the machine."""

    HEALTHY = "healthy"
    SICK = "sick"
    UNSURE = "unsure"


WORST_FIRST = (Verdict.SICK, Verdict.UNSURE, Verdict.HEALTHY)


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
    AFTERWARDS = "afterwards"  # once per node, in the agent, when the ranks have ended


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
    """The process exit codes (docs/reference/exit-codes.md)."""

    HEALTHY = 0
    SICK = 1
    USAGE = 2
    UNSURE = 3
    INTERRUPTED = 130


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one sentence with what to do."""
