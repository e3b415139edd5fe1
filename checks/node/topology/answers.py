"""DD415, DD416: what the driver says of the topology against /sys, and a driver that does not say it."""

from collections.abc import Iterator

from ddp_doctor.checks.node.topology.culprits import culprit, hosts_of
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.topology import TopologyFact, TopologyHangFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.pci_tree import link_code
from ddp_doctor.remedies.gpus import REBOOT
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause, of_nodes

_BELOW_ONE_BRIDGE = ("PIX", "PXB")
_PAIRS_IN_A_TITLE = 4

_VENDORS_FILE = remedy(
    "On a virtual machine, give NCCL the topology file that the provider ships for this type of machine",
    scope="job",
    cost="a file of another type of machine misleads NCCL: use it for this type only",
    undo="unset NCCL_TOPO_FILE",
    untried="no trial with such a file was recorded",
    references=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file",
        "NVIDIA/nccl issue 1298: 8 A10G of one virtual machine",
    ),
)


@rule("DD415", "driver-and-sysfs-disagree", Severity.INFO, TopologyFact)
def driver_and_sysfs_disagree(recording: Recording) -> Iterator[Draft]:
    """The driver and /sys place two GPUs differently.

    What it finds
        Two GPUs that share a PCIe switch by the driver's word (PIX or PXB) and not by the tree in /sys, or the
        other way round. Whether a way leads through one host bridge or several is not compared: the driver
        and the kernel count those differently on many machines in order.

    Why it matters
        NCCL goes by /sys, people by nvidia-smi. It happens on virtual machines, whose bus is made up; NCCL
        then takes ways for long that are short, or lets P2P go where it is slow.

    Remedy
        Providers of such machines ship a file for NCCL_TOPO_FILE that says how the GPUs stand in truth.

    References
        NCCL src/graph/xml.cc, ncclTopoGetXmlFromSys
        NVML API reference, nvmlDeviceGetTopologyCommonAncestor
    """
    for pairs, group in by_cause(recording.facts(TopologyFact), _disagreements).items():
        shown = ", ".join(
            f"{one}-{two} ({driver} and {tree})" for one, two, driver, tree in pairs[:_PAIRS_IN_A_TITLE]
        )
        more = f" and {len(pairs) - _PAIRS_IN_A_TITLE} more" if len(pairs) > _PAIRS_IN_A_TITLE else ""
        yield proved(
            (culprit(recording, seen.node, (one, two)) for seen in group for one, two, _, _ in pairs),
            f"The driver and /sys place GPUs of {hosts_of(recording, group)} differently: {shown}{more}",
            (
                Evidence(text=f"{one}-{two} is {driver} to the driver, {tree} in /sys")
                for one, two, driver, tree in pairs
            ),
            _VENDORS_FILE,
            detail="The first code is the driver's. NCCL goes by /sys.",
        )


def _disagreements(fact: TopologyFact) -> tuple[tuple[str, str, str, str], ...] | None:
    gpus = [device for device in fact.pci if device.kind == "gpu"]
    found = []
    for at, one in enumerate(gpus):
        for two in gpus[at + 1 :]:
            driver, tree = fact.pci_links.get(one.name, {}).get(two.name), link_code(one, two)
            if driver and (driver in _BELOW_ONE_BRIDGE) != (tree in _BELOW_ONE_BRIDGE):
                found.append((one.name, two.name, driver, tree))
    return tuple(found) or None


@rule("DD416", "topology-never-answered", Severity.ERROR, TopologyHangFact)
def topology_never_answered(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA driver does not answer when it is asked for the topology.

    What it finds
        A call of NVML about the ways between GPUs, or ``nvidia-smi topo -m`` where NVML could not be asked,
        that had not come back after 10 s and 5 s more per GPU. Silent where the driver hangs altogether,
        which DD302 says.

    Why it matters
        NCCL asks the same when a job starts, and hangs in the same call.

    Remedy
        Look for Xids and processes in state D, then reboot the node.

    References
        NCCL src/misc/nvmlwrap.cc, ncclNvmlEnsureInitialized: it asks for the P2P status of all pairs
        NVIDIA Xid catalog (79, 119, 120)
    """
    for call, group in by_cause(recording.facts(TopologyHangFact), _call).items():
        hung = {seen.node for seen in recording.facts(GpusFact) if _hangs(seen.fact)}
        seen = [one for one in group if one.node not in hung]
        if not seen:
            continue
        waited = seen[0].fact.waited_s
        yield likely(
            of_nodes(recording, seen),
            f"{call} never answers on {{who}}",
            Evidence(
                text=f"{call} had not come back after {waited:.1f} s",
                value=waited,
                unit="s",
                expected_from="NVML answers in a second, without persistence mode in some seconds per GPU",
            ),
            REBOOT,
            detail="What asked was killed. NCCL asks the driver the same when a job starts.",
            severity=asked_for(recording, Severity.ERROR),
        )


def _call(fact: TopologyHangFact) -> str:
    return fact.call if fact.gpu is None else f"{fact.call} of GPU {fact.gpu}"


def _hangs(fact: GpusFact) -> bool:
    return fact.nvml_error is not None and fact.nvml_error.code == "timed_out"
