"""A tree in place of /: the kernel's files of a node, used with the stand-in for the driver's library."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ddp_doctor.model.context import CommandResult, Context
from ddp_doctor.model.fact import TookTooLong
from ddp_doctor.sources.machine import LiveContext
from tests.nvml_stand_in import answer, environment
from tests.waiting import LIMIT_S, limits_s

Seen = TypeVar("Seen")

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")


class Machine:
    """A tree in place of /, with only the PCI bus of a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def plug(
        self, bus_id: str, driver: str | None = "nvidia", *, kind: str = "0x030200", vendor: str = "0x10de"
    ) -> Path:
        device = self.root / "sys/bus/pci/devices" / bus_id
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        if driver:
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        return device

    def file(self, path: str, text: str = "") -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def stand_in(self, fault: str = "healthy", *defines: str, **more: str) -> LiveContext:
        env = {"NVML_STAND_IN": fault, "DEFINES": " ".join(defines), **more}
        return StandInContext(env, time.monotonic() + 1000, root=str(self.root))

    def seen_to_hang(self, probe: Callable[[Context], Seen], fault: str) -> Seen:
        """Return a probe's fact about a hanging driver; gives it more time if it did not reach the driver."""
        for limit_s in limits_s(0.1):
            with suppress(TookTooLong):
                return probe(self.context(environment(fault), 1.0 + limit_s))
        raise AssertionError(f"{fault}: the driver was never reached")

    def context(self, env: dict[str, str], limit_s: float = LIMIT_S) -> LiveContext:
        return LiveContext(env, time.monotonic() + limit_s, root=str(self.root))


def bare_machine(root: Path) -> Machine:
    machine = Machine(root)
    machine.plug("0000:00:02.0", "ast", kind="0x030000", vendor="0x1a03")
    return machine


def plug_eight(machine: Machine) -> Machine:
    """Eight H100s with their audio and their NVSwitch, all well."""
    for bus in BUSES:
        machine.plug(f"0000:{bus}:00.0")
    machine.plug("0000:1b:00.1", "snd_hda_intel", kind="0x040300")
    machine.plug("0000:05:00.0", "nvidia-nvswitch", kind="0x068000")
    return machine


class StandInContext(LiveContext):
    """The live machine below another root, whose NVML is the stand-in."""

    def child(self, name: str, *args: str) -> CommandResult:
        return answer(name, *args, self.env["NVML_STAND_IN"], *self.env["DEFINES"].split())
