"""Facts about the software installed on a node."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class HiddenModule(Frozen):
    """A module that the job's Python would load from a user's file: torch, or a standard library module."""

    module: str
    file: str
    by: Literal["PYTHONPATH", "working directory"]


class Software(Fact):
    """The software installed for this interpreter. None: not installed, unless a ``*_problem`` gives another reason."""

    KIND: ClassVar[str] = "software/1"

    python: str
    machine: str  # as uname -m
    torch_folder: str | None = None
    torch_problem: str | None = None  # why torch cannot be imported, according to its files
    hidden_modules: tuple[HiddenModule, ...] = ()
    torch_version: str | None = None
    torch_metadata_version: str | None = None
    torch_cuda: str | None = None  # the CUDA version torch was built with
    torch_hip: str | None = None
    torch_git: str | None = None
    torch_requires: tuple[str, ...] = ()  # requirements on NCCL only
    torch_requires_python: str | None = None
    torch_cuda_library: str | None = None
    #: Whether this torch finds its backends, including gloo, only by the metadata of packages, as 2.14 does
    #: (distributed_c10d.py, Backend._ensure_backend_registered). None if its source could not be read.
    torch_looks_backends_up: bool | None = None
    torch_backends: tuple[str, ...] = ()  # in the metadata of packages
    #: "nccl" builds nccl2 unless TORCH_DIST_USE_NCCL2 is "0" (torch 2.15), or only if it is "1" (2.14); None: neither
    torch_nccl2_switch: str | None = None
    torch_nccl2_takes_local_rank: bool = False  # without device_id, as torch 2.15 does (_nccl2_device)
    nccl_required_by_torch: str | None = None  # version pinned in torch's metadata, the one it was built with
    nccl_packages: dict[str, str] = Field(default_factory=dict)
    nccl_sizes: dict[str, int] = Field(default_factory=dict)  # bytes of the library, by each package's RECORD
    nccl_file_bytes: int | None = None  # of the file that these packages install
    nccl_files: tuple[str, ...] = ()  # copies in the wheels' place and in LD_LIBRARY_PATH
    nccl_library: str | None = None  # the file torch would load
    nccl_loaded: str | None = None  # version that this file itself reports
    nccl_brought_by: str | None = None  # LD_PRELOAD=FILE or LD_LIBRARY_PATH=DIRECTORY, if one selects that file
    nccl_offered: dict[str, str] = Field(default_factory=dict)  # other copies that these settings name
    nccl_fault: str | None = None  # error while loading and querying it
    nccl_problem: str | None = None  # why the file or its version is unknown
    driver: str | None = None
    driver_problem: str | None = None
    gpu_devices: int = 0  # /dev/nvidia0, /dev/nvidia1, …
    gpus_hidden_by: str | None = None  # the setting that hides them from the job
    forward_compatibility: str | None = None  # directory of a libcuda that is newer than the driver's
