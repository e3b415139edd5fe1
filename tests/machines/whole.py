"""A machine for all probes, and the findings of all rules on one or several of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ddp_doctor import app
from ddp_doctor.agents.messages import NodeReport, at_node, world_of
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.collect import choose_world, collect
from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.model.choices import Status, Where
from ddp_doctor.model.context import CommandResult, Disk, Interface
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.sources.machine import LiveContext
from ddp_doctor.starters.request import RunRequest
from tests.machines.board import Board
from tests.nvml_stand_in import answer
from tests.simulated import trial
from tests.waiting import LIMIT_S

GIB = 2**30
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
NCCL = "/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
INSTALLED: dict[str, object] = {
    "python": "3.11.7",
    "machine": "x86_64",
    "torch_folder": TORCH,
    "torch_version": "2.9.1+cu128",
    "torch_cuda": "12.8",
    "torch_metadata_version": "2.9.1",
    "torch_requires_python": ">=3.10",
    "torch_requires": ["nvidia-nccl-cu12==2.27.5; platform_system == 'Linux'"],
    "nccl_packages": {"nvidia-nccl-cu12": "2.27.5"},
    "torch_cuda_library": f"{TORCH}/lib/libtorch_cuda.so",
    "nccl_files": [NCCL],
}
#: Which transport NCCL uses between two GPUs of a node.
Via = Callable[[int, int], str]


def linked(nccl: str = NCCL) -> CommandResult:
    return ended(f"\tlibnccl.so.2 => {nccl} (0x00007f2a3c000000)\n")


def ended(text: str, code: int = 0, said: str = "") -> CommandResult:
    return CommandResult((), "ended", code, text, said)


@dataclass
class Whole:
    """One machine, and the process on it that runs the checks."""

    board: Board
    host: str = "node0"
    env: dict[str, str] = field(default_factory=dict)
    nvml: dict[str, str] | None = None  # the stand-in's environment; None: no such library
    uuids: str = "0"
    installed: dict[str, object] | None = field(default_factory=lambda: dict(INSTALLED))
    nccl_version: int = 22705
    commands: dict[str, CommandResult] = field(default_factory=lambda: {"ldd": linked()})
    refused: dict[str, OSError] = field(default_factory=dict)
    shm: Disk = field(default_factory=lambda: Disk(1008 * GIB, 1007 * GIB))
    limits: dict[str, int | None] = field(default_factory=lambda: {"MEMLOCK": None, "NOFILE": 1048576})
    cpus: int = 128
    network: tuple[Interface, ...] = (Interface(name="eth0", addresses=("10.0.0.1/24",), speed_mbps=25000),)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    via: Via = lambda _one, _two: "P2P/CUMEM"
    between: str = "NET/IB/0/GDRDMA"
    says: str = ""  # further lines of NCCL's log

    def context(self, deadline: float) -> WholeContext:
        return WholeContext(self, deadline)


class WholeContext(LiveContext):
    """The live machine below another root, with commands, limits and interfaces of the machine that is played."""

    def __init__(self, machine: Whole, deadline: float) -> None:
        super().__init__(machine.env, deadline)
        self.machine = machine
        tree = machine.board.tree
        for name in ("read_bytes", "listdir", "readlink"):
            setattr(self, name, getattr(tree, name))

    def read(self, path: str) -> str:
        if path in self.machine.refused:
            raise self.machine.refused[path]
        return self.machine.board.tree.read(path)

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        if argv[0] == "dmesg":
            return self._log()
        if argv[0] == "sleep":
            return ended("")  # nothing in memory changes
        return self.machine.commands.get(argv[0], CommandResult(tuple(argv), "missing"))

    def _log(self) -> CommandResult:
        if not self.machine.board.as_root:
            return ended("", 1, "dmesg: read kernel buffer failed: Operation not permitted")
        return ended("".join(f"{line}\n" for line in self.machine.board.log))

    def child(self, name: str, *args: str) -> CommandResult:
        if name.startswith("nvml"):
            settings = self.machine.nvml
            if settings is None:
                none = {"error": "library_not_found", "call": "nvmlInit", "gpus": [], "elapsed_s": 0.1}
                return ended(json.dumps(none))
            limit_s = "0.5" if "hang" in str(settings) else str(LIMIT_S)
            more = {name: value for name, value in settings.items() if name != "NVML_STAND_IN"}
            said = answer(name, limit_s, settings.get("NVML_STAND_IN", "healthy"), **more)
            other = said.stdout.replace("GPU-8932f93", f"GPU-{self.machine.uuids}932f93")
            return replace(said, stdout=other)
        if name == "software" and self.machine.installed is not None:
            return ended(json.dumps(self.machine.installed))
        if name == "nccl":
            return ended(json.dumps({"version_code": self.machine.nccl_version}))
        return ended('{"absent": "libnccl.so.2: cannot open shared object file"}')

    def disk(self, path: str) -> Disk:
        return self.machine.shm

    def limit(self, name: str) -> int | None:
        return self.machine.limits.get(name)

    def cpus(self) -> int:
        return self.machine.cpus

    def interfaces(self) -> tuple[Interface, ...]:
        return (Interface(name="lo", loopback=True, addresses=("127.0.0.1/8",)), *self.machine.network)

    def hostname(self) -> str:
        return self.machine.host

    def resolve(self, name: str, timeout_s: float) -> tuple[str, ...]:
        first = self.machine.network[0].addresses[0].partition("/")[0]
        return self.machine.names.get(name, (first,))


def look(machine: Whole, command: str = "run") -> list[Reading]:
    """Return the readings of all node checks; a prolog skips the same checks as in reality."""
    places = (Where.NODE, Where.AFTERWARDS)
    checks = [one for one in CHECKS if one.where in places and not one.needs_baseline]
    left_out = {"interfaces", "rdma_after"} if command == "prolog" else set()
    wanted = [one for one in checks if one.id not in left_out]
    return collect(wanted, machine.context, lambda _: None)


def record(machines: Sequence[Whole], command: str = "run") -> Recording:
    all_readings = [look(machine, command) for machine in machines]
    worlds = [_world(machine, readings) for machine, readings in zip(machines, all_readings, strict=True)]
    world = worlds[0]
    if len(machines) > 1:
        cards = {
            at: NodeReport(hostname=machine.host, nnodes=len(machines), world=worlds[at])
            for at, machine in enumerate(machines)
        }
        world = world_of(cards, len(machines), (), "plain")
        met = ConsistencyFact(tool_version="0.1.0", clock_offset_s=0.0).recorded()
        for some in all_readings:
            some.append(Reading(check="consistency", status=Status.COLLECTED, fact=met))
    readings = [one for at, some in enumerate(all_readings) for one in at_node(some, at)]
    recording = Recording(
        started_at="2026-01-15T10:00:00Z",
        world=world,
        options=Options(command="prolog" if command == "prolog" else "run"),
        readings=tuple(readings),
    )
    if command == "prolog" or world.backend != "nccl":
        return recording
    return recording.model_copy(update={"trials": (_trial(machines, world),)})


def judge(machines: Sequence[Whole], command: str = "run") -> Report:
    return judged(record(machines, command))


def judged(recording: Recording) -> Report:
    """Return the report on a recording after checking that no rule failed."""
    outcome = app.judge(recording)
    assert outcome.rule_failures == ()
    return outcome.report


def _world(machine: Whole, readings: Sequence[Reading]) -> World:
    recording = Recording(readings=tuple(readings))
    addresses = {one.name: tuple(a.partition("/")[0] for a in one.addresses) for one in machine.network}
    world = choose_world(recording, RunRequest(Options(), machine.env), addresses)
    node = world.nodes[0].model_copy(update={"hostname": machine.host})
    return world.model_copy(update={"nodes": (node,)})


def _trial(machines: Sequence[Whole], world: World) -> TrialRecord:
    each = world.nproc_per_node
    evidence = []
    for node, machine in enumerate(machines):
        for local in range(each):
            rank = node * each + local
            lines = [*_log(machine, rank, local, each, world.world_size)]
            evidence.append(
                RankEvidence(
                    rank=rank,
                    node=node,
                    pid=4000 + local,
                    began=True,
                    done=True,
                    check="buffers",
                    exit_code=0,
                    output_tail="".join(f"{machine.host}:1:1 [{local}] NCCL INFO {it}\n" for it in lines),
                )
            )
    ranks = tuple(range(world.world_size))
    return trial(1, 0, ranks=ranks, evidence=tuple(evidence))


def _log(machine: Whole, rank: int, local: int, each: int, size: int) -> Iterator[str]:
    """Yield NCCL's log of one rank: to all ranks of its node, and from the last to the next node."""
    major, rest = divmod(machine.nccl_version, 10000)
    yield f"NCCL version {major}.{rest // 100}.{rest % 100}+cuda12.8"
    yield from machine.says.splitlines()
    yield f"comm 0x55d rank {rank} nranks {size} cudaDev {local} nvmlDev {local} busId 1b000 commId 0x9 - Init START"
    yield f"comm 0x55d rank {rank} nRanks {size} nNodes {size // each} localRanks {each} localRank {local} MNNVL 0"
    for other in range(each):
        if other != local:
            ends = f"{rank}[{local}] -> {rank - local + other}[{other}]"
            yield f"Channel 00/0 : {ends} via {machine.via(local, other)}"
    if size > each:
        beyond = (rank + each) % size
        yield f"Channel 00/0 : {rank}[{local}] -> {beyond}[{local}] [send] via {machine.between}"
        yield f"Channel 00/0 : {beyond}[{local}] -> {rank}[{local}] [receive] via {machine.between}"
