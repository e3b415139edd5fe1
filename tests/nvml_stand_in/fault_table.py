"""Every fault of the stand-in, through the real pynvml to the verdict.

The rules and the verdict are the same as in ``ddp-doctor prolog``, on a tree in place of / with eight H100s on the bus.
tests/checks/test_gpu_faults.py asserts CASES.
"""

import tempfile
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from ddp_doctor import app
from ddp_doctor.checks.node.gpus import probe
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.model.report import Report
from tests.nvml_stand_in.machine import Machine, bare_machine, plug_eight
from tests.readings import collected

MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
SWITCHES = {"/dev/nvidia-nvswitchctl": "", "/proc/1/comm": "systemd\n"}
MANAGED = {**SWITCHES, "/proc/2201/comm": "nv-fabricmanage\n"}


@dataclass(frozen=True)
class Case:
    """A planted fault, or a healthy machine, and what the doctor must say."""

    fault: str
    about: str
    expected: tuple[tuple[str, str], ...] = ()  # code and severity
    verdict: str = "healthy"
    files: dict[str, str] = field(default_factory=lambda: dict(MANAGED), hash=False)
    gpus: int = 8
    on_bus: bool = True

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.about}" if self.about else self.fault


def _case(
    verdict: str, severity: str, fault: str, code: str, *, about: str = "", files: dict[str, str] | None = None
) -> Case:
    return Case(fault, about, ((code, severity),), verdict, files or dict(MANAGED))


unhealthy, unsure = partial(_case, "unhealthy", "error"), partial(_case, "unsure", "error")
degraded, informed = partial(_case, "degraded", "warning"), partial(_case, "healthy", "info")


FAULTS = (
    unhealthy("not_loaded", "DD301"),
    unhealthy("mismatch", "DD301"),
    unhealthy("no_permission", "DD301"),
    unhealthy("crash", "DD301"),
    unhealthy("none", "DD303"),
    unhealthy("seven", "DD303"),
    unhealthy("gpu_lost", "DD304"),
    unhealthy("lost_later", "DD304"),
    unhealthy("reset", "DD304"),
    degraded("busy", "DD305"),
    unhealthy("full", "DD305"),
    informed("desktop", "DD305"),
    unhealthy("prohibited", "DD306"),
    unhealthy("ecc", "DD307"),
    degraded("ecc_contained", "DD307"),
    degraded("throttled", "DD308"),
    informed("mig", "DD309"),
    degraded("mixed", "DD310"),
    unhealthy("remap_failed", "DD312"),
    degraded("remap_pending", "DD313"),
    unhealthy("retired_pending", "DD313"),
    degraded("retired_pending_single", "DD313"),
    degraded("sram_threshold", "DD314"),
    degraded("retired_full", "DD314"),
    informed("no_spare_rows", "DD314"),
    degraded("ecc_off", "DD315"),
    unhealthy("fabric_in_progress", "DD316"),
    unhealthy("fabric_in_progress", "DD316", about="no fabric manager", files=SWITCHES),
    unhealthy("fabric_failed", "DD316"),
    unhealthy("fabric_not_started", "DD316"),
    unsure("fabric_not_started", "DD316", about="no NVSwitch to be seen", files={"/proc/1/comm": "init\n"}),
    unsure("a100", "DD316", about="NVSwitches, no fabric manager", files=SWITCHES),
    informed("healthy", "DD316", about="NVSwitches, no fabric manager", files=SWITCHES),
    degraded("fabric_degraded", "DD317"),
    degraded("fabric_few_links", "DD317"),
    degraded("power_capped", "DD318"),
    informed("power_capped_all", "DD318"),
    degraded("clocks_set", "DD319"),
    informed("no_persistence", "DD320"),
    informed("vbios", "DD321"),
    unsure("library", "DD322", files={**MANAGED, "/proc/driver/nvidia/version": MODULE}),
    informed("confidential", "DD323"),
    degraded("inforom", "DD324"),
)
HEALTHY = (
    Case("healthy", "eight H100", files={**MANAGED, "/proc/driver/nvidia/version": MODULE}),
    Case("healthy", "in a container", files={"/.dockerenv": "", "/dev/nvidia-nvswitchctl": ""}),
    Case("throttled_once", "clocks changing"),
    Case("exclusive", "one process a GPU"),
    Case("geforce", "no ECC, a display"),
    Case("a100", "old errors, rows replaced"),
    Case("v100", "a few pages retired"),
    Case("h100_nvl", "pairs by bridge, no fabric", files={}),
    informed("vgpu", "DD323", about="virtual GPUs"),
    informed("mig_all", "DD309", about="all GPUs sliced"),
    Case("jetson", "hardly any call supported", files={}, gpus=1, on_bus=False),
    Case("wsl", "Windows' driver, no PCI bus", files={}, gpus=1, on_bus=False),
)
CASES = (*FAULTS, *HEALTHY)


@cache
def play(case: Case) -> Report:
    with tempfile.TemporaryDirectory() as root:
        machine = bare_machine(Path(root))
        if case.on_bus:
            plug_eight(machine)
        for path, text in case.files.items():
            machine.file(path, text)
        return app.judge(record(case, machine)).report


def record(case: Case, machine: Machine) -> Recording:
    context = machine.stand_in(case.fault)
    fact = probe(context)
    reading = collected("gpus", fact, 0)
    world = World(nproc_per_node=case.gpus, world_size=case.gpus, nodes=(Node(node_rank=0, hostname="node0"),))
    return Recording(options=Options(command="prolog"), world=world, readings=(reading,))
