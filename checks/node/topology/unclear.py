"""DD404, DD405, DD414: a topology that is unclear in part, not understood, or of other GPUs."""

from collections import Counter
from collections.abc import Iterator

from ddp_doctor.checks.node.topology.culprits import hosts_of
from ddp_doctor.facts.node.topology import RocmTopologyFact, TopologyFact
from ddp_doctor.model.choices import Confidence, Severity, Status
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import NOBODY, proved
from ddp_doctor.wording.nodes import by_cause, node_culprits


@rule("DD404", "topology-partly-unclear", Severity.INFO, TopologyFact)
def topology_partly_unclear(recording: Recording) -> Iterator[Draft]:
    """Part of the matrix contradicts itself or was not taken over.

    What it finds
        Two rows that disagree about one pair, a NIC whose name in the legend is garbled, missing or no
        device name, a row that appears twice or not at all, CPU lists that no machine has.

    Why it matters
        Advice rests on this matrix. A pair whose rows disagree gets none, and a NIC without a proper
        name is never put into a setting.

    Remedy
        Rows disagree where one GPU has MIG enabled, which is in order. nvidia-smi garbles its own
        legend with 40 NICs and more. For anything else, paste the output again, whole.

    References
        nvidia-smi topo -m; nvidia-smi -q -d MIG
    """
    for warnings, group in by_cause(
        recording.facts(TopologyFact), lambda fact: fact.warnings or None
    ).items():
        yield proved(
            node_culprits(recording, group) if recording.world else (),
            f"Part of the GPU topology of {hosts_of(recording, group)} is unclear: {warnings[0]}",
            (Evidence(text=text) for text in warnings),
            detail="What contradicts itself or has no usable name counts for nothing.",
        )


@rule("DD405", "topology-not-understood", Severity.WARNING)
def topology_not_understood(recording: Recording) -> Iterator[Draft]:
    """The pasted text, or a part of it, cannot be read with certainty.

    What it finds
        Text that holds no output of ``nvidia-smi topo -m``, ``topo -p2p``, ``nvlink -s`` or their like,
        or one that is cut off, interrupted, garbled, or of a format that is not known. The reason and
        the line are named; what is whole beside it is read.

    Why it matters
        Advice from a misread matrix would be worse than none, so nothing is guessed.

    Remedy
        Save the output with ``nvidia-smi topo -m > topo.txt`` instead of copying it from a window.

    References
        nvidia-smi topo --help
    """
    if recording.options.command != "topology":
        return  # a live nvidia-smi that fails is a reading without a fact, and the report says so
    for reading in recording.of_check("topology"):
        if reading.status is Status.FAILED and reading.fact is None:
            yield Draft(
                title=f"The topology was not understood: {reading.reason}",
                detail="Nothing is concluded from a matrix that may be misread.",
                confidence=Confidence.PROVED,
                remedies=(remedy("Save the whole output", "nvidia-smi topo -m > topo.txt", scope="job"),),
            )


@rule("DD414", "amd-gpus-not-supported", Severity.INFO)
def amd_not_supported(recording: Recording) -> Iterator[Draft]:
    """The topology of AMD GPUs, from which nothing is concluded yet.

    What it finds
        The output of ``rocm-smi --showtopo`` or of its parts, or a topology file of RCCL.

    Why it matters
        RCCL chooses its paths by rules of its own. The verdict is unsure: that nothing was found says
        nothing about this machine.

    Remedy
        Measure with rccl-tests; ``rocm-smi --showtopoaccess`` tells which GPUs reach each other directly.

    References
        ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py; ROCm/rccl-tests
    """
    for seen in recording.facts(RocmTopologyFact):
        fact = seen.fact
        counts = Counter(row[two] for one, row in fact.link_type.items() for two in row if one < two)
        links = ", ".join(
            f"{number} {'pair' if number == 1 else 'pairs'} over {kind}" for kind, number in counts.items()
        )
        nodes = len(set(fact.numa_node.values()))
        told = [links] * bool(links) + [f"{nodes} NUMA nodes"] * bool(nodes)
        yield proved(
            NOBODY,
            f"AMD GPUs are not supported yet: the topology of {len(fact.gpus)} was read, not judged",
            (Evidence(text=text) for text in told),
            detail="The verdict is unsure, whatever else stands in the text.",
        )
