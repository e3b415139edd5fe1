"""Findings: the opinion of a rule, with culprits, evidence and remedies."""

import hashlib
import json
import re
from typing import Literal

from pydantic import ConfigDict, computed_field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Confidence, Severity

CulpritKind = Literal["node", "rank", "gpu", "nic", "pair", "setting", "file"]
#: Who can carry a remedy out: whoever starts the job, runs the node or the cluster, or writes the code.
Scope = Literal["job", "node", "cluster", "code"]


class Culprit(Frozen):
    """Who is to blame. ``name`` is a variable, file, interface or link, as the kind says."""

    kind: CulpritKind  # what is to blame
    node: str | None = None  # the host name
    node_rank: int | None = None  # the node's number in the run
    rank: int | None = None  # its number in the world
    gpu: int | None = None  # the driver's number of it on its node
    peer_node: str | None = None  # of a pair: the host at the other end
    peer_rank: int | None = None  # of a pair: the rank at the other end
    name: str | None = None  # the variable, file, interface, link or GPU

    def identity(self) -> tuple[str, ...]:
        """Who it is, in any run: without the numbers that a launcher gives out anew, and lines of a file that move."""
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


#: In the name of a culprit, beside its index.
_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


class MissingNode(Frozen):
    """A node that did not come, which is no reason to blame it. ``node`` is its host name, where that is known."""

    node: str | None = None  # its host name
    node_rank: int | None = None  # its number in the run


class Evidence(Frozen):
    """One observation that a finding rests on, and what was expected instead."""

    model_config = ConfigDict(json_schema_extra={"required": ["check", "text"]})

    check: str = ""  # a rule names it only where it is another than its own: Rule.apply fills that in
    text: str  # what was seen
    value: float | None = None  # what was measured, in the unit
    unit: str | None = None  # of both values
    expected: float | None = None  # what it should have been, in the unit
    expected_from: str | None = None  # who says so: a standard, a vendor, its peers


class Setting(Frozen):
    """One environment variable to set or unset, on all nodes or, where a node is named, on that one."""

    name: str  # of the variable
    value: str | None = None  # null where it is to be unset
    action: Literal["set", "unset"] = "set"  # what to do with it
    why: str = ""  # in a few words
    node: str | None = None  # its host name
    node_rank: int | None = None  # the node's number in the run


class Proof(Frozen):
    """Whether a remedy was tried, and what the trial measured."""

    #: What trials with it and without it showed, where there were any.
    status: Literal["proved", "disproved", "not_tried"] = "not_tried"
    before: str | None = None  # measured without the remedy
    after: str | None = None  # measured with it
    reason: str | None = None  # why it was not tried, or what else the trial showed


class Reproducer(Frozen):
    """The smallest test that shows a fault; a trial of a remedy repeats it.

    ``meet``: the ranks form a group and reduce ``size_bytes``, which is one number unless more is at stake.
    ``all_reduce`` and ``exchange`` (between two ranks) move ``size_bytes`` as well, and how fast is compared;
    ``all_reduces`` does so again and again, and the fastest counts.
    """

    kind: Literal["meet", "all_reduce", "all_reduces", "exchange"]  # what the ranks do in it
    ranks: tuple[int, ...] = ()  # empty: all of the world
    size_bytes: int = 4  # moved in each operation
    healthy_bytes_per_s: float | None = None  # what those without the fault reach, where that was measured
    healthy: str = ""  # who they are: "the other pairs"


class Remedy(Frozen):
    """What fixes it: settings to export, or commands and words, with the price and the way back.

    The remedies of one finding are alternatives, the one to try first in front.
    """

    summary: str  # what to do, in a sentence
    settings: tuple[Setting, ...] = ()  # environment variables that do it
    commands: tuple[str, ...] = ()  # lines to paste into a shell
    scope: Scope = "job"  # whose it is: who starts the job, runs the node or cluster, or writes the code
    cost: str = ""  # what is lost by it
    undo: str = ""  # the way back
    proof: Proof = Proof()  # whether it was tried here, and with what result
    references: tuple[str, ...] = ()  # where it is documented
    conflicts: tuple[str, ...] = ()  # settings beside which it does nothing, or harm
    container: tuple[str, ...] = ()  # options of docker run that do it, each one word: --shm-size=2g


class Draft(Frozen):
    """What a rule yields; the rule's code, name and severity complete it to a finding."""

    title: str
    detail: str = ""
    confidence: Confidence = Confidence.LIKELY
    culprits: tuple[Culprit, ...] = ()
    missing: tuple[MissingNode, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    severity: Severity | None = None  # only where it differs from the rule's own
    reproduced_by: Reproducer | None = None  # what a trial of a remedy made of settings repeats
    nodes: tuple[int, ...] = ()  # node ranks that a finding which explains this one must name


class Finding(Frozen):
    """A fault, its culprits, the evidence and what fixes it; ``missing`` are nodes that did not come, guilty or not."""

    code: str  # the rule's, as in `ddp-doctor explain CODE`; never used for another rule
    name: str  # the rule's in words: p2p-stalls-between-gpus
    #: Error: will not start, hangs, is wrong or several times slower; warning: a risk or a loss; info: worth knowing.
    severity: Severity
    title: str  # the fault in one sentence; its words may change in any release
    detail: str = ""  # more of it, in sentences
    confidence: Confidence  # proved: measured, or tried with and without; likely; possible
    culprits: tuple[Culprit, ...] = ()  # who or what is to blame; empty where that is not known
    missing: tuple[MissingNode, ...] = ()  # nodes that did not come, guilty or not
    evidence: tuple[Evidence, ...] = ()  # what it rests on
    remedies: tuple[Remedy, ...] = ()  # alternatives, the one to try first in front
    reproduced_by: Reproducer | None = None  # the smallest test that shows it
    page: str = ""  # the command that prints the rule's page, such as ddp-doctor explain DD401

    @property
    def is_certain_error(self) -> bool:
        """Whether it is an error, and more than possible: it alone makes a run unhealthy."""
        return self.severity is Severity.ERROR and self.confidence is not Confidence.POSSIBLE

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def fingerprint(self) -> str:
        """The same for the same fault of the same culprits, in any run and in whatever words; 16 hexadecimal digits."""
        text = json.dumps([self.code, *self._identity()])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _identity(self) -> list[list[str]]:
        who = {culprit.identity() for culprit in self.culprits}
        missing = {("missing", node.node or _number(node.node_rank)) for node in self.missing}
        return [list(each) for each in sorted(who | missing)]
