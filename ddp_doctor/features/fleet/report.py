"""The report on a fleet: what ``fleet --json`` writes."""

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.report import NodeVerdict, Report


class FleetNode(NodeVerdict):
    """One host over all its runs; verdict, findings and traits are those of the newest."""

    run_id: str  # of the newest run
    seen_at: str  # when that began, RFC 3339
    runs: int  # that were read of it
    unhealthy_runs: int  # of them
    changes: int  # from usable to unhealthy or back, in the order of time
    flapping: bool  # whether these are many
    lemon: bool  # whether it was unhealthy again and again, and more often than the others


class LeftOut(Frozen):
    """A file that does not count, or not as it says."""

    file: str  # as it was found
    why: str  # in a sentence


class CommonFinding(Frozen):
    """One fault in the newest runs of all nodes."""

    code: str  # of the rule
    name: str  # the rule's in words
    severity: Severity  # the gravest of them
    title: str  # of one of them
    nodes: tuple[str, ...]  # hosts in whose newest runs it was found


class SharedValue(Frozen):
    """The nodes with one value of what differs."""

    value: str | None  # None: not set
    count: int  # of the nodes
    nodes: tuple[str, ...]  # their names; none for the most frequent value


class Difference(Frozen):
    """A version, a setting or a part of the hardware in which nodes differ."""

    name: str  # torch, driver, NCCL_ALGO …
    values: tuple[SharedValue, ...]  # the most frequent first


class Outlier(Frozen):
    """A node whose newest run measured much less than those of nodes with the same hardware."""

    node: str  # its host name
    name: str  # of the measurement
    labels: dict[str, str | int | float]  # of what: the number of bytes …
    value: float  # in the unit
    unit: str  # of all three
    median: float  # of the nodes with this hardware
    mad: float  # their median absolute deviation
    nodes: int  # how many these are


class NamedFinding(Frozen):
    """A finding by its fingerprint."""

    fingerprint: str  # the same for the same fault of the same culprits
    code: str  # of the rule
    title: str  # in one sentence


class Since(Frozen):
    """What is not as it was in the fleet report before."""

    run_id: str  # of that report
    started_at: str  # when it was made, RFC 3339
    came: tuple[str, ...]  # nodes
    gone: tuple[str, ...]  # nodes
    became_unhealthy: tuple[str, ...]  # nodes that were not
    recovered: tuple[str, ...]  # nodes that were unhealthy and are healthy or degraded
    findings_came: tuple[NamedFinding, ...]  # errors and warnings
    findings_gone: tuple[NamedFinding, ...]  # errors and warnings


class FleetReport(Report):
    """What ``fleet --json`` writes: the envelope, and the nodes beside each other.

    ``findings`` are the errors and warnings of the newest run of each node, each once.
    """

    nodes: tuple[FleetNode, ...] = ()  # all hosts by name, with the verdicts of their newest runs
    runs: int = 0  # that were read
    files: int = 0  # that were looked at
    left_out: tuple[LeftOut, ...] = ()  # files that do not count, or not as they say
    common: tuple[CommonFinding, ...] = ()  # what is found on most nodes and worst
    differences: tuple[Difference, ...] = ()  # in versions, settings and hardware
    outliers: tuple[Outlier, ...] = ()  # the slowest first
    since: Since | None = None  # what changed, where an earlier fleet report was among the files
