"""What a job of Slurm has left: its output files, and the folders that its batch script names."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddp_doctor.sources.commands import run_command

#: Slurm's controller may be down, and answers large clusters slowly.
_PATIENCE_S = 10.0
#: Variables with a path, or with the beginning of one.
_NAMED = re.compile(
    r"^\s*(?:export\s+)?(?:TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_TEMP_FILE|NCCL_DEBUG_FILE|TORCHELASTIC_ERROR_FILE)"
    r"=[\"']?([^\"'\n;#]{1,1000})",
    re.MULTILINE,
)
_FIELD = re.compile(r"^\s*(StdOut|StdErr|WorkDir)=(.+)$", re.MULTILINE)
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,10})?")


def files_of_job(job_id: str, env: Mapping[str, str], folder: Path) -> list[Path]:
    """Files and folders of a job, those that exist: slurm-ID.out in ``folder``, and what Slurm knows of it.

    Slurm forgets a job some minutes after its end, and then its accounting is asked, where there is one. Raises
    ValueError where ``job_id`` is no number of a job.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(f"{job_id!r} is not the number of a Slurm job, as 4711 or 4711_3 is")
    found = [*folder.glob(f"slurm-{job_id}.*"), *folder.glob(f"slurm-{job_id}_*.*")]
    shown = run_command(("scontrol", "show", "job", job_id), env, _PATIENCE_S)
    fields = dict(_FIELD.findall(shown.stdout))
    work_dir = Path(fields.get("WorkDir") or _accounted_folder(job_id, env) or folder)
    found += [Path(fields[name]) for name in ("StdOut", "StdErr") if name in fields]
    if work_dir != folder:
        found += [*work_dir.glob(f"slurm-{job_id}.*"), *work_dir.glob(f"slurm-{job_id}_*.*")]
    script = run_command(("scontrol", "write", "batch_script", job_id, "-"), env, _PATIENCE_S).stdout
    if not script:
        script = run_command(("sacct", "-j", job_id, "--batch-script"), env, _PATIENCE_S).stdout
    found += _named_in(script, job_id, work_dir, env)
    return list(dict.fromkeys(path for path in found if path.exists()))


def _accounted_folder(job_id: str, env: Mapping[str, str]) -> str:
    done = run_command(("sacct", "-j", job_id, "-X", "-n", "-P", "-o", "WorkDir"), env, _PATIENCE_S)
    return done.stdout.partition("\n")[0].strip()


def _named_in(script: str, job_id: str, work_dir: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """The files whose paths begin as the script says; what it puts together from more than these names is left out."""
    known = {"SLURM_JOB_ID": job_id, "SLURM_JOBID": job_id, "HOME": env.get("HOME", ""), "USER": env.get("USER", "")}
    for value in _NAMED.findall(script):
        path = re.sub(r"\$\{?(\w+)\}?", lambda name: known.get(name[1], name[0]), value.strip())
        path = re.sub(r"%[hp]", "*", path)
        if "$" not in path:
            whole = work_dir / path
            yield from whole.parent.glob(f"{whole.name}*")
