"""Reading this host's own packet filter; only root may."""

import os
from collections.abc import Mapping, Sequence

from ddp_doctor.facts.cluster import ClosedPort
from ddp_doctor.parse.packet_filter import closed_in_iptables, closed_in_nft
from ddp_doctor.sources.commands import DEFAULT_PATH, run_command

#: For one command. Nodes of Kubernetes have thousands of rules; what takes longer is left unread.
_PATIENCE_S = 2.0
_LONGEST = 200  # of a chain's name


def closed_by(port: int, addresses: Sequence[str], env: Mapping[str, str]) -> ClosedPort | None:
    """What certainly closes a TCP port to all other hosts, that meet this one at these addresses; None where unknown.

    firewalld and ufw make their rules with one of the two.
    """
    if os.geteuid() != 0:
        return None
    env = {**env, "PATH": f"{env.get('PATH', '')}:{DEFAULT_PATH}"}
    families = {"ip6" if ":" in address else "ip" for address in addresses}
    if len(families) != 1:  # a node may come by either of two
        families = set()
    command, found = (
        "nft",
        closed_in_nft(_said(env, "nft", "-j", "list", "ruleset"), port, {"inet", *families}),
    )
    if found is None and families == {"ip"}:
        command, found = "iptables-save", closed_in_iptables(_said(env, "iptables-save"), port)
    if found is None:
        return None
    verdict, chain = found
    return ClosedPort.model_validate({"command": command, "chain": chain[:_LONGEST], "verdict": verdict})


def _said(env: Mapping[str, str], *command: str) -> str:
    return run_command(command, env, _PATIENCE_S).stdout
