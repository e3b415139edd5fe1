"""Causes in the software of a node: the driver, CUDA, NCCL and its plug-ins, and whether they are compatible."""

from ddp_doctor.features.jobs.table.kinds import CUDA_ERRORS, JobCause, host_cause, sick_host
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import NCCL_WARN, Sign, kernel, nccl, proof

_NVML = "NVML, texts of nvmlErrorString; NCCL 2.3 to 2.30, src/misc/nvmlwrap.cc"
_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_SAME_NCCL = remedy(
    "Keep only the NCCL that torch was built for; remove others from pip, LD_LIBRARY_PATH and LD_PRELOAD",
    "pip list | grep -i nccl",
    "LD_DEBUG=libs python -c 'import torch' 2>&1 | grep -i libnccl",
)

CAUSES = {
    "DDJ125": sick_host(
        name="driver-library-mismatch",
        title="NVIDIA libraries and kernel module on {who} have different versions",
        finds="The driver rejects its own libraries: NVML's version mismatch, CUDA errors 803 and 804, or the"
        ' kernel\'s "API mismatch".',
        why="An update replaced the libraries while the old kernel module stayed loaded, or a container brings"
        " libraries of another version. No program can use the GPU until the versions match.",
        remedies=(
            on_node(
                "Restart the node, or reload the kernel module",
                "rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
                cost="ends all programs on its GPUs",
            ),
            on_node(
                "Block automatic driver updates", "apt-mark hold 'nvidia-*' 'libnvidia-*'", cost="manual driver updates"
            ),
        ),
        next_check="cat /proc/driver/nvidia/version; nvidia-smi; ls /usr/lib/x86_64-linux-gnu/libcuda.so.*",
        references=(_NVML, CUDA_ERRORS, "NVIDIA/open-gpu-kernel-modules (API mismatch)"),
        found_by=("DD322", "DD338", "DD301"),
        signs={
            "nvml-version-mismatch": proof(("Driver/library version mismatch", "driver/library version mismatch")),
            "kernel-api-mismatch": kernel.proof("NVRM: API mismatch"),
            "cuda-driver-mismatch": proof("unsupported display driver / cuda driver combination"),
            "cuda-compat-refused": Sign("forward compatibility was attempted on non supported HW"),
            "driver-mismatch-by-name": Sign(
                (
                    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                    "cudaErrorSystemDriverMismatch",
                    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
                )
            ),
        },
    ),
    "DDJ126": sick_host(
        name="driver-too-old",
        title="NVIDIA driver of {who} is too old for the software's CUDA version[: {version}]",
        finds="CUDA reports that the driver is older than the runtime, or that the driver cannot compile its code.",
        why="A CUDA runtime needs a driver of the same generation or newer: CUDA 12 needs 525 or newer, and CUDA"
        " 13 needs 580 or newer.",
        remedies=(
            on_node("Update the driver of the node", cost="ends all programs on its GPUs"),
            remedy(
                "Install torch, and NCCL, for an older CUDA",
                "pip install torch --index-url https://download.pytorch.org/whl/cu126",
            ),
        ),
        next_check="nvidia-smi (driver and its newest CUDA); python -c 'import torch; print(torch.version.cuda)'",
        references=(CUDA_ERRORS, _COMPATIBILITY),
        found_by=("DD204",),
        signs={
            "driver-insufficient": proof("CUDA driver version is insufficient for CUDA runtime version"),
            "driver-too-old-for-torch": proof(
                "NVIDIA driver on your system is too old", r"is too old \(found version (?P<version>\d+)\)"
            ),
            "driver-lacks-call": Sign(
                ("was compiled with an unsupported toolchain", "not supported in the installed CUDA driver")
            ),
            "driver-too-old-for-container": proof("requirement error: unsatisfied condition: cuda"),
            "driver-too-old-by-name": Sign(
                ("cudaErrorInsufficientDriver", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion")
            ),
        },
    ),
    "DDJ127": host_cause(
        name="nccl-cuda-mismatch",
        title="NCCL library of {who} was built for another CUDA version or without its GPU's architecture",
        finds="CUDA rejects NCCL's kernels, or NCCL's library does not find the CUDA runtime it was built for.",
        why="A libnccl of the system or of another package is built for one CUDA version. The driver or runtime of"
        " another major version cannot run it.",
        remedies=(_SAME_NCCL,),
        next_check="NCCL_DEBUG=VERSION prints the CUDA of NCCL (2.x+cudaY); python -c 'import torch;"
        " print(torch.version.cuda)'",
        references=(CUDA_ERRORS, _COMPATIBILITY, "nccl-tests, src/common.cu"),
        instead_of=("driver-too-old",),
        signs={
            "nccl-kernel-refused": nccl.sign(
                ("invalid device function", "named symbol not found"),
                r"(?:NCCL WARN |^)Cuda failure (?:\d+ )?'(?:invalid device function|named symbol not found)'",
            ),
            # nccl-tests' own CUDA calls had worked by then, so only NCCL's runtime is too new for the driver.
            "nccl-tests-refused": proof(
                "Test NCCL failure",
                r"Test NCCL failure [^\n]{0,200}unhandled cuda error",
                beside=("driver-insufficient",),
            ),
            "nccl-of-old-cuda": nccl.sign(
                "NCCL cannot be captured in a graph if either it wasn't built with CUDA runtime"
            ),
            "nccl-without-its-cuda": proof(
                "libnccl.so",
                r"libnccl\.so[^\n]{0,200}undefined symbol: (?P<symbol>cu\w+)"
                r"|libcudart\.so\.[\d.]+[^\n]{0,80}libnccl\.so",
            ),
        },
    ),
    "DDJ128": host_cause(
        name="no-kernel-image",
        title="The software has no code for the GPU of {who}[ ({capability})]",
        finds="A CUDA kernel was not built for this kind of GPU.",
        why="Binaries contain code for a list of architectures and do not run on newer or older GPUs. This applies"
        " to torch's packages and to extensions that were compiled on another machine.",
        remedies=(
            remedy(
                "Install a torch that lists the GPU's architecture",
                "python -c 'import torch; print(torch.cuda.get_arch_list())'",
            ),
            remedy(
                "Recompile extensions for the GPU",
                settings=(setting("TORCH_CUDA_ARCH_LIST", "9.0", "the compute capability of the GPU"),),
            ),
        ),
        next_check="python -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())'",
        references=(CUDA_ERRORS, "torch 2.15 torch/cuda/__init__.py (_check_capability)"),
        instead_of=("nccl-cuda-mismatch",),
        signs={
            "kernel-image-missing": Sign("no kernel image is available for execution"),
            "capability-unsupported": proof(
                "is not compatible with the current PyTorch installation", r"CUDA capability (?P<capability>sm_\w+)"
            ),
            "kernel-not-in-binary": Sign(
                (
                    "CUDA error: invalid device function",
                    "HIP error: invalid device function",
                    "device kernel image is invalid",
                    "hipErrorNoBinaryForGpu",
                    "CUDA_ERROR_NO_BINARY_FOR_GPU",
                    "cudaErrorNoKernelImageForDevice",
                    "is not defined for option 'gpu-name'",
                    "FlashAttention only supports ",
                )
            ),
            "nccl-without-kernel": nccl.sign(  # CUDA error 98: the function is not compiled for the GPU's architecture
                "invalid device function", r"Cuda failure (?:\d+ )?'invalid device function'"
            ),
        },
    ),
    "DDJ129": host_cause(
        name="nccl-too-old-for-gpu",
        title="NCCL does not recognize the GPU topology of {who}: it may be too old",
        finds="NCCL's search over the topology of the node fails with an internal error.",
        why="Each generation of GPUs and NVSwitches needs a newer NCCL; Hopper needs 2.15 or newer. Virtual"
        " machines that show only a part of their PCIe tree cause the same errors.",
        remedies=(
            remedy("Install a torch with a newer NCCL", "python -c 'import torch; print(torch.cuda.nccl.version())'"),
            remedy(
                "Set the provider's topology file in a virtual machine",
                settings=(setting("NCCL_TOPO_FILE", "/path/to/topo.xml", "what the machine hides"),),
            ),
        ),
        next_check="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH NCCL_TOPO_DUMP_FILE=topo.xml",
        references=("NCCL 2.5 to 2.30, src/graph",),
        signs={
            "topology-not-understood": nccl.hint(
                (
                    "Could not find ",
                    "No path computed to go from",
                    "Failed to find reverse path",
                    "too many Topo links",
                    *(f" of node {kind} not found" for kind in ("cpu", "gpu", "net", "nic", "pci", "system")),
                ),
                # torch repeats the texts of warnings after "Last error:", without the file.
                rf"(?:paths|search|topo|connect|xml|rings)\.(?:cc|h|cu){NCCL_WARN}(?:Error : )?(?:Could not find"
                r" (?!real path|CPU close|[^\n]{0,200}falling back)|too many Topo links)"
                r"|No path computed to go from|Failed to find reverse path from remNode"
                r"|Attribute \w+ of node \w+ not found",
            )
        },
    ),
    "DDJ130": host_cause(
        name="nccl-library-conflict",
        title="{who} loads a different NCCL library than the software was built for",
        finds="torch does not find a symbol of NCCL, or ranks run different versions of NCCL.",
        why="A libnccl from another package or from LD_LIBRARY_PATH is loaded instead of torch's. The packages"
        " nvidia-nccl-cu12 and nvidia-nccl-cu13 write the same file.",
        remedies=(_SAME_NCCL,),
        next_check="LD_DEBUG=libs python -c 'import torch' 2>&1 | grep libnccl; ddp-doctor check software on each node",
        references=("ld.so(8)", "NCCL 2.23 to 2.30, src/init.cc and src/dev_runtime.cc"),
        found_by=("DD207", "DD205", "DD208"),
        signs={
            "nccl-symbol-missing": proof(
                ("undefined symbol: nccl", "undefined symbol: pnccl"), r"undefined symbol: (?P<symbol>p?nccl\w+)"
            ),
            "nccl-versions-differ": proof("Mismatched NCCL version detected"),
            "nccl-other-than-compiled": proof(
                ("This application was compiled with NCCL version", "compiled with too old version of NCCL")
            ),
        },
    ),
    "DDJ131": host_cause(
        name="nccl-not-built",
        title="torch of {who} has no NCCL: a build for CPUs, Windows or macOS",
        finds="init_process_group was called with the backend nccl, but this torch does not contain it.",
        why="Only torch's CUDA packages for Linux contain NCCL.",
        remedies=(
            remedy(
                "Install torch's package for CUDA",
                "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
            ),
            in_code("Use the gloo backend without GPUs"),
        ),
        next_check="python -c 'import torch; print(torch.__version__, torch.distributed.is_nccl_available())'",
        references=("torch 2.15 torch/distributed/distributed_c10d.py",),
        found_by=("DD203",),
        signs={
            "torch-without-nccl": proof(("have NCCL built in", "AssertionError: Torch not compiled with CUDA enabled"))
        },
    ),
    "DDJ132": JobCause(
        name="nccl-bug",
        title="NCCL hit an internal error on {who}",
        finds="NCCL detected an inconsistent internal state.",
        why="This is a bug in this version of NCCL, or another program overwrote its memory.",
        remedies=(
            remedy(
                "Run with the next or the previous release of NCCL, and report it to NVIDIA with this output",
                cost="an untested combination: torch is tested only with its own NCCL",
            ),
        ),
        next_check="the same job with NCCL_DEBUG=INFO; search https://github.com/NVIDIA/nccl/issues for the line",
        references=("NCCL 2.7 to 2.30, src/init.cc, src/proxy.cc and src/graph/connect.cc",),
        instead_of=("process-crashed",),
        signs={
            "nccl-state-impossible": nccl.hint(
                (
                    "schedule creation has bugs",
                    "Proxy append",
                    "list loop at element",
                    "List loop at element",
                    "Inactive op has next set",
                    "Internal error : tree already has",
                ),
                r"NCCL WARN ",
            )
        },
    ),
    "DDJ133": sick_host(
        name="nvml-missing",
        title="NCCL cannot use NVML, the driver's management library, on {who}",
        finds="libnvidia-ml.so.1 does not exist or cannot be initialized.",
        why="NCCL gets information about GPUs and their links from NVML. In a container, the library comes from"
        " the host's driver, but only if the container runtime is configured to mount it.",
        remedies=(
            remedy(
                "Mount the driver's utilities with the container runtime",
                settings=(setting("NVIDIA_DRIVER_CAPABILITIES", "compute,utility", "utility brings NVML"),),
                container=("--gpus=all",),
            ),
            on_node("Install the driver's libraries on the node"),
        ),
        next_check="nvidia-smi in the job's container; ldconfig -p | grep libnvidia-ml",
        references=(_NVML, "NVIDIA container toolkit, driver capabilities"),
        signs={
            "nvml-not-found": proof(("Failed to open libnvidia-ml", "libnvidia-ml.so.1: cannot open")),
            "nvml-not-initialised": nccl.sign(
                "nvmlInit", r"nvmlInit(?:_v2)?\(\) failed: (?P<reason>(?!Driver/library)[^\n]{1,60})"
            ),
            "nvml-unknown-error": Sign("Failed to initialize NVML: Unknown Error"),
            "nvml-of-others": Sign(
                ("NVMLError_", "Failed to initialize NVML: Driver", "couldn't communicate with the NVIDIA driver"),
                r"NVMLError_(?:LibraryNotFound|DriverNotLoaded)|NVML: Driver Not Loaded"
                r"|communicate with the NVIDIA driver",
            ),
            "nvml-call-failed": nccl.sign(
                (" failed: Unknown Error", " failed: Driver Not Loaded"), r"nvmlDevice\w{1,60}\([^)\n]{0,60}\) failed: "
            ),
        },
    ),
}
