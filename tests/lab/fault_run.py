"""One row of the fault table: inject the fault, run ddp-doctor on all hosts, and report the outcome."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field

from tests.lab import faults
from tests.lab.fault_rows import Row
from tests.lab.hosts import WITHOUT_DDP, Host, Lab
from tests.lab.planted import Planted
from tests.lab.processes import HostProcess
from tests.waiting import LIMIT_S, wait_until

BAR_S = 20.0

Report = Mapping[str, object]


@dataclass
class Outcome:
    """The outcome of a row, a line of the table. ``problems`` and ``late`` are empty on success."""

    id: str
    fault: str
    torchrun: str
    codes: dict[str, list[str]] = field(default_factory=dict)  # by host
    culprits: dict[str, list[str]] = field(default_factory=dict)
    seconds: float | None = None  # from the evidence until the last host ended
    exits: dict[str, int | None] = field(default_factory=dict)
    innocents: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # right, but not in time
    printed: dict[str, str] = field(default_factory=dict)  # the last lines, if there is a problem

    def as_json(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(asdict(self))


@dataclass
class Scene:
    """A run under way."""

    lab: Lab
    row: Row
    started: dict[str, HostProcess] = field(default_factory=dict)
    evidence: float = 0.0  # time.monotonic()
    strike: Planted | None = None
    planted: frozenset[int] = frozenset()  # processes that a fault consists of


def run_row(row: Row) -> Outcome:
    """Run the row on its own hosts."""
    outcome = Outcome(row.id, row.fault, row.torchrun)
    with ExitStack() as stack:
        lab = Lab(row.nodes, row.network, second_nic=row.second_nic, ipv6=row.ipv6)
        scene = Scene(stack.enter_context(lab), row)
        for fault in row.plant:
            stack.enter_context(faults.plant(lab, fault))
        scene.planted = frozenset(pid for host in lab.hosts for pid in host.pids())
        _start(scene)
        _strike(scene, outcome)
        _wait(scene, outcome)
        for host in _speaking(scene):
            _read(host, outcome)
        _judge(row, outcome, [host.name for host in _speaking(scene)])
        _end(scene, outcome)
        if outcome.problems or outcome.late:
            outcome.printed = {name: _last_lines(each) for name, each in scene.started.items()}
    return outcome


def _speaking(scene: Scene) -> Iterator[Host]:
    """The hosts that must end and report."""
    quiet = {*scene.row.absent, *scene.row.lost}
    return (host for host in scene.lab.hosts if host.name not in quiet)


def command(row: Row, host: Host) -> tuple[str, ...]:
    """The command of a host: a quick run."""
    return (
        *("python", "-m", "ddp_doctor", "run", "--nnodes", str(row.nodes), *row.endpoint),
        *("--node-rank", str(host.index), "--nproc-per-node", "1", "--level", "quick", "--quiet"),
        *("--join-timeout", str(row.join_timeout_s), "--json", str(host.folder / "out.json")),
        *(() if row.is_whole else WITHOUT_DDP),
        *row.arguments.get(host.name, ()),
    )


def _start(scene: Scene) -> None:
    row = scene.row
    for host in scene.lab.hosts:
        if host.name == row.late:
            wait_until(lambda: _listens(scene.lab["node0"]), "node0 waits for the other nodes")
        if host.name not in row.absent:
            scene.started[host.name] = host.start(command(row, host))
    scene.evidence = time.monotonic() + (row.join_timeout_s if row.evidence == "join" else 0)


def _listens(host: Host) -> bool:
    return bool(host.run(("ss", "-Hltn", "sport = :29400")).stdout)


@contextmanager
def _before_all_others() -> Iterator[None]:
    """On a busy machine a rank may be through before this process gets a processor to strike it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, usual)


def _strike(scene: Scene, outcome: Outcome) -> None:
    """Inject the fault into a running job when the expected process runs."""
    if scene.row.strike:
        with _before_all_others():
            _plant_in_time(scene, outcome)


def _plant_in_time(scene: Scene, outcome: Outcome) -> None:
    name, process = scene.row.strike_at.split()
    host, agent = scene.lab[name], scene.started[name]
    pid = wait_until(lambda: host.find_process(process) or agent.poll() is not None, f"{process} runs in {name}")
    if isinstance(pid, bool):
        outcome.problems.append(f"the fault could not be planted: no process {process} in {name}")
    else:
        os.kill(pid, signal.SIGSTOP)  # on a busy machine the rank might end before the fault is planted
        scene.strike = faults.plant(scene.lab, scene.row.strike)
        if not scene.row.strike.startswith("stop"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    scene.evidence = time.monotonic()


def _wait(scene: Scene, outcome: Outcome) -> None:
    """Wait until all hosts that can exit have exited, up to the time limit."""
    ends = []
    for host in _speaking(scene):
        process = scene.started[host.name]
        try:
            outcome.exits[host.name] = process.wait(max(0.1, scene.evidence + LIMIT_S - time.monotonic()))
            assert process.ended is not None
            ends.append(process.ended)
        except subprocess.TimeoutExpired:
            outcome.exits[host.name] = None
            outcome.problems.append(f"{host.name} still runs {LIMIT_S:g} s after the evidence")
    if ends:
        outcome.seconds = round(max(ends) - scene.evidence, 1)


def _read(host: Host, outcome: Outcome) -> None:
    """Codes and culprits of the host's report, of findings above info."""
    try:
        report = json.loads((host.folder / "out.json").read_text())
    except (OSError, ValueError):
        outcome.problems.append(f"{host.name} wrote no report")
        return
    findings = [it for it in report["findings"] if it["severity"] != "info"]
    outcome.codes[host.name] = sorted({it["code"] for it in findings})
    culprits = {_culprit(it) for finding in findings for it in finding["culprits"]}
    missing = {f"?{_end_of(it, 'node', 'node_rank')}" for finding in findings for it in finding["missing"]}
    outcome.culprits[host.name] = sorted(culprits | missing)


def _culprit(culprit: Mapping[str, object]) -> str:
    """``node1``, ``node0~node1``, or the name of a setting. Hosts have one rank each, of their number."""
    if culprit["kind"] in {"setting", "file"}:
        return str(culprit["name"])
    ends = [_end_of(culprit, "node", "node_rank", "rank")]
    if culprit["kind"] == "pair":
        ends.append(_end_of(culprit, "peer_node", "peer_rank"))
    return "~".join(sorted(ends))


def _end_of(culprit: Mapping[str, object], name: str, *numbers: str) -> str:
    """Return the name of a host, or its number if it never joined."""
    said = str(culprit.get(name) or "")
    number = next((culprit[it] for it in numbers if culprit.get(it) is not None), "?")
    return f"node{number}" if not said or said.startswith("node rank") else said


def _judge(row: Row, outcome: Outcome, speaking: list[str]) -> None:
    for name in speaking:
        said = row.says.get(name, row.says.get("all", ""))
        codes, _, allowed = said.partition(" ")
        found = outcome.codes.get(name, [])
        wanted = codes.split("&") if codes else []
        fitting = [code for code in found if any(re.fullmatch(one, code) for one in wanted)]
        if lacking := [one for one in wanted if not any(re.fullmatch(one, code) for code in found)]:
            outcome.problems.append(f"{name} says {', '.join(found) or 'nothing'} instead of {', '.join(lacking)}")
        if others := sorted(set(found) - set(fitting)):
            outcome.problems.append(f"{name} also says {', '.join(others)}")
        named = outcome.culprits.get(name, [])
        accused = (it for it in named if it.startswith("node") and it not in allowed.split())
        outcome.innocents += [it for it in accused if it not in outcome.innocents]
        if allowed and fitting and not set(named) & set(allowed.split()):
            outcome.problems.append(f"{name} does not name {allowed}")
    if outcome.innocents:
        outcome.problems.append(f"blamed though innocent: {', '.join(outcome.innocents)}")
    _judge_ends(row, outcome)


def _judge_ends(row: Row, outcome: Outcome) -> None:
    codes = set(outcome.exits.values())
    if row.exit is not None and codes != {row.exit}:
        outcome.problems.append(f"exit codes {outcome.exits} instead of {row.exit}")
    if len(codes) > 1:
        outcome.problems.append(f"the exit codes differ: {outcome.exits}")
    if row.says and outcome.seconds is not None and outcome.seconds > BAR_S:
        outcome.late.append(f"{outcome.seconds} s after the evidence")


def _end(scene: Scene, outcome: Outcome) -> None:
    """Remove the fault; then no process or file of ddp-doctor may be left on any host."""
    if scene.strike is not None:
        scene.strike.undo()
    for name in scene.row.lost:
        try:
            scene.started[name].wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            outcome.problems.append(f"{name} runs on after the fault is gone")
    left = scene.lab.left_behind(without=scene.planted, counts=lambda line: _is_the_doctors(scene.row, line))
    outcome.problems += [f"left behind: {line}" for line in left]


def _is_the_doctors(row: Row, line: str) -> bool:
    """Return True if it could have been removed, unlike files of a host that was killed."""
    host, _, what = line.partition(": ")
    return host not in row.lost or what.startswith("process")


def _last_lines(process: HostProcess) -> str:
    said = f"{process.output()}{process.errors()}".strip().splitlines()
    return "\n".join(said[-25:])
