"""The software that a job needs: torch, CUDA, the NVIDIA driver, NCCL and Python.

A CPU build of torch next to idle GPUs, a driver too old for torch's CUDA, or a libnccl other than the one torch was
built with can keep a DDP job from starting. Importing torch takes a second, so the helper script ``software`` reads
the installed files instead. The dynamic linker (ldd) shows which libnccl torch would load, and the helper ``nccl``
asks that file for its version. The ranks show whether NCCL and gloo work. Raw input::

    {"python": "3.11.7", "torch_version": "2.7.0+cu126", "torch_cuda": "12.6", "torch_requires":
     ["nvidia-nccl-cu12==2.26.2; platform_system == 'Linux'"], "torch_cuda_library": "/v/libtorch_cuda.so"}
            libnccl.so.2 => /v/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)
    {"version_code": 22602}
    NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)
"""

import posixpath
import re

from pydantic import ValidationError

from ddp_doctor.checks.node.software import installation, nccl
from ddp_doctor.checks.node.software.installation import hidden_modules
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.import_path import TORCH
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse import software
from ddp_doctor.probing.kernel_files import names_in


def probe(ctx: Context) -> Software:
    """Read the installed software. Raises Failed if the helper script gives no answer."""
    installed = _installed_software(ctx)
    folder = installed.torch_folder
    return installed.model_copy(
        update={
            **_nccl_of_torch(ctx, installed),
            **_driver(ctx),
            **_nccl_copies_of_settings(ctx, installed),
            "hidden_modules": tuple(
                hidden
                for hidden in hidden_modules(ctx)  # a torch on PYTHONPATH behind an installed one hides nothing
                if hidden.module != TORCH
                or hidden.by == "working directory"
                or folder in (None, posixpath.dirname(hidden.file))
            ),
            "nccl_required_by_torch": software.pinned_nccl(installed.torch_requires),
            "gpu_devices": len([name for name in names_in(ctx, "/dev") if re.fullmatch(r"nvidia\d+", name)]),
            "gpus_hidden_by": software.gpus_hidden_by(ctx.env),
            "forward_compatibility": _forward_compatibility(ctx),
        }
    )


def _installed_software(ctx: Context) -> Software:
    answer = ctx.child("software")
    ctx.keep(answer.stdout)
    try:
        return Software.model_validate_json(software.last_line(answer.stdout))
    except ValidationError:
        how = "it timed out" if answer.status == "timed_out" else software.last_line(answer.stderr)
        raise Failed(f"the helper that reads the installed packages gave no answer: {how}") from None


def _nccl_copies_of_settings(ctx: Context, installed: Software) -> dict[str, object]:
    if installed.torch_cuda is None:
        return {}
    folders = software.entries(ctx.env, "LD_LIBRARY_PATH")
    copies = [file for file in installed.nccl_files if posixpath.dirname(file) in folders]
    copies += [file for file in software.entries(ctx.env, "LD_PRELOAD") if file.endswith("/libnccl.so.2")]
    offered = {file: software.brought_by(ctx.env, file) for file in copies}
    return {"nccl_offered": {file: by for file, by in offered.items() if by is not None}}


def _nccl_of_torch(ctx: Context, installed: Software) -> dict[str, str | None]:
    if installed.torch_cuda_library is None:
        return {}  # a torch without CUDA does not load NCCL
    found = _nccl_file(ctx, installed.torch_cuda_library, installed.nccl_files)
    library = found.get("nccl_library")
    if library is None:
        return found
    answer = ctx.child("nccl", library)
    ctx.keep(answer.stdout)
    brought = {"nccl_brought_by": software.brought_by(ctx.env, library)}
    return {**found, **brought, **software.nccl_answer(answer)}


def _nccl_file(ctx: Context, torch_library: str, copies: tuple[str, ...]) -> dict[str, str | None]:
    """Return the linker's choice; without ldd, or if torch itself preloads the wheel's, the first copy."""
    answer = ctx.run(("ldd", torch_library))
    ctx.keep(answer.stdout)
    linked = software.linked_library(answer.stdout, "libnccl.so.2") if answer.ok else "not found"
    if linked is None:
        return {"nccl_problem": f"{torch_library} needs no libnccl.so.2: NCCL is built in, or not included"}
    if linked != "not found" or copies:
        return {"nccl_library": copies[0] if linked == "not found" else linked}
    if answer.ok:
        return {"nccl_fault": "libnccl.so.2 was not found"}
    return {"nccl_problem": "without ldd it is unknown which libnccl torch loads"}


def _driver(ctx: Context) -> dict[str, str | None]:
    try:
        text = ctx.read("/proc/driver/nvidia/version")
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {"driver_problem": f"/proc/driver/nvidia/version cannot be read: {error.strerror}"}
    ctx.keep(text)
    version = software.driver_version(text)
    return {"driver": version, "driver_problem": None if version else "its version text is not understood"}


def _forward_compatibility(ctx: Context) -> str | None:
    """Return the directory of CUDA's forward-compatibility libcuda, for older data center drivers, or None."""
    folders = [folder for folder in ctx.env.get("LD_LIBRARY_PATH", "").split(":") if "compat" in folder]
    for folder in (*folders, "/usr/local/cuda/compat", "/usr/local/cuda/compat/lib"):
        if any(name.startswith("libcuda.so") for name in names_in(ctx, folder)):
            return folder
    return None


CHECK = Check(
    id="software",
    title="Versions of torch, CUDA, driver, NCCL and Python",
    where=Where.NODE,
    probe=probe,
    facts=(Software,),
    rules=rules_in(nccl, installation),
    decides_world=(installation.cpu_torch_beside_gpus,),
    cost_s=0.1,
    is_essential=True,
)
