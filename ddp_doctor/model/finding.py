"""Findings: the results of rules, with culprits, evidence and fixes."""

import hashlib
import json
import re
from typing import Literal

from pydantic import ConfigDict, computed_field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Confidence, Severity

CulpritKind = Literal["node", "rank", "gpu", "nic", "pair", "setting", "file"]
#: Who can apply a fix: whoever starts the job, runs the node or the cluster, or writes the code.
Scope = Literal["job", "node", "cluster", "code"]


class Culprit(Frozen):
    """A faulty node, rank, GPU, NIC, pair, setting or file. ``name`` depends on its kind."""

    kind: CulpritKind  # what is faulty
    node: str | None = None  # the host name
    node_rank: int | None = None  # the node's number in the run
    rank: int | None = None  # its number in the world
    gpu: int | None = None  # its index on its node, from the driver
    peer_node: str | None = None  # for a pair: the host at the other end
    peer_rank: int | None = None  # for a pair: the rank at the other end
    name: str | None = None  # the variable, file, interface, link or GPU

    def identity(self) -> tuple[str, ...]:
        """Return its identity in any run: without the numbers that a launcher assigns, and line numbers of files."""
        node = self.node or _number(self.node_rank)
        if self.kind == "gpu":
            name = self.name or ""
            found = _GPU_UUID.search(name) or _BUS_ID.search(name)
            return (self.kind, node, found[0] if found else _number(self.gpu) or name)
        if self.kind == "pair":
            ends = sorted([(node, _number(self.rank)), (self.peer_node or "", _number(self.peer_rank))])
            return (self.kind, *ends[0], *ends[1], self.name or "")
        name = re.sub(r":\d+$", "", self.name or "") if self.kind == "file" else (self.name or "").split(" (")[0]
        return (self.kind, node, _number(self.rank), name)


#: In the name of a culprit, in addition to its index.
_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


class MissingNode(Frozen):
    """A node that did not check in, which is not necessarily at fault. ``node`` is its host name, if known."""

    node: str | None = None  # its host name
    node_rank: int | None = None  # its number in the run


class Evidence(Frozen):
    """An observation that a finding rests on, and what was expected."""

    model_config = ConfigDict(json_schema_extra={"required": ["check", "text"]})

    check: str = ""  # the check that made the observation, by default the rule's own
    text: str  # what was observed
    value: float | None = None  # the measured value, in the unit
    unit: str | None = None  # of both values
    expected: float | None = None  # the expected value, in the unit
    expected_from: str | None = None  # the source of the expected value: a standard, a vendor, its peers


class Setting(Frozen):
    """An environment variable to set or unset, on all nodes or, if a node is given, on that node."""

    name: str  # of the variable
    value: str | None = None  # null to unset it
    action: Literal["set", "unset"] = "set"  # what to do with it
    why: str = ""  # in a few words
    node: str | None = None  # host name of the node
    node_rank: int | None = None  # the node's number in the run


class Proof(Frozen):
    """Whether a fix was tested, and the result of the test."""

    #: The result of trials with and without the fix, if there were any.
    status: Literal["proved", "disproved", "not_tried"] = "not_tried"
    before: str | None = None  # measured without the fix
    after: str | None = None  # measured with the fix
    reason: str | None = None  # why it was not tested, or other results of the trial


class Reproducer(Frozen):
    """The smallest test that shows a fault. A trial of a fix repeats it.

    ``meet``: the ranks form a group and reduce ``size_bytes``, by default one number. ``all_reduce`` and ``exchange``
    (between two ranks) also move ``size_bytes``, and the rates are compared. ``all_reduces`` repeats this, and the
    fastest counts.
    """

    kind: Literal["meet", "all_reduce", "all_reduces", "exchange"]  # what the ranks do in it
    ranks: tuple[int, ...] = ()  # empty: all ranks of the world
    size_bytes: int = 4  # moved in each operation
    healthy_bytes_per_s: float | None = None  # the rate without the fault, if that was measured
    healthy: str = ""  # what reaches that rate: "the other pairs"


class Remedy(Frozen):
    """A fix: settings to export, or commands and text, with its cost and how to undo it.

    The fixes of one finding are alternatives, with the best one to try first.
    """

    summary: str  # what to do, in a sentence
    settings: tuple[Setting, ...] = ()  # environment variables that do it
    commands: tuple[str, ...] = ()  # lines to paste into a shell
    scope: Scope = "job"  # who can apply it: whoever starts the job, runs the node or cluster, or writes the code
    cost: str = ""  # what it costs
    undo: str = ""  # how to undo it
    proof: Proof = Proof()  # whether it was tested in this run, and the result
    references: tuple[str, ...] = ()  # links to its documentation
    conflicts: tuple[str, ...] = ()  # settings that make it useless or harmful
    container: tuple[str, ...] = ()  # options of docker run that apply it, each one word: --shm-size=2g


class Draft(Frozen):
    """The result of a rule, which becomes a finding with the rule's code, name and severity."""

    title: str
    detail: str = ""
    confidence: Confidence = Confidence.LIKELY
    culprits: tuple[Culprit, ...] = ()
    missing: tuple[MissingNode, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    severity: Severity | None = None  # only if it differs from the rule's severity
    reproduced_by: Reproducer | None = None  # the test that a trial of a fix with settings repeats
    nodes: tuple[int, ...] = ()  # node ranks that a finding must name to explain this one


class Finding(Frozen):
    """A fault, with its culprits, evidence and fixes. ``missing`` are nodes that did not check in, at fault or not."""

    code: str  # the rule's, as in `ddp-doctor explain CODE`; never used for another rule
    name: str  # the rule's, such as p2p-stalls-between-gpus
    #: Error: will not start, hangs, is wrong or several times slower; warning: a risk or a loss; info: worth knowing.
    severity: Severity
    title: str  # the fault in one sentence; its wording may change in any release
    detail: str = ""  # more about it, in sentences
    confidence: Confidence  # proved: measured, or tested with and without the fix; likely; possible
    culprits: tuple[Culprit, ...] = ()  # what is faulty; empty if unknown
    missing: tuple[MissingNode, ...] = ()  # nodes that did not check in, at fault or not
    evidence: tuple[Evidence, ...] = ()  # the observations that it rests on
    remedies: tuple[Remedy, ...] = ()  # alternatives, with the best one to try first
    reproduced_by: Reproducer | None = None  # the smallest test that shows the fault
    page: str = ""  # the command that prints the rule's page, such as ddp-doctor explain DD401

    @property
    def is_certain_error(self) -> bool:
        """Return True for an error that is more than possible. Only such an error makes a run unhealthy."""
        return self.severity is Severity.ERROR and self.confidence is not Confidence.POSSIBLE

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def fingerprint(self) -> str:
        """An id of 16 hexadecimal digits that is equal for the same fault and culprits in any run, with any wording."""
        text = json.dumps([self.code, *self._identity()])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _identity(self) -> list[list[str]]:
        who = {culprit.identity() for culprit in self.culprits}
        missing = {("missing", node.node or _number(node.node_rank)) for node in self.missing}
        return [list(each) for each in sorted(who | missing)]
