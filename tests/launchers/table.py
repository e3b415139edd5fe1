"""Run real jobs below each launcher, each with a fault in rank 1, and write the answers of the commands.

    python -m tests.launchers.table [--launcher NAME] [--fault NAME] [--command NAME] [PAGE]

Needs the frameworks of `make launchers`. Each job has three ranks on this host, over gloo, and ends by its deadline.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

JOB = Path(__file__).with_name("jobs") / "job.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
COMMANDS = ("attach", "watch", "logs")
FAULTS = ("runs", "ends", "raises", "killed", "sleeps", "loops", "loader stalls", "uneven batches", "memory")
#: Faults that end a job, and faults that make it hang.
ENDS = ("ends", "raises", "killed", "memory")
HANGS = ("sleeps", "loops", "loader stalls", "uneven batches", "node missing")
STUCK_AFTER_S = 12
RANK_AT_FAULT = 1
#: The rank that a verdict names first.
_BLAMED = re.compile(r"(?:Stuck|Failed): (?:local )?rank (\d)", re.IGNORECASE)
#: Printed for a rank that has fewer batches than the others.
_OTHER_CALL = f"rank {RANK_AT_FAULT} called "
#: ``watch`` prints its explanation some seconds after it notices a hang.
_EXPLAINED = re.compile(r"ddp-doctor: (?:Stuck|Cannot tell|.* waits for)")
#: Printed by a rank in the step of the fault.
BEGINS = "the fault begins"
#: Maximum seconds of a job, and until a hanging job is ended with its launcher.
LONGEST_S, SETTLED_S = 120.0, 12.0


@dataclass(frozen=True)
class Launcher:
    """A launcher: the command that starts three ranks of the job, and the command of a job that lacks a node."""

    name: str
    command: Callable[[str, int], list[str]]  # of a fault and a port
    lacks_a_node: Callable[[int], list[str]] | None = None
    faults: Sequence[str] = FAULTS


def _python(framework: str) -> Callable[[str, int], list[str]]:
    return lambda fault, port: [sys.executable, str(JOB), framework, fault]


def _torchrun(framework: str) -> Launcher:
    def command(fault: str, port: int) -> list[str]:
        at = ["--nproc-per-node", "3", "--master-port", str(port)]
        return [*TORCHRUN, *at, str(JOB), framework, fault]

    def lacks(port: int) -> list[str]:
        at = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
        return [*TORCHRUN, *at, str(JOB), framework, "runs"]

    return Launcher({"plain": "torchrun", "transformers": "torchrun, HF Trainer"}[framework], command, lacks)


def _mpirun(fault: str, port: int) -> list[str]:
    mpirun = shutil.which("mpirun") or "mpirun"
    return [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable, str(JOB), "plain", fault]


#: Also for ranks on processors: `--cpu` starts one process (accelerate 1.15, launch_command).
def _accelerate(fault: str, port: int) -> list[str]:
    options = ["--multi_gpu", "--num_processes", "3", "--num_machines", "1", "--main_process_port", str(port)]
    return [*ACCELERATE, *options, str(JOB), "accelerate", fault]


def _accelerate_alone(port: int) -> list[str]:
    where = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port), "--machine_rank", "1"]
    options = ["--multi_gpu", "--num_processes", "6", "--num_machines", "2", *where]
    return [*ACCELERATE, *options, str(JOB), "accelerate", "runs"]


def _deepspeed(fault: str, port: int) -> list[str]:
    deepspeed = str(Path(sys.executable).with_name("deepspeed"))
    return [deepspeed, "--num_gpus", "3", "--master_port", str(port), str(JOB), "plain", fault]


LAUNCHERS = (
    _torchrun("plain"),
    _torchrun("transformers"),
    Launcher("mp.spawn", _python("mp.spawn")),
    Launcher("Lightning Fabric", _python("fabric")),
    Launcher("Lightning Trainer", _python("lightning")),
    Launcher("accelerate", _accelerate, _accelerate_alone),
    Launcher("mpirun", _mpirun),
    Launcher("DeepSpeed", _deepspeed),
    Launcher("Ray Train", _python("ray"), lambda port: [sys.executable, str(JOB), "ray", "node missing"]),
)


@dataclass(frozen=True)
class Answer:
    """The answer of a command about a job: right, unsure or wrong."""

    code: int
    said: str
    verdict: str

    @property
    def cell(self) -> str:
        """The text of a cell of the table."""
        return f"{self.verdict}: {self.said}"


def judged(command: str, fault: str, code: int, said: str, text: str) -> Answer:
    """Judge an answer by the known fault: it names rank 1, blames no other rank, and calls no healthy job stuck."""
    named = set(_BLAMED.findall(text)) | ({str(RANK_AT_FAULT)} if _OTHER_CALL in text else set())
    is_sure = "Stuck: " in text or "Failed: " in text
    if fault == "runs" and command == "logs" and "stopped from outside" in text:
        verdict = "right"  # the table ends the job
    elif fault in ("runs", "ends"):
        verdict = "wrong" if is_sure else "unsure" if code == 3 else "right"
    elif named - {str(RANK_AT_FAULT)} or "No failure" in text or "Running: " in text:
        verdict = "wrong"
    elif fault == "node missing" and command != "logs":
        verdict = "right" if "waits for" in text else "unsure" if "Cannot tell" in text else "wrong"
    elif named or (
        is_sure and command == "logs" and fault in HANGS
    ):  # output after a hang was stopped does not show the hang
        verdict = "right"
    else:
        verdict = "wrong" if is_sure or not said else "unsure"
    return Answer(code, said, verdict)


@contextmanager
def running(words: Sequence[str], output: Path, port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job in a separate session, and end all processes of the session."""
    env = {**os.environ, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "RAY_TMPDIR": str(folder)}
    with output.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a job's session; Ray's daemons stay in it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _session(process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + 5
        while _session(process.pid) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.1)
    process.wait()


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _doctor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def answer(launcher: Launcher, fault: str, command: str, port: int, folder: Path) -> Answer:
    """Start the job, and ask the command about it when it has settled."""
    words = launcher.command(fault, port)
    if fault == "node missing":
        assert launcher.lacks_a_node is not None
        words = launcher.lacks_a_node(port)
    output = folder / "output.log"
    if command == "watch":
        watch = [sys.executable, "-m", "ddp_doctor", "watch", "--stuck-after", str(STUCK_AFTER_S), "--", *words]
        with running(watch, output, port, folder) as process:
            _settle(process, output, fault, 5 * SETTLED_S, until=_EXPLAINED if fault in HANGS else None)
            text = output.read_text(errors="replace")
        said = [line for line in text.splitlines() if line.startswith("ddp-doctor: ")]
        return judged(command, fault, process.poll() or 0, said[-1] if said else "", text)
    with running(words, output, port, folder) as process:
        _settle(process, output, fault, SETTLED_S)
        if command == "attach":
            done = _doctor("attach", "--pid", str(process.pid))
            return judged(command, fault, done.returncode, _last_line(done.stdout + done.stderr), done.stdout)
    done = _doctor("logs", str(output))
    return judged(command, fault, done.returncode, _last_line(done.stdout + done.stderr), done.stdout)


def _settle(
    process: subprocess.Popen[bytes], output: Path, fault: str, hang_s: float, until: re.Pattern[str] | None = None
) -> None:
    """Wait until a job has ended, or until a hanging job has hung for a while."""
    began, deadline = None, time.monotonic() + (LONGEST_S if fault in ENDS else 3 * SETTLED_S + hang_s)
    while process.poll() is None and time.monotonic() < deadline:
        text = output.read_text(errors="replace")
        if until and (until.search(text) or "ddp-doctor: no rank has" in text):
            return
        if began is None and (fault == "node missing" or BEGINS in text):
            began = time.monotonic()
        if fault not in ENDS and began is not None and time.monotonic() - began > hang_s:
            return
        time.sleep(0.2)


def _page(rows: Sequence[tuple[str, str, str, Answer]]) -> Iterator[str]:
    """Yield a table with a row for each launcher and command, and a column for each fault."""
    faults = list(dict.fromkeys(fault for _, fault, *_ in rows))
    yield "# Live jobs of each launcher\n"
    yield "Written by `make launchers`. Three ranks on one host over gloo, with a fault in rank 1.\n"
    yield f"| launcher | command | {' | '.join(faults)} |"
    yield "|---" * (len(faults) + 2) + "|"
    found = {(launcher, command, fault): answer.verdict for launcher, fault, command, answer in rows}
    for launcher, command in dict.fromkeys((launcher, command) for launcher, command, _ in found):
        cells = (found.get((launcher, command, fault), "-") for fault in faults)
        yield f"| {launcher} | {command} | {' | '.join(cells)} |"


def main(argv: Sequence[str]) -> int:
    """Print a row for each case, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.launchers.table", description=__doc__)
    for name in ("launcher", "fault", "command"):
        parser.add_argument(f"--{name}", action="append")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args(argv)
    rows = []
    for launcher in LAUNCHERS:
        faults = [*launcher.faults, *(["node missing"] if launcher.lacks_a_node else [])]
        for fault in faults:
            for command in COMMANDS:
                wanted = ((chosen.launcher, launcher.name), (chosen.fault, fault), (chosen.command, command))
                if any(names and name not in names for names, name in wanted):
                    continue
                if command == "attach" and fault in ENDS:
                    continue  # the job has exited before it can be observed
                with socket.create_server(("127.0.0.1", 0)) as free:
                    port = free.getsockname()[1]
                with tempfile.TemporaryDirectory(prefix="ddp-doctor-launchers-") as folder:
                    said = answer(launcher, fault, command, port, Path(folder))
                rows.append((launcher.name, fault, command, said))
                sys.stdout.write(f"{launcher.name} | {fault} | {command} | {said.code} | {said.cell}\n")
                sys.stdout.flush()
    if chosen.page:
        chosen.page.write_text("\n".join(_page(rows)) + "\n")
    wrong = sum(said.verdict == "wrong" for *_, said in rows)
    sys.stdout.write(f"{len(rows)} cases, {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
