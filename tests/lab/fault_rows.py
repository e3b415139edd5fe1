"""The faults of a cluster, what torchrun says to them, and what the doctor has to say.

``torchrun`` is what torch 2.13 with gloo did with the same fault on such hosts, one rank each, time-outs as they
come: the first line that says anything, and who had ended after 120 s. The doctor's answer is written as

    {"all": "DD530 node2"}                    every node's report has this code, and blames node2 and nobody else
    {"node0": "DD516 node1", "node1": "DD512|DD513 node0 node0~node1"}    one of these codes; these culprits

A pair is written node0~node1; settings go by their names. Codes are regular expressions. Codes and
culprits of severity info are free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.lab.hosts import Ipv6

JOIN_TIMEOUT_S = 10

Evidence = Literal["start", "join", "fault"]


@dataclass(frozen=True)
class Row:
    """One fault. Every host runs the doctor with one rank; node0 is the head."""

    id: str
    fault: str
    torchrun: str
    says: Mapping[str, str] = field(default_factory=dict)  # empty: nothing above info
    exit: int | None = 1  # of all nodes; None where a fault that does no harm may be error or less
    nodes: int = 2
    plant: tuple[str, ...] = ()  # before the start
    strike: str = ""  # while the ranks run
    strike_at: str = ""  # as soon as this process runs: "node1 ddp-doctor:r1"
    late_s: Mapping[str, float] = field(default_factory=dict)
    absent: tuple[str, ...] = ()  # never started
    lost: tuple[str, ...] = ()  # cannot end or report, by the fault's nature
    evidence: Evidence = "start"  # from when on the seconds count; "join" is the end of the wait for nodes
    endpoint: tuple[str, ...] = ("--rdzv-endpoint", "node0:29400")
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of one host, after all others
    network: str = "10.77.0"
    second_nic: bool = False
    ipv6: Ipv6 = "none"


HALF_SILENT = "silent; neither ends"
STATIC = ("--master-addr", "node0", "--master-port", "29500")
C_CLASS = "192.168.77"
RANK1, RANK2 = "node1 ddp-doctor:r1", "node2 ddp-doctor:r2"
BOTH = "node0 node1 node0~node1"
FAST_GLOO = ("environment:{}:GLOO_SOCKET_IFNAME={}").format

HEALTHY = (
    Row("healthy-2", "none, 2 hosts", "works", exit=0),
    Row("healthy-4", "none, 4 hosts", "works", exit=0, nodes=4),
    Row("healthy-ipv6", "none, IPv6 only", "works", exit=0, ipv6="only"),
    Row("healthy-dual", "none, IPv4 and IPv6", "works", exit=0, ipv6="dual"),
    Row("healthy-2-nics", "none, two interfaces", "works", exit=0, second_nic=True),
    Row(
        *("eth1-chosen", "GLOO_SOCKET_IFNAME=eth1, which works", "works"),
        exit=0,
        second_nic=True,
        plant=(FAST_GLOO("node0", "eth1"), FAST_GLOO("node1", "eth1")),
    ),
    Row("late", "node1 starts 8 s late", "silent wait, then works", exit=0, late_s={"node1": 8.0}),
    Row("mtu-one-host", "MTU 9000 on node1 alone", "works: MSS", exit=0, plant=("mtu:node1:9000",)),
    Row(
        *("docker0", "docker0 with one address on all hosts", "works"),
        exit=0,
        plant=("bridge-interface:node0", "bridge-interface:node1"),
    ),
)

ENDPOINT = (
    Row(
        *("endpoint-drop", "endpoint's port DROP", "67 s on node1; node0 hangs"),
        {"node0": "DD516 node1", "node1": "DD512 node0 node0~node1"},
        plant=("drop-port:node0",),
        evidence="join",
    ),
    Row(
        *("endpoint-reject", "endpoint's port REJECT", "52 s on node1, not 'refused'; neither ends"),
        {"node0": "DD516 node1", "node1": "DD511 node0 node0~node1"},
        plant=("reject-port:node0",),
        evidence="join",
    ),
    Row(
        *("endpoint-prohibited", "endpoint's port rejected as firewalld does", "not tried"),
        {"node0": "DD516 node1", "node1": "DD513 node0 node0~node1"},
        plant=("prohibit-port:node0",),
        evidence="join",
    ),
    Row(
        *("static-port-drop", "static --master-port DROP", HALF_SILENT),
        {"node0": "DD516 node1", "node1": "DD512 node0 node0~node1"},
        plant=("drop-port:node0:29500",),
        endpoint=STATIC,
        evidence="join",
    ),
    Row(
        *("no-route", "no route from node1 to node0", "not tried"),
        {"node0": "DD516 node1", "node1": "DD513 node0 node1 node0~node1"},
        plant=("no-route:node1:node0",),
        evidence="join",
    ),
    Row(
        *("no-such-name", "endpoint's name does not resolve on node1", "107 s on node1; node0 hangs"),
        {"node0": "DD516 node1", "node1": "DD510 node1 --rdzv-endpoint"},
        plant=("forget-name:node1:node0",),
        evidence="join",
    ),
    Row(
        *("port-held", "endpoint's port held by a mute program", HALF_SILENT),
        {"node0": "DD514 node0", "node1": "DD51[24] node0 node0~node1"},
        plant=("held-port:node0",),
        evidence="join",
    ),
    Row(
        *("families-apart", "node0 has IPv6 only, node1 IPv4 only", "109 s on node1; node0 hangs"),
        {"node0": "DD516 node1", "node1": f"DD51[37] {BOTH}"},
        ipv6="dual",
        plant=("only-family:node0:6", "only-family:node1:4"),
        evidence="join",
    ),
    Row(
        *("head-never", "node0 never starts", "38 s, node1 still tries at 120 s"),
        {"node1": "DD511 node0"},
        absent=("node0",),
        evidence="join",
    ),
    Row(
        *("node1-never", "node1 never starts", "silent; node0 hangs"),
        {"node0": "DD516 node1"},
        absent=("node1",),
        evidence="join",
    ),
    Row(
        *("node2-never", "node2 of 4 never starts (static)", "silent; none ends"),
        {"all": "DD516 node2"},
        nodes=4,
        absent=("node2",),
        endpoint=STATIC,
        evidence="join",
    ),
    Row(
        *("rank-twice", "both started with --node-rank 0", HALF_SILENT),
        {"all": f"DD515 {BOTH}"},
        arguments={"node1": ("--node-rank", "0")},
        endpoint=STATIC,
    ),
    Row(
        *("rank-twice-of-4", "node1 and node2 of 4 started with --node-rank 1", "not tried"),
        {"all": "DD515 node1 node2 node1~node2"},
        nodes=4,
        arguments={"node2": ("--node-rank", "1")},
    ),
    Row(
        *("nnodes-differ", "node2 of 4 started with --nnodes 3", "not tried"),
        {"all": "DD518 node2"},
        nodes=4,
        arguments={"node2": ("--nnodes", "3")},
    ),
)

PATHS = (
    Row(
        *("one-port-drop", "all but the endpoint's port DROP, both", HALF_SILENT),
        {"all": f"DD53[01] {BOTH}"},
        plant=("drop-all-but:node0", "drop-all-but:node1"),
    ),
    Row(
        *("one-port-reject", "all but the endpoint's port REJECT, both", HALF_SILENT),
        {"all": f"DD53[01] {BOTH}"},
        plant=("reject-all-but:node0", "reject-all-but:node1"),
    ),
    Row(
        *("inbound-10", "node2 of 4: inbound DROP, 10.x", "120 s; none ends"),
        {"all": "DD530 node2"},
        nodes=4,
        plant=("block-inbound:node2",),
    ),
    Row(
        *("inbound-192", "node2 of 4: inbound DROP, 192.168.x", "wrong ranks named, 26 s"),
        {"all": "DD530 node2"},
        nodes=4,
        plant=("block-inbound:node2",),
        network=C_CLASS,
    ),
    Row(
        *("path-cut", "nothing passes between node1 and node3 of 4", "not tried"),
        {"all": "DD531 node1~node3"},
        nodes=4,
        plant=("cut-path:node1:node3",),
    ),
    Row(
        *("black-hole", "hosts 9000, switch 1500", "init works, then silent; neither ends"),
        {"all": "DD532 node1 node0~node1"},
        plant=("mtu-black-hole:node1",),
    ),
    Row(
        *("black-hole-of-4", "hosts 9000, node2's switch port 1500", "not tried"),
        {"all": "DD532 node2"},
        nodes=4,
        plant=("mtu-black-hole:node2",),
    ),
    Row(
        *("loss", "5 % loss on node1, both ways", "never noticed, 5 x slower"),
        {"all": "DD53[346] node1"},
        nodes=4,
        plant=("loss:node1:5",),
    ),
    Row(
        *("delay", "50 ms round trip to node1", "never noticed, 8 x slower"),
        {"all": "DD534 node1"},
        nodes=4,
        plant=("delay:node1:25",),
    ),
    Row(
        *("rate", "100 Mbit/s on node1", "never noticed, 14 x slower"),
        {"all": "DD533 node1"},
        nodes=4,
        plant=("rate:node1:100",),
    ),
)


def _loopback(name: str, *hosts: str, network: str, nodes: int = 2, torchrun: str) -> Row:
    return Row(
        f"loopback-{name}",
        f"{', '.join(hosts)}: own name is 127.0.1.1, {network}.x",
        torchrun,
        {"all": f"DD520 {' '.join(hosts)}"},
        exit=0 if network.startswith("10.") else 1,
        nodes=nodes,
        network=network,
        plant=tuple(f"loopback-name:{host}" for host in hosts),
    )


def _ifname(
    name: str, codes: str, torchrun: str, *hosts: str, exit_code: int | None = 1, **more: object
) -> Row:
    value = name.partition("-")[0]
    culprits = "node1 node0~node1" if len(hosts) == 1 else BOTH
    return Row(
        f"ifname-{name}",
        f"GLOO_SOCKET_IFNAME={value} on {', '.join(hosts)}"
        + (", not cabled on node1" if "bare" in name else ""),
        torchrun,
        {"all": f"{codes} {culprits} GLOO_SOCKET_IFNAME"},
        exit=exit_code,
        plant=(
            *(FAST_GLOO(host, value) for host in hosts),
            *(f"bridge-interface:{host}" for host in hosts if value == "docker0"),
            *(("dead-port:node1:eth1",) if "bare" in name else ()),
        ),
        **more,  # type: ignore[arg-type]
    )


ADDRESSES = (
    _loopback("node1-10", "node1", network="10.77.0", torchrun="works, by luck"),
    _loopback("node0-10", "node0", network="10.77.0", torchrun="works, by luck"),
    _loopback("node1", "node1", network=C_CLASS, torchrun="3 s, rank 0 blamed"),
    _loopback("node0", "node0", network=C_CLASS, torchrun="3.3 s, rank 1 blamed; node0 hangs"),
    _loopback("both", "node0", "node1", network=C_CLASS, torchrun="3.2 s; node0 hangs"),
    _loopback("of-4", "node2", network=C_CLASS, nodes=4, torchrun="5 s, three innocents blamed"),
    _ifname("ib0", "DD521", "3.1 s on node1; node0 hangs", "node1"),
    _ifname("lo-10", "DD522", "works, by luck", "node1", exit_code=None),
    _ifname("lo-192", "DD522", "3.2 s on node0", "node1", network=C_CLASS),
    _ifname("lo-both", "DD522", "3.1 s on either; node0 hangs", "node0", "node1"),
    _ifname("docker0", "DD522", "3.0 s, its own address", "node0", "node1"),
    _ifname("eth1-bare-one", "DD53[0157]", "works, by luck", "node1", exit_code=None, second_nic=True),
    _ifname("eth1-bare", "DD53[0157]", "15 s on node1; node0 hangs", "node0", "node1", second_nic=True),
    Row(
        *("names-of-two-families", "own name is IPv6 on node0, IPv4 on node1", "3.2 s, family numbers"),
        {"all": f"DD524 {BOTH}"},
        ipv6="dual",
        plant=("names-of-family:node0:6", "names-of-family:node1:4"),
    ),
)


def _cut(name: str, fault: str, torchrun: str, strike: str) -> Row:
    """A link of node1 fails while the ranks run: the two halves cannot agree, each says what it sees."""
    return Row(
        *(name, fault, torchrun),
        {"node0": "DD540 node1 node0~node1", "node1": "DD540 node1 node0~node1"},
        strike=strike,
        strike_at=RANK1,
        evidence="fault",
    )


def _struck(name: str, fault: str, torchrun: str, strike: str, says: str, **more: object) -> Row:
    node = strike.split(":")[1]
    at = {"node0": "node0 ddp-doctor:r0", "node1": RANK1, "node2": RANK2}[node]
    return Row(
        *(name, fault, torchrun, {"all": says}),
        strike=strike,
        strike_at=at,
        evidence="fault",
        **more,  # type: ignore[arg-type]
    )


RUNNING = (
    _cut("link-down", "link set down on node1", "61 s; neither ends", "link-down:node1"),
    _cut("cable-out", "cable pulled at the switch", "60 s; neither ends", "cable-out:node1"),
    _cut("dead-port", "dead switch port", HALF_SILENT, "dead-port:node1"),
    Row(
        *("dead-port-of-4", "dead switch port of node2 of 4", "20 s with a short time-out; node2 hangs"),
        dict.fromkeys(("node0", "node1", "node3"), "DD540 node2") | {"node2": "DD540 node2 node0~node2"},
        nodes=4,
        strike="dead-port:node2",
        strike_at=RANK2,
        evidence="fault",
    ),
    _struck("rank-stopped", "rank 1 SIGSTOP", HALF_SILENT, "stop:node1:ddp-doctor:r1", "DD611 node1"),
    _struck(
        *("rank-stopped-of-4", "rank 2 of 4 SIGSTOP", "three wrong, culprit unnamed"),
        *("stop:node2:ddp-doctor:r2", "DD611 node2"),
        nodes=4,
    ),
    _struck(
        "rank-killed", "rank 1 SIGKILL", "at once, by address", "kill:node1:ddp-doctor:r1", "DD612 node1"
    ),
    _struck(
        *("rank-killed-of-4", "rank 2 of 4 SIGKILL", "0.1 s, one of four causes right"),
        *("kill:node2:ddp-doctor:r2", "DD612 node2"),
        nodes=4,
    ),
    _struck(
        *("node-killed", "all of node1 SIGKILL", "1.5 s, by address", "kill-all:node1"),
        "DD540 node1 node0~node1",
        lost=("node1",),
    ),
    _struck(
        *("node-frozen", "all of node1 SIGSTOP", "not tried", "stop-all:node1"),
        "DD540 node1 node0~node1",
        lost=("node1",),
    ),
    _struck(
        *("node-frozen-of-4", "all of node2 of 4 SIGSTOP", "not tried", "stop-all:node2", "DD540 node2"),
        nodes=4,
        lost=("node2",),
    ),
    _struck(
        *("power-off", "power off (no FIN, no RST)", "silent; node0 hangs", "power-off:node1"),
        "DD540 node1 node0~node1",
        lost=("node1",),
    ),
    _struck(
        *("power-off-of-4", "power off of node2 of 4", "not tried", "power-off:node2", "DD540 node2"),
        nodes=4,
        lost=("node2",),
    ),
    _struck(
        *("head-killed-of-4", "all of node0 of 4 SIGKILL", "not tried", "kill-all:node0"),
        "DD540 node0 node0~node1 node0~node2 node0~node3",
        nodes=4,
        lost=("node0",),
    ),
    _struck(
        *("head-off-of-4", "power off of node0 of 4", "not tried", "power-off:node0"),
        "DD540 node0 node0~node1 node0~node2 node0~node3",
        nodes=4,
        lost=("node0",),
    ),
)


def _differs(name: str, fault: str, torchrun: str, plant: str, exit_code: int | None = None) -> Row:
    """node1 of 4 is not as the others; how bad that is, is the rules' own affair."""
    says = {"all": r"DD55\d node1"}
    return Row(name, fault, torchrun, says, exit=exit_code, nodes=4, plant=(plant,))


DIFFERENT = (
    _differs(
        "other-doctor", "another ddp-doctor on node1", "not tried", "other-version:node1:ddp_doctor:0.0.1"
    ),
    _differs("other-torch", "another torch on node1", "not tried", "other-version:node1:torch:2.6.0"),
    _differs(
        *("other-environment", "TORCH_DISTRIBUTED_DEBUG=DETAIL on node1 alone", "not tried"),
        "environment:node1:TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    _differs("clock", "clock of node1 an hour fast", "not tried", "skewed-clock:node1:3600"),
    Row(
        *("nproc-differs", "1 rank on node0, 2 on node1", "runs as three ranks, nobody notices"),
        {"all": "DD552"},
        exit=0,
        arguments={"node1": ("--nproc-per-node", "2")},
    ),
)

ROWS = (*HEALTHY, *ENDPOINT, *PATHS, *ADDRESSES, *RUNNING, *DIFFERENT)
