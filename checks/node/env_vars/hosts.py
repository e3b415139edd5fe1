"""DD109, DD134: settings whose value must fit the host: a file that is missing, one identity on several hosts."""

from collections.abc import Iterator

from ddp_doctor.checks.node.env_vars.in_force import InForce, rule_of_nodes, setting_draft
from ddp_doctor.facts.node.env_vars import EnvVars, SettingText
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Command, Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import unset
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.nodes import hosts

#: Variables that name a file for NCCL, and the effect if the file is missing (NCCL 2.30.7 src/graph/xml.cc,
#: ncclTopoGetXmlFromFile and ncclTopoGetXmlGraphFromFile).
FILES = {
    "NCCL_TOPO_FILE": "NCCL ignores it and detects the topology itself; only NCCL_DEBUG=INFO shows this.",
    "NCCL_GRAPH_FILE": "NCCL stops with a system error when a communicator is made.",
}
_FAILS = "NCCL_GRAPH_FILE"
_HOST_ID = "NCCL_HOSTID"


@rule_of_nodes("DD109", "setting-names-unreadable-file", Consequence.RISK)
def setting_names_unreadable_file(node: InForce) -> Iterator[Draft]:
    """A file that NCCL should read is missing or unreadable.

    Finds: NCCL_TOPO_FILE or NCCL_GRAPH_FILE with the name of a file that this user cannot read on this host. An
        error for NCCL_GRAPH_FILE in an NCCL job; information if the job does not use NCCL.
    Why: Without its topology file, NCCL uses the PCIe tree that a virtual machine shows, and is often slower.
        Without a graph file, it stops.
    Remedy: Copy the file to all nodes, mount it into the container, or unset the variable.
    See: NCCL src/graph/xml.cc, ncclTopoGetXmlFromFile; NCCL user guide, environment variable NCCL_TOPO_FILE
    """
    for name, why in node.seen.fact.unreadable.items():
        here = node.recording.command is not Command.ENV  # it may run on another host than the job
        unread = here and node.backend == "gloo"
        stops = here and name == _FAILS
        yield setting_draft(
            (name,),
            f"{shown(name, node.env.get(name, ''))} cannot be read: {why}",
            f"{node.listed([name])}: {why}",
            "NCCL src/graph/xml.cc",
            node.without([name], "the file cannot be read", f"Make the file readable on this host, or unset {name}"),
            detail=FILES[name],
            severity=Severity.INFO if unread else Severity.ERROR if stops else None,
        )


@rule("DD134", "host-id-shared-by-nodes", Consequence.FAILS, EnvVars)
def host_id_shared_by_nodes(recording: Recording) -> Iterator[Draft]:
    """Several nodes have the same NCCL_HOSTID, so NCCL treats them as one host.

    Finds: The same NCCL_HOSTID on nodes that did not boot the same kernel, or a job script for at least two nodes
        that sets a fixed value. A warning if it is unknown whether the nodes are one machine, information if the
        job does not use NCCL. Not reported for containers of one machine, which share it on purpose.
    Why: NCCL looks for the other node's GPUs and shared memory on its own host. It reports duplicate GPUs, or fails
        to connect.
    Remedy: Unset it, or give each node a different value.
    See: NCCL src/misc/utils.cc, getHostHashOnce; src/init.cc, "Duplicate GPU detected"
    """
    boots = {node.node: node.fact.host_id for node in recording.facts(InterfacesFact) if node.fact.host_id}
    values = ((node.fact.variables.get(_HOST_ID), node.node) for node in recording.facts(EnvVars))
    same = grouped((value, node) for value, node in values if value)
    for value, nodes in same.items():
        machines = {boots[node].partition(" ")[0] for node in nodes if node in boots}
        known = len(machines) > 1
        if len(nodes) > 1 and (known or not machines):
            yield _shared(recording, value, hosts(recording, nodes), f"{len(nodes)} nodes", sure=known)
    text = recording.first(SettingText)
    asked = [*([text.job] if text and text.job else []), *(text.launches if text else ())]
    nnodes = max(((launch.agents or launch.nodes or (1, 1))[0] for launch in asked), default=1)
    for value in same if nnodes > 1 else ():
        yield _shared(recording, value, "all nodes of the job", f"the script asks for {nnodes} nodes", sure=True)


def is_shared_host_id(recording: Recording, name: str) -> bool:
    """Return True if the variable is NCCL_HOSTID and DD134 reports it."""
    return name == _HOST_ID and any(True for _ in host_id_shared_by_nodes.function(recording))


def _shared(recording: Recording, value: str, who: str, where: str, *, sure: bool) -> Draft:
    of_nccl = recording.world is None or recording.on_nccl
    return setting_draft(
        (_HOST_ID,),
        f"{shown(_HOST_ID, value)} is the same on {who}, so NCCL treats them as one host",
        f"{shown(_HOST_ID, value)}; {where}",
        "NCCL src/misc/utils.cc, getHostHashOnce",
        unset({_HOST_ID: value}, "NCCL then identifies each host by host name and boot id"),
        detail="NCCL reports duplicate GPUs, or fails to connect to memory of the other node.",
        severity=Severity.INFO if not of_nccl else None if sure else Severity.WARNING,
        confidence=Confidence.PROVED if sure else Confidence.POSSIBLE,
    )
