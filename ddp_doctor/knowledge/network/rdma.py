"""RDMA ports: the meaning of each counter, and the limits of its value.

Counters: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, and for hw_counters the drivers' own lists
(drivers/infiniband/hw/mlx5/counters.c, bnxt_re/hw_counters.c, irdma/verbs.c, efa/efa_verbs.c).
"""

#: Below ports/N/counters: events on the physical link.
LINK_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
    "port_xmit_wait",
)
#: Below ports/N/hw_counters: packets that were lost, refused or sent again, and reported congestion.
TRANSPORT_COUNTERS = (
    "out_of_sequence",
    "out_of_buffer",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "rp_cnp_handled",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "rx_icrc_encapsulated",
    "req_transport_retries_exceeded",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "retrans_pkts",
)

#: Bad packets and bits on the link itself: this many during a run, or so many symbols that more than one bit in 10^12
#: was wrong, the limit of InfiniBand (InfiniBand Architecture Specification, volume 2).
LINK_ERRORS = ("port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
LEAST_ERRORS = 10
BIT_ERROR_RATE = 1e-12
#: Retrainings of the link; a single one is too many.
RECOVERIES = "link_error_recovery"
#: Packets that had to be sent again, or were refused until the sender gave up.
LOSSES = (
    *("packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "req_transport_retries_exceeded"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "to_retransmits", "seq_err_naks_rcvd", "port_xmit_discards"),
)
#: This counter shows losses on Ethernet. On InfiniBand, adaptive routing, its default, delivers out of order.
ROCE_LOSSES = (*LOSSES, "out_of_sequence")
#: Counters among these that grow only if later packets arrived.
GAPS = ("packet_seq_err", "seq_err_naks_rcvd")
ROCE_GAPS = ("out_of_sequence",)

#: A kernel gives new entries the lowest free index (drivers/infiniband/core/cache.c, find_gid), so a table is
#: considered to end at this many empty entries in a row.
EMPTY_GIDS_IN_A_ROW = 16
MOST_GIDS = 256
#: Maximum number of devices to read; more are usually virtual functions. 64 of them are a full table of one card.
MOST_HCAS = 160

#: Minimum number of comparable ports, and the share that may be worse than the others; more are considered intended.
LEAST_ALIKE, FEW_SHARE = 4, 0.25
#: All ports of a model are down on one node and up on others: with this many, it is not a spare card (judgment).
LEAST_DARK = 2

#: A link flaps if it went down this many times more than its peers' median, and at least once a day. A reboot of a
#: switch or of the node takes all of them down together (judgment).
FLAPS, FLAPS_PER_DAY = 10, 1.0
DAY_S = 86400.0

#: RDMA packet sizes. A port uses the largest that fits the network interface's MTU after the headers
#: (include/rdma/ib_addr.h, iboe_get_mtu).
VERBS_MTUS = (4096, 2048, 1024, 512, 256)
HEADERS_BYTES = 96


def verbs_mtu(mtu_bytes: int) -> int:
    """Return the RDMA packet size over an Ethernet interface of this MTU: 1024 for 1500, 4096 for 4200 and 9000."""
    return next((mtu for mtu in VERBS_MTUS if mtu <= mtu_bytes - HEADERS_BYTES), VERBS_MTUS[-1])
