"""Check if a host's own packet filter closes a TCP port to every other host, from the output of nft or iptables.

    nft -j list ruleset     {"nftables": [{"chain": {"family": "inet", "table": "filter", "name": "input",
                             "type": "filter", "hook": "input", "policy": "drop"}}, {"rule": {…, "expr": […]}}]}
    iptables-save           :INPUT DROP [0:0]
                            -A INPUT -p tcp -m tcp --dport 22 -j ACCEPT

The first packet of a connection from another host is followed through the rules. For a missing node, only protocol,
port and state are known. A rule with other conditions (addresses, interfaces, sets, limits) may therefore match or not.
The port is closed only if every path through one hook ends in drop or reject.
"""

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.parse.json_value import OTHER_SHAPE, json_value

#: Whether a packet matches, or None if unknown.
Match = bool | None
#: The action of a rule: accept, drop, reject, return, next (continue), jump CHAIN, goto CHAIN; "?" is any action.
Target = str
#: The end of a path through a chain: the verdict, and the chain that gave it.
End = tuple[str, str]

_END = ("end", "")
_HOOKS = ("prerouting", "input")
_SYN = frozenset({"syn"})
_TCP_FLAGS = {"protocol": "tcp", "field": "flags"}
_PROTOCOL = ({"protocol": "ip", "field": "protocol"}, {"protocol": "ip6", "field": "nexthdr"})
_OTHER_PROTOCOLS = ("udp", "udplite", "sctp", "dccp", "icmp", "icmpv6", "igmp", "esp", "ah", "comp")


@dataclass
class _Chain:
    """A chain. ``rules`` hold the possible actions of each rule, first match first."""

    name: str
    rules: list[list[tuple[Match, Target]]] = field(default_factory=list)
    hook: str = ""  # empty: only a target of jumps
    policy: str = "accept"
    is_nat: bool = False  # may send the packet to another port
    counts: bool = True  # sees all packets to the endpoint's addresses


def closed_in_nft(text: str, port: int, families: Collection[str]) -> End | None:
    """Return the verdict and chain that close the port in ``nft -j list ruleset``, in these families: inet, ip, ip6."""
    chains: dict[str, _Chain] = {}
    with suppress(*OTHER_SHAPE):
        for item in json_value(text)["nftables"]:
            for kind, value in item.items():
                if kind in ("chain", "rule") and value["family"] in ("inet", "ip", "ip6"):
                    table = f"{value['family']} {value['table']}"
                    if kind == "chain":
                        name = f"{table} {value['name']}"
                        is_nat, policy = value.get("type") == "nat", value.get("policy", "accept")
                        counts = value["family"] in families
                        chains[name] = _Chain(name, [], value.get("hook", ""), policy, is_nat, counts)
                    else:
                        rule = list(_nft_targets(value["expr"], table, port))
                        chains[f"{table} {value['chain']}"].rules.append(rule)
        return _closed(chains)
    return None


def closed_in_iptables(text: str, port: int) -> End | None:
    """Return the verdict and chain that close the port in ``iptables-save``."""
    chains: dict[str, _Chain] = {}
    table = ""
    with suppress(ValueError, KeyError, IndexError, RecursionError):
        for line in text.splitlines():
            if line.startswith("*"):
                table = line[1:].strip()
            elif line.startswith(":"):
                name, policy, *_ = line[1:].split()
                hook = name.lower() if policy != "-" else ""
                chains[f"{table} {name}"] = _Chain(f"{table} {name}", [], hook, policy.lower(), table == "nat")
            elif line.startswith("-A "):
                _, name, *words = shlex.split(line)
                chains[f"{table} {name}"].rules.append([_iptables_rule(words, table, port)])
        return _closed(chains)
    return None


# --- through the chains ---------------------------------------------------------------------------


def _closed(chains: dict[str, _Chain]) -> End | None:
    found: list[End] = []
    known: dict[str, set[End]] = {}
    for chain in chains.values():
        if chain.hook in _HOOKS:
            ends = {(chain.policy, chain.name) if end == _END else end for end in _ends(chains, chain.name, known)}
            verdicts = {verdict for verdict, _ in ends}
            if chain.is_nat and "?" in verdicts:
                return None
            if chain.counts and verdicts <= {"drop", "reject"}:
                found.append(min(ends))
    return found[0] if found else None


def _ends(chains: dict[str, _Chain], name: str, known: dict[str, set[End]]) -> set[End]:
    """Return all ends of a packet's path through a chain. ``known`` has the ends of other chains.

    _END is the end after the last rule.
    """
    if name in known:
        return known[name]
    known[name] = {("?", name)}  # for a loop, which the kernel does not allow, and for a missing chain
    if name not in chains:
        return known[name]
    ends: set[End] = set()
    for rule in chains[name].rules:
        may_go_on = True
        for match, target in rule:
            if match is False:
                continue
            after = _after(chains, name, target, known)
            ends |= after - {("next", name)}
            if match:
                may_go_on = ("next", name) in after
                break
        if not may_go_on:
            break
    else:
        ends.add(_END)
    known[name] = ends
    return ends


def _after(chains: dict[str, _Chain], name: str, target: Target, known: dict[str, set[End]]) -> set[End]:
    verb, _, other = target.partition(" ")
    if verb in ("jump", "goto"):
        ends = _ends(chains, other, known)
        return {("next", name) if end == _END and verb == "jump" else end for end in ends}
    return {_END} if verb == "return" else {(verb, name)}


# --- nft ------------------------------------------------------------------------------------------

_VERDICTS = ("accept", "drop", "reject", "return")
_NO_MATTER = ("counter", "log", "comment", "mangle", "set", "last")
_MAY_MATCH = ("limit", "quota", "ct count")


def _nft_targets(expressions: list[dict[str, Any]], table: str, port: int) -> Iterator[tuple[Match, Target]]:
    match: Match = True
    for expression in expressions:
        ((kind, value),) = expression.items()
        if kind == "match":
            match = _both(match, _nft_match(value["op"], value["left"], value["right"], port))
        elif kind in _MAY_MATCH:
            match = _both(match, None)
        elif kind == "vmap":
            entries = value["data"]["set"] if isinstance(value["data"], dict) else [(None, {"?": None})]
            for right, verdict in entries:
                yield _both(match, _nft_match("==", value["key"], right, port)), _nft_target(verdict, table)
        elif kind not in _NO_MATTER:
            if kind == "reject" and table.startswith("inet") and (value or {}).get("type") in ("icmp", "icmpv6"):
                match = _both(match, None)  # it rejects packets of only one family
            yield match, _nft_target(expression, table)


def _nft_target(verdict: dict[str, Any], table: str) -> Target:
    ((kind, value),) = verdict.items()
    if kind in ("jump", "goto"):
        return f"{kind} {table} {value['target']}"
    return kind if kind in _VERDICTS else "next" if kind == "continue" else "?"


def _nft_match(operator: str, left: Any, right: Any, port: int) -> Match:
    if left.get("payload", {}).get("protocol") in _OTHER_PROTOCOLS:
        return False  # regardless of the comparison, the rule applies only to packets of that protocol
    match = _nft_is(left, right, port)
    if match is None or operator not in ("==", "in", "!="):
        return None
    return match != (operator == "!=")


def _nft_is(left: Any, right: Any, port: int) -> Match:
    """Return whether the left side of a comparison is among the values on the right side, or None if unknown."""
    if "&" in left:
        flags, mask = left["&"]
        return _SYN & _flags(mask) == _flags(right) if flags == {"payload": _TCP_FLAGS} else None
    meta, payload = left.get("meta", {}).get("key"), left.get("payload", {})
    if meta in ("iifname", "iif"):
        return _among(_is_elsewhere, right)
    if left.get("ct") in ({"key": "state"}, {"key": "status"}) and "expected" not in str(right):
        return _among(lambda name: name == "new", right)
    if meta == "l4proto" or payload in _PROTOCOL:
        return _among(lambda name: name in ("tcp", 6), right)
    if payload.get("protocol") in ("tcp", "th") and payload.get("field") == "dport":
        return _among(lambda at: at == port if isinstance(at, int) else None, right)
    return None


def _among(is_it: Callable[[Any], Match], right: Any) -> Match:
    if isinstance(right, dict) and "range" in right:
        first, last = right["range"]
        ends = isinstance(first, int) and isinstance(last, int)
        return any(is_it(at) for at in range(first, last + 1)) if ends else None
    items = right.get("set") if isinstance(right, dict) else right
    if isinstance(items, list):
        each = [_among(is_it, item) for item in items]
        return True if True in each else None if None in each else False
    unknown = items is None or isinstance(items, dict) or str(items).startswith("@")
    return None if unknown else is_it(items)


def _flags(names: Any) -> frozenset[str]:
    names = names.get("|", names) if isinstance(names, dict) else names
    return frozenset([names] if isinstance(names, str) else names)


def _is_elsewhere(interface: str) -> Match:
    """Return False if packets of other hosts cannot enter by the interface (lo), or None if unknown."""
    return False if interface == "lo" else None


def _both(first: Match, second: Match) -> Match:
    return False if False in (first, second) else None if None in (first, second) else True


# --- iptables -------------------------------------------------------------------------------------

#: Modules without a condition; other modules may have one.
_MODULES = ("tcp", "comment", "conntrack", "state", "multiport")
#: Options whose condition is met if the packet has one of these values.
_WANTED = {"-p": {"tcp", "all"}, "--ctstate": {"NEW"}, "--state": {"NEW"}}
_GO_ON = ("LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS", "TRACE", "CT", "AUDIT", "SET")


def _iptables_rule(words: list[str], table: str, port: int) -> tuple[Match, Target]:
    match: Match = True
    while words:
        is_not = words[0] == "!"
        option, *words = words[1:] if is_not else words
        ends = (at for at, word in enumerate(words) if word.startswith("-") or word == "!")
        if option == "--comment":
            words = words[1:]
            continue
        if option in ("-j", "-g"):
            verb, name = "jump" if option == "-j" else "goto", words[0]
            if name.lower() in _VERDICTS:
                return match, name.lower()
            return match, "next" if name in _GO_ON else f"{verb} {table} {name}"  # a module's target has no chain
        taken = 2 if option == "--tcp-flags" else next(ends, len(words))
        asked = _iptables_is(option, words[:taken], port)
        match = _both(match, asked if asked is None or not is_not else not asked)
        words = words[taken:]
    return match, "next"


def _iptables_is(option: str, values: list[str], port: int) -> Match:
    value = values[0] if values else ""
    if option == "-m":
        return value in _MODULES or None
    if option in _WANTED:
        return not _WANTED[option].isdisjoint(value.split(","))
    if option == "-i":
        return _is_elsewhere(value)
    if option == "--tcp-flags":
        mask, wanted = ({"SYN"} if part == "ALL" else set(part.split(",")) for part in values)
        return mask & {"SYN"} == wanted - {"NONE"}
    if option in ("--dport", "--dports"):
        ranges = [part.partition(":") for part in value.split(",")]
        return any(int(first or 0) <= port <= int(last or (65535 if colon else first)) for first, colon, last in ranges)
    return None
