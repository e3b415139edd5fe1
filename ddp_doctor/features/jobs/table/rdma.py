"""Causes in the RDMA network: InfiniBand, RoCE and EFA.

Messages of NCCL when a transfer fails, by version::

    NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129                               2.3 to 2.9
    NET/IB : Got completion from peer 10.0.0.2<4312> with error 12, opcode 1, len 9, vendor err 129      2.10 to 2.19
    NET/IB : Got completion from peer 10.0.0.2<4312> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid
        ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_0                                             2.20 to 2.28
    NET/IB: Got completion from peer 10.0.0.2<4312> with status=transport retry counter exceeded(12)
        opcode=Send(0) vendor_err=129  localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_0     2.28.7 on

GIDs are printed for RoCE only. The status is libibverbs' (enum ibv_wc_status): 12 means that the peer answered none of
the tries, 5 that the connection had failed before. Only the entire output shows which side failed, and whether on the
first transfer or after hours.
"""

from ddp_doctor.features.jobs.table.kinds import host_cause, network_cause, sick_network
from ddp_doctor.features.jobs.table.remedies import on_node, remedy, setting, unset
from ddp_doctor.features.jobs.table.signs import kernel, nccl

_NET_IB = "NCCL 2.3 to 2.30, src/transport/net_ib and src/misc/ibvwrap.cc"
_NCCL_VARIABLES = "NCCL user guide, environment variables"
_GOT = ("Got completion",)
_MODIFY = ("ibv_modify_qp failed",)
#: "with 110 Connection timed out, on dev mlx5_0:1, … local GID ::ffff:10.0.0.1, remote GID
#: ::ffff:10.0.1.1" (from 2.24), "with error Connection timed out errno 110", "with error Connection timed out".
_TIMED_OUT = r"ibv_modify_qp failed with (?:error )?(?:110 )?Connection timed out"
_ON_DEVICE = r"(?:[^\n]{0,40}?\bon dev (?P<device>[^\s,]{1,40}))?"


def completion(statuses: str, ahead: str = "") -> str:
    """Return a pattern for a failed transfer with one of these statuses, an alternation of numbers.

    ``ahead`` looks at the rest of the line. The peer and the HCA are kept.
    """
    return (
        rf"Got completion {ahead}"
        r"(?:from peer (?P<peer>[^\s<]{1,64})(?:<\d+>)? )?with (?:error |status=)(?:[^()\n]{1,60}\()?"
        rf"(?P<status>{statuses})\b(?:[^\n]{{0,400}}? hca (?P<device>[\w.-]+))?"
    )


WITHOUT_GPUDIRECT = remedy(
    "Disable GPUDirect RDMA until then, which also shows whether it is the cause (workaround)",
    settings=(setting("NCCL_NET_GDR_LEVEL", "LOC", "NICs do not read GPU memory"),),
    cost="host memory copies for transfers between nodes",
)
_IB_OFF = remedy(
    "Test with NCCL_IB_DISABLE=1 to see whether the RDMA network is the cause (diagnosis, not a fix)",
    settings=(setting("NCCL_IB_DISABLE", "1", "transfers between nodes go over TCP"),),
    cost="several times slower transfers between nodes",
)
_WITHOUT_NODE = remedy(
    "Run the job without the node in the evidence, and test its port, cable and switch port",
    "ibstat; ibqueryerrors; mlxlink -d DEVICE -c -e",
    "ib_write_bw between both nodes",
    scope="cluster",
)

#: Signs that belong to no cause: they follow after a connection has failed.
SIGNS = {"rdma-flushed": nccl.victim(_GOT, completion("5"))}

CAUSES = {
    "DDJ144": sick_network(
        name="ib-unusable",
        title="NCCL cannot use its RDMA device of {who}[: {call} fails][, {reason}]",
        finds="A call that sets up RDMA fails on a device that NCCL found, for a reason other than missing memory.",
        why="NCCL uses every active RDMA port. If a port belongs to another fabric, lacks permission in the"
        " container or has a broken driver, the job fails when NCCL sets it up.",
        remedies=(
            remedy(
                "Set the devices between the nodes",
                settings=(setting("NCCL_IB_HCA", "mlx5_0,mlx5_1", "no other is used"),),
            ),
            _IB_OFF,
            remedy(
                "Pass the RDMA devices into the container", container=("--device=/dev/infiniband", "--cap-add=IPC_LOCK")
            ),
        ),
        next_check="ibv_devinfo in the job's container; ib_write_bw between two of its nodes",
        references=(_NET_IB, _NCCL_VARIABLES),
        signs={
            "verbs-call-failed": nccl.sign(
                "Call to ibv_",
                r"Call to (?P<call>ibv_(?:open_device|query_device|query_port|alloc_pd|create_cq"
                r"|create_qp))"
                r" failed(?![^\n]*Cannot allocate memory)(?: with error (?P<reason>[^\n]{1,60}?)(?: errno \d+)?$)?",
            ),
            "hca-cannot-be-opened": nccl.sign(
                "NET/IB : Unable to", r"NET/IB : Unable to (?:open|query) device (?P<device>\S+)"
            ),
            "verbs-call-failed-with": nccl.hint(
                "Call to ibv_",
                r"Call to (?P<call>ibv_(?:reg_mr\w*|post_\w+|poll_cq)) failed with (?:error )?(?:\d{1,3} )?"
                r"(?!Cannot alloc|Bad addr)(?P<reason>[A-Z][a-z]+(?: [a-z]+){0,6})",
            ),
            "modify-qp-failed": nccl.sign(
                "ibv_modify_qp failed",
                r"(?P<call>ibv_modify_qp) failed with (?:error )?(?:\d{1,3} )?(?!Connection timed|Invalid arg|No data"
                r"|Network is|No route|Cannot alloc)(?P<reason>[A-Z][a-z]+(?: [a-z]+){1,6})(?![^\n]{0,300}retrying)",
            ),
        },
    ),
    "DDJ145": sick_network(
        name="ib-fabric-fault",
        title="RDMA transfers of {who}[ to {peer}] failed: the peer did not answer any retry",
        finds="Transfers over InfiniBand, RoCE or EFA were retried without an answer (status 12, 13).",
        why="A port, cable, switch or node on the path is broken, or the peer's process died before. If many nodes"
        " report the same address, the fault is on that node. A failure in the first transfer indicates the setup"
        " (GID, routes, MTU), a failure after hours the hardware.",
        remedies=(
            _WITHOUT_NODE,
            _IB_OFF,
            remedy(
                "Wait longer for answers if the fabric is congested",
                settings=(setting("NCCL_IB_TIMEOUT", "22", "four times as long as with 20"),),
                cost="later detection of a broken link",
            ),
        ),
        next_check="earlier errors in that node's output or kernel log; ibqueryerrors; ib_write_bw",
        references=(_NET_IB, "libibverbs, enum ibv_wc_status"),
        found_by=("DD584", "DD568", "DD569", "DD566"),
        signs={
            "rdma-retries-exceeded": nccl.hint(
                _GOT, completion("12", r"(?![^\n]{0,400}localGid fe80:)"), run_code="DD584"
            ),
            "rdma-receiver-not-ready": nccl.hint(_GOT, completion("13")),
            "ucx-retries-exceeded": nccl.hint(
                ("Transport retry count exceeded on ", "RETRY EXCEEDED ERROR"),
                r"retry count exceeded on (?P<device>[\w.-]+)|RETRY EXCEEDED ERROR",
            ),
        },
    ),
    "DDJ146": sick_network(
        name="ib-link-flap",
        title="RDMA link of {who} went down[: {device}]",
        finds="NCCL or the kernel reports that a port went down or a device failed.",
        why="Transfers over the port exceed their retry limit a few seconds later. Typical reasons are the cable,"
        " the optics or the switch port.",
        remedies=(_WITHOUT_NODE,),
        next_check="dmesg | grep -iE 'mlx5|Link (up|down)'; mlxlink -d DEVICE -c -e; ibqueryerrors",
        instead_of=("ib-fabric-fault",),
        references=(_NET_IB, "libibverbs, ibv_event_type_str", "Linux drivers/net/ethernet/mellanox/mlx5"),
        signs={
            "async-port-error": nccl.proof(
                ("async event", "async error event", "async fatal event"),
                r"NET/IB : (?:(?P<device>[^\s:]+:\d+) )?(?:[Gg]ot )?(?:non-fatal )?async (?:error |fatal )?event ?: "
                r"(?:port error|local catastrophic error)",
            ),
            "nic-link-down": kernel.sign(
                ("Link down", "link is not ready", "Link is Down"),
                r"\b(?P<device>(?:mlx5|mlx4|bnxt|ib|irdma)[\w.-]*)[^\n]{0,80}: [Ll]ink (?:is )?[Dd]own\b",
            ),
            "nic-health": kernel.sign(
                ("device's health compromised", "health recovery flow aborted"), r"mlx5_core (?P<device>[0-9a-f:.]+)"
            ),
        },
    ),
    "DDJ147": network_cause(
        name="ib-mtu-mismatch",
        title="RDMA ports of {who}[ and {peer}] reject each other's packets: their MTU may differ",
        finds="The receiver rejected a transfer as too long or invalid (status 1 or 9), or a queue reported access"
        " errors.",
        why="Since NCCL 2.20, each end uses the MTU of its own port. If the MTUs differ, packets are too long for"
        " the other port. Faults of ACS or the IOMMU look the same.",
        remedies=(
            remedy(
                "Set the same MTU on the ports of all nodes and of the switches between them",
                "ip link set dev IFACE mtu 9000",
                "ibv_devinfo | grep -E 'hca_id|active_mtu'",
                scope="cluster",
            ),
        ),
        next_check="ibv_devinfo | grep active_mtu on both nodes; NCCL_NET_GDR_LEVEL=LOC distinguishes ACS from MTU",
        references=(_NET_IB,),
        signs={
            "rdma-length-error": nccl.hint(_GOT, completion("1|9")),
            "queue-access-error": nccl.hint(
                "local access violation work queue error",
                r"NET/IB : (?:(?P<device>[^\s:]+:\d+) )?(?:[Gg]ot )?async [^\n]*local access violation",
            ),
        },
    ),
    "DDJ148": network_cause(
        name="ib-rail-unroutable",
        title="RDMA port[ {device}] of {who} has no route to its peer[ {remote_gid}]: they may be on different rails",
        finds="Connecting two RDMA ports timed out.",
        why="In rail-optimized fabrics, only ports with the same number reach each other. NCCL also connects other"
        " ports if it considers them faster. A GID that is not routed looks the same.",
        remedies=(
            remedy(
                "Keep transfers on one rail",
                settings=(setting("NCCL_CROSS_NIC", "0", "the same NIC number at both ends"),),
                cost="slower rings that need other NICs",
            ),
            remedy("Set up routes between the rails, or use the same cabling on all nodes", scope="cluster"),
        ),
        next_check="NCCL_CROSS_NIC=0 with the same job; ib_write_bw -d DEVICE between the two ports that the line"
        " names",
        references=(_NET_IB, _NCCL_VARIABLES),
        signs={
            # GIDs of two IPv4 networks.
            "rtr-timed-out-across": nccl.sign(
                _MODIFY,
                rf"{_TIMED_OUT}{_ON_DEVICE}[^\n]{{0,120}}local GID (?:::ffff:)?(?P<network>\d+\.\d+\.\d+)\.\d+,"
                r" remote GID (?P<remote_gid>(?:::ffff:)?(?!(?P=network)\.)\d+\.\S+)",
            ),
            "rtr-timed-out": nccl.hint(
                _MODIFY, rf"{_TIMED_OUT}(?![^\n]{{0,300}}(?:retrying|local GID fe80:)){_ON_DEVICE}"
            ),
            "rail-hint": nccl.sign("NICs are not cross-rail connected"),
        },
    ),
    "DDJ149": network_cause(
        name="roce-gid-index",
        title="RoCE port[ {device}] of {who} uses a GID that is not routed[: {gid}]",
        finds="RoCE connections with a link-local GID fail, or the port does not have the GID index.",
        why="A RoCE port has several addresses (GIDs). Only the RoCE v2 GID with the port's IPv4 address is"
        " routed. A fixed NCCL_IB_GID_INDEX may mean different GIDs on different nodes. Before NCCL 2.21 the default"
        " was 0.",
        remedies=(
            remedy(
                "Let NCCL choose the GID (since NCCL 2.21)",
                settings=(unset("NCCL_IB_GID_INDEX", "NCCL looks for RoCE v2 and IPv4"),),
            ),
            remedy(
                "Set the index of the RoCE v2 entry with the IPv4 address before NCCL 2.21",
                "show_gids",
                settings=(setting("NCCL_IB_GID_INDEX", "3", "often 3; show_gids lists them"),),
            ),
        ),
        next_check="show_gids on both nodes; ib_write_bw -d DEVICE -x INDEX between them",
        references=(_NET_IB, _NCCL_VARIABLES),
        found_by=("DD568", "DD569", "DD584"),
        signs={
            "rdma-over-link-local": nccl.sign(
                _GOT, completion("12", r"(?=[^\n]{0,400}localGid (?P<gid>fe80:\S{1,60}))"), run_code="DD584"
            ),
            "gid-refused": nccl.sign(
                _MODIFY,
                rf"ibv_modify_qp failed with (?:error )?(?:(?:22|61|101|113) )?(?:Invalid argument"
                rf"|No data available|Network is unreachable|No route to host)(?![^\n]{{0,300}}retrying){_ON_DEVICE}",
            ),
            "rtr-timed-out-link-local": nccl.sign(
                _MODIFY, rf"{_TIMED_OUT}{_ON_DEVICE}[^\n]{{0,120}}local GID (?P<gid>fe80:[^\s,]+)"
            ),
            "gid-table-changed": nccl.sign("GID table changed", beside=("rdma-retries-exceeded", "rdma-flushed")),
            "gid-hint": nccl.sign("incorrect GID index is forced"),
            "gid-not-found": nccl.sign("Call to ibv_query_gid failed"),
            # the port has no GID at that index
            "gid-empty": nccl.sign(
                "ibv_modify_qp failed",
                r"failed with (?:error )?(?:61 )?No data available(?![^\n]{0,300}retrying)"
                r"(?:[^\n]{0,40}?\bon dev (?P<device>[^\s,]{1,40}))?",
            ),
        },
    ),
    "DDJ151": host_cause(
        name="gdr-peermem-missing",
        title="RDMA devices of {who} cannot access GPU memory: nvidia_peermem is not loaded",
        finds="Registering GPU memory with an RDMA device fails because of its address.",
        why="GPUDirect RDMA needs the kernel module nvidia_peermem, or dma-buf. NCCL may find a module that does"
        " not work with the installed driver.",
        remedies=(on_node("Load nvidia_peermem in the driver's version", "modprobe nvidia_peermem"), WITHOUT_GPUDIRECT),
        next_check="lsmod | grep peermem; dmesg | grep -i peermem; ddp-doctor check rdma on that node",
        references=(_NET_IB, "NVIDIA GPUDirect RDMA guide"),
        signs={
            "gpu-memory-not-registered": nccl.sign(
                "Call to ibv_reg_", r"Call to ibv_reg_\w{1,20} failed(?: with error)?[ :]{1,3}Bad address"
            ),
            "peermem-symbols": kernel.sign(
                (
                    "nvidia_peermem: disagrees",
                    "nv_peer_mem: disagrees",
                    "nvidia_peermem: Unknown symbol",
                    "nvidia_peermem': Invalid argument",
                )
            ),
        },
    ),
    "DDJ152": network_cause(
        name="efa-security-group",
        title="EFA transfers of {who} do not reach their peers: probably blocked by the security group",
        finds="EFA reports a receiver that does not answer or cannot be reached.",
        why="EFA needs a security group that allows all traffic from and to itself, in both directions. TCP and"
        " ping work without it. A peer whose process died looks the same.",
        remedies=(
            remedy(
                "Allow all traffic of the security group to itself, inbound and outbound",
                "aws ec2 authorize-security-group-ingress --group-id SG --protocol all --source-group SG",
                "aws ec2 authorize-security-group-egress --group-id SG --protocol all --source-group SG",
                scope="cluster",
            ),
        ),
        next_check="fi_pingpong -p efa between two of the nodes; aws ec2 describe-security-groups --group-ids SG",
        references=("AWS, Get started with EFA and NCCL", "libfabric prov/efa, efa_errno.h"),
        signs={
            "efa-no-answer": nccl.sign(
                ("Unresponsive receiver", "unreachable remote", "Unreachable remote"), r"NET/OFI|\befa\b|EFA|RC:"
            ),
            # libfabric makes an address handle, which asks the device for the route
            "efa-address-refused": nccl.hint("Unable to insert remote address into address vector"),
            "efa-completed-with-error": nccl.hint(
                "completed with error. RC", r"NET/OFI Request[^\n]{0,60} completed with error\. RC"
            ),
        },
    ),
}
