"""DD201-DD204, DD210-DD212: a torch that is incomplete, does not match GPUs and driver, or is hidden by other files.

Files that hide torch or modules of Python's library are found by name, without importing or reading them. Python
searches the working directory first if the job starts with ``-m`` or its script is there. Every Python with this
environment searches PYTHONPATH before the standard library::

    PYTHONPATH=/home/ann/lib:      an empty entry is the working directory
    /home/ann/lib/torch.py
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence

from ddp_doctor.facts.node.software import HiddenModule, Software
from ddp_doctor.knowledge import import_path, versions
from ddp_doctor.knowledge.import_path import TORCH
from ddp_doctor.knowledge.versions import NcclIssue, dotted, first_torch_with, release, wheel_index
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.context import Context
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.kernel_files import names_in, target_of
from ddp_doctor.remedies.kinds import by_installation, in_code, remedy
from ddp_doctor.views.software import folder_without_backends, of_the_job, with_gpus
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.nodes import by_cause, name_list, node_culprit, node_names, of_nodes


def reinstall(summary: str, *packages: str) -> Remedy:
    """Install these packages into the job's environment; without packages, return only the text."""
    command = " ".join(("python -m pip install --force-reinstall", *packages))
    return by_installation(
        summary,
        *((command,) if packages else ()),
        scope="job",
        cost="changes the environment of every job that uses it",
        undo="reinstall the previous version",
    )


def cuda_build(driver: str) -> Remedy:
    """Return the fix to install a torch built with the newest CUDA that the driver supports."""
    index = wheel_index(release(driver))
    if index is None:
        return driver_upgrade(f"Upgrade the driver; {driver} is too old for every CUDA build of torch")
    source = f"torch --index-url https://download.pytorch.org/whl/{index}"
    return reinstall(f"Install a torch built for a CUDA that driver {driver} supports ({index})", source)


def driver_upgrade(summary: str) -> Remedy:
    """Return the fix to upgrade the driver, which needs an administrator."""
    return by_installation(summary, cost="a drained node", undo="reinstall the previous driver")


def nccl_package(torch_cuda: str | None, version: str | None) -> Remedy:
    """Return the NCCL package for torch's CUDA, in the version that torch pins, if any."""
    major = (release(torch_cuda or "") or (12,))[0]
    package = f"nvidia-nccl-cu{major}" + (f"=={version}" if version else "")
    return reinstall(f"Reinstall {package}, and keep other copies out of LD_LIBRARY_PATH and LD_PRELOAD", package)


def ways_around(issue: NcclIssue) -> Iterator[Remedy]:
    """Yield the workarounds for a fault of NCCL: a setting if there is one, and the upgrade."""
    if issue.setting:
        name, value = issue.setting
        yield Remedy(
            summary=f"Set {name}={value}",
            settings=(Setting(name=name, value=value, why=f"otherwise NCCL {issue.effect}"),),
            cost="possibly slower",
            undo=f"unset {name}",
            proof=Proof(reason="a short trial cannot show that a random fault is gone"),
            references=(issue.source,),
        )
    torch = issue.torch_before or first_torch_with(issue.before)
    if torch:
        yield reinstall(f"Upgrade torch to {dotted(torch)} or newer", f"'torch>={dotted(torch)}'")


@rule("DD203", "cpu-torch-beside-gpus", Consequence.FAILS, Software)
def cpu_torch_beside_gpus(recording: Recording) -> Iterator[Draft]:
    """A CPU build of torch is installed on a machine with NVIDIA GPUs.

    Finds: torch was built without CUDA (and without ROCm), while the NVIDIA driver is loaded, GPU devices exist and
        are not hidden from the job (which DD311 reports), and gloo was not requested.
    Why: The job runs on the CPU, tens of times slower, or dies at its first call to CUDA.
    Remedy: Install a CUDA build that the driver supports. If you intend to train on the CPU, use --backend gloo.
    See: https://pytorch.org/get-started/locally
    """
    for (version, driver, gpus), group in by_cause(with_gpus(recording), _cpu_build).items():
        text = f"torch/version.py has no CUDA, but there are {gpus} GPU devices"
        yield proved(
            of_nodes(recording, group),
            f"torch {version} on {{who}} is a CPU build, so GPUs stay idle",
            Evidence(text=text, expected_from=f"driver {driver}"),
            cuda_build(driver),
            detail="Use --backend gloo for a job on CPUs.",
        )


def _cpu_build(fact: Software) -> tuple[str, str, int] | None:
    if fact.torch_version is None or fact.driver is None or fact.torch_cuda or fact.torch_hip:
        return None
    return fact.torch_version, fact.driver, fact.gpu_devices


@rule("DD204", "driver-too-old-for-cuda", Consequence.FAILS, Software)
def driver_too_old_for_cuda(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA driver is older than torch's CUDA needs.

    Finds: A loaded driver below the minimum of the CUDA major version that torch was built with. Information if a
        forward-compatibility libcuda is installed, which makes data-center GPUs work.
    Why: torch.cuda.is_available() is False, or CUDA reports that the driver version is insufficient.
    Remedy: Upgrade the driver on the node, or install a torch built with an older CUDA.
    See: https://docs.nvidia.com/deploy/cuda-compatibility
    """
    for (driver, cuda, bridge), group in by_cause(with_gpus(recording), _driver_gap).items():
        least = dotted(versions.least_driver(cuda))
        yield proved(
            of_nodes(recording, group),
            f"Driver {driver} on {{who}} is too old for torch's CUDA {cuda}, which needs {least}",
            Evidence(text=f"driver {driver}", expected_from=versions.DRIVER_SOURCE),
            driver_upgrade(f"Upgrade the driver to {least} or newer"),
            cuda_build(driver),
            detail=f"{bridge} compensates for it on data center GPUs."
            if bridge
            else "torch finds no GPU there, so no rank can use a GPU.",
            severity=Severity.INFO if bridge else None,
        )


def _driver_gap(fact: Software) -> tuple[str, str, str | None] | None:
    driver, cuda = fact.driver, fact.torch_cuda
    if driver is None or cuda is None or release(driver) >= versions.least_driver(cuda):
        return None
    return driver, cuda, fact.forward_compatibility


@rule("DD201", "torch-installation-broken", Consequence.FAILS, Software)
def torch_installation_broken(recording: Recording) -> Iterator[Draft]:
    """The Python that runs the job has no complete torch.

    Finds: torch is not installed for this interpreter, or its directory or version file is missing or unreadable; a
        warning if its files and its package metadata have different versions. If a file on PYTHONPATH replaces it,
        module-hidden-by-pythonpath reports it.
    Why: Every rank fails at `import torch`; one version written over another fails differently each time.
    Remedy: Reinstall torch in this environment, or start ddp-doctor with the job's own Python.
    See: https://pytorch.org/get-started/locally
    """
    for (problem, severity), group in by_cause(of_the_job(recording), _broken_torch).items():
        yield proved(
            of_nodes(recording, group),
            f"torch on {{who}} is unusable: {problem}"
            if severity is Severity.ERROR
            else f"Two versions of torch are mixed on {{who}}: {problem}",
            Evidence(text=problem, expected_from="importing torch"),
            reinstall("Reinstall torch here, or run ddp-doctor with the job's Python", "torch"),
            detail="Every rank fails at import torch."
            if severity is Severity.ERROR
            else "Ranks fail when code of both versions meets.",
            severity=severity,
        )


def _broken_torch(fact: Software) -> tuple[str, Severity] | None:
    if any(hidden.module == TORCH and hidden.by == "PYTHONPATH" for hidden in fact.hidden_modules):  # DD211
        return None
    if fact.torch_problem:
        return fact.torch_problem, Severity.ERROR
    files, metadata = fact.torch_version, fact.torch_metadata_version
    if files is None or metadata is None or release(files) == release(metadata):
        return None
    return f"its files are from {files}, but its package metadata is from {metadata}", Severity.WARNING


@rule("DD202", "torch-or-python-too-old", Consequence.KNOWN, Software)
def torch_or_python_too_old(recording: Recording) -> Iterator[Draft]:
    """ddp-doctor was never tested with this torch, or this Python is no longer supported.

    Finds: torch below 2.4, or a Python whose security support has ended. An error if Python is older than torch's
        metadata requires.
    Why: An older torch lacks functions that ddp-doctor calls, so ddp-doctor itself may cause a finding. torch does
        not import under an older Python, and has no new releases for an unsupported one.
    Remedy: Upgrade torch, or recreate the environment with a newer Python.
    See: https://devguide.python.org/versions
    """

    def too_old(fact: Software) -> versions.TooOld | None:
        return versions.too_old(fact.python, fact.torch_version, fact.torch_requires_python, recording.started_at)

    for old, group in by_cause(of_the_job(recording), too_old).items():
        yield proved(
            of_nodes(recording, group),
            f"{old.what} on {{who}} is too old: {old.why}",
            Evidence(text=old.what, expected_from=old.source),
            reinstall("Upgrade it"),
            detail="Newer releases of torch and ddp-doctor are not tested with it.",
            severity=old.severity,
        )


@rule("DD210", "torch-finds-no-backend", Consequence.FAILS, Software)
def torch_finds_no_backend(recording: Recording) -> Iterator[Draft]:
    """torch searches for its backends in package metadata that is missing.

    Finds: torch's source searches the entry points of installed packages for backends, including gloo and NCCL
        (2.15 and newer), and no package offers gloo: torch was copied or put on PYTHONPATH without its
        torch-*.dist-info directory.
    Why: init_process_group fails on every rank with "Unknown c10d backend type GLOO", although torch imports and
        computes.
    Remedy: Install torch with pip, or also copy its .dist-info directory.
    See: torch 2.15 torch/distributed/distributed_c10d.py, Backend._ensure_backend_registered
    """
    for folder, group in by_cause(of_the_job(recording), folder_without_backends).items():
        text = f"{folder} searches entry points torch.distributed.backends, but no package has one named gloo"
        yield proved(
            of_nodes(recording, group),
            "torch on {who} finds neither gloo nor NCCL: its package metadata is missing",
            Evidence(text=text, expected_from="torch/distributed/distributed_c10d.py"),
            reinstall("Install torch with pip, or copy its torch-*.dist-info directory next to it", "torch"),
            detail='Ranks fail in init_process_group with "Unknown c10d backend type".',
        )


def hidden_modules(ctx: Context) -> tuple[HiddenModule, ...]:
    """Return each hidden module once; a PYTHONPATH entry hides it from more jobs than a file in the directory."""
    found: dict[str, HiddenModule] = {}
    here = target_of(ctx, "/proc/self/cwd")
    entries = ctx.env.get("PYTHONPATH", "")
    for entry in entries.split(":") if entries else ():
        folder = posixpath.normpath(posixpath.join(here or "", entry))
        if folder.startswith("/"):
            for hidden in _hidden_in(ctx, folder, "PYTHONPATH"):
                found.setdefault(hidden.module, hidden)
    if here is not None and not ctx.env.get("PYTHONSAFEPATH"):
        for hidden in _hidden_in(ctx, here, "working directory"):
            found.setdefault(hidden.module, hidden)
    return tuple(found.values())


def _hidden_in(ctx: Context, folder: str, by: str) -> Iterator[HiddenModule]:
    files = import_path.hidden_modules(names_in(ctx, folder), lambda name: names_in(ctx, f"{folder}/{name}"))
    for module, file in files.items():
        yield HiddenModule.model_validate({"module": module, "file": posixpath.join(folder, file), "by": by})


_FOUND_BY = "Python's module search order"


@rule("DD211", "module-hidden-by-pythonpath", Consequence.FAILS, Software)
def module_hidden_by_pythonpath(recording: Recording) -> Iterator[Draft]:
    """Python loads a file on PYTHONPATH instead of torch or a module of its own library.

    Finds: A torch.py, random.py, logging/__init__.py or similar file in a directory of PYTHONPATH. Only file names
        are compared: torch, and the modules of Python's library that torch needs to start. An installed torch, a
        directory without __init__.py and Python's own library are not reported.
    Why: PYTHONPATH comes before Python's library and site-packages: torchrun and every rank load that file, and die
        when they import torch.
    Remedy: Rename the file, or remove its directory from PYTHONPATH.
    See: https://docs.python.org/3/library/sys_path_init.html
    """
    for hidden, group in by_cause(of_the_job(recording), _by("PYTHONPATH")).items():
        folders = [module.file.removesuffix("/__init__.py").rpartition("/")[0] or "/" for module in hidden]
        yield proved(
            _culprits(recording, group, hidden),
            f"{_title(hidden)} on {node_names(recording, group)}: PYTHONPATH comes first",
            _evidence(hidden),
            in_code(f"Rename {_files(hidden)}"),
            remedy(
                f"Remove {name_list(list(dict.fromkeys(folders)))} from PYTHONPATH",
                scope="job",
                cost="other files there are no longer found",
                undo="restore the directory",
                untried="ddp-doctor does not know what else the job needs from it",
            ),
            detail="torchrun and every rank fail at import torch. The installed torch is not at fault.",
        )


@rule("DD212", "module-hidden-in-working-directory", Consequence.FAILS, Software)
def module_hidden_in_working_directory(recording: Recording) -> Iterator[Draft]:
    """Some jobs load a file in the working directory instead of torch or a Python library module.

    Finds: The same files as module-hidden-by-pythonpath, in the directory where ddp-doctor was started. Not
        reported if PYTHONSAFEPATH is set.
    Why: A script finds the modules of its own directory first, and ``python -m`` finds the working directory's
        modules first: such jobs die when they import torch. A script in another directory, started without -m, does
        not see the file.
    Remedy: Rename the file.
    See: https://docs.python.org/3/library/sys_path_init.html
    """
    for hidden, group in by_cause(of_the_job(recording), _by("working directory")).items():
        yield likely(
            _culprits(recording, group, hidden),
            f"{_title(hidden)} on {node_names(recording, group)} by scripts in that directory and by python -m",
            _evidence(hidden),
            in_code(f"Rename {_files(hidden)}"),
            detail="Such a job fails at import torch. A script in another directory, started"
            " without -m, is not affected.",
        )


def _by(place: str) -> Callable[[Software], tuple[HiddenModule, ...] | None]:
    return lambda fact: tuple(module for module in fact.hidden_modules if module.by == place) or None


def _title(hidden: tuple[HiddenModule, ...]) -> str:
    are = "is" if len(hidden) == 1 else "are"
    own = [module.module for module in hidden if module.module != TORCH]
    names = [TORCH] * (len(own) < len(hidden)) + [f"Python's own {name}" for name in own[:1]] + own[1:]
    return f"{_files(hidden)} {are} imported instead of {name_list(names)}"


def _culprits(
    recording: Recording, group: Sequence[FactAt[Software]], hidden: tuple[HiddenModule, ...]
) -> list[Culprit]:
    """Return the files as culprits; their nodes are healthy."""
    files = [module.file for module in hidden]
    return [node_culprit(recording, node.node, kind="file", name=file) for node in group for file in files]


def _files(hidden: tuple[HiddenModule, ...]) -> str:
    return name_list([module.file for module in hidden])


def _evidence(hidden: tuple[HiddenModule, ...]) -> Iterator[Evidence]:
    for module in hidden:
        yield Evidence(text=f"import {module.module} finds {module.file}", expected_from=_FOUND_BY)
