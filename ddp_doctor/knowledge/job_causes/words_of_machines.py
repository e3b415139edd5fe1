"""Other words for causes in machines: of older releases, frameworks, batch systems and libraries beside NCCL.

Sources: UCX src/uct/ib; Open MPI; libibverbs; aws-ofi-nccl; vLLM v1/worker; ROCm ROCR-Runtime; CUDA's names of its
errors; gloo transport/tcp/pair.cc; accelerate utils/launch.py; PBS, LSF; NVIDIA/open-gpu-kernel-modules kernel_gsp.c.
"""

from ddp_doctor.knowledge.gpu.xids import BUS, XID_LINE
from ddp_doctor.knowledge.job_causes.kinds import Sign, kernel_sign, launcher_sign, nccl_sign
from ddp_doctor.model.choices import Confidence

_XID = ("NVRM: Xid",)
_NO_WAY = r"(?P<reason>No route to host|Connection timed out|Network is unreachable|Operation timed out)"
#: Xids of which another sign knows more, and those that mean nothing for the GPU.
_KNOWN_XIDS = r"13|31|43|45|46|48|62|63|64|74|79|92|94|95|109|110|119|120|136|137|140|14[3-9]|150|15[4-6]|158|171|172"

_HOST = {
    "host-oom-kill": (
        kernel_sign(
            "batch-system-oom",
            ("TERM_MEMLIMIT", "PBS: job killed: mem", "PBS: job killed: vmem", "systemd-oomd"),
            r"TERM_MEMLIMIT|PBS: job killed: v?mem|systemd-oomd\S* Killed ",
            confidence=Confidence.PROVED,
        ),
    ),
    "shm-too-small-dataloader": (
        Sign("torch-file-not-written", ("unable to write to file </torch_",), r"</torch_[^>]*>\s*$"),
    ),
    "disk-full": (
        Sign("no-temporary-directory", ("No usable temporary directory found in",), confidence=Confidence.POSSIBLE),
    ),
    "host-out-of-memory": (
        Sign(
            "no-memory-for-process",
            ("[Errno 12] Cannot allocate memory",),
            r"Error: \[Errno 12\]",
            confidence=Confidence.PROVED,
        ),
        Sign("bad-alloc", ("std::bad_alloc",)),
    ),
    "memlock-limit": (  # the first is printed by every program, whether it needs the memory or not
        nccl_sign(
            "memlock-warning",
            ("RLIMIT_MEMLOCK is ",),
            r"RLIMIT_MEMLOCK is \d+ bytes",
            beside=("nccl-error", "nccl-error-by-name", "verbs-call-failed", "peer-gone", "peer-unreached"),
        ),
        nccl_sign(  # NCCL up to 2.19 does not tell why
            "memory-not-registered-untold",
            ("Call to ibv_reg_mr",),
            r"Call to ibv_reg_mr\w* failed\s*$",
            confidence=Confidence.POSSIBLE,
        ),
        nccl_sign(
            "memlock-of-others",
            ("set max locked memory (ulimit -l)", "allocate some locked memory", "Unable to register memory"),
            r"set max locked memory \(ulimit -l\)|allocate some locked memory"
            r"|NET/OFI Unable to register memory[^\n]{0,100}Cannot allocate memory",
        ),
    ),
}
_GPU = {
    "nvlink-error": (  # of a process that the driver ended: the Xid before it
        kernel_sign(
            "xid-after-nvlink",
            _XID,
            rf"{XID_LINE}4[35],[^\n]{{0,200}}by previous Xid (?P<xid>74|136|14[4-9]|150|155)\b",
        ),
    ),
    "gpu-ecc-error": (  # by themselves they ended nothing: a hint, below what other lines say
        nccl_sign("xid-row-remapped", _XID, rf"{XID_LINE}63\b", confidence=Confidence.POSSIBLE),
        kernel_sign(
            "xid-after-memory",
            _XID,
            rf"{XID_LINE}4[35],[^\n]{{0,200}}by previous Xid (?P<xid>48|64|94|95|140|171|172)\b",
        ),
    ),
    "gsp-timeout": (
        kernel_sign(
            "gsp-history",
            ("RPC event history (CPU <- GSP)", "RPC history (CPU -> GSP)", "waiting for RPC response from GPU"),
            r"NVRM: .*(?:RPC (?:event )?history|of waiting for RPC response from GPU\d+ GSP)",
        ),
    ),
    "gpu-fault": (
        nccl_sign(
            "xid-unlisted",
            _XID,
            rf"{XID_LINE}(?P<xid>(?!(?:{_KNOWN_XIDS})\b)\d{{1,4}})\b",
            confidence=Confidence.POSSIBLE,
        ),
        kernel_sign(
            "gpu-not-initialised",
            ("RmInitAdapter failed",),
            rf"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<bus>{BUS}): )?RmInitAdapter failed",
        ),
        Sign("gpu-hang-of-rocm", ("HW Exception by GPU",)),
        kernel_sign("gpu-reset-required", ("[NV_ERR_RESET_REQUIRED]",)),
    ),
    "illegal-memory-access": (
        Sign(
            "kernel-failed-by-name",
            (
                "HIP error: an illegal memory access",
                "HIP error: unspecified launch failure",
                "Memory access fault by GPU",
                "CUDA_ERROR_ILLEGAL_ADDRESS",
                "CUDA_ERROR_LAUNCH_FAILED",
                "cudaErrorIllegalAddress",
            ),
            r"(?P<what>an illegal memory access was encountered|unspecified launch failure|Memory access fault"
            r"|CUDA_ERROR_\w+|cudaErrorIllegalAddress)",
            confidence=Confidence.POSSIBLE,
        ),
    ),
    "gpu-out-of-memory": (
        Sign(
            "gpu-memory-by-name",
            (
                "CUDA_ERROR_OUT_OF_MEMORY",
                "cudaErrorMemoryAllocation",
                "hipErrorOutOfMemory",
                "RESOURCE_EXHAUSTED: Out of memory",
            ),
        ),
        Sign(  # vLLM
            "no-room-for-cache",
            ("No available memory for the cache blocks", "is less than desired GPU memory utilization"),
            r"Error: [^\n]*(?:for the cache blocks|less than desired GPU memory)",
            confidence=Confidence.PROVED,
        ),
        nccl_sign("nccl-no-gpu-memory", ("Failed to CUDA calloc",), confidence=Confidence.POSSIBLE),
    ),
    "no-kernel-image": (
        Sign(
            "kernel-not-in-binary",
            (
                "CUDA error: invalid device function",
                "HIP error: invalid device function",
                "device kernel image is invalid",
                "hipErrorNoBinaryForGpu",
                "CUDA_ERROR_NO_BINARY_FOR_GPU",
                "cudaErrorNoKernelImageForDevice",
                "is not defined for option 'gpu-name'",
                "FlashAttention only supports ",
            ),
        ),
        nccl_sign(  # CUDA error 98: the function is not compiled for the GPU's architecture
            "nccl-without-kernel", ("invalid device function",), r"Cuda failure (?:\d+ )?'invalid device function'"
        ),
    ),
    "driver-too-old": (
        Sign(
            "driver-too-old-for-container",
            ("requirement error: unsatisfied condition: cuda",),
            confidence=Confidence.PROVED,
        ),
        Sign(
            "driver-too-old-by-name",
            ("cudaErrorInsufficientDriver", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion"),
        ),
    ),
    "driver-library-mismatch": (
        Sign(
            "driver-mismatch-by-name",
            (
                "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                "cudaErrorSystemDriverMismatch",
                "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            ),
        ),
    ),
    "fabric-manager-down": (
        Sign(
            "fabric-manager-of-other-version",
            ("fabric manager NVIDIA GPU driver interface version",),
            confidence=Confidence.PROVED,
        ),
        Sign("system-not-ready-by-name", ("CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady")),
    ),
    "nvml-missing": (
        Sign(
            "nvml-of-others",
            ("NVMLError_", "Failed to initialize NVML: Driver", "couldn't communicate with the NVIDIA driver"),
            r"NVMLError_(?:LibraryNotFound|DriverNotLoaded)|NVML: Driver Not Loaded|communicate with the NVIDIA driver",
        ),
        nccl_sign(
            "nvml-call-failed",
            (" failed: Unknown Error", " failed: Driver Not Loaded"),
            r"nvmlDevice\w{1,60}\([^)\n]{0,60}\) failed: ",
        ),
    ),
}
_NETWORK = {
    "firewall-or-unreachable": (
        Sign(
            "gloo-cannot-connect",
            ("SO_ERROR: No route to host", "SO_ERROR: Connection timed out", "SO_ERROR: Network is unreachable"),
            rf"SO_ERROR: {_NO_WAY}, remote=\[(?:::ffff:)?(?P<peer>[^\]\s]{{1,80}})\]:(?P<port>\d{{1,5}})",
        ),
        Sign(  # older gloo
            "gloo-connect-failed",
            ("] connect [",),
            rf"\] connect \[(?:::ffff:)?(?P<peer>[^\]\s]{{1,80}})\]:(?P<port>\d{{1,5}}): {_NO_WAY}",
        ),
        launcher_sign(
            "ssh-cannot-connect",
            ("ssh: connect to host ",),
            rf"ssh: connect to host (?P<peer>\S{{1,255}}) port (?P<port>\d{{1,5}}): {_NO_WAY[:-1]}|Connection refused)",
        ),
        Sign(  # a sandbox, or a filter on this very machine
            "connection-not-permitted",
            ("(errno: 1 - Operation not permitted", "(errno: 13 - Permission denied"),
            r"connect to \[?(?P<peer>[^\s\],]{1,255}?)\]?:(?P<port>\d{1,5}) \(errno: (?:1|13) - (?P<reason>[^)]+)\)",
        ),
    ),
    "hostname-unresolvable": (
        launcher_sign(
            "ssh-name-not-resolved",
            ("ssh: Could not resolve hostname ",),
            r"resolve hostname (?P<name>[^:\s]{1,255})",
            confidence=Confidence.PROVED,
        ),
        launcher_sign(  # torch up to 1.9
            "store-name-not-resolved",
            ("Name or service not known", "Temporary failure in name resolution"),
            r"(?:RuntimeError|ValueError|DistNetworkError): (?:host not found: )?(?:Name or|Temporary failure)",
        ),
    ),
    "port-in-use": (
        launcher_sign(  # accelerate
            "port-of-another",
            ("but another process is utilizing it",),
            r"on port \W?(?P<port>\d{1,5})",
            confidence=Confidence.PROVED,
        ),
        launcher_sign(
            "cannot-bind",
            ("Address already in use", "address already in use"),
            r"(?i)\b(?:bind|listen|ZMQError)\b[^\n]{0,120}address already in use",
        ),
    ),
    "launch-env-missing": (
        Sign(
            "variable-of-launcher-not-set",
            (
                "KeyError: 'SLURM_",
                "KeyError: 'OMPI_COMM_",
                "KeyError: 'PMI_",
                "KeyError: 'LOCAL_WORLD_SIZE'",
                "KeyError: 'NODE_RANK'",
                "KeyError: 'GROUP_RANK'",
                "parameter missing",
                ": unbound variable",
            ),
            r"KeyError: '(?P<variable>[A-Z_]+)'|rendezvous: (?:rank|world size|port number) parameter missing"
            r"|: (?:MASTER_(?:ADDR|PORT)|WORLD_SIZE|(?:LOCAL_|NODE_)?RANK|SLURM_\w+): unbound variable",
        ),
    ),
    "ib-unusable": (
        nccl_sign(
            "verbs-call-failed-with",
            ("Call to ibv_",),
            r"Call to (?P<call>ibv_(?:reg_mr\w*|post_\w+|poll_cq)) failed with (?:error )?(?:\d{1,3} )?"
            r"(?!Cannot alloc|Bad addr)(?P<reason>[A-Z][a-z]+(?: [a-z]+){0,6})",
            confidence=Confidence.POSSIBLE,
        ),
        nccl_sign(
            "modify-qp-failed",
            ("ibv_modify_qp failed",),
            r"(?P<call>ibv_modify_qp) failed with (?:error )?(?:\d{1,3} )?(?!Connection timed|Invalid arg|No data"
            r"|Network is|No route|Cannot alloc)(?P<reason>[A-Z][a-z]+(?: [a-z]+){1,6})(?![^\n]{0,300}retrying)",
        ),
    ),
    "ib-fabric-fault": (
        nccl_sign(
            "ucx-retries-exceeded",
            ("Transport retry count exceeded on ", "RETRY EXCEEDED ERROR"),
            r"retry count exceeded on (?P<device>[\w.-]+)|RETRY EXCEEDED ERROR",
            confidence=Confidence.POSSIBLE,
        ),
    ),
    "roce-gid-index": (  # the port has no GID at that index
        nccl_sign(
            "gid-empty",
            ("ibv_modify_qp failed",),
            r"failed with (?:error )?(?:61 )?No data available(?![^\n]{0,300}retrying)"
            r"(?:[^\n]{0,40}?\bon dev (?P<device>[^\s,]{1,40}))?",
        ),
    ),
    "efa-security-group": (
        nccl_sign(
            "efa-completed-with-error",
            ("completed with error. RC",),
            r"NET/OFI Request[^\n]{0,60} completed with error\. RC",
            confidence=Confidence.POSSIBLE,
        ),
    ),
    "net-plugin-load-failed": (
        nccl_sign(
            "net-plugin-of-cloud",
            ("NET/GPUDirectTCPX", "NET/FasTrak"),
            r"NET/(?P<plugin>GPUDirectTCPX|FasTrak)\W{1,3}[Ff]ailed",
            confidence=Confidence.POSSIBLE,
        ),
    ),
}
#: More signs of causes, by the causes' names.
MORE: dict[str, tuple[Sign, ...]] = {**_HOST, **_GPU, **_NETWORK}
