"""The entry of a RoCE port's GID table that NCCL uses, by its version and settings, and the usable entries.

    DEV     PORT  INDEX  GID                                      IPv4         VER  DEV
    mlx5_0  1     0      fe80:0000:0000:0000:0ac0:ebff:feda:1cfb               v1   eth2
    mlx5_0  1     1      fe80:0000:0000:0000:0ac0:ebff:feda:1cfb               v2   eth2
    mlx5_0  1     2      0000:0000:0000:0000:0000:ffff:c800:d106  200.0.209.6  v1   eth2
    mlx5_0  1     3      0000:0000:0000:0000:0000:ffff:c800:d106  200.0.209.6  v2   eth2

Sources: NCCL 2.30.7 src/transport/net_ib/connect.cc (ncclIbGetGidIndex, ncclUpdateGidIndex, validGid); before 2.21.5
the index is NCCL_IB_GID_INDEX, 0 by default. In a container with a separate network, the kernel also shows the
addresses of the host's entries, but not their type (EINVAL): NCCL 2.21 to 2.25 stops at such an entry (NVIDIA/nccl
issues 1538 and 1573), 2.26 continues.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddp_doctor.knowledge.versions import Version
from ddp_doctor.model.base import Frozen

INDEX = "NCCL_IB_GID_INDEX"
FAMILY = "NCCL_IB_ADDR_FAMILY"
VERSION = "NCCL_IB_ROCE_VERSION_NUM"
RANGE = "NCCL_IB_ADDR_RANGE"
#: Settings of the search; each of them can make it choose a wrong entry.
SEARCH_SETTINGS = (FAMILY, VERSION, RANGE)

#: First release of NCCL that searches the table.
SEARCHES_SINCE: Version = (2, 21)
#: First release that continues after an entry of another network namespace.
PASSES_HIDDEN_SINCE: Version = (2, 26)


class Gid(Frozen):
    """An entry of a port's table; all-zero entries are omitted."""

    index: int
    address: str  # compressed: "fe80::ac0:ebff:feda:1cfb", "::ffff:200.0.209.6"
    roce: int | None = None  # 1 or 2; None if the kernel does not report it
    netdev: str | None = None
    hidden: bool = False  # of another network namespace

    @property
    def is_ipv4(self) -> bool:
        """Return True if it holds an IPv4 address."""
        return self.address.startswith("::ffff:")

    @property
    def is_link_local(self) -> bool:
        """Return True if it is valid only on one network segment, like the default entries."""
        return self.address.startswith("fe80:")

    @property
    def is_routable(self) -> bool:
        """Return True if RoCE v2 carries it between segments."""
        return self.roce == 2 and not self.is_link_local and not self.hidden


@dataclass(frozen=True)
class Choice:
    """The index that NCCL uses, or None if it fails first. ``gid`` is the entry at the index, if any."""

    index: int | None
    gid: Gid | None
    why: str


def compressed(address: str) -> str | None:
    """Return a GID as sysfs prints it in short form, or None if it is invalid or empty."""
    try:
        parsed = ipaddress.IPv6Address(address.strip())
    except ValueError:
        return None
    if int(parsed) in {0, 0xFE80 << 112}:  # empty, or a prefix without an interface: not configured
        return None
    return f"::ffff:{parsed.ipv4_mapped}" if parsed.ipv4_mapped else str(parsed)


def nccl_choice(gids: Sequence[Gid], nccl: Version, env: Mapping[str, str]) -> Choice:
    """Return the entry of a RoCE port that this release uses."""
    table = {gid.index: gid for gid in gids}
    configured = configured_index(env)
    if configured is not None:
        return Choice(configured, table.get(configured), f"{INDEX}={env[INDEX]}")
    if nccl < SEARCHES_SINCE:
        return Choice(0, table.get(0), f"NCCL before 2.21 takes 0 unless {INDEX} says otherwise")
    index = 0
    wanted = _Wanted.of(env)
    for candidate in sorted(table):
        if candidate == 0:
            continue
        fails, better = wanted.prefers(table.get(index), table[candidate], nccl)
        if fails:
            return Choice(None, None, f"NCCL cannot read the type of entry {index} or {candidate}")
        index = candidate if better else index
    return Choice(index, table.get(index), "NCCL searches the table")


def configured_index(env: Mapping[str, str]) -> int | None:
    """Return the index that the environment sets, or None if it is unset, negative or not a number."""
    try:
        index = int(env.get(INDEX, "").strip(), 0)
    except ValueError:
        return None
    return index if index >= 0 else None


@dataclass(frozen=True)
class _Wanted:
    """The entry that NCCL searches for: family, version of RoCE, range of addresses."""

    ipv4: bool
    version: int
    range: ipaddress.IPv4Network | ipaddress.IPv6Network | None

    @classmethod
    def of(cls, env: Mapping[str, str]) -> "_Wanted":
        ipv4, version, addresses = env.get(FAMILY) != "AF_INET6", 2, env.get(RANGE, "")
        with suppress(ValueError):
            version = int(env.get(VERSION, "2").strip(), 0)
        network = ipaddress.IPv4Network if ipv4 else ipaddress.IPv6Network
        with suppress(ValueError):
            return cls(ipv4, version, network(addresses, strict=False) if "/" in addresses else None)
        return cls(ipv4, version, None)

    def prefers(self, held: Gid | None, candidate: Gid, nccl: Version) -> tuple[bool, bool]:
        """Return whether NCCL fails at this step, and whether it replaces the entry it holds with the candidate."""
        if candidate.is_ipv4 != self.ipv4 or not self._in_range(candidate):
            return False, False
        if (held is not None and held.is_ipv4) != candidate.is_ipv4:
            return False, True  # the right family counts more than the version
        if candidate.is_link_local:
            return False, False
        hidden = candidate.hidden or (held is not None and held.hidden)
        if hidden and nccl < PASSES_HIDDEN_SINCE:
            return True, False
        unfit = held is None or held.is_link_local
        held_version = held.roce if held else None
        return False, candidate.roce == self.version and (unfit or held_version != candidate.roce)

    def _in_range(self, gid: Gid) -> bool:
        if self.range is None:
            return True
        text = gid.address.removeprefix("::ffff:") if gid.is_ipv4 else gid.address
        return ipaddress.ip_address(text) in self.range


def common_index(tables: Sequence[Sequence[Gid]]) -> int | None:
    """Return the lowest index with a routable IPv4 entry of RoCE v2 in each of these tables, or None."""
    fit = [{gid.index for gid in gids if gid.is_routable and gid.is_ipv4} for gids in tables]
    return min(set.intersection(*fit), default=None) if fit else None
