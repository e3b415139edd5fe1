"""A node's GPUs as the driver and the kernel describe them."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from ddp_doctor.knowledge import thresholds
from ddp_doctor.knowledge.gpu.nvml import OS_MANAGED_MEMORY
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


def sysfs_bus_id(text: str) -> str:
    """Return a PCI address as /sys writes it: "00000000:1B:00.0" becomes "0000:1b:00.0"."""
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
    """The data of NVML on one GPU. None: not available, with the reason in ``unavailable``."""

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
    recovery_action: str | None = None  # action that NVML asks for, e.g. "gpu_reset"; "none" if healthy
    clock_events: tuple[str, ...] | None = None  # NVML's clocks event reasons in force
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None  # in force
    power_limit_default_w: float | None = None
    application_clock_mhz: int | None = None  # that the core is set to run at under load
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
    fabric_status: str | None = None  # NVML's error if the fabric manager refused the GPU
    fabric_faults: tuple[str, ...] = ()  # faults in its health mask
    inforom_valid: bool | None = None
    error: str | None = None  # name of NVML's error if the entire GPU does not answer
    unavailable: dict[str, str] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """Index, UUID and bus id: "GPU 3 (GPU-8932f933-…, 0000:61:00.0)"."""
        known = ", ".join(part for part in (self.uuid, self.bus_id) if part)
        return f"GPU {self.index} ({known})" if known else f"GPU {self.index}"

    def computing(self) -> tuple[GpuProcess, ...]:
        """Return the processes with a CUDA context on the GPU."""
        return tuple(process for process in self.processes if process.kind == "compute")

    @property
    def memory_of_others_bytes(self) -> int:
        """The memory in use, without what an old driver counts as its own."""
        reserved = thresholds.GPU_MEMORY_RESERVED_BYTES if self.memory_used_counts_reserved else 0
        return max((self.memory_used_bytes or 0) - reserved, 0)

    def holds_foreign_data(self) -> bool:
        """Return True if more memory is in use than an idle GPU or a bare CUDA context takes."""
        if self.mig_enabled or not self.memory_total_bytes or self.memory_used_bytes is None:
            return False  # in MIG mode the other slices may belong to other users
        share = self.memory_of_others_bytes / self.memory_total_bytes
        little = self.memory_of_others_bytes <= thresholds.GPU_MEMORY_IN_USE_BYTES
        if little and share <= thresholds.GPU_MEMORY_IN_USE_SHARE:
            return False
        page_cache = any(model in (self.name or "") for model in OS_MANAGED_MEMORY)
        return bool(self.computing()) or not page_cache


class NvmlError(Frozen):
    """The reason why NVML gave no answer at all."""

    code: str  # name of NVML's error, "timed_out", "crashed", or "pynvml_missing"
    call: str = ""  # the call that failed or never returned
    gpu: int | None = None  # the GPU it asked about
    text: str = ""


class PciGpu(Frozen):
    """An NVIDIA display-class device on the PCI bus."""

    bus_id: str
    driver: str | None = None  # nvidia, nouveau, vfio-pci, …; None if no driver is bound

    @property
    def passed_through(self) -> bool:
        """Return True if the GPU is reserved for virtual machines."""
        return self.driver in ("vfio-pci", "pci-stub")


class GpusFact(Fact):
    """The GPUs that NVML lists, the sources to compare them with, and the GPUs that the job may use."""

    KIND: ClassVar[str] = "gpus/1"

    gpus: tuple[Gpu, ...] = ()  # in NVML's order; with ``nvml_error`` only the GPUs queried before it
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nvml_version: str | None = None  # of the library that answered: CUDA's major version and a driver's
    confidential_compute: bool | None = None
    nvml_error: NvmlError | None = None
    nvml_elapsed_s: float = 0.0
    kernel_module: str | None = None  # first line of /proc/driver/nvidia/version
    pci_gpus: tuple[PciGpu, ...] | None = None  # None if the bus cannot be read
    excluded_bus_ids: tuple[str, ...] = ()  # excluded by the operator
    device_nodes: tuple[str, ...] = ()  # nvidia0, nvidiactl, …, kfd of /dev
    fabric_manager: bool | None = None  # whether its process runs; None if that is not visible
    in_container: bool = False
    granted: int | None = None  # number of GPUs that a scheduler or container runtime granted
    environment: dict[str, str] = Field(default_factory=dict)  # the variables that choose GPUs
    visible: tuple[int, ...] = ()  # NVML indices that a CUDA process of the job sees, in its order
    rejected: str | None = None  # entry of CUDA_VISIBLE_DEVICES that is not a GPU, where CUDA stops
    hidden: bool = False  # CUDA_VISIBLE_DEVICES hides all GPUs on purpose
    used: tuple[int, ...] = ()  # NVML indices of the job's GPUs, even before CUDA_VISIBLE_DEVICES is set
    others_hidden: str | None = None  # GPUs of another vendor that a setting hides: "8 AMD GPUs (MI300X)"
    others_hidden_by: str | None = None  # that setting: 'HIP_VISIBLE_DEVICES=""'

    def of_the_job(self) -> tuple[Gpu, ...]:
        """Return the GPUs to evaluate, without other jobs' GPUs on a shared node."""
        return tuple(gpu for gpu in self.gpus if gpu.index in self.used)

    @property
    def driver_hangs(self) -> bool:
        """Return True if a call into NVML never returned."""
        return self.nvml_error is not None and self.nvml_error.code == "timed_out"

    def bus_id_of(self, gpu: Gpu) -> str | None:
        """Return a GPU's bus id. If NVML lacks only one, as for a lost GPU, return the one remaining on the bus."""
        if gpu.bus_id is not None or sum(gpu.bus_id is None for gpu in self.gpus) > 1:
            return gpu.bus_id
        known = {gpu.bus_id for gpu in self.gpus} | set(self.excluded_bus_ids)
        left = [gpu.bus_id for gpu in self.pci_gpus or () if gpu.driver == "nvidia" and gpu.bus_id not in known]
        return left[0] if len(left) == 1 else None

    def gpus_expected(self) -> tuple[PciGpu, ...]:
        """Return the GPUs on this machine's bus that the driver should offer to this process.

        Empty in a container and in a SLURM step without a grant: both show the entire bus, including other jobs' GPUs.
        """
        if self.in_container or ("SLURM_PROCID" in self.environment and not self.granted):
            return ()
        return tuple(gpu for gpu in self.pci_gpus or () if not gpu.passed_through)

    def in_the_machine(self) -> int:
        """Return the number of working NVIDIA GPUs in the machine, whether the job sees them or not."""
        return len(self.gpus) or sum(name[6:].isdecimal() for name in self.device_nodes)

    def has_grant(self) -> bool:
        """Return True if NVIDIA GPUs were granted. SLURM counts AMD's (/dev/kfd) under the same names."""
        return bool(self.granted) and not (not self.pci_gpus and "kfd" in self.device_nodes)

    def unlisted(self) -> tuple[str, ...]:
        """Return the bus ids bound to the driver that NVML omits; none in a SLURM step, which sees only its GPUs."""
        listed = {*(gpu.bus_id for gpu in self.gpus), *self.excluded_bus_ids}
        if "SLURM_PROCID" in self.environment or None in listed:
            return ()
        return tuple(gpu.bus_id for gpu in self.gpus_expected() if gpu.driver == "nvidia" and gpu.bus_id not in listed)
