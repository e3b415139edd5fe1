"""The RDMA ports that NCCL uses: how it parses NCCL_IB_HCA, and how to write an exact value.

    NCCL_IB_HCA=mlx5_0,mlx5_1        names are prefixes: mlx5_1 also means mlx5_10 and mlx5_11
    NCCL_IB_HCA==mlx5_0:1,mlx5_1:1   exact names, and one port of each device
    NCCL_IB_HCA=^=mlx5_2             all but this one; ^ comes before =

Sources: NCCL 2.30.7 src/transport/net_ib/init.cc (ncclIbInitDevices: active ports of InfiniBand and Ethernet, in the
order of their PCI addresses) and src/misc/utils.cc (parseStringList, matchIfList); 2.30.7 reads a rail and a plane
after the port.
"""

import re
from collections.abc import Collection, Iterable, Sequence

HCA = "NCCL_IB_HCA"
#: MAX_IB_DEVS in src/transport/net_ib/common.h; NCCL silently ignores further devices.
MOST_DEVICES = 32
#: The link layers that the internal transport can use; EFA and others report "Unspecified".
LINK_LAYERS = ("InfiniBand", "Ethernet")

#: A device name that may be in a suggested setting.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def entries(value: str) -> tuple[tuple[str, int | None], ...]:
    """Return the names and ports of a value, without the signs before them."""
    found = []
    for word in value.removeprefix("^").removeprefix("=").split(","):
        name, _, after_name = word.partition(":")
        digits = re.match(r"\s*([+-]?\d{1,9})", after_name)
        port = (int(digits[1]) if digits else 0) if after_name.partition(":")[0] else None
        if name:
            found.append((name, None if port == -1 else port))
    return tuple(found[:MOST_DEVICES])


def is_exclusion(value: str) -> bool:
    """Return True if the list excludes devices."""
    return value.startswith("^")


def is_exact(value: str) -> bool:
    """Return True if names are exact, not prefixes."""
    return value.removeprefix("^").startswith("=")


def absent(value: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the names in a value that match no device; () for an exclusion."""
    if is_exclusion(value):
        return ()
    exact = is_exact(value)
    words = (word for word, _ in entries(value))
    return tuple(word for word in words if not any(name == word if exact else name.startswith(word) for name in names))


def takes(value: str, name: str, port: int | None = None) -> bool:
    """Return True if a value lets NCCL use a device's port or a network interface. An empty value allows all.

    NCCL_SOCKET_IFNAME is a list of the same kind, without ports.
    """
    listed, exact = entries(value), is_exact(value)
    words = [word for word, number in listed if port is None or number in (None, port)]
    named = any(name == word if exact else name.startswith(word) for word in words)
    return (named or not listed) != is_exclusion(value)


def names_port(value: str, name: str, port: int) -> bool:
    """Return True if the value lists devices to use, and this port is one of them."""
    return bool(entries(value)) and not is_exclusion(value) and takes(value, name, port)


def names_in_full(value: str, name: str) -> bool:
    """Return True if the value lists devices to use, and this exact name; ``mlx5`` means all and requires none."""
    return not is_exclusion(value) and any(word == name for word, _ in entries(value))


def is_name(text: str) -> bool:
    """Return True if a device's name may be in a suggested setting."""
    return _NAME.fullmatch(text) is not None


def exactly(ports: Iterable[tuple[str, int]]) -> str | None:
    """Return the value that means exactly these ports, or None if a name cannot be written in it."""
    wanted = list(ports)
    if not wanted or not all(is_name(name) for name, _ in wanted):
        return None
    return "=" + ",".join(f"{name}:{port}" for name, port in wanted)


def natural(name: str) -> tuple[Sequence[object], str]:
    """Return a sort key with mlx5_2 before mlx5_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name
