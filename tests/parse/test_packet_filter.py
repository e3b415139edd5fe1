"""Certain conclusions from a packet filter: the port is closed to every other host, or nothing is known.

The .json files were printed by nft 1.0.6 for rules as administrators and firewalld write them; the lines of
iptables-save were written manually, based on ufw's and firewalld's own files.
"""

import json
from pathlib import Path

import pytest

from ddp_doctor.parse.packet_filter import closed_in_iptables, closed_in_nft

SAMPLES = Path(__file__).parent.parent / "samples" / "packet_filter"
PORT = 29400


@pytest.mark.parametrize(
    ("name", "port", "closed"),
    [
        ("policy", PORT, ("drop", "inet filter input")),
        ("policy", 22, None),
        ("policy", 8050, None),
        ("firewalld", PORT, ("reject", "inet firewalld filter_IN_public")),
        ("firewalld", 22, None),
    ],
)
def test_output_of_nft_is_read(name: str, port: int, closed: tuple[str, str] | None):
    assert closed_in_nft((SAMPLES / f"{name}.json").read_text(), port, {"inet", "ip"}) == closed


def _nft(*expressions: object, family: str = "inet", **chain: str) -> str:
    """Return a filter of one rule, with a NAT chain if ``nat`` is a rule's expression."""
    of = {"family": family, "table": "t"}
    base = {**of, "name": "c", "type": "filter", "hook": "input", "prio": 0, "policy": "accept", **chain}
    rules = [{"rule": {**of, "chain": "c", "expr": [*each]}} for each in expressions]  # type: ignore[misc]  # lists of any kind
    return json.dumps({"nftables": [{"metainfo": {}}, {"chain": base}, *rules]})


def _is(left: object, right: object, op: str = "==") -> dict[str, object]:
    return {"match": {"op": op, "left": left, "right": right}}


DPORT, UDP = ({"payload": {"protocol": protocol, "field": "dport"}} for protocol in ("tcp", "udp"))
FLAGS = {"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, {"|": ["syn", "ack"]}]}
IFNAME, SADDR = {"meta": {"key": "iifname"}}, {"payload": {"protocol": "ip", "field": "saddr"}}
DROP, ACCEPT = {"drop": None}, {"accept": None}


@pytest.mark.parametrize(
    ("rules", "is_closed"),
    [
        ([[_is(DPORT, PORT), DROP]], True),
        ([[_is(IFNAME, "lo", "!="), _is(FLAGS, "syn"), _is(DPORT, {"range": [29000, 30000]}), DROP]], True),
        ([[_is(DPORT, {"set": [22, 80]}, "!="), {"counter": {}}, DROP]], True),
        ([[_is(DPORT, 22, "!="), {"reject": {"type": "tcp reset"}}]], True),
        ([[_is(DPORT, PORT, "!="), DROP]], False),
        ([[_is(UDP, 53, "!="), DROP]], False),  # only UDP
        ([[_is(IFNAME, "eth1"), DROP]], False),  # the other hosts' interface is unknown
        ([[_is(SADDR, "10.0.0.1"), ACCEPT], [DROP]], False),  # it may be the others' address
        ([[_is(DPORT, "@open"), ACCEPT], [DROP]], False),
        ([[{"xt": None}, ACCEPT], [DROP]], False),
        ([[{"limit": {"rate": 5}}, DROP]], False),
        ([[{"reject": {"type": "icmp"}}]], False),  # only one address family
        ([[{"jump": {"target": "nowhere"}}], [DROP]], False),
        ([], False),
    ],
)
def test_port_is_closed_only_if_no_connection_of_another_host_may_pass(rules: list[list[object]], is_closed: bool):
    assert closed_in_nft(_nft(*rules), PORT, {"inet"}) == (
        ("drop" if "reject" not in str(rules) else "reject", "inet t c") if is_closed else None
    )


def test_filter_of_another_family_or_of_outgoing_packets_does_not_count():
    assert closed_in_nft(_nft([DROP], family="ip6"), PORT, {"inet", "ip"}) is None
    assert closed_in_nft(_nft([DROP], hook="output"), PORT, {"inet"}) is None
    assert closed_in_nft(_nft([DROP], type="nat", hook="prerouting"), PORT, {"inet"}) is not None
    assert (
        closed_in_nft(_nft([{"dnat": {"port": 80}}], type="nat", hook="prerouting", policy="drop"), PORT, {"inet"})
        is None
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nftables": 3}', '{"nftables": [{"rule": {}}]}', "null"])
def test_unreadable_filter_is_inconclusive(text: str):
    assert closed_in_nft(text, PORT, {"inet"}) is None
    assert closed_in_iptables(text, PORT) is None


UFW = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:ufw-before-input - [0:0]
:ufw-not-local - [0:0]
:ufw-user-input - [0:0]
-A INPUT -j ufw-before-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-not-local -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -m comment --comment "ssh -j ACCEPT" -j ACCEPT
{}
COMMIT
"""


NAT = "COMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -m tcp"


@pytest.mark.parametrize(
    ("line", "is_closed"),
    [
        ("", True),
        ("-A ufw-user-input -p tcp -m multiport --dports 80,8000:9000 -j ACCEPT", True),
        ("-A ufw-user-input -p tcp -m multiport --dports 80,29000:30000 -j ACCEPT", False),
        ("-A ufw-user-input -p tcp -m tcp ! --dport 29400 -j ACCEPT", True),
        ("-A ufw-user-input -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m tcp --dport 29400 -j ACCEPT", False),
        ("-A ufw-user-input -s 10.0.0.0/8 -j ACCEPT", False),
        ("-A ufw-user-input -i eth1 -j ACCEPT", False),
        ("-A ufw-user-input -m recent --name seen -j ACCEPT", False),
        (f"{NAT} --dport 29400 -j REDIRECT --to-ports 22", False),
        (f"{NAT} --dport 8080 -j DNAT --to-destination 10.0.0.2", True),
    ],
)
def test_iptables_rules_of_ufw_are_read(line: str, is_closed: bool):
    found = closed_in_iptables(UFW.format(line), PORT)

    assert (found is not None) is is_closed
    assert closed_in_iptables(UFW.format(line), 22) is None
