"""Runs with one process killed, stopped or interrupted at a random time: 200 rounds manually, some as tests.

    python -m tests.lab.attack --rounds 200 --seed 1

A round is an entire run on 2 to 4 ranks. It must end within the budget plus a grace period, leave no process and no
directory, and give no false verdict: never healthy when something essential was not measured, never unhealthy because
of an attack on ddp-doctor's own process. ``--seed 7 --rounds 1`` repeats the round with seed 7, except for races
between processes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ddp_doctor.app import recordings
from ddp_doctor.checks import CHECKS
from ddp_doctor.model.choices import ExitCode
from tests.lab.processes import comm, pids_with, state
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).parent.parent.parent
BUDGET_S = 30.0
#: Beyond the budget, on a machine that other work keeps busy.
GRACE_S = LIMIT_S
#: A run is not healthy without these checks.
ESSENTIAL = ("process_group", "allreduce", "gradient_sync", "p2p")
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Run:
    """A ``ddp-doctor run`` whose processes carry a mark in their environment."""

    def __init__(self, folder: Path, ranks: int, *options: str) -> None:
        self.folder, self._mark = folder, f"DDP_DOCTOR_TEST_MARK={uuid.uuid4().hex}"
        self.report_path = folder / "report.json"
        self.recording_path = folder / "recording.json"
        name, _, value = self._mark.partition("=")
        env = {**os.environ, name: value, "PYTHONPATH": str(ROOT)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env |= {"XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder)}
        argv = (sys.executable, "-m", "ddp_doctor", "run", "--nproc-per-node", str(ranks))
        files = ("--json", str(self.report_path), "--record", str(self.recording_path))
        self.began = time.monotonic()
        with (folder / "said.txt").open("wb") as said:
            self.process = subprocess.Popen(
                (*argv, "--budget", str(BUDGET_S), *files, *options),
                env=env,
                stdout=said,
                stderr=said,
                cwd=folder,
                start_new_session=True,
            )

    def alive(self) -> dict[int, str]:
        """The processes that carry the mark, each with what it is; zombies have no environment."""
        found = {}
        for pid in pids_with(self._mark):
            with suppress(OSError):
                found[pid] = self._what(pid)
        return found

    def _began(self) -> bool:
        """Return True once the agent handles SIGTERM; before that it is a starting Python and exits like one."""
        with suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            caught = int(status.partition("SigCgt:")[2].split()[0], 16)
            return bool(caught >> (signal.SIGTERM - 1) & 1)
        return False

    def _what(self, pid: int) -> str:
        if pid == self.process.pid:
            return "agent"
        name, command = comm(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        is_forkserver = b"multiprocessing.forkserver" in command  # and no folder called so among the arguments
        if is_forkserver and "fork" in (name[11:] or "fork") and parent != self.process.pid:
            return "other"  # what an import starts is called as it until it becomes another program
        if name.startswith("ddp-doctor:"):
            return {"fork": "forkserver", "ctl": "store"}.get(name[11:], "rank" if name[11] == "r" else name)
        if is_forkserver:
            return "forkserver"
        known = {b"multiprocessing.resource_tracker": "tracker", b"torchrun.main": "torchrun"}
        return next((what for words, what in known.items() if words in command), "other")

    def wait_for(self, what: str) -> int | None:
        """Wait for such a process and return its pid, or None if the run ends without one."""
        found: list[int] = []

        def look() -> bool:
            alive = self.alive().items()
            found[:] = [pid for pid, name in alive if name == what and (what != "agent" or self._began())]
            return bool(found) or self.process.poll() is not None

        wait_until(look, f"{what} starts or the run ends")
        return random.choice(found) if found else None

    def end(self, timeout_s: float) -> float | None:
        """Wait for the end and return the seconds since the start; None after a timeout."""
        try:
            self.process.wait(max(self.began + timeout_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - self.began

    def left(self) -> list[str]:
        """Return the processes and directories that remain."""
        with suppress(AssertionError):
            wait_until(lambda: not self.alive())
        alive = self.alive()
        folders = [path.name for path in self.folder.iterdir() if path.name.startswith("ddp-doctor-")]
        return [f"{what} ({pid}, state {state(pid)})" for pid, what in alive.items()] + folders

    def kill(self) -> None:
        """End what is left of it."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def said(self) -> str:
        """Return its standard output and standard error."""
        return (self.folder / "said.txt").read_text(errors="replace")

    def report(self) -> dict[str, Any] | None:
        """Return its report, or None if it wrote none."""
        with suppress(OSError):
            report: dict[str, Any] = json.loads(self.report_path.read_text())
            return report
        return None

    def ranks_of(self, pid: int | None) -> set[int]:
        """Return the ranks of this process. Its name is not enough: a fresh rank has the name of the forkserver."""
        trials = recordings.load_recording(self.recording_path).trials
        return {rank.rank for trial in trials for rank in trial.evidence if rank.pid == pid}


def _send(number: signal.Signals) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


def _stop_for_a_while(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    psutil.wait_procs([psutil.Process(pid)], timeout=4.0)
    os.kill(pid, signal.SIGCONT)


def _interrupt_twice(pid: int) -> None:
    os.kill(pid, signal.SIGINT)
    wait_until(lambda: not _is_pending(pid, signal.SIGINT), "the first SIGINT is delivered")
    os.kill(pid, signal.SIGINT)


def _is_pending(pid: int, number: int) -> bool:
    with suppress(OSError):
        pending = Path(f"/proc/{pid}/status").read_text().partition("ShdPnd:")[2].split()[0]
        return bool(int(pending, 16) >> (number - 1) & 1)
    return False


def _to_all(number: signal.Signals) -> Callable[[int], None]:
    """Signal the process group, as a terminal does for Ctrl-C and a scheduler at the end of a job."""
    return lambda pid: os.killpg(os.getpgid(pid), number)


#: The actions by process. Nothing ends an agent that stays stopped, so this is omitted.
TO_AGENT: dict[str, Callable[[int], None]] = {
    "kill": _send(signal.SIGKILL),
    "stop for a while": _stop_for_a_while,
    "interrupt twice": _interrupt_twice,
    **{number.name: _send(number) for number in INTERRUPTIONS},
    **{f"{number.name} to all": _to_all(number) for number in INTERRUPTIONS},
}
TO_OTHERS: dict[str, Callable[[int], None]] = {
    "kill": _send(signal.SIGKILL),
    "stop": _send(signal.SIGSTOP),
    "stop for a while": _stop_for_a_while,
    "SIGTERM": _send(signal.SIGTERM),
    "SIGINT": _send(signal.SIGINT),
}
VICTIMS = ("agent", "forkserver", "tracker", "store", "rank", "rank", "torchrun", "other")


@dataclass
class Round:
    """One run and the attack on it, determined by one seed."""

    seed: int
    ranks: int = field(init=False)
    victim: str = field(init=False)
    action: str = field(init=False)
    delay_s: float = field(init=False)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.ranks = chance.randint(2, 4)
        self.victim = chance.choice(VICTIMS)
        self.action = chance.choice(sorted(TO_AGENT if self.victim == "agent" else TO_OTHERS))
        longest_s = 4.0 if self.victim == "agent" else 1.2  # of the others most live no longer
        self.delay_s = round(chance.choice((0.0, chance.uniform(0.0, longest_s))), 2)

    def play(self, folder: Path) -> tuple[str, list[str]]:
        """Return a description of the result, and the errors."""
        under_torchrun = ("--level", "standard") if self.victim == "torchrun" else ("--level", "quick")
        run = Run(folder, self.ranks, *under_torchrun)
        hit, name = None, "nobody"
        if run.wait_for(self.victim) is not None:
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(self.delay_s)
        if (pid := run.wait_for(self.victim)) is not None:
            with suppress(ProcessLookupError):
                hit, name = pid, comm(pid) or "nobody"
                (TO_AGENT if self.victim == "agent" else TO_OTHERS)[self.action](pid)
        took_s = run.end(BUDGET_S + GRACE_S)
        wrong = [] if took_s is not None else [f"not over after {BUDGET_S + GRACE_S:.0f} s"]
        if took_s is None:
            run.kill()
        wrong += self._wrong(run, hit)
        report = run.report() or {}
        return (f"{name}: exit {run.process.returncode} after {took_s or 0:.1f} s; {report.get('summary', '-')}", wrong)

    def _wrong(self, run: Run, hit: int | None) -> list[str]:
        left, said, code = run.left(), run.said(), run.process.returncode
        agent_killed = self.victim == "agent" and self.action == "kill"
        if agent_killed:  # who would have removed it is gone; the next run does
            left = [what for what in left if not what.startswith("ddp-doctor-")]
        wrong = [f"left: {', '.join(left)}"] if left else []
        wrong += [
            f"{words!r} in what it says" for words in ("Traceback", "Warning:", "internal error") if words in said
        ]
        report = run.report()
        if report is not None:
            return wrong + self._false(report, run.ranks_of(hit))
        early = code == ExitCode.INTERRUPTED.value and "interrupted before anything was tested" in said
        return wrong if early or agent_killed else [*wrong, f"no report, exit {code}: {said[-500:]}"]

    def _false(self, report: dict[str, Any], hit: set[int]) -> list[str]:
        """Return the errors of the verdict; ``hit`` are the ranks that may be blamed."""
        status = {check["id"]: check["status"] for check in report["checks"]}
        wrong = [f"no word of {check.id}" for check in CHECKS if check.id not in status]
        unread = [name for name in ESSENTIAL if status.get(name) not in ("passed", "found")]
        if report["verdict"] == "healthy" and unread:
            wrong.append(f"healthy without {', '.join(unread)}")
        for finding in report["findings"]:
            named = {culprit.get("rank") for culprit in finding["culprits"]}
            if finding["severity"] == "error" and not (named and named <= hit):
                wrong.append(f"{finding['code']}: {finding['title']}")
        interrupted = report["exit_code"] == ExitCode.INTERRUPTED.value
        if interrupted and not (self.victim == "agent" and ("SIG" in self.action or "interrupt" in self.action)):
            wrong.append("interrupted by nobody")
        return wrong


def main() -> int:
    """Play rounds; return 1 if there were errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each next has one more")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
    counts: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.rounds):
        fight = Round(seed)
        with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
            came, wrong = fight.play(Path(folder))
        what = f"{fight.ranks} ranks, {fight.action} {fight.victim} after {fight.delay_s:.2f} s"
        print(f"seed {seed}: {what}: {came}{''.join(f'{chr(10)}    WRONG: {words}' for words in wrong)}", flush=True)
        counts["wrong" if wrong else "right"] += 1
        counts[came.partition(";")[0].partition(": ")[2].partition(" after")[0]] += 1
    print(dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
