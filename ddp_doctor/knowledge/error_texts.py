"""What torch, NCCL, gloo, CUDA and the kernel say when a job fails: what it means, and which rules look for the cause.

A row has the words that stay the same; what a program puts between them (ranks, addresses, times) is left out. Only
texts whose cause a rule or a setting is about are here.
"""

from typing import NamedTuple


class ErrorText(NamedTuple):
    """A text, and what is behind it."""

    words: str
    means: str  # one sentence
    codes: tuple[str, ...]  # of rules that find a cause, the likeliest first
    source: str  # what prints it
    settings: tuple[str, ...] = ()


_WAITED = "This rank waited in vain: look for the rank that never came, not for the one that printed this."
_LEFT = "The other end of a connection is gone: look for the rank that failed first."
_HIDDEN = "NCCL hides the cause: its own log has it."
_NCCL_RESULT = "torch 2.15 c10d/NCCLUtils.cpp, NCCL 2.30.7 src/init.cc (ncclGetErrorString)"
_HANGS = ("DD610", "DD611", "DD615", "DD616", "DD619", "DDL133", "DDL134")

ERROR_TEXTS = (
    ErrorText(
        "Watchdog caught collective operation timeout",
        _WAITED,
        _HANGS,
        "torch 2.15 c10d/ProcessGroupNCCL.cpp",
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ),
    ErrorText(
        "NCCL operation timed out", _WAITED, _HANGS, "torch 2.15 c10d/nccl2", ("TORCH_FR_BUFFER_SIZE",)
    ),
    ErrorText("Timed out waiting for recv operation to complete", _WAITED, _HANGS, "gloo transport/tcp"),
    ErrorText(
        "Detected mismatch between collectives on ranks",
        "Ranks called different collectives, or with tensors of different shapes.",
        ("DD614", "DDL133", "DDL134", "DDL135"),
        "torch 2.15 c10d/ProcessGroupWrapper.cpp",
        ("TORCH_DISTRIBUTED_DEBUG",),
    ),
    ErrorText(
        "Connection closed by peer. This is typically caused by a remote worker crashing",
        _LEFT,
        ("DD612", "DD613", "DD540"),
        "gloo transport/tcp/pair.cc",
    ),
    ErrorText("Connection reset by peer", _LEFT, ("DD612", "DD613", "DD540"), "errno ECONNRESET"),
    ErrorText("Broken pipe", _LEFT, ("DD612", "DD613", "DD540"), "errno EPIPE"),
    ErrorText(
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely",
        _LEFT,
        ("DD612", "DD613", "DD566"),
        "torch 2.15 c10d/NCCLUtils.cpp",
    ),
    ErrorText(
        "NCCL error unhandled cuda error",
        _HIDDEN,
        ("DD446", "DD306", "DD304", "DD330"),
        _NCCL_RESULT,
        ("NCCL_DEBUG",),
    ),
    ErrorText("ncclUnhandledCudaError", _HIDDEN, ("DD446", "DD306", "DD304"), _NCCL_RESULT, ("NCCL_DEBUG",)),
    ErrorText(
        "NCCL error unhandled system error",
        _HIDDEN,
        ("DD521", "DD237", "DD238", "DD531"),
        _NCCL_RESULT,
        ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME"),
    ),
    ErrorText(
        "ncclSystemError",
        _HIDDEN,
        ("DD521", "DD237", "DD238", "DD531"),
        _NCCL_RESULT,
        ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME"),
    ),
    ErrorText(
        "NCCL error invalid usage", _HIDDEN, ("DD605", "DDL104", "DDL106"), _NCCL_RESULT, ("NCCL_DEBUG",)
    ),
    ErrorText(
        "Signal 9 (SIGKILL) received by PID exitcode -9",
        "The kernel (out of memory), the scheduler or a person killed the rank.",
        ("DD612", "DD225"),
        "torch 2.15 distributed/elastic/multiprocessing/api.py",
    ),
    ErrorText(
        "Unable to find address for",
        "GLOO_SOCKET_IFNAME names no interface of this host; gloo takes one exact name, and no ^ or prefix.",
        ("DD105", "DD521"),
        "gloo transport/tcp/device.cc",
        ("GLOO_SOCKET_IFNAME",),
    ),
    ErrorText(
        "Bootstrap : no socket interface found",
        "NCCL_SOCKET_IFNAME leaves NCCL no interface, or none is up.",
        ("DD105", "DD521"),
        "NCCL 2.30.7 src/bootstrap.cc",
        ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"),
    ),
    ErrorText(
        "The server socket has failed to listen on any local network address EADDRINUSE Address already in use",
        "Another program, or what is left of an older job, has the port.",
        ("DD514", "DDL162"),
        "torch 2.15 c10d/socket.cpp",
    ),
    ErrorText(
        "The client socket has timed out while trying to connect",
        "Nothing answers at the endpoint: a firewall, the wrong address, or a head that never started.",
        ("DD512", "DD513", "DD530", "DD531"),
        "torch 2.15 c10d/socket.cpp",
    ),
    ErrorText(
        "Connection refused",
        "The host is there, and nobody listens on the port.",
        ("DD511", "DD519", "DD520"),
        "errno ECONNREFUSED",
    ),
    ErrorText(
        "No route to host",
        "There is no way to the address, or a firewall says so.",
        ("DD513", "DD531", "DD522"),
        "errno EHOSTUNREACH",
    ),
    ErrorText(
        "The IPv6 network addresses cannot be retrieved gai error Name or service not known",
        "A host name does not resolve on this node.",
        ("DD510", "DD526"),
        "torch 2.15 c10d/socket.cpp",
    ),
    ErrorText(
        "Timed out waiting for clients joined",
        "Not all nodes or ranks came to the rendezvous.",
        ("DD516", "DD501", "DD518"),
        "torch 2.15 c10d/TCPStore.cpp",
    ),
    ErrorText(
        "RendezvousTimeoutError",
        "Not all nodes came to the rendezvous of torchrun.",
        ("DD516", "DD501", "DD518"),
        "torch 2.15 distributed/elastic/rendezvous/api.py",
    ),
    ErrorText(
        "environment variable RANK expected, but not set",
        "The script was not started by torchrun, or only in part set up by hand.",
        ("DD102", "DDL112"),
        "torch 2.15 distributed/rendezvous.py",
    ),
    ErrorText(
        "unrecognized arguments: --local-rank",
        "The launcher and the script do not agree on how the local rank is handed over.",
        ("DDL112", "DDL118"),
        "torch 2.15 distributed/launch.py",
    ),
    ErrorText(
        "Default process group has not been initialized, please make sure to call init_process_group",
        "A collective or DDP came before init_process_group.",
        ("DDL108", "DDL109"),
        "torch 2.15 distributed/distributed_c10d.py",
    ),
    ErrorText(
        "Error while creating shared memory segment /dev/shm/nccl No space left on device",
        "There is too little room in /dev/shm; Docker gives 64 MiB.",
        ("DD237", "DD221"),
        "NCCL 2.30.7 src/include/shm.h, src/misc/shmutils.cc",
        ("NCCL_SHM_DISABLE",),
    ),
    ErrorText(
        "DataLoader worker is killed by signal Bus error insufficient shared memory (shm)",
        "There is too little room in /dev/shm for the batches of the loader's workers.",
        ("DD221",),
        "torch 2.15 utils/data/_utils/signal_handling.py",
    ),
    ErrorText(
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
        "Too little memory may be locked (ulimit -l) for RDMA.",
        ("DD238", "DD222"),
        "NCCL 2.30.7 src/misc/ibvwrap.cc",
    ),
    ErrorText(
        "NET/IB Got completion from peer with status=12",
        "A send over RDMA was never acknowledged: the GID index, the fabric, or a dead peer.",
        ("DD584", "DD568", "DD569", "DD566"),
        "NCCL 2.30.7 src/transport/net_ib",
        ("NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"),
    ),
    ErrorText(
        "Failed to bind NVLink SHARP (NVLS) Multicast memory",
        "NVLink SHARP cannot be set up: mostly the fabric manager.",
        ("DD444", "DD316"),
        "NCCL 2.30.7 src/transport/nvls.cc",
        ("NCCL_NVLS_ENABLE",),
    ),
    ErrorText(
        "MNNVL is available but not working on this system. Check the IMEX configuration",
        "NVLink between nodes cannot be used.",
        ("DD445",),
        "NCCL 2.30.7 src/mnnvl.cc",
        ("NCCL_MNNVL_ENABLE",),
    ),
    ErrorText(
        "Cuda failure 217 peer access is not supported between these two devices",
        "GPUs, or containers, cannot reach each other's memory.",
        ("DD446", "DD323", "DD411"),
        "CUDA runtime, cudaErrorPeerAccessUnsupported",
        ("NCCL_P2P_DISABLE", "NCCL_CUMEM_HOST_ENABLE"),
    ),
    ErrorText(
        "Duplicate GPU detected",
        "Two ranks work on one GPU: torch.cuda.set_device(LOCAL_RANK) is missing or late.",
        ("DD605", "DDL104", "DDL106", "DDL107"),
        "NCCL 2.30.7 src/init.cc",
    ),
    ErrorText(
        "CUDA error: invalid device ordinal",
        "More ranks than GPUs they are shown, or a GPU by the wrong number.",
        ("DD311", "DD103", "DDL105"),
        "CUDA runtime, cudaErrorInvalidDevice",
    ),
    ErrorText(
        "ProcessGroupNCCL is bound to device but an operation was issued on",
        "The tensors are on another GPU than the process group.",
        ("DD609", "DDL117"),
        "torch 2.15 c10d/nccl2/ProcessGroupNCCL.cpp",
    ),
    ErrorText(
        "Expected all tensors to be on the same device, but found at least two devices",
        "A batch or a part of the model stayed on another device.",
        ("DD774", "DDL136", "DDL167"),
        "torch 2.15 aten/src/ATen/TensorIterator.cpp",
    ),
    ErrorText(
        "all CUDA-capable devices are busy or unavailable",
        "The GPU's compute mode lets no rank in, or another process holds it.",
        ("DD306", "DD304"),
        "CUDA runtime, cudaErrorDevicesUnavailable",
    ),
    ErrorText(
        "CUDA out of memory torch.OutOfMemoryError",
        "The job needs more than the GPU has free; somebody else may be on it.",
        ("DD305",),
        "torch 2.15 c10/cuda/CUDACachingAllocator.cpp",
    ),
    ErrorText(
        "CUDA error: uncorrectable ECC error encountered",
        "The memory of a GPU lost data.",
        ("DD307", "DD330", "DD312"),
        "CUDA runtime, cudaErrorECCUncorrectable",
    ),
    ErrorText(
        "CUDA error 802 system not yet initialized",
        "The fabric manager has not taken the GPU in.",
        ("DD316",),
        "CUDA runtime, cudaErrorSystemNotReady",
    ),
    ErrorText(
        "CUDA driver version is insufficient for CUDA runtime version",
        "The driver is older than torch's CUDA needs.",
        ("DD204",),
        "CUDA runtime, cudaErrorInsufficientDriver",
    ),
    ErrorText(
        "Failed to initialize NVML: Driver/library version mismatch",
        "The driver was replaced and its kernel module was not loaded anew.",
        ("DD322", "DD338", "DD301"),
        "NVML, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    ),
    ErrorText(
        "NVRM Xid GPU has fallen off the bus",
        "The GPU is gone from the PCIe bus until it is reset.",
        ("DD330", "DD304", "DD303"),
        "NVIDIA driver, Xid 79",
    ),
    ErrorText(
        "Distributed package doesn't have NCCL built in",
        "This torch was built without CUDA.",
        ("DD203",),
        "torch 2.15 distributed/distributed_c10d.py",
    ),
    ErrorText(
        "undefined symbol nccl libtorch_cuda.so",
        "Another libnccl than torch's own is loaded.",
        ("DD207", "DD205", "DD208"),
        "ld.so(8)",
    ),
    ErrorText(
        "Too many open files",
        "The limit of open files (ulimit -n) is too low.",
        ("DD223",),
        "errno EMFILE",
    ),
    ErrorText(
        "Expected to have finished reduction in the prior iteration before starting a new one",
        "Some parameters took no part in the loss.",
        ("DD775", "DD776", "DDL128"),
        "torch 2.15 c10d/reducer.cpp",
        ("TORCH_DISTRIBUTED_DEBUG",),
    ),
    ErrorText(
        "DDP expects same model across all ranks",
        "Ranks built different models.",
        ("DD773", "DD770"),
        "torch 2.15 c10d/reducer.cpp",
    ),
    ErrorText(
        "DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient",
        "All parameters of the wrapped module are frozen.",
        ("DD784",),
        "torch 2.15 nn/parallel/distributed.py",
    ),
    ErrorText(
        "Missing key(s) in state_dict: module.",
        "The checkpoint was saved from the model and not from its DDP wrapper, or the other way round.",
        ("DDL129",),
        "torch 2.15 nn/modules/module.py",
    ),
)
