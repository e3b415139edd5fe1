"""DD430-DD434, DD438: NCCL uses another path between GPUs than the hardware offers, or sees one machine as several."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ddp_doctor.checks.node.topology import wording
from ddp_doctor.checks.node.topology.wording import UNSET_LEVEL, culprit, hosts_of
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.severity import of_detour
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.nccl_paths import Kind
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.settings.wording import shown
from ddp_doctor.views import forbidden_ways
from ddp_doctor.views.network import crossings, nodes_whose_log_has
from ddp_doctor.views.reproducers import between, between_gpus
from ddp_doctor.views.transports import Expected, Place, Used, first_trial, log_of, only_p2p, places, used_within
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.nodes import name_list, node_culprits, of_nodes


@dataclass(frozen=True)
class Difference:
    """A pair of GPUs that NCCL does not connect as expected, and the explanation."""

    place: Place
    expected: Expected
    used: Used
    kind: str  # what is used
    reason: str
    remedy: Remedy

    def instead(self) -> float | None:
        """The rate that NCCL assigns to the path that it uses."""
        return self.place.rate(self.expected.gpus, self.expected.code, "SHM" if self.kind == "SHM" else "NET")


@rule("DD430", "p2p-allowed-and-not-used", Consequence.SLOWER, TopologyFact)
def p2p_allowed_and_not_used(recording: Recording) -> Iterator[Draft]:
    """Two GPUs could copy directly, but NCCL uses another path.

    Finds: Reports pairs of GPUs without NVLink, within NCCL's limit for P2P, whose ranks NCCL's log connects by shared
        memory or the network, although NVML reports reading and writing as OK and no setting forbids P2P. Not reported
        if the driver offers no P2P, as with consumer GPUs, or was not queried.
    Why: Each byte crosses host memory twice, and the ranks share the CPU's memory bandwidth with everything else.
    Remedy: If NCCL treats the ranks as several hosts, give them one host identity. Otherwise, make NCCL log the reason.
    See: NCCL src/graph/paths.cc, ncclTopoCheckP2p; src/transport/p2p.cc, p2pCanConnect
    """
    yield from _drafts(recording, "near enough to copy directly", "P2P", lambda found: not _nvlink(found))


@rule("DD431", "nvlink-not-used", Consequence.SLOWER, TopologyFact)
def nvlink_not_used(recording: Recording) -> Iterator[Draft]:
    """NVLink connects two GPUs, but NCCL does not use it.

    Finds: Reports pairs of GPUs with an NV code whose ranks NCCL's log connects by shared memory or the network,
        although no setting forbids P2P.
    Why: NVLink is five to fifty times faster than host memory, and every step of an all-reduce waits for the slowest
        pair.
    Remedy: If NCCL treats the ranks as several hosts, give them one host identity. Otherwise, make NCCL log the reason.
    See: NCCL src/graph/paths.cc, ncclTopoCheckP2p; src/graph/topo.h, SM90_NVLINK_BW and its like
    """
    yield from _drafts(recording, "joined by NVLink", "P2P", _nvlink)


@rule("DD432", "network-used-within-one-host", Consequence.SLOWER, TopologyFact)
def network_used_within_one_host(recording: Recording) -> Iterator[Draft]:
    """Two ranks on one host exchange their data over the network.

    Finds: Reports pairs of GPUs on one host whose ranks NCCL's log connects by NET, if shared memory is the expected
        path. Not reported if NCCL may consider the network faster: GPUs of two sockets, each with a NIC nearby.
    Why: The data leaves the machine, or goes through its TCP stack, and returns to the same memory.
    Remedy: NCCL identifies a host by its host name, boot id, NCCL_HOSTID and the device of /dev/shm. Give all ranks of
        a machine the same values.
    See: NCCL src/misc/utils.cc, getHostHash; src/transport/shm.cc, shmCanConnect
    """
    yield from _drafts(recording, "of the same host", "SHM", lambda found: found.kind == "NET")


@rule("DD433", "p2p-beyond-the-default-limit", Consequence.KNOWN, TopologyFact)
def p2p_beyond_the_default_limit(recording: Recording) -> Iterator[Draft]:
    """NCCL uses P2P beyond its default limit.

    Finds: Reports pairs of GPUs that NCCL's log connects by P2P only because NCCL_P2P_LEVEL allows it.
    Why: It is often faster, and it works here. On other machines of the same kind, the CPU may carry such traffic
        slowly or not at all; the job then hangs without a message.
    Remedy: No action is needed while it works. Unset NCCL_P2P_LEVEL if a node hangs in its first all-reduce.
    See: NCCL user guide, environment variable NCCL_P2P_LEVEL
    """
    found: dict[str, list[tuple[Place, Used, str]]] = {}
    trial = first_trial(recording)  # after a finished trial, its transports are known to carry data
    for place in places(recording) if trial is not None and trial.outcome == "finished" else ():
        settings = {name: value for name, value in place.node.settings.items() if name != "NCCL_P2P_LEVEL"}
        if len(settings) == len(place.node.settings):
            continue
        default = {expected.gpus: expected for expected in place.expected(replace(place.node, settings=settings))}
        for used in used_within(recording, place):
            expected = default.get(used.gpus)
            if expected and used.kinds() == {"P2P"} and expected.choice.kind == "SHM" and expected.choice.sure:
                level = place.node.settings["NCCL_P2P_LEVEL"]
                found.setdefault(level, []).append((place, used, expected.code))
    for level, group in found.items():
        hosts = hosts_of(recording, [place.seen for place, _, _ in group])
        pairs = wording.pair_names([used.gpus for _, used, _ in group])
        yield likely(
            (culprit(recording, place.seen.node, used.gpus, used.ranks) for place, used, _ in group),
            f"NCCL_P2P_LEVEL={level} extends P2P on {hosts} beyond NCCL's default limit: {pairs}",
            (
                Evidence(text=f"{'-'.join(used.gpus)} is {code}; NCCL's log: {used.transports[0].via}")
                for _, used, code in group[: wording.MOST_PAIRS]
            ),
            UNSET_LEVEL,
            detail="NCCL copies directly between these GPUs, and it works here. On other"
            " machines of the same type, such copies may be slow or hang.",
            reproduced_by=between(recording, group[0][1].ranks),
        )


def _nvlink(difference: Difference) -> bool:
    return link_codes.nvlinks(difference.expected.code) > 0


@once_a_recording
def _differences(recording: Recording) -> list[Difference]:
    found = []
    for place in places(recording):
        if only_p2p(recording, place.seen.node):
            continue
        expected: dict[tuple[str, str], Expected] = {}
        for used in used_within(recording, place):
            kinds = used.kinds() & {"P2P", "SHM", "NET"}
            expected = expected or {expected.gpus: expected for expected in place.expected()}
            should = expected.get(used.gpus)
            if should and should.choice.sure and should.choice.kind not in {"NET", *kinds}:
                kind = next((kind for kind in ("NET", "SHM") if kind in kinds), None)
                if kind:
                    found.append(Difference(place, should, used, kind, *_explained(recording, place, used)))
    return found


def _explained(recording: Recording, place: Place, used: Used) -> tuple[str, Remedy]:
    """Return the reason in the log for not using the expected path, and the fix.

    /dev/shm is not a possible reason within a node: all its ranks are children of one agent in one container. DD438
    reports nodes that are containers of one machine.
    """
    log = log_of(recording, place.seen.node)
    numbers = tuple(int(gpu.removeprefix("GPU")) for gpu in used.gpus)
    hosts = max(log.hosts, default=1)
    if hosts > recording.nnodes:
        return f"NCCL sees the ranks as {hosts} hosts, but the run has {recording.nnodes}", wording.UNSET_HOST_ID
    if numbers in log.refused or numbers[::-1] in log.refused:
        return "NVML reports to NCCL that P2P is off between them", wording.SHOW_CHOICE
    if "NCCL_HOSTID" in place.node.settings:
        return "NCCL_HOSTID is set, which decides what is one host", wording.UNSET_HOST_ID
    return "the recording does not show the reason", wording.SHOW_CHOICE


def _drafts(recording: Recording, what: str, expected: Kind, is_meant: Callable[[Difference], bool]) -> Iterator[Draft]:
    """Yield the selected differences from ``expected``, by cause; ``what`` describes the GPUs."""
    meant = [
        difference
        for difference in _differences(recording)
        if difference.expected.choice.kind == expected and is_meant(difference)
    ]
    causes = (((found.expected.choice.why, found.kind, found.reason), found) for found in meant)
    for group in grouped(causes).values():
        first = group[0]
        hosts = hosts_of(recording, [difference.place.seen for difference in group])
        pairs = wording.pair_names([difference.used.gpus for difference in group])
        should = first.expected.choice
        yield finding(
            (
                culprit(recording, difference.place.seen.node, difference.used.gpus, difference.used.ranks)
                for difference in group
            ),
            f"GPUs {what} use {wording.NAMES[first.kind]} instead of {wording.NAMES[should.kind]} on {hosts}: {pairs}",
            (_evidence(difference) for difference in group[: wording.MOST_PAIRS]),
            first.remedy,
            confidence=Confidence.LIKELY,
            detail=f"Expected {wording.NAMES[should.kind]}: {should.why}. Why NCCL uses another path: {first.reason}."
            + wording.price(first.expected.rate_gb_per_s, first.instead()),
            severity=of_detour(first.expected.rate_gb_per_s, first.instead()),
        )


def _evidence(difference: Difference) -> Evidence:
    via = next(it.via for it in difference.used.transports if it.kind == difference.kind)
    expected = difference.expected
    path = f"{'-'.join(difference.used.gpus)} is {expected.code}{wording.rate(expected.rate_gb_per_s)}"
    ranks = f"ranks {difference.used.ranks[0]} and {difference.used.ranks[1]}"
    return Evidence(text=f"{path}; NCCL's log: {ranks} via {via}{wording.rate(difference.instead())}")


@rule("DD434", "setting-forbids-a-faster-way", Consequence.SLOWER, TopologyFact)
def setting_forbids_a_faster_way(recording: Recording) -> Iterator[Draft]:
    """A setting prevents NCCL from using a faster path that the hardware has.

    Finds: Reports NCCL_P2P_DISABLE=1, or an NCCL_P2P_LEVEL below NCCL's own limit, if NVLink connects GPUs, or if they
        are in reach of P2P and NVML reports it as OK. Also reports NCCL_SHM_DISABLE=1 if shared memory is the path that
        remains. Severity is info if NCCL's own constants do not show that the path is slower.
    Why: Such settings are added once because of a hang and stay in scripts for years, on machines without a fault. All
        GPUs of the node then communicate through host memory, or even over the network.
    Remedy: Unset it and measure again. If the job then hangs, fix ACS and the IOMMU.
    See: NCCL user guide, environment variables NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE
        NCCL src/graph/topo.h: the rates of links
    """
    for found in forbidden_ways.between_gpus(recording):
        worst = found.worst
        price = wording.price(worst.without.rate_gb_per_s, worst.having.rate_gb_per_s)
        pairs = wording.pair_names([loss.having.gpus for loss in found.losses])
        kept = wording.NAMES[worst.without.choice.kind]
        hosts = hosts_of(recording, found.seen)
        everywhere = len(found.seen) == len(recording.facts(TopologyFact))
        yield likely(
            (Culprit(kind="setting", name=found.name), *(() if everywhere else node_culprits(recording, found.seen))),
            f"{shown(found.name, found.value)} disables {kept} between GPUs of {hosts}: {pairs}",
            (
                Evidence(
                    text=f"{'-'.join(loss.having.gpus)} is {loss.having.code}"
                    f"{wording.rate(loss.without.rate_gb_per_s)},"
                    f" {loss.without.choice.why}; now {loss.having.choice.kind}"
                    f"{wording.rate(loss.having.rate_gb_per_s)}"
                )
                for loss in found.losses[: wording.MOST_PAIRS]
            ),
            wording.unset_setting(found.name, found.value, f"NCCL then uses {kept}"),
            detail=f"These GPUs use {wording.NAMES[worst.having.choice.kind]} instead.{price}",
            severity=of_detour(worst.without.rate_gb_per_s, worst.having.rate_gb_per_s)
            if found.is_slower
            else Severity.INFO,
            reproduced_by=between_gpus(recording, found.seen[0].node, worst.having.gpus),
        )


_NETWORK = re.compile(r" via NET/")


@rule("DD438", "containers-of-one-machine-use-the-network", Consequence.COST, InterfacesFact)
def containers_of_one_machine_use_the_network(recording: Recording) -> Iterator[Draft]:
    """Two nodes of the run are containers on one machine, and NCCL connects their GPUs over the network.

    Finds: Reports nodes that run on one booted kernel, have different host names or separate /dev/shm, and whose ranks
        NCCL's log connects by NET.
    Why: NCCL copies directly (including over NVLink) or through shared memory only within one host, as it identifies
        hosts. Here, GPUs of one machine communicate like GPUs of different machines.
    Remedy: Use one container for all ranks of the machine, or give all its containers one host name and one /dev/shm.
    See: NCCL src/misc/utils.cc, getHostHash: host name and boot id, or NCCL_HOSTID
        NCCL src/init.cc, fillInfo: the device of /dev/shm; src/transport/shm.cc, shmCanConnect
        NCCL user guide, Troubleshooting, Sharing Data: /dev/shm and containers
    """
    machines = grouped(
        (node.fact.host_id.partition(" ")[0], node) for node in recording.facts(InterfacesFact) if node.fact.host_id
    )
    shared = [group for group in machines.values() if len(group) > 1]
    speaking = set(nodes_whose_log_has(recording, _NETWORK)) if shared else set()
    for group in shared:
        here = {node.node for node in group}
        found = [
            crossing
            for node in sorted(here & speaking)
            for crossing in crossings(recording, node)
            if crossing.other in here
        ]
        if found:
            names = list(dict.fromkeys(node.fact.hostname for node in group))
            apart = [f"their host names differ ({name_list(names)})"] if len(names) > 1 else []
            # Ranks of one node are the agent's children and see one /dev/shm; only nodes can differ in it.
            devices = {node.fact.shm_device for node in recording.facts(Host) if node.node in here} - {None}
            apart += ["each has its own /dev/shm"] if len(devices) > 1 else []
            why = name_list(apart) if apart else "host name and /dev/shm, as far as they were read, are the same"
            yield likely(
                of_nodes(recording, group),
                "{who} are containers of one machine, but NCCL connects their GPUs over the network",
                (
                    Evidence(check="interfaces", text="they have the same boot id"),
                    *wording.crossings_seen(recording, found),
                ),
                wording.ONE_HOST_ID,
                detail=f"NCCL treats them as different hosts: {why}.",
            )
