"""The faults of a cluster, the response of torchrun, and the expected findings of ddp-doctor.

``torchrun`` is the response of torch 2.13 with gloo to the same fault on such hosts, with one rank each and default
timeouts: the first meaningful line, and the nodes that had exited after 120 s. The expected answer of ddp-doctor is
written as

    {"all": "DD530 node2"}                    every node's report has this code, and blames node2 and nobody else
    {"node0": "DD516 ?node1", "node1": "DD512|DD513 node0 node0~node1"}    one of these codes; these culprits
    {"all": "DD550&DD553 node1"}             both codes

A pair is written node0~node1, a missing node that is not blamed ?node1; settings are written by name. Codes are regular
expressions. Codes and culprits of severity info are not checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.lab.hosts import Ipv6

Evidence = Literal["start", "join", "fault"]


@dataclass(frozen=True)
class Row:
    """One fault. Every host runs ddp-doctor with one rank; node0 is the head."""

    id: str
    fault: str
    torchrun: str
    says: Mapping[str, str] = field(default_factory=dict)  # empty: nothing above info
    exit: int | None = 1  # of all nodes; None if a harmless fault may be an error or less
    nodes: int = 2
    plant: tuple[str, ...] = ()  # before the start
    strike: str = ""  # while the ranks run
    strike_at: str = ""  # as soon as this process runs: "node1 ddp-doctor:r1"
    late: str = ""  # started once node0 waits for it
    absent: tuple[str, ...] = ()  # never started
    lost: tuple[str, ...] = ()  # cannot end or report, by the fault's nature
    evidence: Evidence = "start"  # from when on the seconds count; "join" is the end of the wait for nodes
    endpoint: tuple[str, ...] = ("--rdzv-endpoint", "node0:29400")
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of one host, after all others
    network: str = "10.77.0"
    is_whole: bool = False  # also with the checks of DDP
    second_nic: bool = False
    ipv6: Ipv6 = "none"

    @property
    def join_timeout_s(self) -> int:
        """The join timeout: short only if the row waits for it, because other hosts may join slowly."""
        return 10 if self.evidence == "join" else 60


HALF_SILENT = "silent; neither ends"
STATIC = ("--master-addr", "node0", "--master-port", "29500")
C_CLASS = "192.168.77"
BOTH = "node0 node1 node0~node1"
FAST_GLOO = ("environment:{}:GLOO_SOCKET_IFNAME={}").format


# --- the shapes of rows ---------------------------------------------------------------------------


def _works(name: str, fault: str, *plant: str, torchrun: str = "works", **more: Any) -> Row:
    """Return a row without fault or with a harmless one: no finding above info."""
    return Row(name, fault, torchrun, exit=0, plant=plant, **more)


def _all_say(name: str, fault: str, torchrun: str, says: str, *plant: str, **more: Any) -> Row:
    """Return a row of a fault that every node's report shows equally."""
    return Row(name, fault, torchrun, {"all": says}, plant=plant, **more)


def _unmet(
    name: str, fault: str, torchrun: str, node1: str, *plant: str, node0: str = "DD516 ?node1", **more: Any
) -> Row:
    """Return a row where node1 cannot reach node0 and reports why; node0 reports it missing after the join timeout."""
    says = {"node0": node0, "node1": node1}
    return Row(name, fault, torchrun, says, plant=plant, evidence="join", **more)


def _absent(name: str, fault: str, torchrun: str, absent: str, says: Mapping[str, str], **more: Any) -> Row:
    """Return a row with a node where the command is not started."""
    return Row(name, fault, torchrun, says, absent=(absent,), evidence="join", **more)


def _told(name: str, fault: str, torchrun: str, node: str, option: str, says: str, **more: Any) -> Row:
    """Return a row where one node is started with a different option."""
    return _all_say(name, fault, torchrun, says, arguments={node: tuple(option.split())}, **more)


def _loopback(name: str, hosts: str, torchrun: str, network: str = C_CLASS, nodes: int = 2) -> Row:
    """Nodes whose own name means themselves; gloo then advertises 127.0.1.1."""
    own = hosts.split()
    return _all_say(
        f"loopback-{name}",
        f"{', '.join(own)}: own name is 127.0.1.1, {network}.x",
        torchrun,
        f"DD520 {hosts}",
        *(f"loopback-name:{host}" for host in own),
        exit=0 if network.startswith("10.") else 1,
        nodes=nodes,
        network=network,
    )


def _ifname(name: str, codes: str, torchrun: str, hosts: str, **more: Any) -> Row:
    """Return a row with an unusable GLOO_SOCKET_IFNAME, the first word of ``name``; "bare": eth1 has no cable."""
    value, own, bare = name.partition("-")[0], hosts.split(), "bare" in name
    culprits = "node1 node0~node1" if len(own) == 1 else BOTH
    return _all_say(
        f"ifname-{name}",
        f"GLOO_SOCKET_IFNAME={value} on {', '.join(own)}{', not cabled on node1' if bare else ''}",
        torchrun,
        f"{codes} {culprits} GLOO_SOCKET_IFNAME",
        *(FAST_GLOO(host, value) for host in own),
        *(f"bridge-interface:{host}" for host in own if value == "docker0"),
        *(("dead-port:node1:eth1",) if bare else ()),
        **more,
    )


def _struck(name: str, fault: str, torchrun: str, strike: str, says: str | Mapping[str, str], **more: Any) -> Row:
    """A fault that strikes a node while its rank runs."""
    node = _struck_node(strike)
    by_node = {"all": says} if isinstance(says, str) else says
    at = f"{node} ddp-doctor:r{node.removeprefix('node')}"
    return Row(name, fault, torchrun, by_node, strike=strike, strike_at=at, evidence="fault", **more)


def _cut(name: str, fault: str, torchrun: str, strike: str) -> Row:
    """Return a row where a link of node1 fails: the two halves cannot agree, and each reports its view."""
    says = dict.fromkeys(("node0", "node1"), "DD540 node1 node0~node1")
    return _struck(name, fault, torchrun, strike, says)


def _lost(name: str, fault: str, torchrun: str, strike: str, says: str, nodes: int = 2) -> Row:
    """A fault of a whole node, which cannot end or report itself."""
    return _struck(name, fault, torchrun, strike, says, nodes=nodes, lost=(_struck_node(strike),))


def _struck_node(strike: str) -> str:
    return strike.split(":")[1]


def _differs(name: str, fault: str, codes: str, *plant: str) -> Row:
    """node1 of 3 differs from the others; the severity is up to the rules."""
    return _all_say(name, fault, "not tried", f"{codes} node1", *plant, exit=None, nodes=3)


def _pairs(name: str, fault: str, torchrun: str, says: str, *plant: str, **more: Any) -> Row:
    """Return a row of a fault that only the matrix of pairs can identify."""
    only = {f"node{host}": ("--only", "p2p") for host in range(4)}
    return _all_say(f"pairs-{name}", fault, torchrun, says, *plant, nodes=4, arguments=only, **more)


# --- the table ------------------------------------------------------------------------------------

# Name, fault, torchrun's response, then the arguments of the shape; a row takes one or two lines.
# fmt: off

HEALTHY = (
    _works("healthy-2", "none, 2 hosts", is_whole=True),
    _works("healthy-4", "none, 4 hosts", nodes=4, is_whole=True),
    _works("healthy-ipv6", "none, IPv6 only", ipv6="only", is_whole=True),
    _works("healthy-2-nics", "none, two interfaces", second_nic=True),
    _works("eth1-chosen", "GLOO_SOCKET_IFNAME=eth1, which works",
           FAST_GLOO("node0", "eth1"), FAST_GLOO("node1", "eth1"), second_nic=True),
    _works("late", "node1 starts late", torchrun="silent wait, then works", late="node1"),
    _works("mtu-one-host", "MTU 9000 on node1 alone", "mtu:node1:9000", torchrun="works: MSS"),
    _works("docker0", "docker0 with one address on all hosts, IPv4 and IPv6",
           "bridge-interface:node0", "bridge-interface:node1", ipv6="dual"),
)

ENDPOINT = (
    _unmet("endpoint-drop", "endpoint's port DROP", "67 s on node1; node0 hangs",
           "DD512 node0 node0~node1", "drop-port:node0", node0="DD516 node0"),
    _unmet("endpoint-reject", "endpoint's port REJECT", "52 s on node1, not 'refused'; neither ends",
           "DD511 ?node0", "reject-port:node0", node0="DD516 node0"),
    _unmet("endpoint-prohibited", "endpoint's port rejected as firewalld does", "not tried",
           "DD511 node0", "prohibit-port:node0", node0="DD516 node0"),
    _unmet("static-port-drop", "static --master-port DROP", HALF_SILENT,
           "DD512 node0 node0~node1", "drop-port:node0:29500", endpoint=STATIC, node0="DD516 node0"),
    _unmet("endpoint-cut", "nothing of node1 reaches node0: its filter names node1's address", "not tried",
           "DD512 node0 node0~node1", "cut-path:node0:node1"),
    _unmet("no-route", "no route from node1 to node0", "not tried",
           "DD513 node0 node1 node0~node1", "no-route:node1:node0"),
    _unmet("no-such-name", "endpoint's name does not resolve on node1", "107 s on node1; node0 hangs",
           "DD510 node1 --rdzv-endpoint", "forget-name:node1:node0"),
    _unmet("port-held", "endpoint's port held by a mute program", HALF_SILENT,
           "DD51[24] node0 node0~node1", "held-port:node0", node0="DD514 node0"),
    _unmet("families-apart", "node0 has IPv6 only, node1 IPv4 only", "109 s on node1; node0 hangs",
           f"DD51[37] {BOTH}", "only-family:node0:6", "only-family:node1:4", ipv6="dual"),
    _absent("head-never", "node0 never starts", "38 s, node1 still tries at 120 s",
            "node0", {"node1": "DD511 ?node0"}),
    _absent("node1-never", "node1 never starts", "silent; node0 hangs", "node1", {"node0": "DD516 ?node1"}),
    _absent("node2-never", "node2 of 4 never starts (static)", "silent; none ends",
            "node2", {"all": "DD516 ?node2"}, nodes=4, endpoint=STATIC),
    _told("rank-twice", "both started with --node-rank 0", HALF_SILENT,
          "node1", "--node-rank 0", "DD515 --node-rank", endpoint=STATIC),
    _told("rank-twice-of-4", "node1 and node2 of 4 started with --node-rank 1", "not tried",
          "node2", "--node-rank 1", "DD515 --node-rank", nodes=4),
    _told("nnodes-differ", "node2 of 4 started with --nnodes 3", "not tried",
          "node2", "--nnodes 3", "DD518 --nnodes", nodes=4),
)

PATHS = (
    _all_say("one-port-drop", "all but the endpoint's port DROP, both", HALF_SILENT,
             f"DD53[01] {BOTH}", "drop-all-but:node0", "drop-all-but:node1"),
    _all_say("one-port-reject", "all but the endpoint's port REJECT, both", HALF_SILENT,
             f"DD53[01] {BOTH}", "reject-all-but:node0", "reject-all-but:node1"),
    _all_say("inbound-10", "node2 of 4: inbound DROP, 10.x", "120 s; none ends",
             "DD530 node2", "block-inbound:node2", nodes=4),
    _all_say("inbound-192", "node2 of 4: inbound DROP, 192.168.x", "wrong ranks named, 26 s",
             "DD530 node2", "block-inbound:node2", nodes=4, network=C_CLASS),
    _all_say("path-cut", "nothing passes between node1 and node3 of 4", "not tried",
             "DD531 node1~node3", "cut-path:node1:node3", nodes=4),
    _all_say("black-hole", "hosts 9000, switch 1500", "init works, then silent; neither ends",
             "DD532 node1 node0~node1", "mtu-black-hole:node1"),
    _all_say("black-hole-of-4", "hosts 9000, node2's switch port 1500", "not tried",
             "DD532 node2", "mtu-black-hole:node2", nodes=4),
    _all_say("loss", "5 % loss on node1, both ways", "never noticed, 5 x slower",
             "DD53[346] node1", "loss:node1:5", nodes=4),
    _all_say("delay", "50 ms round trip to node1", "never noticed, 8 x slower",
             "DD534 node1", "delay:node1:25", nodes=4),
    _all_say("rate", "100 Mbit/s on node1", "never noticed, 14 x slower",
             "DD533 node1", "rate:node1:100", nodes=4),
)

PAIRS = (
    _pairs("slow-node", "20 Mbit/s on node1", "not tried", "DD630 node1", "rate:node1:20"),
    _pairs("slow-sender", "20 Mbit/s from node1", "not tried", "DD630 node1", "rate-out:node1:20"),
    _pairs("slow-path", "20 Mbit/s between node1 and node3", "not tried", "DD631 node1~node3",
           "slow-path:node1:node3:20", "slow-path:node3:node1:20"),
    _pairs("slow-direction", "20 Mbit/s from node1 to node3", "not tried", "DD631 node1~node3",
           "slow-path:node1:node3:20"),
)

ADDRESSES = (
    _loopback("node1-10", "node1", "works, by luck", network="10.77.0"),
    _loopback("node0-10", "node0", "works, by luck", network="10.77.0"),
    _loopback("node1", "node1", "3 s, rank 0 blamed"),
    _loopback("node0", "node0", "3.3 s, rank 1 blamed; node0 hangs"),
    _loopback("both", "node0 node1", "3.2 s; node0 hangs"),
    _loopback("of-4", "node2", "5 s, three innocents blamed", nodes=4),
    _ifname("ib0", "DD521", "3.1 s on node1; node0 hangs", "node1"),
    _ifname("lo-10", "DD522", "works, by luck", "node1", exit=None),
    _ifname("lo-192", "DD522", "3.2 s on node0", "node1", network=C_CLASS),
    _ifname("lo-both", "DD522", "3.1 s on either; node0 hangs", "node0 node1"),
    _ifname("docker0", "DD522", "3.0 s, its own address", "node0 node1"),
    _ifname("eth1-bare-one", "DD53[0157]", "works, by luck", "node1", exit=None, second_nic=True),
    _ifname("eth1-bare", "DD53[0157]", "15 s on node1; node0 hangs", "node0 node1", second_nic=True),
    _all_say("names-of-two-families", "own name is IPv6 on node0, IPv4 on node1", "3.2 s, family numbers",
             f"DD524 {BOTH}", "names-of-family:node0:6", "names-of-family:node1:4", ipv6="dual"),
)

RUNNING = (
    _cut("link-down", "link set down on node1", "61 s; neither ends", "link-down:node1"),
    _cut("cable-out", "cable pulled at the switch", "60 s; neither ends", "cable-out:node1"),
    _cut("dead-port", "dead switch port", HALF_SILENT, "dead-port:node1"),
    _struck("dead-port-of-4", "dead switch port of node2 of 4", "20 s with a short time-out; node2 hangs",
            "dead-port:node2",
            dict.fromkeys(("node0", "node1", "node3"), "DD540 node2") | {"node2": "DD540 node2 node0~node2"},
            nodes=4),
    _struck("rank-stopped", "rank 1 SIGSTOP", HALF_SILENT, "stop:node1:ddp-doctor:r1", "DD611 node1"),
    _struck("rank-stopped-of-4", "rank 2 of 4 SIGSTOP", "three wrong, culprit unnamed",
            "stop:node2:ddp-doctor:r2", "DD611 node2", nodes=4),
    _struck("rank-killed", "rank 1 SIGKILL", "at once, by address", "kill:node1:ddp-doctor:r1", "DD612 node1"),
    _struck("rank-killed-of-4", "rank 2 of 4 SIGKILL", "0.1 s, one of four causes right",
            "kill:node2:ddp-doctor:r2", "DD612 node2", nodes=4),
    _lost("node-killed", "all of node1 SIGKILL", "1.5 s, by address",
          "kill-all:node1", "DD540 node1 node0~node1"),
    _lost("node-frozen", "all of node1 SIGSTOP", "not tried",
          "stop-all:node1", "DD540 node1 node0~node1"),
    _lost("node-frozen-of-4", "all of node2 of 4 SIGSTOP", "not tried",
          "stop-all:node2", "DD540 node2", nodes=4),
    _lost("power-off", "power off (no FIN, no RST)", "silent; node0 hangs",
          "power-off:node1", "DD540 node1 node0~node1"),
    _lost("power-off-of-4", "power off of node2 of 4", "not tried",
          "power-off:node2", "DD540 node2", nodes=4),
    _lost("head-killed-of-4", "all of node0 of 4 SIGKILL", "not tried",
          "kill-all:node0", "DD540 node0 node0~node1 node0~node2 node0~node3", nodes=4),
    _lost("head-off-of-4", "power off of node0 of 4", "not tried",
          "power-off:node0", "DD540 node0 node0~node1 node0~node2 node0~node3", nodes=4),
)

DIFFERENT = (
    _differs("other-doctor", "another ddp-doctor on node1", "DD550", "other-version:node1:ddp_doctor:0.0.1"),
    _differs("other-torch", "another torch on node1, TORCH_DISTRIBUTED_DEBUG=DETAIL, and a clock an hour fast",
             "DD550&DD551&DD553", "other-version:node1:torch:2.6.0", "skewed-clock:node1:3600",
             "environment:node1:TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    _told("nproc-differs", "1 rank on node0, 2 on node1", "runs as three ranks, nobody notices",
          "node1", "--nproc-per-node 2", "DD552", exit=0),
)
# fmt: on

ROWS = (*HEALTHY, *ENDPOINT, *PATHS, *PAIRS, *ADDRESSES, *RUNNING, *DIFFERENT)
