"""DD567, DD568, DD569: RoCE ports without a GID table entry that other nodes reach."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.node.rdma.nodes import fast_and_others, nccl_versions, users
from ddp_doctor.checks.node.rdma.wording import UPGRADE_NCCL, USE_IPV6, Hit, per_node, port_draft
from ddp_doctor.facts.node.rdma import Port, RdmaFact
from ddp_doctor.knowledge.network import roce_gids
from ddp_doctor.knowledge.network.roce_gids import INDEX, PASSES_HIDDEN_SINCE, SEARCH_SETTINGS, SEARCHES_SINCE, Choice
from ddp_doctor.knowledge.versions import Version, dotted
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Remedy, Setting
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.reproducers import everybody
from ddp_doctor.wording.nodes import name_list

_SOURCE = "NCCL src/transport/net_ib/connect.cc, ncclIbGetGidIndex"


@dataclass(frozen=True)
class Entry:
    """The GID that NCCL would choose on one RoCE port, by the known NCCL release or, if unknown, a recent one."""

    hit: Hit
    fact: RdmaFact
    nccl: Version | None
    choice: Choice

    @property
    def node(self) -> int:
        """The node's rank."""
        return self.hit[0]

    @property
    def port(self) -> Port:
        """The port."""
        return self.hit[2]

    @property
    def is_fit(self) -> bool:
        """Return True if the entry reaches other networks over RoCE v2."""
        return self.choice.gid is not None and self.choice.gid.is_routable

    @property
    def has_fit(self) -> bool:
        """Return True if the table has such an entry."""
        return any(gid.is_routable and gid.is_ipv4 for gid in self.port.gids)

    @property
    def words(self) -> str:
        """Describe the entry that NCCL would choose, and why."""
        index, gid, why = self.choice.index, self.choice.gid, self.choice.why
        if index is None:
            return why
        if gid is None:
            return f"entry {index} is empty; {why}"
        kind = "of another network namespace" if gid.hidden else f"RoCE v{gid.roce}" if gid.roce else "of unknown type"
        local = ", link-local" if gid.is_link_local else ""
        return f"entry {index} is {gid.address} ({kind}{local}); {why}"


@once_a_recording
def entries(recording: Recording) -> list[Entry]:
    """Return the RoCE ports that NCCL uses between nodes, each with the entry of its table.

    A slow Ethernet port next to the fabric, for example for storage, carries no ring, and DD563 reports it. Ports
    without a readable entry type, as on kernels before 4.4, are skipped.
    """
    found = []
    for node in users(recording):
        nccl = nccl_versions(recording).get(node.node)
        for hca, port in fast_and_others(node.fact.chosen())[0]:
            if port.is_roce and hca.bus_id is not None and any(gid.roce for gid in port.gids):
                choice = roce_gids.nccl_choice(port.gids, nccl or PASSES_HIDDEN_SINCE, node.fact.settings)
                found.append(Entry((node.node, hca, port), node.fact, nccl, choice))
    return found


def _draft(recording: Recording, some: Sequence[Entry], what: str, remedies: Sequence[Remedy], detail: str) -> Draft:
    others_fit = len({entry.is_fit for entry in entries(recording)}) > 1
    # No connection is possible without an entry, or from an entry of another network namespace.
    fails = others_fit or any(entry.choice.gid is None or entry.choice.gid.hidden for entry in some)
    return port_draft(
        recording,
        [(entry.hit, entry.words) for entry in some],
        what,
        *remedies,
        detail=detail,
        severity=Severity.ERROR if fails else Severity.WARNING,
        expected=_SOURCE,
        reproduced_by=everybody(recording),
    )


@rule("DD567", "roce-port-without-routable-address", Consequence.FAILS, RdmaFact)
def roce_port_without_routable_address(recording: Recording) -> Iterator[Draft]:
    """A RoCE port that NCCL uses has no IPv4 address on its interface.

    Finds: For NCCL on several nodes, reports ports without an IPv4 entry of RoCE v2 in their GID table, if NCCL would
        not find an IPv6 entry either. Severity is error if other ports have such an entry, and warning otherwise,
        because the link-local entry may work on a single network segment.
    Why: NCCL falls back to entry 0, a link-local address, usually of RoCE v1. Routers and many switches do not forward
        it: the first collective ends with "Got completion … status 12", or ibv_modify_qp fails.
    Remedy: Assign an IPv4 address to the interface. In an IPv6-only network, set NCCL_IB_ADDR_FAMILY=AF_INET6.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
        NVIDIA/nccl issue 769
    """
    bare = [entry for entry in entries(recording) if not entry.is_fit and not entry.has_fit]
    if bare:
        detail = "NCCL is left with link-local or RoCE v1 addresses, which routers and many switches do not carry."
        yield _draft(
            recording,
            bare,
            f"no IPv4 address{'' if len(bare) == 1 else 'es'} for RoCE v2",
            [
                by_administrator(
                    "Give the interface of each such port an IPv4 address in the network of its rail",
                    "ip -br address",
                    "sudo ip address add ADDRESS/PREFIX dev INTERFACE",
                    cost="administrator access; the addresses must follow the fabric's plan",
                    undo="ip address del",
                    references=(f"{nccl.TROUBLE}#rdma-over-converged-ethernet-roce",),
                ),
                *_ipv6(recording),
            ],
            detail,
        )


def _ipv6(recording: Recording) -> tuple[Remedy, ...]:
    """Return the other address family, if every port of every node has an entry that NCCL would choose."""
    everywhere = entries(recording)
    env = {roce_gids.FAMILY: "AF_INET6"}
    choices = [roce_gids.nccl_choice(entry.port.gids, entry.nccl or PASSES_HIDDEN_SINCE, env) for entry in everywhere]
    old = any(entry.nccl is not None and entry.nccl < SEARCHES_SINCE for entry in everywhere)
    if old or not all(choice.gid and choice.gid.is_routable for choice in choices):
        return ()
    return (USE_IPV6,)


@rule("DD568", "gid-index-points-elsewhere", Consequence.FAILS, RdmaFact)
def gid_index_points_elsewhere(recording: Recording) -> Iterator[Draft]:
    """A setting selects a GID entry that other nodes cannot reach, although the table has a reachable one.

    Finds: For NCCL on several nodes, reports if NCCL_IB_GID_INDEX, or a setting of NCCL's own search
        (NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_RANGE), selects an empty entry, a link-local one,
        one of RoCE v1, or one of another network namespace. Severity is warning if every node uses such an entry and it
        exists.
    Why: Index 3 is correct on many machines, but wrong if a VLAN, a bond or a container created other entries first.
        The ranks of that node fail with "ibv_modify_qp failed", or time out.
    Remedy: With NCCL 2.21 and newer, unset it. With older releases, set one index that fits all nodes, or one for each
        node.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
        NVIDIA/nccl issues 718 and 890
    """
    astray = [
        entry for entry in entries(recording) if not entry.is_fit and entry.has_fit and _is_chosen_by_setting(entry)
    ]
    if not astray:
        return
    given = {name: value for entry in astray for name, value in entry.fact.settings.items()}
    settings = {name: value for name, value in given.items() if name in (INDEX, *SEARCH_SETTINGS)}
    shown_settings = ", ".join(shown(name, value) for name, value in settings.items())
    old = [entry for entry in astray if entry.nccl is not None and entry.nccl < SEARCHES_SINCE]
    names = [name for name in (INDEX, *SEARCH_SETTINGS) if name in settings]
    search = nccl.by_setting(
        f"Unset {name_list(names)}: NCCL 2.21 and newer find the right GID of each port themselves",
        *(Setting(name=name, action="unset", why="it points at another entry than NCCL would take") for name in names),
        cost="breaks the connection if the fabric needs that entry",
        undo="; ".join(f"export {shown(name, settings[name])}" for name in names),
        conflicts=("NCCL_IB_DISABLE", "NCCL_NET"),  # with these set, RDMA settings have no effect
    )
    remedies = [*_index_to_set(recording), UPGRADE_NCCL] if old else [search]
    detail = "The port's table of addresses (GIDs) has an IPv4 address of RoCE v2 at another index."
    yield _draft(
        recording, astray, f"{shown_settings} selects an address (GID) that other nodes cannot reach", remedies, detail
    )


def _is_chosen_by_setting(entry: Entry) -> bool:
    """Return True if a setting made the choice: otherwise NCCL would choose another entry, or is too old to."""
    if roce_gids.configured_index(entry.fact.settings) is not None:
        return True
    free = roce_gids.nccl_choice(entry.port.gids, entry.nccl or PASSES_HIDDEN_SINCE, {})
    return free.index != entry.choice.index


@rule("DD569", "gid-index-needed", Consequence.RISK, RdmaFact)
def gid_index_needed(recording: Recording) -> Iterator[Draft]:
    """This NCCL does not find the correct GID entry automatically, and no setting selects it.

    Finds: For NCCL on several nodes with RoCE and without NCCL_IB_GID_INDEX, reports NCCL before 2.21, which uses entry
        0, and NCCL 2.21 to 2.25 in a container whose GID table shows entries of the host. The table contains the
        correct entry.
    Why: Entry 0 is link-local, usually of RoCE v1, which routers and many switches do not forward. NCCL 2.21 to 2.25
        stops with "read failed in ncclIbRoceGetVersionNum: Invalid argument".
    Remedy: Set NCCL_IB_GID_INDEX to an index that fits all nodes, or otherwise to one for each node. Alternatively, use
        a newer NCCL.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
        NVIDIA/nccl issues 426, 1538 and 1573
    """
    needy = [
        entry for entry in entries(recording) if not entry.is_fit and entry.has_fit and not _is_chosen_by_setting(entry)
    ]
    if needy:
        versions = {entry.nccl for entry in needy if entry.nccl}
        which = f"NCCL {dotted(min(versions))}" if versions else "NCCL"
        what = f"{which} does not find the IPv4 GID for RoCE v2 automatically"
        detail = "The port has one. NCCL 2.21 and newer look for it, in containers 2.26 and newer."
        yield _draft(recording, needy, what, [*_index_to_set(recording), UPGRADE_NCCL], detail)


def _index_to_set(recording: Recording) -> tuple[Remedy, ...]:
    """Return the index to set: one for all ports of all nodes if possible, otherwise one per node."""
    tables = grouped((entry.node, entry.port) for entry in entries(recording))
    everywhere = roce_gids.common_index([port.gids for ports in tables.values() for port in ports])
    indices = {
        node: everywhere if everywhere is not None else roce_gids.common_index([port.gids for port in ports])
        for node, ports in tables.items()
    }
    values = {node: None if index is None else str(index) for node, index in indices.items()}
    cost = "valid until interface addresses change; NCCL 2.21 and newer need no index"
    return per_node(recording, INDEX, values, "it holds an IPv4 entry of RoCE v2 on every port", cost)
