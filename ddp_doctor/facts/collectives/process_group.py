"""How each rank stands in the process group, and how long torch took to import."""

from typing import ClassVar

from ddp_doctor.model.fact import Fact


class ProcessGroupFact(Fact):
    """One rank's place in the process group."""

    KIND: ClassVar[str] = "process-group/1"

    backend: str  # what get_backend() says: "nccl" or "gloo"
    backend_impl: str | None = None  # the class behind it: "nccl", "nccl2", "nccl-legacy", "gloo", or another
    group_rank: int
    world_size: int
    init_s: float  # init_process_group
    first_collective_s: float  # creates the communicator on NCCL
    device: str
    bound_device: str | None = None  # the one that torch bound the group to
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    torch_version: str
    cuda_version: str | None = None
    nccl_available: bool
    gloo_available: bool
    pid: int


class TorchImport(Fact):
    """The import of torch, once per node. ``error`` is a traceback, ``stuck_at`` a Python stack.

    ``moving``: it still computed at its deadline, so it is slow, and whether it would have ended is not known.
    """

    KIND: ClassVar[str] = "torch-import/1"

    import_s: float
    error: str | None = None
    stuck_at: str | None = None
    moving: bool = False
