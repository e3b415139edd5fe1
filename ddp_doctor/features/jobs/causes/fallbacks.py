"""Rules on problems that do not end a job. NCCL's INFO lines show which slower paths it chose without a warning:

    n1:71:90 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    n1:71:90 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
    n1:71:90 [0] NCCL INFO Using network IB
    n1:71:90 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0

These lines are not errors. Only NCCL's output is evaluated, because the output does not show the nodes' hardware.
``ddp-doctor run`` on the nodes detects it.
"""

from collections.abc import Iterable, Iterator, Sequence

from ddp_doctor.facts.node.nccl_log import NcclTransportFact, Transport
from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.knowledge.gpu.xids import NVLINK5
from ddp_doctor.knowledge.versions import dotted, nccl_issues, release
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, finding
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import rank_list

Log = FactAt[NcclTransportFact]
#: Interfaces of container engines and virtual machines, which reach no other node (docker, libvirt, podman, LXC).
_OF_CONTAINERS = ("docker", "virbr", "podman", "cni", "lxcbr", "veth", "br-")
_OFF = ("1", "2", "3")
#: Values of NCCL_P2P_LEVEL that allow all P2P (src/graph/paths.cc).
_ALLOWS_ALL = ("SYS", "5")


def _hosts(logs: Iterable[Log]) -> list[str]:
    return sorted({log.fact.host for log in logs if log.fact.host})


def _nodes(logs: Iterable[Log]) -> str:
    return name_list(_hosts(logs)) or "the nodes"


def _draft(
    logs: Sequence[Log],
    title: str,
    line: str,
    *remedies: Remedy,
    severity: Severity | None = None,
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    ranks = [log.rank for log in logs if log.rank is not None]
    who = rank_list(ranks) if ranks else f"{len(logs)} process{'es' if len(logs) > 1 else ''}"
    culprits = (Culprit(kind="node", node=host) for host in _hosts(logs))
    evidence = Evidence(check="logs", text=f"NCCL INFO of {who} on {_nodes(logs)}: {line}")
    return finding(culprits, title, evidence, *remedies, confidence=confidence, severity=severity)


def _leave_unset(name: str, unless: str, why: str) -> Remedy:
    taken_away = Setting(name=name, action="unset", why=why)
    return Remedy(summary=f"Unset {name}, unless {unless}", settings=(taken_away,))


def _why_sockets(log: NcclTransportFact) -> tuple[str, str, Severity, Remedy]:
    for name, value in log.settings.items():
        if (name == "NCCL_IB_DISABLE" and value in _OFF) or (name == "NCCL_NET" and value.lower() == "socket"):
            cure = _leave_unset(name, "the RDMA network is known to be broken", "NCCL then looks for RDMA devices")
            return f"{name}={value} disables RDMA", f"{name} set to {value}", Severity.WARNING, cure
    if log.no_provider:
        cure = remedy(
            "Pass the EFA devices to the container or the job, and check that libfabric finds them",
            "fi_info -p efa",
            container=("--device=/dev/infiniband",),
        )
        why, line = "AWS's plug-in found no EFA device", "Could not find any optimal provider"
        return why, line, Severity.WARNING, cure
    if log.no_verbs_library:
        cure = remedy(
            "Install libibverbs and its drivers in the job's image, if the nodes have RDMA devices",
            "apt-get install libibverbs1 ibverbs-providers",
            scope="job",
        )
        return "libibverbs.so is missing", "Failed to open libibverbs.so", Severity.WARNING, cure
    if log.hcas:
        names = ", ".join(hca.name for hca in log.hcas)
        look = "Find what chooses the network: NCCL_NET, ncclConfig, or a plug-in"
        cure = remedy(look, "env | grep NCCL_", scope="job")
        return f"RDMA devices exist ({names})", f"NET/IB : Using {names}", Severity.WARNING, cure
    cure = remedy(
        "Pass the nodes' RDMA devices, if any, to the container or pod",
        "ls /dev/infiniband /sys/class/infiniband",
        container=("--device=/dev/infiniband",),
    )
    line = "NET/IB : No device found" if log.no_ib_device else "Using network Socket"
    return "NCCL found no RDMA device", line, Severity.INFO, cure


@rule("DDJ201", "nccl-uses-tcp-between-nodes", Consequence.COST, NcclTransportFact)
def nccl_uses_tcp_between_nodes(recording: Recording) -> Iterator[Draft]:
    """Finds: A job on several nodes whose NCCL moves data over TCP sockets, with the reason from its lines: a setting,
        no library for RDMA, a plug-in that found no device, or no device at all (info only).
    Why: RDMA is often ten times faster, and lets NICs read GPU memory. NCCL changes to sockets without a warning.
    Remedy: Undo the setting, or give the job the devices and the library. If the nodes have no RDMA, no action is
        needed.
    See: NCCL user guide, environment variables, NCCL_NET and NCCL_IB_DISABLE; src/transport/net_ib.cc (NCCL 2.30)
    """
    all_logs, job = recording.facts(NcclTransportFact), recording.first(JobLogFact)
    hosts = {log.fact.host for log in all_logs} | {rank.host for rank in (job.ranks if job else ())}
    if not (
        any(transport.kind == "NET" for log in all_logs for transport in log.fact.transports)
        or any(number > 1 for log in all_logs for number in log.fact.hosts)
        or len(hosts - {None}) > 1
    ):
        return  # all known ranks are on one node
    over_sockets = [log for log in all_logs if log.fact.network == "Socket"]
    for logs in grouped((_why_sockets(log.fact)[0], log) for log in over_sockets).values():
        why, line, severity, cure = _why_sockets(logs[0].fact)
        title = f"NCCL uses TCP sockets between nodes: {why}"
        yield _draft(logs, title, f"Using network Socket; {line}", cure, severity=severity)


@rule("DDJ202", "nccl-without-gpudirect-rdma", Consequence.COST, NcclTransportFact)
def nccl_without_gpudirect_rdma(recording: Recording) -> Iterator[Draft]:
    """Finds: Connections over RDMA on which the receiving end does not use GPUDirect RDMA, so data goes through host
        memory. Severity is info unless NCCL reports that the kernel module is missing, or a sender uses GPUDirect RDMA
        on the same connection.
    Why: The copy through host memory costs bandwidth and latency between nodes. NCCL does it without a warning.
    Remedy: Load nvidia_peermem, or use a kernel with dma-buf and the open GPU driver. Some GPUs and adapters do not
        support it.
    See: NCCL user guide, troubleshooting, GPU-to-NIC communication; src/transport/net.cc (NCCL 2.30)
    """
    staged = [log for log in recording.facts(NcclTransportFact) if _staged(log)]
    if not staged:
        return
    without = [log for log in staged if log.fact.no_gpu_direct]
    direct = {
        (t.from_rank, t.to_rank)
        for log in recording.facts(NcclTransportFact)
        for t in log.fact.transports
        if t.end == "send" and t.network is not None and t.network[2]
    }
    one_end = [log for log in staged if not direct.isdisjoint((t.from_rank, t.to_rank) for t in _staged(log))]
    logs = without or one_end or staged
    example = _staged(logs[0])[0]
    title = "NCCL copies data between nodes through host memory, without GPUDirect RDMA"
    line = f"{example.from_rank} -> {example.to_rank} [receive] via {example.via}"
    if logs is staged:
        yield _draft(logs, title, line, severity=Severity.INFO)
        return
    named = ", ".join(sorted({name for log in without for name in log.fact.no_gpu_direct}))
    why = "it found neither nvidia_peermem nor dma-buf" if named else f"into {_nodes(logs)} alone"
    module = remedy(
        "Load nvidia_peermem on the nodes, or use the open GPU driver and a kernel with dma-buf",
        "modprobe nvidia_peermem",
        undo="modprobe -r nvidia_peermem",
    )
    disabled = f"; GPU Direct RDMA Disabled for HCA '{named}'" if named else ""
    yield _draft(logs, f"{title}{':' if named else ','} {why}", f"{line}{disabled}", module)


def _staged(log: Log) -> list[Transport]:
    over_network = (t for t in log.fact.transports if t.end == "receive" and t.network is not None)
    return [t for t in over_network if t.network and t.network[0] != "Socket" and not t.network[2]]


@rule("DDJ203", "nccl-uses-interface-of-containers", Consequence.RISK, NcclTransportFact)
def nccl_uses_interface_of_containers(recording: Recording) -> Iterator[Draft]:
    """Finds: Ranks that connect, or move data, over a bridge of a container engine or of virtual machines, such as
        docker0.
    Why: The bridge reaches no other node, and often has the same address on each node. A job on one node runs, but the
        same job on two nodes hangs or is refused.
    Remedy: Set NCCL_SOCKET_IFNAME to the interface that reaches the other nodes.
    See: NCCL user guide, environment variables, NCCL_SOCKET_IFNAME
    """
    by_name = grouped(
        (name, log)
        for log in recording.facts(NcclTransportFact)
        for name in dict.fromkeys((*log.fact.interfaces, *log.fact.sockets_over[:1]))
        if name.startswith(_OF_CONTAINERS)
    )
    for name, logs in by_name.items():
        cure = Remedy(
            summary="Exclude it, or set the interface that reaches the other nodes",
            settings=(
                Setting(name="NCCL_SOCKET_IFNAME", value=f"^lo,{name}", why="NCCL then uses the next interface"),
            ),
        )
        title = f"NCCL on {_nodes(logs)} uses {name}, which reaches no other node"
        yield _draft(logs, title, f"Bootstrap : Using {name}", cure)


@rule("DDJ204", "nccl-without-p2p-between-gpus", Consequence.COST, NcclTransportFact)
def nccl_without_p2p_between_gpus(recording: Recording) -> Iterator[Draft]:
    """Finds: GPUs of one node that exchange data through host memory (SHM), because of NCCL_P2P_DISABLE or
        NCCL_P2P_LEVEL, because the driver refuses P2P between connected GPUs, or (info only) for no reason that NCCL
        prints.
    Why: Host memory is several times slower than NVLink, and often slower than PCIe.
    Remedy: Undo the setting. GPUs on different CPU sockets and consumer GPUs do not support P2P, which is not a fault.
    See: NCCL user guide, environment variables, NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; src/graph/paths.cc (NCCL 2.30)
    """
    logs = [log for log in recording.facts(NcclTransportFact) if any(t.kind == "SHM" for t in log.fact.transports)]
    if not logs:
        return
    example = next(t for t in logs[0].fact.transports if t.kind == "SHM")
    line = f"{example.from_rank} -> {example.to_rank} via {example.via}"
    title = f"GPUs on {_nodes(logs)} exchange data through host memory, without P2P"
    for log in logs:
        if log.fact.settings.get("NCCL_P2P_DISABLE") in _OFF:
            forbidden, sure = "NCCL_P2P_DISABLE", Confidence.PROVED
        elif log.fact.settings.get("NCCL_P2P_LEVEL", "SYS") not in _ALLOWS_ALL:
            # NCCL does not print whether these GPUs would use P2P without the level.
            forbidden, sure = "NCCL_P2P_LEVEL", Confidence.LIKELY
        else:
            continue
        setting = f"{forbidden}={log.fact.settings[forbidden]}"
        cure = _leave_unset(forbidden, "P2P is known to hang here", "NCCL uses P2P where it can")
        yield _draft(logs, f"{title}: {setting}", f"{setting}; {line}", cure, confidence=sure)
        return
    refused = next((pair for log in logs for pair in log.fact.refused), None)
    if refused is None:
        yield _draft(logs, title, line, severity=Severity.INFO)
        return
    look = remedy("Check the driver's P2P status between them", "nvidia-smi topo -p2p rw")
    why = f"the driver refuses it between connected GPUs {refused[0]} and {refused[1]}"
    yield _draft(logs, f"{title}: {why}", f"P2P is disabled; {line}", look)


@rule("DDJ205", "loss-stays-nan", Consequence.RISK, JobLogFact)
def loss_stays_nan(recording: Recording) -> Iterator[Draft]:
    """Finds: A job whose last losses, three or more, are all NaN or infinite.
    Why: Training continues, but the model no longer learns.
    Remedy: Restart from a checkpoint with finite losses, with a lower learning rate or in bfloat16.
    See: https://pytorch.org/docs/stable/notes/numerical_accuracy.html
    """
    job = recording.first(JobLogFact)
    for file in job.files if job else ():
        if file.nan_since is not None:
            lines = file.lines - file.nan_since.line + 1
            yield finding(
                NOBODY,
                f"Every loss in the last {lines} lines of {file.name} is NaN or infinite",
                Evidence(check="logs", text=f"{file.name}:{file.nan_since.line}: {file.nan_since.text}"),
                remedy(
                    "Restart from a checkpoint with finite losses, with a lower learning rate or in bfloat16",
                    scope="code",
                ),
                confidence=Confidence.PROVED,
                severity=Severity.INFO,
            )


@rule("DDJ206", "nvlink-errors-corrected", Consequence.RISK, JobLogFact)
def nvlink_errors_corrected(recording: Recording) -> Iterator[Draft]:
    """Finds: Non-fatal NVLink errors of a GPU or NVSwitch in the kernel log (Xid 144 to 150, SXid).
    Why: The link recovered, and the job continues. Many such errors, or errors just before a failure, point to it.
    Remedy: Compare its error counters with the counters of other links.
    See: NVIDIA Xid catalog, https://docs.nvidia.com/deploy/xid-errors/
    """
    job = recording.first(JobLogFact)
    signs = [
        sign
        for sign in (job.signs if job else ())
        if sign.sign == "nvlink-not-fatal" and (sign.values["kind"] == "SXid" or int(sign.values["xid"]) in NVLINK5)
    ]
    for (host, bus), of_device in grouped(((sign.host, sign.values["bus"]), sign) for sign in signs).items():
        count = sum(sign.times for sign in of_device)
        codes = name_list(sorted({f"{sign.values['kind']} {sign.values['xid']}" for sign in of_device}))
        on = f" on {host}" if host else ""
        yield finding(
            (Culprit(kind="gpu", node=host, name=bus),),
            f"NVLink of {bus}{on} reports {count} non-fatal error{'s' if count > 1 else ''} ({codes})",
            (
                Evidence(check="logs", text=f"{sign.where.file}:{sign.where.line}: {sign.where.text}")
                for sign in of_device[:LINES_OF_EVIDENCE]
            ),
            remedy("Compare the error counters of this link with the counters of other links", "nvidia-smi nvlink -e"),
            confidence=Confidence.PROVED,
            severity=Severity.INFO,
        )


@rule("DDJ207", "known-bug-of-nccl", Consequence.RISK, JobLogFact, NcclTransportFact)
def known_bug_of_nccl(recording: Recording) -> Iterator[Draft]:
    """Finds: A job without a good end whose output shows a release of NCCL with a known bug that hangs such jobs.
    Why: A hang or wrong data may come from the library and not from the job, but not every job triggers the bug.
    Remedy: Use a torch that bundles a fixed NCCL; some bugs are avoided by a setting.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    job, logs = recording.first(JobLogFact), recording.facts(NcclTransportFact)
    if job is None or any(file.is_finished for file in job.files):
        return
    hosts = {log.fact.host for log in logs} | {rank.host for rank in job.ranks}
    torch = release(job.torch_version or "")
    for version in sorted({log.fact.version for log in logs if log.fact.version}):
        for issue in nccl_issues(release(version), torch, "", len(hosts - {None})):
            if issue.torch_before is None or torch:
                setting = ("export " + "=".join(issue.setting),) if issue.setting else ()
                yield finding(
                    NOBODY,
                    f"NCCL {version} {issue.effect}",
                    Evidence(check="logs", text=f"NCCL {version} in the output", expected_from=issue.source),
                    remedy(
                        f"Use NCCL {dotted(issue.before)} or newer{', or set a variable' if setting else ''}",
                        *setting,
                        scope="job",
                    ),
                    detail="A known bug. The output does not show whether it is the cause.",
                    confidence=Confidence.POSSIBLE,
                    severity=Severity.INFO,
                )
