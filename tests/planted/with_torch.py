"""torch's CUDA build on planted machines: scripts with ranks, and the doctor, from one end to the other.

    with PlantedTorch([servers.hgx_a100_roce()]) as planted:
        job = planted.ranks(script, 2)
        run = planted.doctor("run", "--nproc-per-node", "2")

NCCL, ProcessGroupNCCL, its watchdog and flight recorder are the real ones. The data of collectives move by our rule
(collectives.c), and operators on "cuda" are computed on the CPU (operators.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hosts import ROOT, Host
from tests.lab.processes import HostProcess
from tests.machines import parts
from tests.machines.whole import Whole
from tests.planted import TOOLS, WAITS, libraries
from tests.planted.world import Env, Machines
from tests.waiting import LIMIT_S

#: The folder of an environment with a CUDA build of torch and what the doctor needs.
VARIABLE = "PLANTED_TORCH_ENVIRONMENT"
HOME = ROOT / "build/planted-torch"
HOOK = Path(__file__).with_name("hook.py")
#: Each interpreter of the environment reads this line at its start.
_LINE = "import os; 'PLANTED_TORCH' in os.environ and __import__('runpy').run_path(os.environ['PLANTED_TORCH'])\n"
_PORT = "29500"
#: Real devices that a planted /dev has too.
_DEVICES = "null zero full random urandom tty ptmx stdin stdout stderr fd"


def environment() -> Path:
    """Return the environment whose interpreters simulate GPUs if PLANTED_TORCH is set; skips without one."""
    folder = Path(os.environ.get(VARIABLE, HOME))
    packages = next(folder.glob("lib/python3*/site-packages"), None)
    if packages is None or not (packages / "nvidia/nccl").exists():
        pytest.skip(f"needs an environment with a CUDA build of torch: `make planted-torch`, or {VARIABLE}")
    line = packages / "planted.pth"
    if not line.exists() or line.read_text() != _LINE:
        line.write_text(_LINE)
    return folder


@dataclass(frozen=True)
class Ended:
    code: int | None
    output: str
    errors: str
    seconds: float

    @property
    def said(self) -> str:
        return self.output + self.errors


class PlantedTorch(Machines):
    """Planted machines with torch; a context manager. Hosts are called planted-0 and on."""

    def __enter__(self) -> PlantedTorch:
        self.environment = environment()
        if next(self.environment.glob("lib/python3*/site-packages/nvidia/cu13"), None):
            for machine in self.machines:
                _renew_driver(machine)
        super().__enter__()
        try:
            self.exchange = self._lab.folder / "exchange"
            self.exchange.mkdir()
            for host, machine in zip(self.hosts, self.machines, strict=True):
                _plant_driver(host, dict(machine.board.tree.walk()))
        except BaseException:
            self._lab.teardown()
            raise
        return self

    @property
    def python(self) -> Path:
        """The interpreter whose torch has planted GPUs."""
        return self.environment / "bin/python"

    def start(self, argv: Sequence[str | Path], *, host: int = 0, env: Env | None = None) -> HostProcess:
        """Start a command on a host, with the environment's programs first on PATH."""
        machine, its = self.machines[host], self.hosts[host]
        whole = {
            "PATH": f"{libraries() / TOOLS}:{self.environment / 'bin'}:{its.environment['PATH']}",
            "LD_LIBRARY_PATH": str(libraries()),
            "PLANTED_TORCH": str(HOOK),
            "PLANTED_EXCHANGE": str(self.exchange),
            **(machine.nvml or {}),
            **machine.env,
            **(env or {}),
        }
        whole["LD_PRELOAD"] = ":".join(filter(None, (str(libraries() / WAITS), whole.get("LD_PRELOAD"))))
        return its.start(argv, env=whole)

    def start_doctor(self, *arguments: str | Path, host: int = 0, env: Env | None = None) -> HostProcess:
        return self.start((self.python, "-m", "ddp_doctor", *arguments), host=host, env=env)

    def doctor(self, *arguments: str | Path, host: int = 0, env: Env | None = None, limit_s: float = 300) -> Ended:
        return ended(self.start_doctor(*arguments, host=host, env=env), limit_s)

    def start_ranks(
        self,
        script: Path,
        world: int,
        *arguments: str,
        env: Env | None = None,
        of: Mapping[int, Env] | None = None,
        missing: Sequence[int] = (),
    ) -> dict[int, HostProcess]:
        """Start the ranks of a script, the same number on each host; ``of`` is one rank's own environment."""
        each = world // len(self.hosts)
        started: dict[int, HostProcess] = {}
        for rank in range(world):
            if rank in missing:
                continue
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % each),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(each),
                "MASTER_ADDR": self.hosts[0].address,
                "MASTER_PORT": _PORT,
                "OMP_NUM_THREADS": "1",
                **(env or {}),
                **((of or {}).get(rank, {})),
            }
            started[rank] = self.start((self.python, script, *arguments), host=rank // each, env=own)
        return started

    def ranks(
        self, script: Path, world: int, *arguments: str, limit_s: float = LIMIT_S, **options: Any
    ) -> dict[int, Ended]:
        """Do the same and wait for all ranks; ranks that still run after ``limit_s`` are killed."""
        started = self.start_ranks(script, world, *arguments, **options)
        end = time.monotonic() + limit_s
        return {rank: ended(process, end - time.monotonic()) for rank, process in started.items()}


def ended(process: HostProcess, limit_s: float) -> Ended:
    try:
        code: int | None = process.wait(max(limit_s, 0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    seconds = (process.ended or time.monotonic()) - process.started
    return Ended(code, process.output(), process.errors(), seconds)


def _renew_driver(machine: Whole) -> None:
    """The driver that CUDA 13 needs, in the place of the machine's."""
    tree = machine.board.tree
    for path, content in list(tree.walk()):
        if isinstance(content, bytes) and parts.VERSION.encode() in content:
            tree.write(path, content.replace(parts.VERSION.encode(), b"580.95.05"))
    nvml = machine.nvml or {}
    machine.nvml = {**nvml, "NVML_STAND_IN": ",".join((nvml.get("NVML_STAND_IN", "healthy"), "driver_580"))}


#: By these the doctor tells hosts from containers of one machine, and machines from virtual ones.
_BOOT, _CPUS = "/proc/sys/kernel/random/boot_id", "/proc/cpuinfo"


def _text(tree: Mapping[str, object], path: str) -> str:
    content = tree.get(path)
    return content.decode() if isinstance(content, bytes) else ""


def _cpus(planted: str) -> str:
    """Return the real processors, marked virtual if the simulated ones are."""
    real = Path(_CPUS).read_text()
    return real if " hypervisor" in planted else real.replace(" hypervisor", "")


def _plant_driver(host: Host, tree: Mapping[str, object]) -> None:
    """Give the host its own /dev and /proc/driver with the driver's files in the machine's tree."""
    new, script = host.folder / "dev", ["mount -t tmpfs none $new", "mkdir $new/shm $new/pts $new/mqueue"]
    new.mkdir()
    script += [f"for it in {_DEVICES}; do [ ! -e /dev/$it ] || cp -a /dev/$it $new/; done"]
    for path in tree:
        if path.startswith("/dev/"):
            at = f"$new/{path.removeprefix('/dev/')}"
            script += [f"mkdir -p $(dirname {at})", f": >{at}"]
    script += [
        *("mount --bind /dev/pts $new/pts", "mount --move /dev/shm $new/shm", "mount --rbind $new /dev"),
        *("mount -t tmpfs none /proc/driver", "mkdir /proc/driver/nvidia"),
    ]
    if version := _text(tree, "/proc/driver/nvidia/version"):
        script += [f"cat >/proc/driver/nvidia/version <<'END'\n{version}END"]
    for name, text in {_BOOT: _text(tree, _BOOT), _CPUS: _cpus(_text(tree, _CPUS))}.items():
        file = host.folder / Path(name).name
        file.write_text(text)
        script += [f"mount --bind {file} {name}"]
    host.run(("sh", "-ec", "\n".join((f"new={new}", *script))))
    if "/proc/2201/comm" in tree:
        manager = host.folder / "nv-fabricmanager"
        shutil.copy(shutil.which("sleep") or "/bin/sleep", manager)
        host.start((manager, "86400"))
