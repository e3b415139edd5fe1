"""A directory tree in place of /sys, with PCI devices where a machine has them."""

from pathlib import Path

NVIDIA, MELLANOX = "0x10de", "0x15b3"
GPU, INFINIBAND, ETHERNET = "0x030200", "0x020700", "0x020000"
SOCKETS = ("0-31,64-95", "32-63,96-127")


class SysfsTree:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def plug(self, path: str, numa: int, *, kind: str = GPU, vendor: str = NVIDIA, names: tuple[str, ...] = ()) -> None:
        """A device by its way from the host bridge; ``names`` are its links, as "infiniband/mlx5_0"."""
        device = self.root / "sys/devices" / path
        device.mkdir(parents=True)
        link = self.root / "sys/bus/pci/devices" / device.name
        link.symlink_to(f"../../../devices/{path}")
        cpus = SOCKETS[numa] if numa >= 0 else "0-127"
        for name, text in {
            "vendor": vendor,
            "class": kind,
            "numa_node": str(numa),
            "local_cpulist": cpus,
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
        }.items():
            (device / name).write_text(f"{text}\n")
        if vendor == NVIDIA:
            (device / "driver").symlink_to("/sys/bus/pci/drivers/nvidia")
        for name in names:
            entry = self.root / "sys/class" / name
            entry.parent.mkdir(parents=True, exist_ok=True)
            entry.symlink_to(f"../../devices/{path}/{name}")

    def nic(self, path: str, numa: int, *names: str) -> None:
        self.plug(path, numa, kind=INFINIBAND, vendor=MELLANOX, names=names)

    def file(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


#: The addresses of the stand-in's eight GPUs, and the host bridge of each.
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")


def nvswitch_board(tree: SysfsTree) -> None:
    for at, bus in enumerate(BUSES):
        switch = f"pci0000:{at}8/0000:{at}8:01.0/0000:e{at}:00.0"
        tree.plug(f"{switch}/0000:f{at}:00.0/0000:{bus}:00.0", at // 4)
        names = (f"infiniband/mlx5_{at}", f"net/ib{at}")
        tree.nic(f"{switch}/0000:f{at}:01.0/0000:7{at}:00.0", at // 4, *names)
    tree.nic("pci0000:00/0000:00:1c.0/0000:02:00.0", 0, "net/eno1")
