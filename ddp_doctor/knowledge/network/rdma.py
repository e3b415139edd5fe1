"""RDMA ports: what each counter means, and above which value it is bad.

Counters: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, and for hw_counters the drivers' own
lists (drivers/infiniband/hw/mlx5/counters.c, bnxt_re/hw_counters.c, irdma/verbs.c, efa/efa_verbs.c).
"""

#: Below ports/N/counters: what the physical link did.
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

#: Bad packets and bits on the link itself: so many during a run, or so many symbols that more than one bit in
#: 10^12 was wrong, which is what InfiniBand allows (InfiniBand Architecture Specification, volume 2).
LINK_ERRORS = ("port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
LEAST_ERRORS = 10
BIT_ERROR_RATE = 1e-12
#: The link trained anew; one time is too many.
RECOVERIES = "link_error_recovery"
#: Packets that had to be sent again, or were refused until the sender gave up.
LOSSES = (
    *("packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "req_transport_retries_exceeded"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "to_retransmits", "seq_err_naks_rcvd", "port_xmit_discards"),
)
#: This one counts losses on Ethernet; on InfiniBand adaptive routing, its default, delivers out of order.
ROCE_LOSSES = (*LOSSES, "out_of_sequence")
#: Of these, the ones that grow only where later packets did arrive.
GAPS = ("packet_seq_err", "seq_err_naks_rcvd")
ROCE_GAPS = ("out_of_sequence",)

#: A kernel gives new entries the lowest free index (drivers/infiniband/core/cache.c, find_gid), so a table
#: ends, for all that matters, where so many entries in a row are empty.
EMPTY_GIDS_IN_A_ROW = 16
MOST_GIDS = 256
#: More devices are not read: virtual functions, mostly. 64 of them are a full table of one card.
MOST_HCAS = 160

#: The least comparable ports, and how many may be worse than the others before that is taken for the design.
LEAST_ALIKE, FEW_SHARE = 4, 0.25
#: All ports of a model down on one node and up on others: from so many on it is no spare card (judgment).
LEAST_DARK = 2

#: A link that went down so many times more than its peers' median, and at least once a day, flaps: a
#: reboot of a switch, or of the node, takes all of them down together (judgment).
FLAPS, FLAPS_PER_DAY = 10, 1.0
DAY_S = 86400.0

#: What a network interface's MTU leaves for RDMA: the largest of these after the headers
#: (include/rdma/ib_addr.h, iboe_get_mtu).
VERBS_MTUS = (4096, 2048, 1024, 512, 256)
HEADERS_BYTES = 96


def verbs_mtu(mtu_bytes: int) -> int:
    """The RDMA packet size over an Ethernet interface of this MTU: 1024 of 1500, 4096 of 4200 and 9000."""
    return next((mtu for mtu in VERBS_MTUS if mtu <= mtu_bytes - HEADERS_BYTES), VERBS_MTUS[-1])
