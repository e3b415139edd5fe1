"""DD535: an advertised address that leads elsewhere."""

from collections.abc import Collection, Iterable, Iterator

from ddp_doctor.checks.cluster.connectivity import wording as words
from ddp_doctor.checks.cluster.connectivity.blame import Path
from ddp_doctor.checks.cluster.connectivity.dials import dials_seen
from ddp_doctor.checks.cluster.connectivity.matrix import Matrix
from ddp_doctor.checks.cluster.connectivity.ways import MEET, way_out
from ddp_doctor.facts.cluster.connectivity import ConnectivityFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_faults import faults
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.interfaces import offer_of
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import node_culprit


@rule("DD535", "advertised-address-leads-elsewhere", Severity.ERROR, ConnectivityFact)
def advertised_address_leads_elsewhere(recording: Recording) -> Iterator[Draft]:
    """An address that the backend gives out and that does not lead to its node, though another one does.

    What it finds
        Dials that fail on the address that gloo or NCCL would advertise, and succeed, on the same port, on
        the address with which the node came to the roll call. Silent where a finding about the interfaces
        (DD520 to DD526) already says why.

    Why it matters
        The ranks of other nodes dial that address, wait, and blame themselves.

    Remedy
        GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME with the interface of the address that works.

    References
        https://docs.pytorch.org/docs/stable/distributed.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    matrix = Matrix.of(recording)
    explained = _told_by_interfaces(recording)
    found = matrix.misled
    nodes = [node for node in found.nodes if node not in explained]
    paths = [path for path in found.paths if not explained & set(path)]
    if found.everyone and not explained:
        nodes = matrix.nodes
    if not nodes and not paths:
        return
    wrong = paths or [path for path in matrix.misled_paths if set(path) & set(nodes)]
    told = sorted({target for _, target in wrong})
    who = nodes or told
    given_out = ", ".join(_given_out(recording, matrix, wrong, who))
    met = {path[1]: matrix.seen[path].met_at for path in wrong}
    rest = {path[1]: peer.address for path, peer in matrix.seen.items() if path[1] not in met}
    mended = way_out(recording) or (words.use_met_interface(recording, met, rest),)
    yield proved(
        tuple(node_culprit(recording, node) for node in nodes) or words.path_culprits(recording, paths),
        f"The address that {words.hosts(recording, who)} {'gives' if len(who) == 1 else 'give'} out"
        f" ({given_out})"
        " does not lead there from the other nodes; the roll call's address does",
        dials_seen(recording, matrix, wrong),
        *mended,
        detail="The network works, and the backend takes the wrong part of it.",
        reproduced_by=MEET if mended[0].settings else None,
    )


def _given_out(
    recording: Recording, matrix: Matrix, paths: Iterable[Path], nodes: Collection[int]
) -> Iterator[str]:
    """ "10.77.0.2 on eth0": the addresses of these nodes."""
    for node, address in dict.fromkeys((path[1], matrix.seen[path].address) for path in paths):
        if node in nodes:
            interface = words.interface_name(recording, node, address)
            yield f"{address} on {interface}" if interface else address


def _told_by_interfaces(recording: Recording) -> set[int]:
    """The nodes whose address is known to be useless before anybody dials it."""
    backend = recording.world.backend if recording.world else "gloo"
    return set(faults([offer_of(seen, backend) for seen in recording.facts(InterfacesFact)]))
