"""The settings in force, their origins and the values that they overrule: a pure function of a recording.

NCCL uses the environment first, then the user's file, then the system's file. In a file, the first of two equal names
counts. torchrun sets some variables for its workers if they are unset.
"""

from collections.abc import Iterator

from ddp_doctor.facts.node.env_vars import EnvVars, Origin, SettingOrigins, SettingText, Written
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import EnvReport, Overruled, Report, SettingInForce, UnreadLine
from ddp_doctor.settings.names import is_of_rccl, is_recorded, meant_by_timeout
from ddp_doctor.settings.nccl_conf import files_read
from ddp_doctor.settings.releases import Installed, default_at, default_in_words, status_at
from ddp_doctor.settings.table import never_read, variables
from ddp_doctor.settings.values import misread

#: Set by torchrun for its workers if unset (torch/distributed/elastic/agent/server/local_elastic_agent.py) …
GIVEN_BY_TORCHRUN = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
#: … and if a node has more than one worker (torch/distributed/run.py).
GIVEN_TO_SEVERAL = {"OMP_NUM_THREADS": "1"}
#: Processes that start all others, so no user on this host set their environment.
_FIRST_OF_HOSTS = ("systemd", "init")


def with_settings(report: Report, recording: Recording) -> EnvReport:
    """Return the report with the settings in force, and with the releases that read them."""
    software = recording.first(Software)
    of_env: dict[str, object] = {"settings": tuple(settings_in_force(recording))}
    if software is not None:
        of_env |= {"torch": software.torch_version, "rocm": software.torch_hip}
        of_env["nccl"] = None if software.torch_hip else software.nccl_loaded
    if (text := recording.first(SettingText)) is not None:
        if text.torch:
            of_env |= {"torch": text.torch, "rocm": text.rocm, "nccl": None if text.rocm else text.nccl}
        of_env["unread_lines"] = tuple(
            UnreadLine(
                line=each.line, text=each.quote, reason=each.reason, is_launch=each in text.unchecked, file=each.file
            )
            for each in sorted((*text.unchecked, *text.unread), key=lambda each: (each.file, each.line))
        )
    return EnvReport(**dict(report) | of_env)


def settings_in_force(recording: Recording) -> Iterator[SettingInForce]:
    """Yield one setting for each variable that is set anywhere, by name; effective ones first."""
    text, software = recording.first(SettingText), recording.first(Software)
    rows = list(_of_text(text) if text else _of_process(recording))
    set_here = {row.name for row in rows if row.note is None or not row.note.startswith(_VOID)}
    if not any(name.startswith("TORCHELASTIC_RUN_ID") for name in set_here):
        rows += _of_torchrun(recording, text, set_here)
    torch, nccl, rocm = (text.torch, text.nccl, text.rocm) if text else (None, None, None)
    if software is not None:
        torch, nccl, rocm = software.torch_version, software.nccl_loaded, software.torch_hip
    has_rccl = bool(rocm)
    here = Installed(() if has_rccl else release(nccl or ""), release(torch or ""))
    for row in sorted(rows, key=lambda row: row.name):
        about = _OF_RCCL if has_rccl and is_of_rccl(row.name) else _known_of_variable(row.name, here)
        yield row.model_copy(update=about)


_VOID = "does not count: it "
_OF_RCCL = {"status": "unknown", "note": "is not evaluated: it is a variable of RCCL, which ddp-doctor does not know"}


# --- what the process has -------------------------------------------------------------------------


def _of_process(recording: Recording) -> Iterator[SettingInForce]:
    process, origins = recording.first(EnvVars), recording.first(SettingOrigins)
    env: dict[str, str | None] = {**process.variables, **dict.fromkeys(process.withheld)} if process else {}
    in_files = _in_files(recording)
    since = {name: _who(origin) for name, origin in origins.origins.items()} if origins else {}
    for name, file in origins.files.items() if origins else ():
        since[name] = "; ".join(filter(None, (since.get(name), f"{file} says so")))
    for name, value in env.items():
        if is_recorded(name):
            yield _row(name, value, "environment", in_files.pop(name, ()), since.get(name))
    for name, (first, *overruled) in in_files.items():
        yield _row(name, first.value, first.source, tuple(overruled))


def _row(
    name: str, value: str | None, source: str, overrides: tuple[Overruled, ...] = (), since: str | None = None
) -> SettingInForce:
    return SettingInForce(
        name=name,
        value=value,
        source=source,
        since=since,
        overrides=overrides,
        status="unknown",
        note=_becomes(name, value),
    )


def _becomes(name: str, value: str | None) -> str | None:
    """Return the effect of a misread or withheld value, or None if it is read as written."""
    if value is None:
        return "is hidden because it looks like a credential"
    found = misread(name, value)
    return found.becomes if found else None


def _in_files(recording: Recording) -> dict[str, tuple[Overruled, ...]]:
    """Return NCCL's variables in the configuration files that this NCCL reads, by priority."""
    lines = [
        (line.name, Overruled(value=line.value, source=f"{file.path}:{line.number}"))
        for node in recording.facts(NcclFact)[:1]  # other readers have their own files
        for file in files_read(recording, node)
        for line in file.lines
        if line.name and is_recorded(line.name) and line.name.startswith("NCCL_")
    ]
    return {name: tuple(overruled) for name, overruled in grouped(lines).items()}


def _who(origin: Origin) -> str:
    who = f"{origin.process} (process {origin.pid})"
    if origin.process == "slurmstepd":
        return f"SLURM, which passes on the environment of sbatch or srun, by {who}"
    if origin.how == "set":
        return f"set in {who}"
    if origin.how == "given":
        return f"from {who} or from before it"
    if origin.process in _FIRST_OF_HOSTS:
        return f"since this host started, by {who}"
    return f"the container's image or runtime, as {who} was started with it"


# --- what a text has ------------------------------------------------------------------------------


def _of_text(text: SettingText) -> Iterator[SettingInForce]:
    """Return the line that counts for each name, and the earlier lines."""
    by_name = grouped((setting.name, setting) for setting in text.written if is_recorded(setting.name))
    counting, possible = text.in_force(), text.possible()
    for name, all_written in by_name.items():
        last = counting.get(name) or all_written[-1]
        others = tuple(
            Overruled(value=setting.value, source=f"line {setting.line}")
            for setting in reversed(all_written)
            if setting not in possible.get(name, (last,)) and setting.void is None and setting.value != last.value
        )
        row = _row(name, last.value, f"line {last.line}", others)
        yield row.model_copy(update={"note": by_branch(possible.get(name, ())) or _note(last)})


def by_branch(possible: tuple[Written, ...]) -> str | None:
    """Return a note if a name has other values in other branches, or None if it has one value."""
    if len({setting.value for setting in possible}) < 2:
        return None
    elsewhere = ", ".join(f"{setting.value or 'a value kept back'} (line {setting.line})" for setting in possible[1:])
    return f"is not evaluated: in another branch of the script it is {elsewhere}"


def _note(setting: Written) -> str | None:
    if setting.void:
        return f"{_VOID}{setting.void}"
    if setting.depends_on and setting.name not in never_read():
        return f"is not evaluated: depends on {setting.depends_on}"
    read_as = _becomes(setting.name, setting.value)
    unless = f"counts unless {setting.unless_set} is set before" if setting.unless_set else None
    return "; ".join(filter(None, (read_as, unless))) or None


# --- what torchrun adds, and what all of it means -------------------------------------------------


def _of_torchrun(recording: Recording, text: SettingText | None, set_here: set[str]) -> Iterator[SettingInForce]:
    """Yield the settings that torchrun gives its workers; none for a script that does not call torchrun."""
    if text is not None and text.form == "script" and not text.calls_torchrun:
        return
    process = recording.first(EnvVars)
    if process is None or process.launcher in ("torchrun", "mpi") or (process.launcher and "RANK" in process.variables):
        return  # this is the environment of ranks that torchrun did not start
    for names, to in ((GIVEN_BY_TORCHRUN, "each worker"), (GIVEN_TO_SEVERAL, "several workers of one node")):
        for name, value in names.items():
            if name not in set_here:
                yield _row(name, value, "torchrun", since=f"for {to}")


def _known_of_variable(name: str, here: Installed) -> dict[str, str | None]:
    known, never = variables().get(name), never_read().get(name)
    if never is not None:
        return {"status": "read by nothing", "meaning": f"Meant is {never.meant}."}
    if meant := meant_by_timeout(name):
        return {"status": "unknown", "meaning": f"Meant is {meant}."}
    if known is None:
        return {"status": "unknown"}
    at = here.of(known)
    status: str = status_at(known, at) if at else "read"
    if status == "read" and known.status == "deprecated":
        status = "deprecated" if not known.replaced_by or here.reads(known.replaced_by) else "read"
    if not at and known.status == "removed":
        status = "renamed" if known.replaced_by else "no longer"
    default = default_at(known, at) if at else known.default
    return {"status": status, "default": default_in_words(default), "meaning": known.what_it_does or None}
