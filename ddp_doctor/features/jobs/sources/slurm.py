"""A SLURM job, as SLURM reports it: its hosts, its user and its files."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor.model.error_text import quoted
from ddp_doctor.parse.hostlist import expand
from ddp_doctor.sources.commands import run_command

#: SLURM's controller may be down, or answer slowly on large clusters.
_PATIENCE_S = 10.0
#: Variables whose value is a path or the beginning of a path.
_NAMED = re.compile(
    r"^\s*(?:export\s+)?(?:TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_TEMP_FILE|NCCL_DEBUG_FILE|TORCHELASTIC_ERROR_FILE)"
    r"=[\"']?([^\"'\n;#]{1,1000})",
    re.MULTILINE,
)
_FIELD = re.compile(r"^\s*(StdOut|StdErr|WorkDir)=(.+)$", re.MULTILINE)
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,10})?", re.ASCII)
_ROW = re.compile(
    r"(?P<number>\d+)\|(?P<task>[\w\[\],%-]+)\|(?P<state>[A-Z_]+)\|(?P<user>[^|]+)\|(?P<uid>\d+)\|(?P<nodes>.*)"
)


@dataclass(frozen=True)
class SlurmJob:
    """A running job."""

    number: str  # job ID; a task of an array has its own
    hosts: tuple[str, ...]


def slurm_job_of(job_id: str, env: Mapping[str, str]) -> SlurmJob | None:
    """Return a running job, or None if SLURM cannot be asked here. Raises ValueError if the job cannot be used."""
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(f"{quoted(job_id)} is not a SLURM job ID; use an ID such as 4711 or 4711_3")
    words = ("squeue", "--noheader", "--jobs", job_id, "--format", "%A|%i|%T|%u|%U|%N", "--states", "all")
    done = run_command(words, env, _PATIENCE_S)
    rows = [found for line in done.stdout.splitlines() if (found := _ROW.fullmatch(line.strip()))]
    if "Invalid job id" in done.stderr or (done.ok and not rows):
        raise ValueError(f"SLURM has no record of job {job_id}: the job ID is wrong, or the job ended too long ago")
    running = [row for row in rows if row["state"] in ("RUNNING", "COMPLETING", "SUSPENDED")]
    if len(running) > 1:
        raise ValueError(
            f"job {job_id} is an array with {len(running)} running tasks; give one of them, for example"
            f" {running[0]['task']}"
        )
    if not rows:
        return None
    if not running:
        raise ValueError(f"SLURM job {job_id} is not running; it is {rows[0]['state'].lower()}")
    row = running[0]
    if os.getuid() not in (0, int(row["uid"])):
        raise ValueError(f"SLURM job {job_id} belongs to {row['user']}; run this command as {row['user']} or as root")
    return SlurmJob(row["number"], expand(row["nodes"]))


def files_of_job(job_id: str, env: Mapping[str, str], folder: Path) -> list[Path]:
    """Return the existing files and directories of a job: slurm-ID.out in ``folder``, and those that SLURM knows.

    SLURM forgets a job some minutes after its end. Then its accounting is asked, if there is any. Raises ValueError if
    ``job_id`` is not a job ID.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(f"{quoted(job_id)} is not a SLURM job ID; use an ID such as 4711 or 4711_3")
    found = [*folder.glob(f"slurm-{job_id}.*"), *folder.glob(f"slurm-{job_id}_*.*")]
    shown = run_command(("scontrol", "show", "job", job_id), env, _PATIENCE_S)
    fields = dict(_FIELD.findall(shown.stdout))
    if "WorkDir" not in fields:
        accounted = run_command(("sacct", "-j", job_id, "-X", "-n", "-P", "-o", "WorkDir"), env, _PATIENCE_S)
        fields["WorkDir"] = accounted.stdout.partition("\n")[0].strip()
    work_dir = Path(fields["WorkDir"] or folder)
    found += [Path(fields[name]) for name in ("StdOut", "StdErr") if name in fields]
    if work_dir != folder:
        found += [*work_dir.glob(f"slurm-{job_id}.*"), *work_dir.glob(f"slurm-{job_id}_*.*")]
    script = run_command(("scontrol", "write", "batch_script", job_id, "-"), env, _PATIENCE_S).stdout
    if not script:
        script = run_command(("sacct", "-j", job_id, "--batch-script"), env, _PATIENCE_S).stdout
    # The files whose paths begin as in the script. Paths with other variables than these are skipped.
    known = {"SLURM_JOB_ID": job_id, "SLURM_JOBID": job_id, "HOME": env.get("HOME", ""), "USER": env.get("USER", "")}
    for value in _NAMED.findall(script):
        path = re.sub(r"\$\{?(\w+)\}?", lambda name: known.get(name[1], name[0]), value.strip())
        path = re.sub(r"%[hp]", "*", path)
        if "$" not in path:
            whole = work_dir / path
            found += whole.parent.glob(f"{whole.name}*")
    return list(dict.fromkeys(path for path in found if path.exists()))
