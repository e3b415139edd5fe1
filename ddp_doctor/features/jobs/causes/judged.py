"""A cause of a job's failure, as the judge of failed jobs returns it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddp_doctor.features.jobs.facts import LogLine
from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit, Remedy

#: Placeholders in commands, with the sign's value that replaces each.
_PLACEHOLDERS = {"PORT": "port", "PEER": "peer"}
_AMD = re.compile(r"HW Exception by GPU|HSA_STATUS_|\bHIP\b|ROCm|amdgpu")
_NVIDIA = re.compile(r"nvidia|\bXid\b|compute-sanitizer|CUDA_|dcgmi")
_LAUNCHER = re.compile(r"(?:torchrun|accelerate|deepspeed|mpirun|srun|ray(?=\.init))\b")
_SAFE = re.compile(r"[A-Za-z0-9][\w.:-]{0,99}")


@dataclass(frozen=True)
class Judged:
    """A cause of a job's failure, with its evidence and culprits. ``values`` fill the braces of its title.

    ``next_check`` and ``remedies`` replace the cause's own if the evidence shows better ones.
    """

    cause: JobCause
    confidence: Confidence
    lines: tuple[LogLine, ...]
    culprits: tuple[Culprit, ...] = ()
    who: str = ""
    detail: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    next_check: str = ""
    remedies: tuple[Remedy, ...] = ()
    launcher: str | None = None  # of the job
    job: str = ""  # the name of a running job
    is_one_of_several_jobs: bool = False
    pid: int | None = None  # of the faulty process, if it runs

    def commands(self, of_cause: Iterable[str]) -> tuple[str, ...]:
        """Return the commands with known values, without commands for other GPUs or launchers than the job's."""
        is_amd = any(_AMD.search(line.text) for line in self.lines)
        fit = [command for command in of_cause if not (is_amd and _NVIDIA.search(command))]
        return tuple(self._with_values(command) for command in fit if self._is_of_the_launcher(command))

    @property
    def next_command(self) -> str:
        """The next check, with known values."""
        asked = self.next_check or self.cause.next_check
        if fit := " ".join(self.commands([asked])):
            return fit
        return "dmesg | grep amdgpu; rocm-smi" if _NVIDIA.search(asked) else "ddp-doctor run on the same nodes"

    def _is_of_the_launcher(self, command: str) -> bool:
        launcher = _LAUNCHER.match(command)
        return launcher is None or self.launcher in (None, "kubernetes", launcher[0])

    def _with_values(self, command: str) -> str:
        if self.pid is not None:
            command = command.replace("--pid PID", f"--pid {self.pid}")
        for word, name in _PLACEHOLDERS.items():
            value = re.sub(r"^([^:]+):\d+$", r"\1", self.values.get(name, ""))  # a peer may include its port
            if _SAFE.fullmatch(value):
                command = re.sub(rf"\b{word}\b", value, command)
        return command


def place_of(line: LogLine) -> str:
    """Return the place of a line, such as ``job.out:12``."""
    return f"{line.file}:{line.line}" if line.line else line.file
