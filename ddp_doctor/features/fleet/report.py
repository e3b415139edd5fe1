"""The fleet report, as ``fleet --json`` writes it."""

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.report import NodeVerdict, Report


class FleetNode(NodeVerdict):
    """One host over all its runs; verdict, findings and traits are from its newest run."""

    run_id: str  # of the newest run
    seen_at: str  # when that began, RFC 3339
    runs: int  # that were read of it
    unhealthy_runs: int  # of them
    changes: int  # from usable to unhealthy or back, in the order of time
    flapping: bool  # whether these are many
    lemon: bool  # whether it was unhealthy repeatedly, and more often than other nodes


class LeftOut(Frozen):
    """A file that does not count, or counts only in part."""

    file: str  # as it was found
    why: str  # in a sentence


class CommonFinding(Frozen):
    """One fault in the newest runs of all nodes."""

    code: str  # of the rule
    name: str  # the rule's in words
    severity: Severity  # the gravest of them
    title: str  # of one of them
    nodes: tuple[str, ...]  # hosts with the fault in their newest runs


class SharedValue(Frozen):
    """The nodes with one value of what differs."""

    value: str | None  # None: not set
    count: int  # of the nodes
    nodes: tuple[str, ...]  # their names; none for the most frequent value


class Difference(Frozen):
    """A version, setting or hardware trait in which nodes differ."""

    name: str  # torch, driver, NCCL_ALGO …
    values: tuple[SharedValue, ...]  # the most frequent first


class Outlier(Frozen):
    """A node whose newest run measured much less than nodes with the same hardware."""

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
    """The changes since the previous fleet report."""

    run_id: str  # of that report
    started_at: str  # when it was made, RFC 3339
    came: tuple[str, ...]  # nodes
    gone: tuple[str, ...]  # nodes
    became_unhealthy: tuple[str, ...]  # nodes that were not
    recovered: tuple[str, ...]  # nodes that were unhealthy and are healthy or degraded
    findings_came: tuple[NamedFinding, ...]  # errors and warnings
    findings_gone: tuple[NamedFinding, ...]  # errors and warnings


class FleetReport(Report):
    """The document that ``fleet --json`` writes: the envelope, and a comparison of the nodes.

    ``findings`` are the errors and warnings of the newest run of each node, each once.
    """

    nodes: tuple[FleetNode, ...] = ()  # all hosts by name, with the verdicts of their newest runs
    runs: int = 0  # that were read
    files: int = 0  # that were read or skipped
    left_out: tuple[LeftOut, ...] = ()  # files that do not count, or only in part
    common: tuple[CommonFinding, ...] = ()  # what is found on most nodes and worst
    differences: tuple[Difference, ...] = ()  # in versions, settings and hardware
    outliers: tuple[Outlier, ...] = ()  # the slowest first
    since: Since | None = None  # the changes, if an earlier fleet report was among the files
