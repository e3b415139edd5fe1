"""The software a job stands on: torch, CUDA, the NVIDIA driver, NCCL and Python.

A CPU build of torch beside idle GPUs, a driver too old for torch's CUDA, or a libnccl that is not the one
torch was built with decide whether a DDP job starts at all. Importing torch takes a second, so the helper
script ``software`` reads the installed files instead; the dynamic linker (ldd) tells which libnccl torch
would load, and the helper ``nccl`` asks that file. The ranks tell whether NCCL and gloo work. Raw input::

    {"python": "3.11.7", "torch_version": "2.7.0+cu126", "torch_cuda": "12.6", "torch_requires":
     ["nvidia-nccl-cu12==2.26.2; platform_system == 'Linux'"], "torch_cuda_library": "/v/libtorch_cuda.so"}
            libnccl.so.2 => /v/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)
    {"version_code": 22602}
    NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from pydantic import ValidationError

from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import dotted, release
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Backend, Confidence, Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact, Failed
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import software as parse
from ddp_doctor.phrases import install
from ddp_doctor.phrases.nodes import by_cause, node_draft


class Software(Fact):
    """What is installed for this interpreter; None is "not there" where no ``*_problem`` says otherwise."""

    KIND: ClassVar[str] = "software/1"

    python: str
    machine: str  # as uname -m
    torch_folder: str | None = None
    torch_problem: str | None = None  # why torch cannot be imported, as far as the files tell
    torch_version: str | None = None
    torch_metadata_version: str | None = None
    torch_cuda: str | None = None  # the CUDA version torch was built with
    torch_hip: str | None = None
    torch_git: str | None = None
    torch_requires: tuple[str, ...] = ()  # requirements on NCCL only
    torch_requires_python: str | None = None
    torch_cuda_library: str | None = None
    nccl_required_by_torch: str | None = None  # pinned in torch's metadata: what it was built with
    nccl_packages: dict[str, str] = {}  # noqa: RUF012
    nccl_files: tuple[str, ...] = ()  # copies where the wheels and LD_LIBRARY_PATH have them
    nccl_library: str | None = None  # the file torch would load
    nccl_loaded: str | None = None  # what that file itself says
    nccl_fault: str | None = None  # what went wrong in loading and asking it
    nccl_problem: str | None = None  # why it is not known which one, or which version
    driver: str | None = None
    driver_problem: str | None = None
    gpu_devices: int = 0  # /dev/nvidia0, /dev/nvidia1, …
    gpus_hidden_by: str | None = None  # the setting that keeps them from the job
    forward_compatibility: str | None = None  # folder with a newer libcuda than the driver's own


def probe(ctx: Context) -> Software:
    """Read what is installed. Raises Failed where the helper script gives no answer."""
    installed = _installed(ctx)
    return installed.model_copy(
        update={
            **_nccl(ctx, installed),
            **_driver(ctx),
            "nccl_required_by_torch": parse.pinned_nccl(installed.torch_requires),
            "gpu_devices": len([name for name in _listing(ctx, "/dev") if re.fullmatch(r"nvidia\d+", name)]),
            "gpus_hidden_by": parse.gpus_hidden_by(ctx.env),
            "forward_compatibility": _forward_compatibility(ctx),
        }
    )


def _installed(ctx: Context) -> Software:
    """The part of the fact that the helper script tells."""
    answer = ctx.child("software")
    ctx.keep(answer.stdout)
    try:
        return Software.model_validate_json(parse.last_line(answer.stdout))
    except ValidationError:
        how = "it did not end in time" if answer.status == "timed_out" else parse.last_line(answer.stderr)
        raise Failed(f"the helper that reads what is installed gave no answer: {how}") from None


def _nccl(ctx: Context, installed: Software) -> dict[str, str | None]:
    """Which libnccl torch would load, its version, and why one of them is not known."""
    if installed.torch_cuda_library is None:
        return {}  # a torch without CUDA loads none
    found = _nccl_file(ctx, installed.torch_cuda_library, installed.nccl_files)
    library = found.get("nccl_library")
    if library is None:
        return found
    answer = ctx.child("nccl", library)
    ctx.keep(answer.stdout)
    return {**found, **parse.nccl_answer(answer)}


def _nccl_file(ctx: Context, torch_library: str, copies: tuple[str, ...]) -> dict[str, str | None]:
    """The linker's own choice; without ldd, or where torch itself preloads the wheel's, the first copy."""
    answer = ctx.run(("ldd", torch_library))
    ctx.keep(answer.stdout)
    linked = parse.linked_library(answer.stdout, "libnccl.so.2") if answer.ok else "not found"
    if linked is None:
        return {"nccl_problem": f"{torch_library} needs no libnccl.so.2: NCCL is built in, or left out"}
    if linked != "not found" or copies:
        return {"nccl_library": copies[0] if linked == "not found" else linked}
    if answer.ok:
        return {"nccl_fault": "libnccl.so.2 is nowhere to be found"}
    return {"nccl_problem": "without ldd nothing tells which libnccl torch loads"}


def _driver(ctx: Context) -> dict[str, str | None]:
    try:
        text = ctx.read("/proc/driver/nvidia/version")
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {"driver_problem": f"/proc/driver/nvidia/version cannot be read: {error.strerror}"}
    ctx.keep(text)
    version = parse.driver_version(text)
    return {"driver": version, "driver_problem": None if version else "its version text is not understood"}


def _listing(ctx: Context, folder: str) -> list[str]:
    try:
        return ctx.listdir(folder)
    except OSError:
        return []


def _forward_compatibility(ctx: Context) -> str | None:
    """A folder with CUDA's forward-compatibility libcuda, with which older data-centre drivers do."""
    folders = [folder for folder in ctx.env.get("LD_LIBRARY_PATH", "").split(":") if "compat" in folder]
    for folder in (*folders, "/usr/local/cuda/compat", "/usr/local/cuda/compat/lib"):
        if any(name.startswith("libcuda.so") for name in _listing(ctx, folder)):
            return folder
    return None


def _of_the_job(recording: Recording) -> list[Seen[Software]]:
    """The facts to judge: a prolog runs in an interpreter of root's, whose torch is not the job's."""
    return [] if recording.options.command == "prolog" else recording.facts(Software)


def _with_gpus(recording: Recording) -> list[Seen[Software]]:
    """The nodes whose NVIDIA GPUs the job is meant to use."""
    return [
        seen
        for seen in _of_the_job(recording)
        if seen.fact.gpu_devices > 0
        and seen.fact.driver is not None
        and seen.fact.gpus_hidden_by is None
        and recording.options.backend is not Backend.GLOO
    ]


def _saw(text: str, expected_from: str) -> Evidence:
    return Evidence(check="software", text=text, expected_from=expected_from)


@rule("DD201", "torch-installation-broken", Severity.ERROR, Software)
def torch_installation_broken(recording: Recording) -> Iterator[Draft]:
    """No whole torch for the Python that runs the job.

    What it finds
        torch is not installed for this interpreter, or its folder or version file is missing or unreadable;
        a warning where its files and its package metadata are of different versions.

    Why it matters
        Every rank fails at `import torch`; one version written over another fails differently each time.

    Remedy
        Install torch anew in this environment, or start the doctor with the job's own Python.

    References
        https://pytorch.org/get-started/locally
    """
    for (problem, severity), group in by_cause(_of_the_job(recording), _broken_torch).items():
        remedy = install.anew("install torch anew here, or run the doctor with the job's Python", "torch")
        title, saw = f"torch is broken on {{nodes}}: {problem}", _saw(problem, "importing torch")
        detail = "Ranks fail where they import torch, or later where two versions meet."
        yield node_draft(recording, group, title, saw, remedy, detail=detail, severity=severity)


def _broken_torch(fact: Software) -> tuple[str, Severity] | None:
    if fact.torch_problem:
        return fact.torch_problem, Severity.ERROR
    files, metadata = fact.torch_version, fact.torch_metadata_version
    if files is None or metadata is None or release(files) == release(metadata):
        return None
    return f"its files are of {files}, its package metadata of {metadata}", Severity.WARNING


@rule("DD202", "torch-or-python-too-old", Severity.WARNING, Software)
def torch_or_python_too_old(recording: Recording) -> Iterator[Draft]:
    """A torch that the doctor was never tested with, or a Python that is no longer supported.

    What it finds
        torch below 2.4; an error where Python is older than torch's metadata demands; information where
        Python's security support has ended.

    Why it matters
        An older torch lacks what the doctor calls, so a finding may be the doctor's own fault. torch does not
        import under an older Python, and brings no new releases for one that has ended.

    Remedy
        Upgrade torch, or make the environment anew with a newer Python.

    References
        https://devguide.python.org/versions
    """
    for old, group in by_cause(_of_the_job(recording), lambda fact: _too_old(fact, recording)).items():
        title, newer = f"{old.what} on {{nodes}} is too old: {old.why}", install.anew("move to a newer one")
        detail, saw = "New releases pass it by, and nobody tests them with it.", _saw(old.what, old.source)
        yield node_draft(recording, group, title, saw, newer, detail=detail, severity=old.severity)


def _too_old(fact: Software, recording: Recording) -> versions.TooOld | None:
    return versions.too_old(fact.python, fact.torch_version, fact.torch_requires_python, recording.started_at)


@rule("DD203", "cpu-torch-beside-gpus", Severity.ERROR, Software)
def cpu_torch_beside_gpus(recording: Recording) -> Iterator[Draft]:
    """A CPU build of torch on a machine with NVIDIA GPUs.

    What it finds
        torch was built without CUDA (and without ROCm) while the NVIDIA driver is loaded and GPU devices are
        there, not hidden from the job, and gloo was not asked for.

    Why it matters
        The job runs on the CPU, tens of times slower, or dies at its first call to CUDA.

    Remedy
        Install a CUDA build that the driver supports. Where training on the CPU is meant, say so with
        --backend gloo or CUDA_VISIBLE_DEVICES="".

    References
        https://pytorch.org/get-started/locally
    """
    for (version, driver, gpus), group in by_cause(_with_gpus(recording), _cpu_build).items():
        title = f"torch {version} on {{nodes}} is a CPU build, so the GPUs stay idle"
        saw = _saw(f"torch/version.py names no CUDA, beside {gpus} GPU devices", f"driver {driver}")
        detail = 'Where the CPU is meant, use --backend gloo or CUDA_VISIBLE_DEVICES="".'
        yield node_draft(recording, group, title, saw, install.cuda_build(driver), detail=detail)


def _cpu_build(fact: Software) -> tuple[str, str, int] | None:
    if fact.torch_version is None or fact.driver is None or fact.torch_cuda or fact.torch_hip:
        return None
    return fact.torch_version, fact.driver, fact.gpu_devices


@rule("DD204", "driver-too-old-for-cuda", Severity.ERROR, Software)
def driver_too_old_for_cuda(recording: Recording) -> Iterator[Draft]:
    """An NVIDIA driver older than torch's CUDA needs.

    What it finds
        A loaded driver below the minimum of the CUDA major version that torch was built with. Information
        only where a forward-compatibility libcuda is installed, with which data-centre GPUs work.

    Why it matters
        torch.cuda.is_available() is False, or CUDA says that the driver version is insufficient.

    Remedy
        Upgrade the driver on the node, or install a torch built with an older CUDA.

    References
        https://docs.nvidia.com/deploy/cuda-compatibility
    """
    for (driver, cuda, bridge), group in by_cause(_with_gpus(recording), _driver_gap).items():
        least = dotted(versions.least_driver(cuda))
        title = f"Driver {driver} on {{nodes}} is too old for torch's CUDA {cuda}, which needs {least}"
        detail = f"{bridge} bridges this on data-centre GPUs." if bridge else "No rank gets its GPU."
        remedies = install.driver_upgrade(f"upgrade it to {least} or newer"), install.cuda_build(driver)
        saw, severity = _saw(f"driver {driver}", versions.DRIVER_SOURCE), Severity.INFO if bridge else None
        yield node_draft(recording, group, title, saw, *remedies, detail=detail, severity=severity)


def _driver_gap(fact: Software) -> tuple[str, str, str | None] | None:
    driver, cuda = fact.driver, fact.torch_cuda
    if driver is None or cuda is None or release(driver) >= versions.least_driver(cuda):
        return None
    return driver, cuda, fact.forward_compatibility


@rule("DD205", "nccl-differs-from-torch", Severity.WARNING, Software)
def nccl_differs_from_torch(recording: Recording) -> Iterator[Draft]:
    """torch would load another NCCL than the one it was built with.

    What it finds
        The version that the loaded libnccl.so.2 itself reports is not the one pinned in torch's metadata. An
        error where it is older in its first two numbers, information where it is newer.

    Why it matters
        torch calls functions that an older NCCL lacks, and fails with "undefined symbol". An older patch
        brings mended hangs back. A newer one keeps the interface, but this pair was never tested.

    Remedy
        Reinstall the NCCL that torch pins, or take the other copy out of LD_LIBRARY_PATH and LD_PRELOAD.

    References
        https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    for (loaded, needed, library, cuda), group in by_cause(_of_the_job(recording), _nccl_differs).items():
        title = f"torch would load NCCL {loaded} on {{nodes}}, but was built with {needed}"
        saw = _saw(f"{library} is of version {loaded}", f"torch's package metadata pins {needed}")
        severity, remedy = (
            versions.nccl_mismatch(release(loaded), release(needed)),
            install.nccl(cuda, needed),
        )
        detail = "An older NCCL lacks what torch calls; a newer one was never tested with this torch."
        yield node_draft(recording, group, title, saw, remedy, detail=detail, severity=severity)


def _nccl_differs(fact: Software) -> tuple[str, str, str, str | None] | None:
    loaded, needed, library = fact.nccl_loaded, fact.nccl_required_by_torch, fact.nccl_library
    if loaded is None or needed is None or library is None or release(loaded) == release(needed):
        return None
    return loaded, needed, library, fact.torch_cuda


@rule("DD206", "nccl-with-known-fault", Severity.WARNING, Software)
def nccl_with_known_fault(recording: Recording) -> Iterator[Draft]:
    """An NCCL release with a known fault that hangs DDP jobs or corrupts their data.

    What it finds
        The loaded NCCL is in the range of a fault, told by NVIDIA's release notes or torch's tracker, that a
        plain DDP job of this shape (nodes, architecture, torch release) can meet.

    Why it matters
        Such hangs come at random after hours, and such corruption is silent.

    Remedy
        Upgrade to a torch that bundles a mended NCCL; some faults are avoided by a setting.

    References
        https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    nnodes = recording.world.nnodes if recording.world else 1
    for (nccl, torch, machine), group in by_cause(_with_gpus(recording), _nccl_in_use).items():
        for issue in versions.nccl_issues(release(nccl), release(torch), machine, nnodes):
            title = f"NCCL {nccl} on {{nodes}} {issue.effect}"
            detail = f"Known of NCCL {dotted(issue.since)} to before {dotted(issue.before)}; not every job meets it."
            saw, remedies = _saw(f"NCCL {nccl} with torch {torch}", issue.source), install.without(issue)
            maybe = Confidence.POSSIBLE
            yield node_draft(recording, group, title, saw, *remedies, detail=detail, confidence=maybe)


def _nccl_in_use(fact: Software) -> tuple[str, str, str] | None:
    return (fact.nccl_loaded, fact.torch_version or "", fact.machine) if fact.nccl_loaded else None


@rule("DD207", "nccl-library-unusable", Severity.ERROR, Software)
def nccl_library_unusable(recording: Recording) -> Iterator[Draft]:
    """torch needs libnccl.so.2, which is missing or does not load.

    What it finds
        The dynamic linker finds no libnccl.so.2 for torch's CUDA library, and no copy lies where the wheels
        put it; or the file it finds cannot be loaded, or crashes when asked for its version.

    Why it matters
        Importing torch fails on every rank of the node: "libnccl.so.2: cannot open shared object file".

    Remedy
        Reinstall the nvidia-nccl package that torch pins.

    References
        https://pypi.org/project/nvidia-nccl-cu12
    """
    for fault, group in by_cause(_of_the_job(recording), lambda fact: fact.nccl_fault).items():
        remedy = install.nccl(group[0].fact.torch_cuda, group[0].fact.nccl_required_by_torch)
        title, saw = f"torch cannot load NCCL on {{nodes}}: {fault}", _saw(fault, "ldd of libtorch_cuda.so")
        detail = "libtorch_cuda.so is linked with libnccl.so.2, so importing torch fails on every rank."
        yield node_draft(recording, group, title, saw, remedy, detail=detail)


CHECK = Check(
    id="software",
    title="Versions of torch, CUDA, driver, NCCL and Python",
    where=Where.NODE,
    probe=probe,
    facts=(Software,),
    rules=(
        torch_installation_broken,
        torch_or_python_too_old,
        cpu_torch_beside_gpus,
        driver_too_old_for_cuda,
        nccl_differs_from_torch,
        nccl_with_known_fault,
        nccl_library_unusable,
    ),
    cost_s=0.1,
)
