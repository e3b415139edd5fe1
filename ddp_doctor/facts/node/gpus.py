"""A node's GPUs as the driver and the kernel describe them."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from ddp_doctor.knowledge import thresholds
from ddp_doctor.knowledge.gpu.nvml import OS_MANAGED_MEMORY
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


def sysfs_bus_id(text: str) -> str:
    """A PCI address as /sys writes it: "00000000:1B:00.0" becomes "0000:1b:00.0"."""
    domain, separator, address = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{address}" if separator else domain


BusId = Annotated[str, AfterValidator(sysfs_bus_id)]


class GpuProcess(Frozen):
    """A process that uses a GPU. Inside a container the pid may be the host's, and the name unknown."""

    pid: int
    kind: Literal["compute", "graphics"]
    name: str | None = None
    memory_used_bytes: int | None = None


class Gpu(Frozen):
    """What NVML says of one GPU; None where it says nothing, with the reason in ``unavailable``."""

    index: int  # NVML's, as nvidia-smi shows it
    uuid: str | None = None
    name: str | None = None
    bus_id: BusId | None = None
    minor_number: int | None = None  # N of /dev/nvidiaN, the number SLURM counts by
    compute_capability: str | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    mig_enabled: bool | None = None
    mig_uuids: tuple[str, ...] = ()
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_used_counts_reserved: bool = False  # an old driver counts its own share as used
    processes: tuple[GpuProcess, ...] = ()
    ecc_enabled: bool | None = None
    ecc_volatile_uncorrected: int | None = None  # since the driver was loaded
    ecc_aggregate_uncorrected: int | None = None  # over the GPU's life
    ecc_volatile_uncorrected_dram: int | None = None
    ecc_volatile_uncorrected_sram: int | None = None
    ecc_volatile_corrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    sram_threshold_exceeded: bool | None = None  # more uncorrected errors than NVIDIA's policy allows
    rows_remapped_corrected: int | None = None  # replaced for errors that ECC corrected (Ampere and newer)
    rows_remapped_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None  # ever
    spare_rows: dict[str, int] | None = None  # memory banks by the spare rows they have left: max … none
    pages_retired_single_bit: int | None = None  # before Ampere
    pages_retired_double_bit: int | None = None
    page_retirement_pending: bool | None = None
    page_retirement_pending_double_bit: bool | None = None
    recovery_action: str | None = None  # what NVML asks for, e.g. "gpu_reset"; "none" is well
    clock_events: tuple[str, ...] | None = None  # NVML's clocks event reasons in force
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None  # in force
    power_limit_default_w: float | None = None
    application_clock_mhz: int | None = None  # what the core is set to run at under load
    application_clock_default_mhz: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    vbios_version: str | None = None
    gsp_firmware_version: str | None = None
    display_active: bool | None = None
    virtualization: str | None = None  # none, passthrough, vgpu, host_vgpu, host_vsga
    fabric_state: str | None = None  # not_supported, not_started, in_progress, completed (Hopper and newer)
    fabric_status: str | None = None  # NVML's error where the fabric manager refused the GPU
    fabric_faults: tuple[str, ...] = ()  # what its health mask says is wrong
    inforom_valid: bool | None = None
    error: str | None = None  # NVML's word where the whole GPU does not answer
    unavailable: dict[str, str] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """Index, UUID and bus id: "GPU 3 (GPU-8932f933-…, 0000:61:00.0)"."""
        known = ", ".join(part for part in (self.uuid, self.bus_id) if part)
        return f"GPU {self.index} ({known})" if known else f"GPU {self.index}"

    def computing(self) -> tuple[GpuProcess, ...]:
        """The processes with a CUDA context on it."""
        return tuple(process for process in self.processes if process.kind == "compute")

    @property
    def memory_of_others_bytes(self) -> int:
        """Memory in use, less what an old driver counts of its own."""
        reserved = thresholds.GPU_MEMORY_RESERVED_BYTES if self.memory_used_counts_reserved else 0
        return max((self.memory_used_bytes or 0) - reserved, 0)

    def holds_foreign_data(self) -> bool:
        """Whether more memory is in use than an idle GPU, or a bare CUDA context, takes."""
        if self.mig_enabled or not self.memory_total_bytes or self.memory_used_bytes is None:
            return False  # in MIG mode the other slices are others' right
        share = self.memory_of_others_bytes / self.memory_total_bytes
        little = self.memory_of_others_bytes <= thresholds.GPU_MEMORY_IN_USE_BYTES
        if little and share <= thresholds.GPU_MEMORY_IN_USE_SHARE:
            return False
        page_cache = any(model in (self.name or "") for model in OS_MANAGED_MEMORY)
        return bool(self.computing()) or not page_cache


class NvmlError(Frozen):
    """Why NVML as a whole gave no answer."""

    code: str  # NVML's word, "timed_out", "crashed", or "pynvml_missing"
    call: str = ""  # the call that failed, or never came back
    gpu: int | None = None  # the GPU it asked about
    text: str = ""


class PciGpu(Frozen):
    """An NVIDIA display-class device on the PCI bus."""

    bus_id: str
    driver: str | None = None  # nvidia, nouveau, vfio-pci, …; None where none is bound

    @property
    def passed_through(self) -> bool:
        """Whether it is set aside for virtual machines."""
        return self.driver in ("vfio-pci", "pci-stub")


class GpusFact(Fact):
    """What NVML says, what it is held against, and which GPUs the job may use."""

    KIND: ClassVar[str] = "gpus/1"

    gpus: tuple[Gpu, ...] = ()  # in NVML's order; with ``nvml_error`` those asked before it
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nvml_version: str | None = None  # of the library that answered: CUDA's major version and a driver's
    confidential_compute: bool | None = None
    nvml_error: NvmlError | None = None
    nvml_elapsed_s: float = 0.0
    kernel_module: str | None = None  # first line of /proc/driver/nvidia/version
    pci_gpus: tuple[PciGpu, ...] | None = None  # None where the bus cannot be read
    excluded_bus_ids: tuple[str, ...] = ()  # taken out by the operator
    device_nodes: tuple[str, ...] = ()  # nvidia0, nvidiactl, …, kfd of /dev
    fabric_manager: bool | None = None  # whether its process runs; None where that cannot be seen
    in_container: bool = False
    granted: int | None = None  # GPUs that a scheduler or container runtime says it gave
    environment: dict[str, str] = Field(default_factory=dict)  # the variables that choose GPUs
    visible: tuple[int, ...] = ()  # NVML indices that a CUDA process of the job is shown, in its order
    rejected: str | None = None  # the entry of CUDA_VISIBLE_DEVICES at which CUDA stops: it names no GPU
    hidden: bool = False  # CUDA_VISIBLE_DEVICES hides all on purpose
    used: tuple[int, ...] = ()  # NVML indices of the job's GPUs, also before CUDA_VISIBLE_DEVICES is set
    others_hidden: str | None = None  # GPUs of another maker that a setting hides: "8 AMD GPUs (MI300X)"
    others_hidden_by: str | None = None  # that setting: 'HIP_VISIBLE_DEVICES=""'

    def of_the_job(self) -> tuple[Gpu, ...]:
        """The GPUs to judge: others' on a shared node are not this job's business."""
        return tuple(gpu for gpu in self.gpus if gpu.index in self.used)

    @property
    def driver_hangs(self) -> bool:
        """Whether a call into NVML never came back."""
        return self.nvml_error is not None and self.nvml_error.code == "timed_out"

    def bus_id_of(self, gpu: Gpu) -> str | None:
        """A GPU's bus id; if NVML lacks only one, as of a lost GPU, the one that is left."""
        if gpu.bus_id is not None or sum(gpu.bus_id is None for gpu in self.gpus) > 1:
            return gpu.bus_id
        known = {gpu.bus_id for gpu in self.gpus} | set(self.excluded_bus_ids)
        left = [gpu.bus_id for gpu in self.pci_gpus or () if gpu.driver == "nvidia" and gpu.bus_id not in known]
        return left[0] if len(left) == 1 else None

    def gpus_expected(self) -> tuple[PciGpu, ...]:
        """The GPUs on this machine's bus that the driver should serve to us.

        None in a container or a SLURM step: both show the whole bus, and only what was granted is ours.
        """
        if self.in_container or ("SLURM_PROCID" in self.environment and not self.granted):
            return ()
        return tuple(gpu for gpu in self.pci_gpus or () if not gpu.passed_through)

    def in_the_machine(self) -> int:
        """How many NVIDIA GPUs there are that work, whether the job sees them or not."""
        return len(self.gpus) or sum(name[6:].isdecimal() for name in self.device_nodes)

    def has_grant(self) -> bool:
        """Whether NVIDIA GPUs were granted. SLURM counts AMD's (/dev/kfd) under the same names."""
        return bool(self.granted) and not (not self.pci_gpus and "kfd" in self.device_nodes)

    def unlisted(self) -> tuple[str, ...]:
        """Bus ids bound to the driver that NVML leaves out. A SLURM step may be shown its own GPUs only."""
        listed = {*(gpu.bus_id for gpu in self.gpus), *self.excluded_bus_ids}
        if "SLURM_PROCID" in self.environment or None in listed:
            return ()
        return tuple(gpu.bus_id for gpu in self.gpus_expected() if gpu.driver == "nvidia" and gpu.bus_id not in listed)
