"""The limits of rules, each with its source. All other numbers are in the rules."""

GIB = 1024**3

# --- GPUs -----------------------------------------------------------------------------------------------

#: Memory in use on a GPU before the job starts. An idle GPU holds some MiB (nvidia-smi counts the driver's own share
#: separately), a bare CUDA context about half a GiB (judgment); more than this is tensors.
GPU_MEMORY_IN_USE_BYTES = GIB
GPU_MEMORY_IN_USE_SHARE = 0.10

#: With this share in use, a training job will not fit. Serving engines take 0.9 of a GPU by default (vLLM,
#: gpu_memory_utilization), so a forgotten server also reaches it.
GPU_MEMORY_FULL_SHARE = 0.90

#: Memory that a driver without nvmlDeviceGetMemoryInfo_v2 counts as used on an idle GPU: 0.5 GiB on an A10, 0.9 GiB on
#: an A100 (rust-nvml/nvml-wrapper issue 57), up to 1 GB on H20 and B200 (scitix/sichek pull 113).
GPU_MEMORY_RESERVED_BYTES = 5 * GIB // 4

#: A power limit or a set clock below this share of the peers', or of the default, is lower. GPUs of one model have
#: equal limits; 10% less power costs some 5% of speed, about the normal difference between GPUs (judgment).
GPU_LIMIT_SHARE = 0.90

#: A GPU with this utilization is busy all the time. NVML counts the time when any kernel ran, including a kernel of
#: NCCL that waits for other ranks (nvml.h, nvmlUtilization_t; nccl/src/device/prims_simple.h, waitPeer).
GPU_BUSY_PERCENT = 90

#: With this many retired pages, DCGM fails a GPU (dcgm_gpu_hardware_limits, DCGM_LIMIT_MAX_RETIRED_PAGES). A GPU has
#: room for 64 (NVIDIA, Dynamic Page Retirement).
GPU_RETIRED_PAGES = 63

#: Memory sizes of one model differ by some MiB because of the driver's share; larger differences are by design.
GPU_MEMORY_SIZE_SHARE = 0.02

#: How long NVML may take to answer. Without persistence mode the driver initializes every GPU first:
#: more than 25 s were seen on nodes with eight A100s (Azure/AgentBaker pull 2829).
NVML_BASE_LIMIT_S = 10.0
NVML_LIMIT_PER_GPU_S = 5.0
#: A GPU pair this many times slower than the median pair within a node, or across nodes, is called slow. Links of one
#: node differ by design by up to 4 times. NVLink 3 and PCIe 4 x16 differ more (300 and 31 GB/s), but mixed boards are
#: rare (vendor specifications).
SLOW_PAIR_RATIO = 4.0

#: Lines of corrected PCIe errors on one device since boot that are worth a line of information: single errors are
#: normal, and boards with thousands of them are known to work (judgment; Linux pcieaer-howto).
PCIE_CORRECTED_LINES = 1000

# --- Host -----------------------------------------------------------------------------------------------

MIB = 1024**2

#: One shared-memory segment of NCCL: "/dev/shm/nccl-… (size 9637888)" in its warnings of 2.8 to 2.18 with default
#: buffers. With less free space, the first connection fails.
NCCL_SHM_SEGMENT_BYTES = 9637888

#: Memory of one rank's segments: two directions on two channels. Two ranks exceed Docker's default of 64 MiB, and NCCL
#: is known to fail with it (NCCL user guide, "Memory issues", Docker).
NCCL_SHM_PER_RANK_BYTES = 4 * NCCL_SHM_SEGMENT_BYTES

#: Docker's default size of /dev/shm; data loaders with worker processes outgrow it (torch's README asks
#: for --ipc=host or --shm-size).
DOCKER_SHM_BYTES = 64 * MIB

#: The size that NCCL's user guide recommends for a container ("Memory issues": --shm-size=1g).
RECOMMENDED_SHM_BYTES = GIB

#: A /dev/shm of this size is enough for any job. If it is full, something leaked.
LARGE_SHM_BYTES = 16 * GIB

#: With less locked memory, RDMA connections cannot be made: the kernel's default is 64 KiB, since 5.16 8 MiB, and NCCL
#: registers one or more buffers of at least 4 MiB per connection (NCCL_BUFFSIZE).
RDMA_MEMLOCK_BYTES = 64 * MIB

#: Descriptors of one rank: a bare DDP rank on gloo was measured with 8 and one per rank (torch 2.13, 2 to
#: 8 ranks); rank 0 also holds the store's connections, and data loaders pass tensors as descriptors.
OPEN_FILES_BASE = 128
OPEN_FILES_PER_RANK = 2
#: Descriptors that the bare rank had open in addition to one for each rank.
OPEN_FILES_BARE = 8


def open_files(world_size: int) -> int:
    """Return the number of descriptors that one process of a world needs."""
    return OPEN_FILES_BASE + OPEN_FILES_PER_RANK * world_size


#: Private memory of a bare DDP rank: 206 MiB measured (torch 2.13, CPU, 8 ranks; smaps_rollup).
MEMORY_PER_RANK_BYTES = 206 * MIB


def memory(ranks: int) -> int:
    """Return the bytes that bare ranks take on one node."""
    return ranks * MEMORY_PER_RANK_BYTES


#: With more threads per CPU, OMP_NUM_THREADS is reported as harmful instead of only worth knowing.
OMP_THREADS_PER_CPU = 2.0

#: With a higher load per CPU, the host counts as busy with other work.
LOAD_PER_CPU = 2.0
#: In CPUs: a process that takes less does not cause a load of two per CPU. Chosen, not measured.
BUSY_PROCESS_CPUS = 0.1

#: Clock sources that cost a microsecond or more per reading instead of some 20 ns, because they read a
#: device instead of a register (kernel documentation, timers/timekeeping).
SLOW_CLOCK_SOURCES = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")

# --- Nodes ----------------------------------------------------------------------------------------------

#: Maximum error of a node's measured clock: the time of one heartbeat through the control store.
CLOCK_ERROR_S = 0.2

#: Clocks kept by NTP agree within milliseconds; a second is worth knowing when logs are compared.
CLOCKS_APART_S = 1.0

#: NTP is never off by this much, so no client runs. Kerberos allows 300 s, make and NFS notice far less (judgment).
CLOCKS_FAR_APART_S = 5.0

#: With fewer samples per rank, BatchNorm loses accuracy. The error of ResNet-50 on ImageNet with BatchNorm, in percent,
#: by batch per GPU: 23.6 with 32, 23.7 with 16, 24.8 with 8, 27.3 with 4, 34.7 with 2 (Wu and He, Group Normalization,
#: 2018, table 2).
SMALL_BATCH = 16
#: With this few samples, the error is clearly larger.
FEW_SAMPLES = 4

# --- Repeats --------------------------------------------------------------------------------------------

#: Minimum number of values in a third of the repeats; the noise of fewer values is unknown (baselines.FEWEST_RUNS).
FEWEST_REPEATS = 5
#: Reported share of the rate lost between the first and the last third: the variation of shared networks (baselines.py,
#: 15%). It is higher on gloo, whose rate depends on cores that other processes use: of 255 rows of 20 repeats on two
#: cores that compiled and tested the entire time (16 MiB, torch 2.13), 3 lost a third beyond scatter and 2 a half; of
#: 239 rows of 100 repeats, none did.
SLOWER_REPEATS = 0.15
SLOWER_REPEATS_ON_CPU = 0.5
