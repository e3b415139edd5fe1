"""Versions: nodes that start their ranks from different software."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.cluster.consistency.differences import Difference, difference_draft, together
from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views.software import with_the_right_nccl
from ddp_doctor.wording.differences import hosts, odd_values, others, split, told
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital


@rule("DD550", "nodes-run-different-versions", Severity.WARNING, ConsistencyFact)
def different_versions(recording: Recording) -> Iterator[Draft]:
    """Nodes that run other versions of torch, NCCL, CUDA, the driver, Python or ddp-doctor.

    What it finds
        The nodes that differ from most, with all that is different on them; two nodes, or two halves, are
        told apart without blaming one. Of NCCL the nodes that DD205 leaves alone. An error where NCCL differs
        and the job uses it; information where only patch releases of Python or of the driver differ, or what
        gloo does not use.

    Why it matters
        NCCL compares versions when it starts and refuses the whole job ("Mismatched NCCL version detected").
        Nobody tests torch against another torch; what differs shows as a hang, or not at all.

    Remedy
        Start all nodes from the same image or environment.

    References
        NCCL src/init.cc, initTransportsRank
    """
    for group in together(_versions(recording)):
        parts = group[0].split
        if parts.usual is None:
            names = name_list([one.name for one in group])
            title = f"The nodes run different versions of {names}: {told(recording, parts)}"
        else:
            here = name_list([f"{one.name} {odd_values(one.split)}" for one in group])
            there = name_list([f"{one.name} {one.split.usual}" for one in group])
            title = f"{_run(hosts(recording, parts.few), parts.few)} {here} where"
            title += f" {others(parts)} {'runs' if parts.many == 1 else 'run'} {there}"
        detail = f"{capital(group[0].effect)}."
        yield difference_draft(recording, group, title, detail, _SAME_IMAGE)


def _run(hosts: str, nodes: Sequence[int]) -> str:
    return f"{hosts} {'runs' if len(nodes) == 1 else 'run'}"


_SAME_IMAGE = remedy(
    "Start all nodes from the same image, module or virtual environment",
    "python -m torch.utils.collect_env",
    cost="the odd node is out of the job until it has the same software",
    undo=NOTHING_TO_UNDO,
)


#: More numbers than a version has: all of it is compared.
_ALL = 9


@dataclass(frozen=True)
class _Component:
    """A part of the software, and how much it matters where nodes differ in it.

    Where only numbers beyond the first ``series`` differ, it is information.
    """

    name: str
    tell: Callable[[Software], str | None]
    severity: Severity
    effect: str
    source: str
    series: int = _ALL

    def difference(self, software: Mapping[int, Software]) -> Difference[int] | None:
        """How the nodes differ, of those on which it is known."""
        told = {node: version for node, fact in software.items() if (version := self.tell(fact))}
        found = split({node: (version, version) for node, version in told.items()})
        if found is None:
            return None
        one_series = (
            self.series < _ALL and len({release(version)[: self.series] for version in told.values()}) == 1
        )
        severity = Severity.INFO if one_series else self.severity
        return Difference(self.name, found, severity, self.effect, self.source)


def _components(*, on_nccl: bool) -> tuple[_Component, ...]:
    nccl, cuda = (Severity.ERROR, Severity.WARNING) if on_nccl else (Severity.INFO, Severity.INFO)
    refuses = (
        "NCCL refuses peers of another version" if on_nccl else "gloo, which this run uses, does without NCCL"
    )
    untested = "nobody tests torch with another torch"
    kernels, features = "the ranks compute with different kernels", "drivers differ in features and in faults"
    pickles, driver = "packages and pickled objects may differ", "/proc/driver/nvidia/version"
    return (
        _Component("NCCL", lambda fact: fact.nccl_loaded, nccl, refuses, "NCCL src/init.cc"),
        _Component("torch", lambda fact: fact.torch_version, Severity.WARNING, untested, "torch/version.py"),
        _Component("torch's CUDA", lambda fact: fact.torch_cuda, cuda, kernels, "torch/version.py"),
        _Component("the NVIDIA driver", lambda fact: fact.driver, cuda, features, driver, series=1),
        _Component("Python", lambda fact: fact.python, Severity.WARNING, pickles, "sys.version", series=2),
    )


def _versions(recording: Recording) -> Iterator[Difference[int]]:
    software = {seen.node: seen.fact for seen in recording.facts(Software)}
    on_nccl = recording.world is not None and recording.world.backend == "nccl"
    for component in _components(on_nccl=on_nccl):
        compared = with_the_right_nccl(recording) if component.name == "NCCL" else software
        difference = component.difference(compared)
        if difference is not None:
            yield difference
    doctors = {seen.node: seen.fact.tool_version for seen in recording.facts(ConsistencyFact)}
    found = split({node: (version, version) for node, version in doctors.items()})
    if found is not None:
        effect = "doctors of different versions may measure differently"
        yield Difference("ddp-doctor", found, Severity.WARNING, effect, "each doctor's own word")
