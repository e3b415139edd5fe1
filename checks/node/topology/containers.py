"""DD438: containers of one machine that NCCL takes for several hosts."""

import re
from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.topology import transport_wording
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.links_between_nodes import Crossing, crossings, nodes_that_say
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import name_list, of_nodes
from ddp_doctor.wording.ranks import ranks_at

_NETWORK = re.compile(r" via NET/")


@rule("DD438", "containers-of-one-machine-use-the-network", Severity.WARNING, InterfacesFact)
def one_machine(recording: Recording) -> Iterator[Draft]:
    """Two nodes of the run are containers of one machine, and NCCL joins their GPUs over the network.

    What it finds
        Nodes that run on one booted kernel and have different host names or /dev/shm of their own, and whose
        ranks NCCL's log joins by NET.

    Why it matters
        NCCL copies directly, over NVLink too, or through shared memory within what it takes for one host
        alone. Here GPUs of one machine talk as if they were in different buildings.

    Remedy
        One container for all ranks of the machine; or one host name and one /dev/shm for all its containers.

    References
        NCCL src/misc/utils.cc, getHostHash: host name and boot id, or NCCL_HOSTID
        NCCL src/init.cc, fillInfo: the device of /dev/shm; src/transport/shm.cc, shmCanConnect
        NCCL user guide, Troubleshooting, Sharing Data: /dev/shm and containers
    """
    machines: dict[str, list[FactAt[InterfacesFact]]] = {}
    for seen in recording.facts(InterfacesFact):
        if seen.fact.host_id:
            machines.setdefault(seen.fact.host_id.partition(" ")[0], []).append(seen)
    shared = [group for group in machines.values() if len(group) > 1]
    speaking = set(nodes_that_say(recording, _NETWORK)) if shared else set()
    for group in shared:
        here = {seen.node for seen in group}
        found = [
            one for node in sorted(here & speaking) for one in crossings(recording, node) if one.other in here
        ]
        if found:
            yield _draft(recording, group, found)


def _draft(recording: Recording, group: Sequence[FactAt[InterfacesFact]], found: Sequence[Crossing]) -> Draft:
    apart = [reason for reason in (_by_name(group), _by_memory(recording, group)) if reason]
    why = name_list(apart) if apart else "host name and /dev/shm, as far as they were read, are the same"
    return likely(
        of_nodes(recording, group),
        "{who} are containers of one machine, and NCCL joins their GPUs over the network",
        (
            Evidence(check="interfaces", text="they have one boot id"),
            *(
                Evidence(text=f"NCCL's log: {ranks_at(recording, one.ranks)} via {one.transport.via}")
                for one in found[: transport_wording.MOST_PAIRS]
            ),
        ),
        transport_wording.ONE_HOST_ID,
        detail=f"NCCL takes them for different hosts: {why}.",
    )


def _by_name(group: Sequence[FactAt[InterfacesFact]]) -> str | None:
    names = list(dict.fromkeys(seen.fact.hostname for seen in group))
    return f"their host names differ ({name_list(names)})" if len(names) > 1 else None


def _by_memory(recording: Recording, group: Sequence[FactAt[InterfacesFact]]) -> str | None:
    """Ranks of one node are the agent's children and see one /dev/shm; only nodes can differ in it."""
    here = {seen.node for seen in group}
    devices = {one.fact.shm_device for one in recording.facts(Host) if one.node in here} - {None}
    return "each has a /dev/shm of its own" if len(devices) > 1 else None
