"""Where a job of SLURM runs, and whose it is."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.parse.hostlist import expand
from ddp_doctor.sources.commands import run_command

#: SLURM's controller answers large clusters slowly.
_PATIENCE_S = 10.0
_ROW = re.compile(
    r"(?P<number>\d+)\|(?P<task>[\w\[\],%-]+)\|(?P<state>[A-Z_]+)\|(?P<user>[^|]+)\|(?P<uid>\d+)\|(?P<nodes>.*)"
)


@dataclass(frozen=True)
class SlurmJob:
    """A job that runs."""

    number: str  # also of a task of an array: its own
    hosts: tuple[str, ...]


def slurm_job_of(job_id: str, env: Mapping[str, str]) -> SlurmJob | None:
    """A job that runs; None where SLURM cannot be asked here. Raises ValueError with one sentence where it does not."""
    if not re.fullmatch(r"\d{1,10}(?:_\d{1,10})?", job_id, re.ASCII):
        raise ValueError(f"{job_id!r} is not the number of a SLURM job, as 4711 or 4711_3 is")
    words = ("squeue", "--noheader", "--jobs", job_id, "--format", "%A|%i|%T|%u|%U|%N", "--states", "all")
    done = run_command(words, env, _PATIENCE_S)
    rows = [found for line in done.stdout.splitlines() if (found := _ROW.fullmatch(line.strip()))]
    if "Invalid job id" in done.stderr or (done.ok and not rows):
        raise ValueError(f"SLURM does not know job {job_id}, or has forgotten it")
    running = [row for row in rows if row["state"] in ("RUNNING", "COMPLETING", "SUSPENDED")]
    if len(running) > 1:
        raise ValueError(
            f"job {job_id} is an array of which {len(running)} tasks run: name one, as {running[0]['task']}"
        )
    if not rows:
        return None
    if not running:
        raise ValueError(f"SLURM job {job_id} does not run, it is {rows[0]['state'].lower()}")
    row = running[0]
    if os.getuid() not in (0, int(row["uid"])):
        raise ValueError(f"SLURM job {job_id} is one of {row['user']}: run this as {row['user']}, or as root")
    return SlurmJob(row["number"], expand(row["nodes"]))
