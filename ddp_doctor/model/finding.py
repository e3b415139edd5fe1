"""Findings: the opinion of a rule, with culprits, evidence and remedies."""

from typing import Literal

from pydantic import ConfigDict

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Confidence, Severity

CulpritKind = Literal["node", "rank", "gpu", "nic", "pair", "setting", "file"]
#: Who can carry a remedy out: whoever starts the job, runs the node or the cluster, or writes the code.
Scope = Literal["job", "node", "cluster", "code"]

#: The way back from a remedy that changes nothing.
NOTHING_TO_UNDO = "nothing to undo"


class Culprit(Frozen):
    """Who is to blame. ``name`` is a variable, file, interface or link, as the kind says."""

    kind: CulpritKind
    node: str | None = None
    node_rank: int | None = None
    rank: int | None = None
    gpu: int | None = None
    peer_node: str | None = None
    peer_rank: int | None = None
    name: str | None = None


class MissingNode(Frozen):
    """A node that did not come, which is no reason to blame it. ``node`` is its host name, where that is known."""

    node: str | None = None
    node_rank: int | None = None


class Evidence(Frozen):
    """One observation that a finding rests on, and what was expected instead."""

    model_config = ConfigDict(json_schema_extra={"required": ["check", "text"]})

    check: str = ""  # a rule names it only where it is another than its own: Rule.apply fills that in
    text: str
    value: float | None = None
    unit: str | None = None
    expected: float | None = None
    expected_from: str | None = None


class Setting(Frozen):
    """One environment variable to set or unset, on all nodes or, where a node is named, on that one."""

    name: str
    value: str | None = None
    action: Literal["set", "unset"] = "set"
    why: str = ""
    node: str | None = None  # its host name
    node_rank: int | None = None


class Proof(Frozen):
    """Whether a remedy was tried, and what the trial measured."""

    status: Literal["proved", "disproved", "not_tried"] = "not_tried"
    before: str | None = None
    after: str | None = None
    reason: str | None = None


class Reproducer(Frozen):
    """The smallest test that shows a fault; a trial of a remedy repeats it.

    ``meet``: the ranks form a group and reduce one number. ``all_reduce`` and ``exchange`` (between two
    ranks) move ``size_bytes`` as well, and how fast is compared.
    """

    kind: Literal["meet", "all_reduce", "exchange"]
    ranks: tuple[int, ...] = ()  # empty: all of the world
    size_bytes: int = 4
    healthy_bytes_per_s: float | None = None  # what those without the fault reach, where that was measured
    healthy: str = ""  # who they are: "the other pairs"


class Remedy(Frozen):
    """What fixes it: settings to export, or commands and words, with the price and the way back.

    The remedies of one finding are alternatives, the one to try first in front.
    """

    summary: str
    settings: tuple[Setting, ...] = ()
    commands: tuple[str, ...] = ()
    scope: Scope = "job"
    cost: str = ""
    undo: str = ""
    proof: Proof = Proof()
    references: tuple[str, ...] = ()
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

    code: str
    name: str
    severity: Severity
    title: str
    detail: str = ""
    confidence: Confidence
    culprits: tuple[Culprit, ...] = ()
    missing: tuple[MissingNode, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    reproduced_by: Reproducer | None = None
