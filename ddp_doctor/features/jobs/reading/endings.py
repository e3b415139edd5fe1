"""The endings of ranks, as printed by torchelastic, mp.spawn, srun and mpirun; and facts about the entire job."""

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ddp_doctor.knowledge.endings import signal_name
from ddp_doctor.parse.text import plain

#: More ranks than any job has. Further ranks in a line are not read.
_MOST_RANKS = 100_000


class Ending(NamedTuple):
    """The ending of a rank. ``rank`` is None if only its host and process, or its local rank, is known."""

    rank: int | None
    said: str
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_at: str | None = None  # as torchelastic prints it: 2026-11-23_04:31:09


_EXIT = re.compile(r"(-?\d{1,10})(?: \(pid: (\d{1,10})\))?")
_RANK = re.compile(r"(\d{1,7})(?: \(local_rank: (\d{1,7})\))?")
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,10})\) local_rank: (\d{1,7}) \(pid: (\d{1,10})\)")
_SRUN = re.compile(
    r"srun: error: (?P<host>\S{1,300}): tasks? (?P<tasks>[\d,-]{1,4000}): "
    r"(?P<how>[A-Z][A-Za-z -]{2,60}?(?P<code>\d{1,5})?)"
    r"(?: \(core dumped\))?$"
)
_MPIRUN = re.compile(
    r"noticed that process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,10}) on node (?P<host>\S{1,255}) exited on"
    r" signal (?P<signal>\d{1,3})"
)
#: Lightning's launcher prints this for the first process that exits, and then ends the others.
_CHILD = re.compile(
    r"\[rank: (?P<rank>\d{1,7})\] Child process with PID (?P<pid>\d{1,10}) terminated with code (?P<code>-?\d{1,5})"
)
#: mp.spawn's line before a process's traceback.
SPAWN_RAISED = re.compile(r"-- Process (\d{1,7}) terminated with the following error:")
#: mp.spawn's number is the rank if one call starts all ranks (torch/multiprocessing/spawn.py).
_SPAWN = re.compile(
    r"process (?P<number>\d{1,7}) terminated with (?:exit code (?P<code>\d{1,5})|signal (?P<signal>SIG[A-Z0-9]{2,8}))"
)
_MPIRUN_EXIT = re.compile(
    r"Process name: \[(?:\[\d+,\d+\],|\S{1,200}@\d+,|\S{1,200},)(?P<rank>\d{1,7})\]"
    r"\s+Exit code: +(?P<code>\d{1,5})"
)
#: Composer's launcher (composer/cli/launcher.py), and others in the same words.
_BY_RANK = re.compile(
    r"\b(?:[Gg]lobal )?[Rr]ank (?P<rank>\d{1,7})(?: \(PID (?P<pid>\d{1,10})\))? (?:crashed|exited|failed|terminated)"
    r" with (?:exit )?code (?P<code>-?\d{1,3})\b"
)
#: Ray Train's list of its workers, and its text before the exception or death of a worker.
_RAY = re.compile(
    r"\b(?:ip=(?P<host>[\w.:-]{1,255}), pid=(?P<pid>\d{1,10})\) world_rank=(?P<rank>\d{1,7}),"
    r" local_rank=(?P<local>\d{1,7})"
    r"|Rank (?P<failed>\d{1,7}) Error Snippet\]:)"
)
#: Names of signals by glibc's strsignal, as srun prints them.
_SIGNALS = {signal.strsignal(number): number.name for number in signal.Signals}
ENDING_WORDS = (
    b"failed (exitcode: ",
    b"srun: error: ",
    b"noticed that process rank",
    b"] Child process with PID ",
    b"Exception: process ",
    b" terminated with the following error:",
    b" with exit code ",
    b" with code ",
    b") world_rank=",
    b" Error Snippet]:",
)
#: Words that begin multi-line texts.
EXIT_WORD = b"Process name: ["
SUMMARY_WORD = b"  time      : "


def _ended(code: int) -> tuple[int | None, str | None]:
    return (code, None) if code >= 0 else (None, signal_name(-code))


def endings_in(text: str) -> Iterator[Ending]:
    """Yield the endings of ranks that one line shows."""
    if found := _FAILED.search(text):
        code, name = _ended(int(found[1]))
        yield Ending(None, found[0], pid=int(found[3]), local_rank=int(found[2]), exit_code=code, signal=name)
    elif found := _SRUN.search(text.rstrip()):
        name = _SIGNALS.get(found["how"])
        code = int(found["code"]) if found["code"] and found["how"].startswith("Exited") else None
        if name or code is not None:
            for rank in _numbers(found["tasks"]):
                yield Ending(rank, found[0], host=found["host"], exit_code=code, signal=name)
    elif found := _CHILD.search(text):
        code, name = _ended(int(found["code"]))
        yield Ending(int(found["rank"]), found[0], pid=int(found["pid"]), exit_code=code, signal=name)
    elif found := _MPIRUN.search(text):
        name = signal_name(int(found["signal"]))
        yield Ending(int(found["rank"]), found[0], host=found["host"], pid=int(found["pid"]), signal=name)
    elif found := SPAWN_RAISED.match(text):
        yield Ending(None, found[0], local_rank=int(found[1]), exit_code=1)
    elif found := _SPAWN.search(text):
        code = int(found["code"]) if found["code"] else None
        number = int(found["number"])
        yield Ending(None, found[0], local_rank=number, exit_code=code, signal=found["signal"])
    elif found := _BY_RANK.search(text):
        code, name = _ended(int(found["code"]))
        yield Ending(int(found["rank"]), found[0], pid=int(found["pid"] or 0) or None, exit_code=code, signal=name)
    elif (found := _RAY.search(text)) and found["failed"]:
        yield Ending(int(found["failed"]), found[0])
    elif found:
        yield Ending(int(found["rank"]), found[0], found["host"], int(found["pid"]), int(found["local"]))


def ending_of_summary(fields: Mapping[str, str]) -> Ending | None:
    """Return the ending of the rank in one entry of torchelastic's summary, or None."""
    rank, code = (_RANK.match(fields.get("rank", "")), _EXIT.match(fields.get("exitcode", "")))
    if not rank or not code:
        return None
    exit_code, name = _ended(int(code[1]))
    return Ending(
        int(rank[1]),
        f"rank {fields['rank']} exitcode: {fields['exitcode']}",
        host=fields.get("host") or None,
        pid=int(code[2]) if code[2] else None,
        local_rank=int(rank[2]) if rank[2] else None,
        exit_code=exit_code,
        signal=name,
        ended_at=fields.get("time") or None,
    )


def ending_of_mpirun(text: str) -> Ending | None:
    """Return the ending of the rank in mpirun's "Process name … Exit code", or None."""
    found = _MPIRUN_EXIT.search(text)
    return Ending(int(found["rank"]), found[0].replace("\n", " "), exit_code=int(found["code"])) if found else None


def _numbers(tasks: str) -> Iterator[int]:
    left = _MOST_RANKS
    for part in tasks.split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and (not high or high.isdecimal()) and len(high) < 9 and len(low) < 9:
            numbers = range(int(low), min(int(high or low), int(low) + left) + 1)
            left -= len(numbers)
            yield from numbers


#: tqdm's bar: percent, and the time that it has run.
_BAR = re.compile(rb"(?<!\d)(\d{1,2})%\|[^|\r\n]{0,400}\|[^\[\r\n]{1,60}\[(?:(\d{1,3}):)?(\d\d):(\d\d)<")
#: A line of the program itself: words, but not a line of torch or of a traceback.
_OWN_WORDS = re.compile(rb"(?!.*(?:ProcessGroup|\[[Rr]ank ?\d|terminate called|NCCL ))\S.*[A-Za-z]{3}")
_BAR_WITHIN, _LONGEST_BEFORE = 1 << 16, 400


def before_time_out(chunk: bytes, end: int) -> dict[str, str]:
    """Return the line before a line, and percent and seconds of the last progress bar if it is not complete."""
    before = chunk[max(chunk.rfind(b"\n", 0, end) - _BAR_WITHIN, 0) : max(chunk.rfind(b"\n", 0, end), 0)].rstrip()
    line = before.rpartition(b"\n")[2].rpartition(b"\r")[2]
    said = {"before": plain(line[:_LONGEST_BEFORE].decode("utf-8", "replace"))} if _OWN_WORDS.match(line) else {}
    return said | _unfinished_bar(chunk, end)


def _unfinished_bar(chunk: bytes, end: int) -> dict[str, str]:
    bars = list(_BAR.finditer(chunk, max(end - _BAR_WITHIN, 0), end))
    if not bars:
        return {}
    last = bars[-1]
    hours, minutes, seconds = (int(part or 0) for part in last.groups()[1:])
    return {"bar": f"{int(last[1])} %", "bar_s": str(hours * 3600 + minutes * 60 + seconds)}


def since_complete(chunk: bytes, end: int) -> dict[str, str]:
    """Count the lines that are not from NCCL between a communicator's completion and a place in the output."""
    start = chunk.rfind(b"Init COMPLETE", max(end - _BAR_WITHIN, 0), end)
    others = [line for line in chunk[start:end].split(b"\n")[1:] if line.strip() and b"NCCL" not in line]
    return {"since_complete": str(len(others))} if start >= 0 else {}


_TORCH = re.compile(
    r"(?:[Pp]y[Tt]orch(?: version)?(?: is|:|=)*|\btorch(?: version|\.__version__|==|:|=)+)[ :=]*v?"
    r"(\d\.\d{1,2}\.\d{1,2}[\w.+]*)"
)
_WORLD = re.compile(
    r"\b(?:(?:dist_)?world[_ ]size[\"']?\s*(?:[=:]|is)?\s*|MEMBER: \d{1,7}/)(\d{1,7})\b(?! *(?:!=|\*))", re.IGNORECASE
)
_NODES = re.compile(r"^\s*(min_nodes|max_nodes|nproc_per_node)\s*: (\d{1,6})$")
_BACKEND = re.compile(r"\bbackend[\"']?\s*[=:]\s*[\"']?(nccl2|nccl-legacy|nccl-lazy|nccl|gloo|mpi|ucc)\b")
FACT_WORDS = (
    b"torch version", b"PyTorch version", b"torch==", b"torch.__version__",
    b"world_size", b"WORLD_SIZE", b"World size", b"world size", b"min_nodes", b"max_nodes", b"nproc_per_node",
    b"ProcessGroupNCCL.cpp", b"NCCLUtils.", b"[TC][rank=", b"ProcessGroupGloo", b"gloo/transport", b"backend=",
    b"backend: ", b", MEMBER: ", b"accelerate/commands", b"deepspeed.launcher", b"deepspeed/launcher", b"ing/spawn.py",
    b"torch/distributed/elastic", b"torch.distributed.elastic", b"torchrun", b"srun: ", b"mpirun ",
)  # fmt: skip


#: Launchers by the texts of their lines, the outermost first.
_LAUNCHERS = {
    "accelerate": re.compile(r"accelerate/commands/launch\.py"),
    "torchrun": re.compile(r"torch[/.]distributed[/.]elastic|torchrun"),
    "deepspeed": re.compile(r"deepspeed[/.]launcher"),
    "lightning": re.compile("GLOBAL_RANK: "),
    "spawn": re.compile(r"torch/multiprocessing/spawn\.py"),
    "srun": re.compile("^srun: "),
    "mpirun": re.compile("^mpirun "),
}
#: Launchers that start ranks through torchrun's agent.
OF_TORCHRUN = ("accelerate", "torchrun")


@dataclass
class JobFacts:
    """Facts about the entire job. The first line that shows a fact counts."""

    torch_version: str | None = None
    world_size: int | None = None
    backend: str | None = None
    launcher: str | None = None
    _nodes: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Take one line that holds one of FACT_WORDS."""
        if self.torch_version is None and (found := _TORCH.search(text)):
            self.torch_version = found[1]
        if self.world_size is None and (found := _WORLD.search(text)):
            self.world_size = int(found[1]) or None
        if found := _NODES.match(text):
            self._nodes.setdefault(found[1], int(found[2]))
            if len(self._nodes) == 3 and self._nodes["min_nodes"] == self._nodes["max_nodes"]:
                self.world_size = self._nodes["max_nodes"] * self._nodes["nproc_per_node"]
        launcher = _launcher(text)
        if launcher == OF_TORCHRUN[0] or (launcher and self.launcher not in OF_TORCHRUN):  # srun may start them
            self.launcher = launcher
        self._learn_backend(text)

    def _learn_backend(self, text: str) -> None:
        if "[TC][rank=" in text or "nccl2:" in text:
            self.backend = "nccl2"
        elif self.backend is None and ("ProcessGroupNCCL.cpp" in text or "NCCLUtils." in text):
            self.backend = "nccl"
        elif self.backend is None and ("ProcessGroupGloo" in text or "gloo/transport" in text):
            self.backend = "gloo"
        elif self.backend is None and (found := _BACKEND.search(text)):
            self.backend = found[1]


def _launcher(text: str) -> str | None:
    return next((name for name, line in _LAUNCHERS.items() if line.search(text)), None)
