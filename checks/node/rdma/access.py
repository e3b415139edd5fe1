"""DD572, DD573, DD574: RDMA that the hardware offers but the job cannot use."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.rdma.nodes import is_between_nodes, users
from ddp_doctor.checks.node.rdma.verbs_library import LIBRARY, PROVIDER_OF, PROVIDERS
from ddp_doctor.checks.node.rdma.wording import GIVE_DEVICES, SOCKETS_ON_ALL, port_name
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.model.choices import Consequence, Severity, Status
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import RanksDo, rule
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.views.network import severity_of_tcp
from ddp_doctor.views.reproducers import everybody
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.nodes import by_cause, host, hosts, name_list, node_culprit, of_nodes


def _has_rdma(fact: RdmaFact) -> bool:
    return bool(fact.chosen()) and fact.verbs_library is not None and not _drivers_without_provider(fact)


def _severity(recording: Recording, node: int) -> Severity:
    """Return an error if other nodes use RDMA, which TCP cannot reach. Otherwise the cost of TCP decides."""
    return Severity.ERROR if _is_cut_off(recording) else severity_of_tcp(recording, node)


def _is_cut_off(recording: Recording) -> bool:
    return any(_has_rdma(other.fact) for other in users(recording))


def _ranks_do(recording: Recording) -> RanksDo:
    """Return "run", because ranks start over TCP, unless other nodes use RDMA."""
    return "stop" if _is_cut_off(recording) else "run"


@rule("DD572", "rdma-on-some-nodes-only", Consequence.FAILS, RdmaFact)
def rdma_on_some_nodes_only(recording: Recording) -> Iterator[Draft]:
    """Some nodes have no active RDMA port, although other nodes of the job have one.

    Finds: For NCCL on several nodes, reports nodes without an RDMA device, or without a port that is up, while other
        nodes have ports that NCCL uses. Not reported if a node has an Amazon EFA, or for faults that other rules
        report.
    Why: Each rank uses InfiniBand or RoCE if it finds them, and TCP otherwise. The two cannot connect: the first
        connection between such nodes fails or waits forever.
    Remedy: Repair RDMA on those nodes, or use other nodes. With NCCL_IB_DISABLE=1 on all nodes, the job runs, but many
        times slower.
    See: NCCL src/plugin/net.cc
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable
    """
    facts = users(recording)
    with_rdma = [node.node for node in facts if _has_rdma(node.fact)]
    if not with_rdma or any(hca.is_efa for node in facts for hca in node.fact.hcas):
        return
    lacking = {
        reading.node: reading.reason or "no RDMA device"
        for reading in recording.of_check("rdma")
        if reading.status is Status.ABSENT
    }
    lacking |= {
        node.node: "no port is up" for node in facts if all(port.state == "DOWN" for _, port in node.fact.ports())
    }
    if lacking:
        nodes = sorted(lacking)
        yield likely(
            (node_culprit(recording, node) for node in nodes),
            f"No RDMA port is up on {hosts(recording, nodes)}, while {hosts(recording, with_rdma)} will use RDMA",
            (Evidence(text=f"{host(recording, node)}: {lacking[node]}") for node in nodes[:8]),
            by_administrator(
                "Find out why these nodes have no RDMA port that is up, or take them out of the job",
                "ls /sys/class/infiniband",
                "lspci | grep -i -e infiniband -e ethernet",
                "sudo dmesg | grep -i mlx5",
                cost="fewer nodes in the job until then",
            ),
            SOCKETS_ON_ALL,
            detail="NCCL uses TCP if it finds no RDMA, and ranks on TCP cannot connect to ranks on RDMA.",
            reproduced_by=everybody(recording),
        )


@rule("DD573", "rdma-devices-not-in-container", Consequence.SLOWER, RdmaFact, ranks=_ranks_do)
def rdma_devices_not_in_container(recording: Recording) -> Iterator[Draft]:
    """RDMA ports are up, but the job cannot open any of their devices.

    Finds: Reports if /dev/infiniband/uverbsN of every active port is missing or cannot be opened. For NCCL on several
        nodes, severity is error if other nodes have RDMA; otherwise, it depends on the cost of TCP. On a single node,
        severity is info.
    Why: In every container, /sys shows the hardware of the host, and tools report it as healthy. NCCL cannot open it
        and uses TCP without a message.
    Remedy: Pass the devices to the container.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    between = is_between_nodes(recording)
    for (problems, in_container), group in by_cause(recording.facts(RdmaFact), _hidden).items():
        first = group[0].fact
        names = [port_name(hca, port) for hca, port in first.ports() if port.is_active]
        where = "this container" if in_container else "the job"
        saw = Evidence(
            text="; ".join(problems[:4]) + (f"; {len(problems) - 4} more" if problems[4:] else ""),
            expected_from="libibverbs opens one such device for each RDMA device",
        )
        yield proved(
            of_nodes(recording, group),
            f"RDMA ports are up on {{who}} ({name_list(names)}), but {where} cannot open their devices",
            saw,
            *([GIVE_DEVICES] if in_container else [_LOAD_VERBS]),
            detail="NCCL then finds no RDMA device, and uses TCP without a warning.",
            severity=_severity(recording, group[0].node) if between and first.unused_by is None else Severity.INFO,
        )


_LOAD_VERBS = by_administrator(
    "Load the kernel module ib_uverbs, and see that /dev/infiniband may be read and written",
    "sudo modprobe ib_uverbs",
    "ls -l /dev/infiniband",
    cost="administrator access",
    undo="sudo modprobe -r ib_uverbs",
)


def _hidden(fact: RdmaFact) -> tuple[tuple[str, ...], bool] | None:
    active = [hca for hca in fact.hcas if any(port.is_active for port in hca.ports)]
    problems = tuple(hca.device_problem for hca in active if hca.device_problem)
    return (problems, fact.in_container) if active and len(problems) == len(active) else None


@rule("DD574", "rdma-library-missing", Consequence.SLOWER, RdmaFact, ranks=_ranks_do)
def rdma_library_missing(recording: Recording) -> Iterator[Draft]:
    """RDMA ports are up, but the library that NCCL needs to open them, or its driver, is missing.

    Finds: For NCCL on several nodes with active ports, reports if libibverbs.so.1 is in none of the loader's
        directories, or if the system's libibverbs has no driver (/etc/libibverbs.d) for any of the devices. Severity is
        error if other nodes have RDMA.
    Why: NCCL loads the library when it starts, and uses TCP without a message if it cannot. Slim images do not contain
        it. Some contain libibverbs1 without ibverbs-providers, which finds no device.
    Remedy: Install rdma-core's libraries in the image.
    See: https://github.com/linux-rdma/rdma-core
        NCCL src/misc/ibvsymbols.cc
    """
    for lacking, group in by_cause(users(recording), _lacks).items():
        yield likely(
            of_nodes(recording, group),
            f"RDMA ports are up on {{who}}, but NCCL cannot use them: {lacking}",
            Evidence(text=lacking, expected_from="what NCCL opens RDMA devices with"),
            remedy(
                "Install rdma-core's libraries in the image: libibverbs1 and ibverbs-providers, or libibverbs",
                "apt-get install libibverbs1 ibverbs-providers",
                "dnf install libibverbs",
                cost="a few megabytes in the image",
                undo="remove the packages",
                untried="ddp-doctor does not install software",
                references=("https://github.com/linux-rdma/rdma-core",),
            ),
            detail="NCCL then uses TCP, without a warning.",
            severity=_severity(recording, group[0].node),
        )


def _lacks(fact: RdmaFact) -> str | None:
    if not fact.chosen():
        return None
    if fact.verbs_library is None:
        return f"{LIBRARY} is not in any directory of the loader"
    missing = _drivers_without_provider(fact)
    return f"{PROVIDERS} has no driver for {name_list(missing)}" if missing else None


def _drivers_without_provider(fact: RdmaFact) -> Sequence[str]:
    wanted = {PROVIDER_OF.get(hca.driver or "") for hca, _ in fact.chosen()}
    if fact.verbs_providers is None or None in wanted:
        return ()
    missing = sorted(name for name in wanted if name is not None and name not in fact.verbs_providers)
    return missing if len(missing) == len(wanted) else ()
