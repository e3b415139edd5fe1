"""Many layouts of a host, with the probe's predictions and the real libraries' choices.

Run in separate network, name and mount namespaces; prints one JSON object per line. If a libnccl is available (in
LD_LIBRARY_PATH or next to torch), it is asked as well. gloo's choice is the address that this process listens on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil

from ddp_doctor.checks.node.interfaces import probe
from ddp_doctor.sources.machine import LiveContext
from tests.waiting import wait_until

NICS = {
    "eth0": ("10.77.0.1/24", "fd00:7::1/64"),
    "eth1": ("10.78.0.1/24", "fd00:8::1/64"),
    "docker0": ("172.17.0.1/16",),
    "v6only": ("fd00:9::1/64",),
    "bare": (),
}
OWN = ("10.77.0.1", "127.0.1.1", "10.99.0.1", "10.99.0.1 10.78.0.1", "fd00:9::1", "fd00:7::1 10.77.0.1", "")
GLOO = ("eth0", "eth1", "lo", "v6only", "bare", "ib0", "eth1,eth0", "eth0,ib0", "eth1,", "eth0,,eth1", "eth")
NCCL = (None, "eth1", "=eth", "^eth0", "^lo,eth", "docker0", "nope", "lo", "v6", "=eth1:5,eth0")
FAMILIES = (None, "AF_INET6")


def sh(*commands: str) -> None:
    """Run commands of iproute2 and similar tools."""
    for command in commands:
        subprocess.run(command.split(), check=True)


def lay_out(folder: Path) -> None:
    """The NICs, an own /etc/hosts, and a resolver that refuses at once."""
    sh("hostname hosta", "ip link set lo up")
    for name, addresses in NICS.items():
        sh(f"ip link add {name} type veth peer name p{name}")
        for end in (name, f"p{name}"):  # without the link-local addresses that IPv6 adds by default
            sh(f"ip link set {end} addrgenmode none", f"ip link set {end} up")
        for address in addresses:
            sh(f"ip {'-6 ' if ':' in address else ''}addr add {address} dev {name}{' nodad' * (':' in address)}")
    for name, text in (("hosts", ""), ("resolv.conf", "nameserver 127.0.0.9\noptions timeout:1 attempts:1\n")):
        (folder / name).write_text(text)
        sh(f"mount --bind {folder / name} /etc/{name}")


def compare(label: str, env: dict[str, str]) -> None:
    """Print the predicted and real choices of both backends."""
    seen = probe(LiveContext({**os.environ, **env}, time.monotonic() + 60))
    row = {
        "label": label,
        "env": env,
        "gloo": [seen.gloo.address if seen.gloo.error is None else None, seen.gloo.interface],
        "real_gloo": real_gloo(env),
        "nccl": [seen.nccl.address, seen.nccl.error is not None],
        "real_nccl": seen.libnccl and [seen.libnccl.address, seen.libnccl.error is not None],
    }
    sys.stdout.write(json.dumps(row) + "\n")


def real_gloo(env: dict[str, str]) -> list[str] | None:
    """Return the addresses that gloo listens on, or None if it cannot start."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    told = {name: value for name, value in env.items() if name.startswith("GLOO")}
    os.environ.update(told)
    try:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    except (RuntimeError, ValueError):
        return None
    finally:
        for name in told:
            del os.environ[name]
    found = {one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}
    dist.destroy_process_group()
    return sorted(found)


def main(folder: Path) -> None:
    """Compare all layouts, one after the other."""
    warnings.simplefilter("ignore")
    lay_out(folder)
    hosts = folder / "hosts"
    for own in OWN:
        hosts.write_text("".join(f"{address} hosta\n" for address in own.split()))
        compare(f"own name -> {own or 'nothing'}", {})
    hosts.write_text("10.77.0.1 hosta\n")
    for value in GLOO:
        compare("told", {"GLOO_SOCKET_IFNAME": value})
    for told in NCCL:
        for family in FAMILIES:
            names = {"NCCL_SOCKET_IFNAME": told, "NCCL_SOCKET_FAMILY": family}
            compare("told", {name: value for name, value in names.items() if value})
    sh("ip link set eth0 down")
    compare("eth0 down", {})
    sh("ip link set peth1 down")
    wait_until(lambda: b" UP " not in subprocess.check_output(("ip", "-brief", "link", "show", "eth1")), "no carrier")
    compare("eth1 without carrier", {})
    compare("eth1 without carrier", {"GLOO_SOCKET_IFNAME": "eth1"})
    sh("ip link set v6only down")
    compare("docker0 left", {})
    sh("ip link set docker0 down")
    compare("lo left", {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
