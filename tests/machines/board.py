"""A tree in place of / with PCI devices as the kernel shows them: nested directories, and links to them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from tests.machines.memory import MemoryFiles
from tests.rdma_trees import CLASS, Tree

PCI = "/sys/bus/pci/devices"
UP_DAYS = 30.0
#: The path above a device: its host bridge, the root port, and a switch's upstream and downstream port.
Above = tuple[str, ...]

_GEN5, _GEN4, _GEN1 = "32.0 GT/s PCIe", "16.0 GT/s PCIe", "2.5 GT/s PCIe"
#: Bytes from 0x100: error reporting, then ACS, whose control register is at 0x146.
_REPORTING, _ACS = b"\x01\x00\x12\x14", b"\x0d\x00\x01\x00\x5f\x00"


def config_space(acs: int) -> bytes:
    """The 4096 bytes of a bridge as root sees them, with these bits of access control in force."""
    text = bytearray(4096)
    text[0x100:0x104] = _REPORTING
    text[0x140:0x146] = _ACS
    text[0x146:0x148] = acs.to_bytes(2, "little")
    return bytes(text)


class Board:
    """The tree. Seconds since the boot are the real clock's plus a month, so that ages are known."""

    def __init__(self, *, as_root: bool = False) -> None:
        self.tree = MemoryFiles()
        self.tree.folder("/sys/bus/pci/devices")
        self.as_root = as_root
        self.uptime_s = time.monotonic() + UP_DAYS * 86400
        self.log: list[str] = []

    def said(self, text: str, ago_s: float) -> None:
        self.log.append(f"[{self.uptime_s - ago_s:12.6f}] {text}")

    def files(self, texts: Mapping[str, str]) -> None:
        for path, text in texts.items():
            self.tree.write(path, text)

    def seat(
        self,
        bus_id: str,
        above: Above,
        *,
        kind: str = "0x030200",
        vendor: str = "0x10de",
        device: str = "0x2330",
        driver: str | None = "nvidia",
        node: int = 0,
        cpus: str = "0-31,64-95",
        width: int = 16,
        acs: int = 0,
        idle: bool = False,
    ) -> None:
        bridge = {"kind": "0x060400", "vendor": "0x1000", "device": "0xc030", "driver": "pcieport"}
        for at, name in enumerate(above[1:], 1):
            if not self.tree.exists(f"{PCI}/{name}"):
                self.seat(name, above[:at], **bridge, node=node, cpus=cpus, acs=acs)  # type: ignore[arg-type]  # all are strings
        folder = "/".join(("devices", *above, bus_id))
        self.tree.link(f"{PCI}/{bus_id}", f"../../../{folder}")
        texts = {
            "vendor": vendor,
            "device": device,
            "class": kind,
            "numa_node": node,
            "local_cpulist": cpus,
            "current_link_width": width,
            "max_link_width": width,
            "current_link_speed": _GEN1 if idle else _GEN5,
            "max_link_speed": _GEN4 if idle else _GEN5,
        }
        self.files({f"/sys/{folder}/{name}": f"{value}\n" for name, value in texts.items()})
        if driver:
            up = "../" * (len(above) + 2)
            self.tree.link(f"/sys/{folder}/driver", f"{up}bus/pci/drivers/{driver}")
        if kind == bridge["kind"]:
            shown = config_space(acs)
            self.tree.write(f"/sys/{folder}/config", shown if self.as_root else shown[:64])

    def iommu(self, kind: str, bus_ids: Iterable[str]) -> None:
        """A group of this type for each device: DMA-FQ translates, identity does not."""
        for group, bus_id in enumerate(bus_ids, 10):
            self.tree.link(f"{PCI}/{bus_id}/iommu_group", f"../../../kernel/iommu_groups/{group}")
            self.tree.write(f"/sys/kernel/iommu_groups/{group}/type", f"{kind}\n")

    def rdma(self, tree: Tree, places: Mapping[str, tuple[str, Above, int]], node: int = 0) -> dict[str, OSError]:
        """Add the RDMA devices of a tree at (bus id, above, NUMA node); return their unreadable files.

        ``node`` selects the GUIDs of another machine.
        """
        for name, (bus_id, above, numa) in places.items():
            if not self.tree.exists(f"{PCI}/{bus_id}"):
                self.seat(
                    bus_id,
                    above,
                    kind="0x020700",
                    vendor="0x15b3",
                    device="0x1021",
                    driver=self._driver(tree, name),
                    node=numa,
                    cpus="" if numa < 0 else CPUS[numa],
                )
            inside = f"{self.tree.readlink(f'{PCI}/{bus_id}').removeprefix('../../../')}/infiniband/{name}"
            self.tree.folder(f"/sys/{inside}")
            self.tree.link(f"{CLASS}/{name}", f"../../{inside}")
            self.tree.link(f"{CLASS}/{name}/device", f"../../../{bus_id}")
        for path, text in tree.files.items():
            if isinstance(text, str) and "/device/numa_node" not in path:
                self.tree.write(path, text.replace("b83f:d203:00aa", f"b83f:d203:{node:04x}"))
            elif path.startswith("/dev/"):
                self.tree.write(path)
        for path, target in tree.links.items():
            if not path.startswith(CLASS):
                self.tree.link(path, target)
        return {path: text for path, text in tree.files.items() if isinstance(text, OSError)}

    @staticmethod
    def _driver(tree: Tree, name: str) -> str:
        return tree.links[f"{CLASS}/{name}/device/driver"].rpartition("/")[2]


#: The CPUs of each NUMA node.
CPUS = ("0-31,64-95", "32-63,96-127")
