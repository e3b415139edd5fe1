"""Causes in GPUs, NVLinks and NVSwitches: faults of the hardware, and of the software that sets it up.

Lines of the kernel name the GPU by its bus ID. CUDA's errors are printed by torch ("CUDA error: …") and by NCCL ("Cuda
failure 700 '…'", without the number before NCCL 2.20).
"""

from ddp_doctor.features.jobs.table.kinds import CUDA_ERRORS, JobCause, sick_gpu, sick_host
from ddp_doctor.features.jobs.table.remedies import on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import NCCL_WARN, Sign, hint, kernel, nccl, proof, victim
from ddp_doctor.knowledge.gpu.xids import (
    BUS,
    CATALOG,
    OFF_BUS_LINE,
    RECOVERY_ACTION,
    SXID_LINE,
    XID_LINE,
    XIDS,
    xids_of,
)

_XID = ("NVRM: Xid",)
#: Xids about which another sign shows more, and Xids that do not mean a fault of the GPU.
_KNOWN_XIDS = "|".join(
    str(code)
    for code in (*XIDS, RECOVERY_ACTION)
    if code not in XIDS or XIDS[code].cause != "gpu-fault" or XIDS[code].kind == "reset"
)
_NCCL_NVLS = "NCCL 2.17 to 2.30, src/transport/nvls.cc"
_DRAIN = on_node(
    "Run the job on other nodes, and reset or replace the GPU before using the node again",
    "scontrol update nodename=NODE state=drain reason=GPU",
    "nvidia-smi --gpu-reset -i GPU",
    cost="ends every process on the GPU; resets GPUs joined by NVLink together",
)

#: Signs that belong to no cause.
SIGNS = {
    # The driver cleans up after a program that exited or that another Xid stopped. Not the sign of a victim: the kernel
    # log has these lines after every killed job.
    "xid-of-victim": kernel.context(_XID, rf"{XID_LINE}(?P<xid>43|45)\b"),
    # Errors from which NVLink recovered: causes/fallbacks.py.
    "nvlink-not-fatal": kernel.context(
        (*_XID, ": SXid (PCI:"),
        rf"(?P<kind>S?Xid) \((?:PCI:)?(?P<bus>{BUS})[^)]{{0,24}}\): (?P<xid>\d{{1,6}}), [^\n]{{0,100}}?Non-?[Ff]atal\b",
    ),
    # The action that the driver requests after another Xid: a reset or a reboot.
    "xid-recovery": kernel.pointer(
        _XID, rf"{XID_LINE}{RECOVERY_ACTION}, [^\n]{{0,80}} to \S{{1,20}} \((?!None)(?P<action>[^)]{{1,60}})\)"
    ),
    # All messages of NCCL about NVLS before it fails, including lack of memory.
    "nvls-fails": nccl.context(
        ("Failed to bind NVLink SHARP", "nvls.cc:"),
        rf"Failed to bind NVLink SHARP|nvls\.cc{NCCL_WARN}",
        run_code="DD444",
    ),
    # Another GPU of the node failed while this one used its memory (CUDA 721).
    "peer-gpu-failed": victim("Invalid access of peer GPU memory over nvlink"),
}

CAUSES = {
    "DDJ110": sick_gpu(
        name="nvlink-error",
        title="NVLink failed on {who}[, GPU {bus}]",
        finds="The kernel log has a fatal NVLink error of a GPU or NVSwitch (Xid 74, 136, 144 to 150, 155, SXid),"
        " CUDA reports such an error, or the driver does not allow P2P over the NVLinks between two GPUs.",
        why="Transfers between the GPUs of the node stop or are lost. As a consequence, other GPUs of the node"
        " report Xid 45 or CUDA error 721.",
        remedies=(_DRAIN,),
        next_check="nvidia-smi nvlink -s; nvidia-smi nvlink -e; dmesg | grep -E 'Xid|SXid'",
        references=(CATALOG, CUDA_ERRORS, "NCCL 2.12 to 2.30, src/graph/paths.cc"),
        signs={
            "xid-nvlink": kernel.sign(_XID, rf"{XID_LINE}(?P<xid>{xids_of('nvlink-error', 'reset')})\b"),
            "xid-nvlink-fatal": kernel.proof(
                _XID, rf"{XID_LINE}(?P<xid>{xids_of('nvlink-error', 'watch')}),[^\n]{{0,80}}?\bFatal\b"
            ),
            "nvswitch-fatal": kernel.proof(": SXid (PCI:", rf"{SXID_LINE}(?P<xid>\d{{1,6}}), Fatal\b"),
            "cuda-nvlink-error": proof("uncorrectable NVLink error detected"),
            "nvlink-without-p2p": nccl.sign("P2P is disabled between NVLINK connected GPUs"),
            # for a process that the driver ended: the Xid before it
            "xid-after-nvlink": kernel.sign(
                _XID, rf"{XID_LINE}4[35],[^\n]{{0,200}}by previous Xid (?P<xid>{xids_of('nvlink-error')})\b"
            ),
        },
    ),
    "DDJ111": sick_gpu(
        name="gpu-ecc-error",
        title="GPU of {who} has an uncorrectable memory error[: GPU {bus}]",
        finds="An uncorrected error of GPU memory: Xid 48, 64, 94, 95, 140, 171 or 172, or CUDA's error for it."
        " Xid 63, a pending row remapping, is a hint.",
        why="The program that used the memory is lost. The next program may use the same cells until the GPU is"
        " reset and the row is remapped.",
        remedies=(_DRAIN,),
        next_check="nvidia-smi -q -d ROW_REMAPPER,ECC; dmesg | grep Xid",
        references=(CATALOG, CUDA_ERRORS),
        found_by=("DD307", "DD330", "DD312"),
        signs={
            "xid-memory": kernel.proof(_XID, rf"{XID_LINE}(?P<xid>{xids_of('gpu-ecc-error')})\b"),
            "cuda-ecc-error": proof("uncorrectable ECC error encountered"),
            # they do not end a job themselves: a hint, below other lines
            "xid-row-remapped": nccl.hint(_XID, rf"{XID_LINE}63\b"),
            "xid-after-memory": kernel.sign(
                _XID, rf"{XID_LINE}4[35],[^\n]{{0,200}}by previous Xid (?P<xid>{xids_of('gpu-ecc-error')})\b"
            ),
        },
    ),
    "DDJ112": sick_gpu(
        name="gpu-off-bus",
        title="GPU of {who} fell off the PCIe bus[: GPU {bus}]",
        finds="The driver no longer reaches a GPU: Xid 79, its own message, or NVML's error that the GPU is lost.",
        why="The GPU stays unavailable until the node is restarted. Typical reasons are power, temperature, a"
        " loose card, a riser or old firmware, but not a program.",
        remedies=(
            on_node(
                "Run the job on other nodes, restart the node, and check power, temperature,"
                " seat and firmware of the GPU; replace the GPU if it happens again",
                "scontrol update nodename=NODE state=drain reason=Xid79",
            ),
        ),
        next_check="nvidia-smi on that node, and dmesg | grep -iE 'Xid|fallen off|pcieport'",
        references=(CATALOG, "NVIDIA/open-gpu-kernel-modules, arch/nvalloc/unix/src/osinit.c"),
        found_by=("DD330", "DD304", "DD303"),
        signs={
            "xid-off-bus": kernel.proof(_XID, rf"{XID_LINE}(?P<xid>{xids_of('gpu-off-bus')})\b"),
            "off-bus": kernel.proof("has fallen off the bus", OFF_BUS_LINE),
            # One message of three lines. Lines of other CPUs may be between them.
            "off-bus-in-lines": kernel.proof(
                "NVRM: The NVIDIA GPU",
                rf"NVRM: The NVIDIA GPU (?P<bus>{BUS})(?!.*has fallen off)(?s:.{{0,1500}}?)fallen off the bus",
                lines=8,
            ),
            "no-handle-of-gpu": Sign(
                "Unable to determine the device handle for ",
                rf"device handle for (?:GPU\d* ?)?(?P<bus>{BUS})?: (?:Unknown Error|GPU is lost)",
            ),
            "gpu-is-lost": proof("GPU is lost", rf"(?:for GPU ?(?P<bus>{BUS}): +)?GPU is lost"),
        },
    ),
    "DDJ113": sick_gpu(
        name="gsp-timeout",
        title="System processor (GSP) of a GPU of {who} does not respond[: GPU {bus}]",
        finds="Xid 119 or 120: the GPU's system processor failed or did not answer the driver.",
        why="Each call to the GPU hangs or fails until it is reset. The firmware of some drivers causes this. If"
        " the same GPU reported another Xid before, such as 79, that Xid is the cause.",
        remedies=(
            _DRAIN,
            on_node("Update the driver and the GSP firmware that comes with it", cost="ends all jobs of the node"),
            on_node(
                "Run the driver without the GSP firmware until then, if the GPU and the"
                " proprietary driver allow it (workaround)",
                "echo 'options nvidia NVreg_EnableGpuFirmware=0' > /etc/modprobe.d/nvidia-gsp.conf",
                cost="a restart; not possible with the open kernel modules",
                undo="remove the file and restart",
            ),
        ),
        next_check="dmesg | grep Xid shows an earlier Xid of that GPU; nvidia-smi -q | grep -i GSP",
        references=(CATALOG, "NVIDIA driver README, chapter on GSP firmware"),
        signs={
            "xid-gsp": kernel.proof(_XID, rf"{XID_LINE}(?P<xid>{xids_of('gsp-timeout')})\b"),
            "gsp-history": kernel.sign(
                ("RPC event history (CPU <- GSP)", "RPC history (CPU -> GSP)", "waiting for RPC response from GPU"),
                r"NVRM: .*(?:RPC (?:event )?history|of waiting for RPC response from GPU\d+ GSP)",
            ),
        },
    ),
    "DDJ114": sick_host(
        name="fabric-manager-down",
        title="Fabric manager does not run on {who}: CUDA cannot use its GPUs",
        finds='CUDA error 802, "system not yet initialized": GPUs behind NVSwitches that no fabric manager has set up.',
        why="On nodes with NVSwitches, no program can use a GPU before nvidia-fabricmanager, in exactly the"
        " driver's version, has set up the switches. Shortly after a boot, this may still be in progress. GPUs in"
        " confidential mode that are not set ready, and CUDA libraries of another driver, cause the same error.",
        remedies=(
            on_node(
                "Start the fabric manager in the driver's version",
                "systemctl enable --now nvidia-fabricmanager",
                "nvidia-smi -q | grep -A2 Fabric  # State: Completed",
            ),
        ),
        next_check="systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A2 Fabric on that node",
        references=(CUDA_ERRORS, "NVIDIA Fabric Manager user guide"),
        instead_of=("nccl-not-built",),  # a torch with CUDA prints the message
        found_by=("DD316",),
        signs={
            "system-not-initialized": Sign(
                "system not yet initialized", r"(?:[Ee]rror|failure)[^\n]{0,40}system not yet initialized"
            ),
            "fabric-manager-of-other-version": proof("fabric manager NVIDIA GPU driver interface version"),
            "system-not-ready-by-name": Sign(("CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady")),
        },
    ),
    "DDJ115": sick_gpu(
        name="fabric-manager-restarted",
        title="NVLink SHARP (NVLS) cannot start on {who}: fabric manager or NVSwitch fault",
        finds="NCCL fails to bind multicast memory of the NVSwitches.",
        why="If the fabric manager was restarted while GPUs were in use, the multicast state of the switches is"
        " stale until the GPUs are reset. In virtual machines and partitions, the switches may not support"
        " multicast.",
        remedies=(
            on_node(
                "Stop all jobs of the node, restart the fabric manager and reset all GPUs, or restart the node",
                "systemctl restart nvidia-fabricmanager",
                "nvidia-smi --gpu-reset",
                cost="ends every process on the node's GPUs",
            ),
            remedy(
                "Disable NVLS until then (workaround)",
                settings=(setting("NCCL_NVLS_ENABLE", "0", "the switches do not reduce any more"),),
                cost="slower all-reduces within nodes with NVSwitches",
            ),
        ),
        next_check="run with NCCL_NVLS_ENABLE=0: if the job works, the cause is NVLS;"
        " journalctl -u nvidia-fabricmanager",
        references=(_NCCL_NVLS,),
        found_by=("DD444", "DD316"),
        signs={
            "nvls-bind-invalid": nccl.sign(
                ("Failed to bind NVLink SHARP", "nvls.cc:"),
                rf"(?:Failed to bind NVLink SHARP|nvls\.cc{NCCL_WARN}Cuda failure)[^\n]*'invalid argument'",
            ),
            # Includes 401 and 801: no multicast in a virtual machine or a partition of the switches.
            "nvls-bind-failed": nccl.hint(
                ("Failed to bind NVLink SHARP", "nvls.cc:"),
                rf"(?:Failed to bind NVLink SHARP|nvls\.cc{NCCL_WARN}Cuda failure)(?![^\n]*(?:'invalid argument'"
                rf"|memory'))",
            ),
        },
    ),
    "DDJ123": JobCause(
        name="illegal-memory-access",
        title="Kernel of {who} failed on its GPU[ {bus}][: {what}][: {meaning} (Xid {xid})]",
        finds="A CUDA kernel used an illegal address or instruction: CUDA errors 700 and 714 to 719, Xid 13, 31 or"
        " 137. The error is certain, its reason is not.",
        why="An index out of range in a kernel, memory that is used after it was freed, and faults of the driver"
        " or the GPU look the same. The Python line in the traceback is often a later one, because kernels run"
        " asynchronously.",
        remedies=(
            remedy(
                "Make CUDA report the error at its kernel, and check that kernel's inputs",
                settings=(setting("CUDA_LAUNCH_BLOCKING", "1", "each kernel is waited for"),),
                cost="much slower; hides some errors",
            ),
            remedy(
                "Run the same on another GPU, and with the newest patch release of torch and"
                " of the driver; an error that stays with one GPU is a GPU fault"
            ),
        ),
        next_check="CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer python train.py; dmesg | grep Xid on that node",
        references=(CATALOG, CUDA_ERRORS),
        signs={
            "kernel-failed": hint(
                (
                    "an illegal memory access was encountered",
                    "an illegal instruction was encountered",
                    "unspecified launch failure",
                    "misaligned address",
                    "invalid program counter",
                    "operation not supported on global/shared address space",
                ),
                r"(?:CUDA|Cuda)[^\n]{0,60}?(?P<what>an illegal (?:memory access|instruction) was encountered"
                r"|unspecified launch failure|misaligned address|invalid program counter"
                r"|operation not supported on global/shared address space)",
            ),
            # In the tier of exceptions, because a program caused it, and its own message may be more precise.
            "xid-of-program": hint(_XID, rf"{XID_LINE}(?P<xid>{xids_of('illegal-memory-access')})\b"),
            "kernel-failed-by-name": hint(
                (
                    "HIP error: an illegal memory access",
                    "HIP error: unspecified launch failure",
                    "Memory access fault by GPU",
                    "CUDA_ERROR_ILLEGAL_ADDRESS",
                    "CUDA_ERROR_LAUNCH_FAILED",
                    *(f"{call}Error{what}" for call in ("cuda", "hip") for what in ("IllegalAddress", "LaunchFailure")),
                ),
                r"(?P<what>an illegal memory access was encountered|unspecified launch failure|Memory access fault"
                r"|CUDA_ERROR_\w+|(?:cuda|hip)Error(?:IllegalAddress|LaunchFailure)\b)",
            ),
        },
    ),
    "DDJ124": sick_gpu(
        name="gpu-fault",
        title="GPU[ {bus}] of {who} reported a fault[: {meaning} (Xid {xid})][: the driver asks for “{action}”]",
        finds="Another Xid (46, 62, 109, 110, 143, 156 or 158) that makes a GPU unusable until it is reset, or a"
        " GPU that the driver cannot start. Unknown Xids are a hint.",
        why="The programs that use the GPU hang or end.",
        remedies=(_DRAIN,),
        next_check="dmesg | grep Xid on that node; ddp-doctor node there",
        references=(CATALOG,),
        signs={
            "xid-other": kernel.sign(_XID, rf"{XID_LINE}(?P<xid>{xids_of('gpu-fault', 'reset')})\b"),
            "xid-unlisted": nccl.hint(_XID, rf"{XID_LINE}(?P<xid>(?!(?:{_KNOWN_XIDS})\b)\d{{1,4}})\b"),
            "gpu-not-initialised": kernel.sign(
                "RmInitAdapter failed", rf"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<bus>{BUS}): )?RmInitAdapter failed"
            ),
            "xid-asks-for-recovery": kernel.hint(
                _XID, rf"{XID_LINE}{RECOVERY_ACTION}, [^\n]{{0,80}} to \S{{1,20}} \((?!None)(?P<action>[^)]{{1,60}})\)"
            ),
            "gpu-hang-of-rocm": Sign(
                ("HW Exception by GPU", "HSA_STATUS_ERROR"), r"HW Exception by GPU (?P<bus>node-\d+)|HSA_STATUS_ERROR"
            ),
            "gpu-reset-required": kernel.sign("[NV_ERR_RESET_REQUIRED]"),
        },
    ),
    "DDJ137": sick_host(
        name="imex-not-working",
        title="NVLink between nodes (MNNVL) does not work on {who}: IMEX is not set up",
        finds="NCCL finds GPUs that are connected by NVLink across nodes but cannot share memory over it.",
        why="The IMEX service has to run on all nodes of the NVLink domain, and the container needs its channel"
        " device.",
        remedies=(
            remedy(
                "Start IMEX on all nodes, and pass its channel into the container",
                "nvidia-imex-ctl -N",
                scope="cluster",
                container=("--device=/dev/nvidia-caps-imex-channels",),
            ),
            remedy(
                "Disable NVLink between nodes (workaround)",
                settings=(setting("NCCL_MNNVL_ENABLE", "0", "nodes use the network"),),
                cost="several times slower transfers between nodes",
            ),
        ),
        next_check="nvidia-imex-ctl -N; ls /dev/nvidia-caps-imex-channels in the job's container",
        references=("NCCL 2.25 to 2.30, src/mnnvl.cc",),
        found_by=("DD445",),
        signs={
            "mnnvl-not-working": nccl.proof(
                "MNNVL (cliqueSize", r"MNNVL \(cliqueSize \d+\) is available but not", run_code="DD445"
            )
        },
    ),
}
