"""DD404, DD405, DD414-DD416: a topology that is unclear, contradicted, not understood, missing, or of other GPUs."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from ddp_doctor.checks.node.topology.wording import culprit, hosts_of
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.topology import RocmTopologyFact, TopologyFact, TopologyHangFact
from ddp_doctor.model.choices import Command, Consequence, Severity, Status
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.pci import link_code
from ddp_doctor.remedies.hardware import REBOOT
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause, first_names, node_culprits, of_nodes


@rule("DD404", "topology-partly-unclear", Consequence.KNOWN, TopologyFact)
def topology_partly_unclear(recording: Recording) -> Iterator[Draft]:
    """Part of the matrix contradicts itself or was not used.

    Finds: Reports two rows that disagree about one pair, a NIC whose name in the legend is garbled, missing or not a
        device name, rows that are cut, duplicated or missing, affinity cells that cannot be separated, and CPU lists
        that no machine has. If links are therefore unknown, the verdict is unsure.
    Why: Advice depends on this matrix. There is none for a pair whose rows disagree or whose link no row gives. A NIC
        without a valid name is never used in a setting.
    Remedy: If one GPU has MIG enabled, rows disagree, which is normal. With 40 or more NICs, nvidia-smi garbles its own
        legend. In all other cases, paste the complete output again.
    See: nvidia-smi topo -m; nvidia-smi --query-gpu=index,mig.mode.current --format=csv
    """
    for warnings, group in by_cause(recording.facts(TopologyFact), lambda fact: fact.warnings or None).items():
        what = f": {warnings[0]}" if len(warnings) == 1 else f", for {len(warnings)} reasons"
        yield proved(
            node_culprits(recording, group) if recording.world else (),
            f"Part of the GPU topology of {hosts_of(recording, group)} is unclear{what}",
            (Evidence(text=text) for text in (warnings if len(warnings) > 1 else ())),
            detail="What is unclear was left out; the rest was checked.",
        )


@rule("DD405", "topology-not-understood", Consequence.RISK)
def topology_not_understood(recording: Recording) -> Iterator[Draft]:
    """The pasted text, or a part of it, cannot be read with certainty.

    Finds: Reports text that contains no output of ``nvidia-smi topo -m``, ``topo -p2p``, ``nvlink -s`` or similar
        commands, and output that is interrupted, garbled or in an unknown format, so that a link may be misread. The
        finding gives the reason and the line. Complete parts are still read, and also the available links of a matrix
        that is cut off (DD404).
    Why: Advice from a misread matrix would be worse than none, so nothing is guessed.
    Remedy: Save the output with ``nvidia-smi topo -m > topo.txt`` instead of copying it from a window.
    See: nvidia-smi topo --help
    """
    if recording.command is not Command.TOPOLOGY:
        return  # a live nvidia-smi that fails gives a reading without a fact, which the report shows
    for reading in recording.of_check("topology"):
        if reading.status is Status.FAILED and reading.fact is None:
            yield proved(
                NOBODY,
                f"The topology was not understood: {reading.reason}",
                (),
                remedy("Save all of the output", "nvidia-smi topo -m > topo.txt", scope="job"),
                detail="Nothing is concluded from a matrix that may be misread.",
            )


@rule("DD414", "amd-gpus-not-supported", Consequence.KNOWN)
def amd_gpus_not_supported(recording: Recording) -> Iterator[Draft]:
    """The topology of AMD GPUs is not evaluated yet.

    Finds: Reports output of ``rocm-smi --showtopo`` or parts of it, or a topology file of RCCL.
    Why: RCCL has its own rules for choosing paths. The verdict is unsure: the absence of findings means nothing for
        this machine.
    Remedy: Measure with rccl-tests. ``rocm-smi --showtopoaccess`` shows which GPUs reach each other directly.
    See: ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py; ROCm/rccl-tests
    """
    for node in recording.facts(RocmTopologyFact):
        fact = node.fact
        counts = Counter(row[peer] for gpu, row in fact.link_type.items() for peer in row if gpu < peer)
        links = ", ".join(
            f"{number} {'pair' if number == 1 else 'pairs'} over {kind}" for kind, number in counts.items()
        )
        nodes = len(set(fact.numa_node.values()))
        contents = [links] * bool(links) + [f"{nodes} NUMA nodes"] * bool(nodes)
        yield proved(
            NOBODY,
            f"AMD GPUs are not supported yet: the topology of these {len(fact.gpus)} was read, but not checked",
            (Evidence(text=text) for text in contents),
            detail="So the verdict is unsure, whatever else the text holds.",
        )


_BELOW_ONE_BRIDGE = ("PIX", "PXB")
_PAIRS_IN_A_TITLE = 4


@rule("DD415", "driver-and-sysfs-disagree", Consequence.KNOWN, TopologyFact)
def driver_and_sysfs_disagree(recording: Recording) -> Iterator[Draft]:
    """The driver and /sys place two GPUs differently.

    Finds: Reports two GPUs that share a PCIe switch according to the driver (PIX or PXB) but not according to the tree
        in /sys, or the opposite. Whether a path crosses one host bridge or several is not compared, because the driver
        and the kernel count them differently on many healthy machines.
    Why: NCCL uses /sys, people use nvidia-smi. This occurs on virtual machines, whose bus is artificial. NCCL then
        considers short paths long, or allows P2P where it is slow.
    Remedy: Providers of such machines supply a file for NCCL_TOPO_FILE that describes the real topology.
    See: NCCL src/graph/xml.cc, ncclTopoGetXmlFromSys
        NVML API reference, nvmlDeviceGetTopologyCommonAncestor
    """
    for pairs, group in by_cause(recording.facts(TopologyFact), _disagreements).items():
        shown = [f"{gpu}-{peer} ({driver} and {tree})" for gpu, peer, driver, tree in pairs]
        yield proved(
            (culprit(recording, node.node, (gpu, peer)) for node in group for gpu, peer, _, _ in pairs),
            f"The driver and /sys disagree on how GPUs of {hosts_of(recording, group)} are connected:"
            f" {first_names(shown, _PAIRS_IN_A_TITLE)}",
            (
                Evidence(text=f"{gpu}-{peer} is {driver} to the driver, {tree} in /sys")
                for gpu, peer, driver, tree in pairs
            ),
            remedy(
                "On a virtual machine, give NCCL the topology file that the provider ships for this type of machine",
                scope="job",
                cost="a file from another type of machine misleads NCCL",
                undo="unset NCCL_TOPO_FILE",
                untried="the recording has no trial with such a file",
                references=(
                    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file",
                    "NVIDIA/nccl issue 1298: 8 A10G of one virtual machine",
                ),
            ),
            detail="The first code of each pair is the driver's, the second that of /sys, which NCCL goes by.",
        )


def _disagreements(fact: TopologyFact) -> tuple[tuple[str, str, str, str], ...] | None:
    gpus = [device for device in fact.pci if device.kind == "gpu"]
    found = []
    for gpu, peer in combinations(gpus, 2):
        driver, tree = fact.pci_links.get(gpu.name, {}).get(peer.name), link_code(gpu, peer)
        if driver and (driver in _BELOW_ONE_BRIDGE) != (tree in _BELOW_ONE_BRIDGE):
            found.append((gpu.name, peer.name, driver, tree))
    return tuple(found) or None


@rule("DD416", "topology-never-answered", Consequence.HANGS, TopologyHangFact)
def topology_never_answered(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA driver does not answer a query of the topology.

    Finds: Reports an NVML call about the paths between GPUs, or ``nvidia-smi topo -m`` if NVML was not available, that
        did not return within 10 s plus 5 s per GPU. Not reported if the driver hangs entirely (DD302).
    Why: NCCL makes the same query when a job starts, and hangs in the same call.
    Remedy: Check for Xids and processes in state D, then reboot the node.
    See: NCCL src/misc/nvmlwrap.cc, ncclNvmlEnsureInitialized: it asks for the P2P status of all pairs
        NVIDIA Xid catalog (79, 119, 120)
    """
    for call, group in by_cause(recording.facts(TopologyHangFact), _call).items():
        hung = {node.node for node in recording.facts(GpusFact) if node.fact.driver_hangs}
        nodes = [node for node in group if node.node not in hung]
        if not nodes:
            continue
        waited = nodes[0].fact.waited_s
        yield likely(
            of_nodes(recording, nodes),
            f"The NVIDIA driver on {{who}} never answers when asked for the GPU topology ({call})",
            Evidence(
                text=f"{call} had not come back after {waited:.1f} s",
                value=waited,
                unit="s",
                expected_from="NVML answers in a second, without persistence mode in some seconds per GPU",
            ),
            REBOOT,
            detail="NCCL asks the same when a job starts, and would hang there. The program that asked was killed.",
            severity=asked_for(recording, Severity.ERROR),
        )


def _call(fact: TopologyHangFact) -> str:
    return fact.call if fact.gpu is None else f"{fact.call} of GPU {fact.gpu}"
