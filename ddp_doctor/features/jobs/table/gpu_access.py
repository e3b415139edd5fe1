"""Causes between processes and GPUs: who may use which GPU, and how the GPUs of a node reach each other.

Some of these show only as a hang at the first collective. Their signs are hints, which count along with a timeout if
nothing better is known.
"""

from ddp_doctor.features.jobs.table.kinds import CUDA_ERRORS, JobCause, code_cause, host_cause, sick_gpu, sick_host
from ddp_doctor.features.jobs.table.rdma import WITHOUT_GPUDIRECT, completion
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import NCCL_WARN, TEST_BEGINS, Sign, context, kernel, nccl, proof, watchdog
from ddp_doctor.model.known_error import Page

_NCCL_GUIDE = "NCCL user guide, troubleshooting, GPU-to-GPU communication"
#: A timeout of one of the first collectives, by torch's number of it. nccl2 of torch 2.15 prints no number. Also
#: nccl-tests without a result: the line counts if the output has ended without one (reading/scan.py).
_HANGS = (
    (
        "Watchdog caught collective operation timeout",
        "NCCL operation timed out",
        "Operation timed out after ",
        TEST_BEGINS,
    ),
    rf"WorkNCCL\(SeqNum=(?P<first>[1-3]),|NCCL operation timed out|Operation timed out after \d+ ms|{TEST_BEGINS}",
)
#: torch's message for a GPU that two ranks use, and for little else. Since 1.13, NCCL's last error follows it.
_REFUSED = (("invalid usage, NCCL version ",), r"invalid usage, NCCL version 2\.(?:\d|1[0-3])\.")
_SAME_GPU = tuple(f"{ranks} {say} using the same GPU" for ranks in ("ranks", "Ranks") for say in ("are", "detected"))
#: Each process starts on GPU 0 unless it chooses another.
SET_DEVICE = in_code(
    "Choose the rank's GPU before any other use of CUDA, also for model and batch:"
    " torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
)
_ONE_RANK_A_GPU = remedy("Start at most one rank per visible GPU of the node", "torchrun --nproc-per-node=gpu SCRIPT")
_WITHOUT_P2P = remedy(
    "Test with NCCL_P2P_DISABLE=1 to see whether P2P is the cause (diagnosis, not a fix)",
    settings=(setting("NCCL_P2P_DISABLE", "1", "GPUs exchange data through host memory"),),
    cost="host memory traffic between GPUs of one node, often several times slower",
)
_WITHOUT_TRANSLATION = on_node(
    "Set the kernel option iommu=pt, or turn off the IOMMU in the BIOS, and restart the node",
    "grubby --update-kernel=ALL --args=iommu=pt",
    cost="a restart; with the IOMMU off, no devices for virtual machines",
    undo="grubby --update-kernel=ALL --remove-args=iommu=pt",
)

#: Signs that belong to no cause.
SIGNS = {
    "mig-device": context(("MIG-GPU-", "=MIG-", ":MIG-", " MIG 1g.", " MIG 2g.", " MIG 3g.", " MIG 4g.", " MIG 7g.")),
    "iommu-translates": context(("DMAR: IOMMU enabled", "Default domain type: Translated", 'Missing "iommu=pt"')),
    # CUDA refuses P2P that NCCL considers possible between two GPUs.
    "p2p-refused": nccl.context(
        ("transport/p2p.cc:", "failed to open CUDA IPC handle : "),
        rf"transport/p2p\.cc{NCCL_WARN}Cuda failure |failed to open CUDA IPC handle : ",
        run_code="DD446",
        page=Page(
            "NCCL takes P2P for possible between two GPUs, and CUDA refuses it.", ("DD446", "DD411"), _NCCL_GUIDE
        ),
    ),
    "geforce": context(("NVIDIA GeForce", "GeForce RTX", "NVIDIA RTX PRO")),
    "test-without-end": context(TEST_BEGINS),
    "test-without-results": context(TEST_BEGINS),
    "nvls-last": context("NCCL INFO NVLS comm 0x", unless=("Init COMPLETE", "Connected NVLS tree")),
}

CAUSES = {
    "DDJ138": JobCause(
        name="no-gpu-visible",
        title="{who} sees no GPU",
        domain="host",
        finds="CUDA or the backend nccl finds no GPU in the process: CUDA error 100, or no driver.",
        why="The container was started without GPUs, the scheduler assigned none, CUDA_VISIBLE_DEVICES is empty or"
        " names GPUs that do not exist, or the driver does not run on the node.",
        remedies=(
            remedy(
                "Request GPUs for the job",
                "sbatch --gpus-per-node=8 job.sbatch",
                "docker run --gpus=all IMAGE",
                container=("--gpus=all",),
            ),
            in_code("Use the gloo backend without GPUs"),
        ),
        next_check="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES, in the job",
        references=(
            CUDA_ERRORS,
            "torch 2.15 c10d/nccl2, c10d/ProcessGroupNCCL.cpp; torch/csrc/cuda and c10/cuda/CUDAFunctions.cpp",
        ),
        signs={
            "no-gpu": proof(
                (
                    "nccl2 requires at least one CUDA device",
                    "ProcessGroupNCCL is only supported with GPUs",
                    "No CUDA GPUs are available",
                    "no CUDA-capable device is detected",
                    "NCCL WARN Failed to find CUDA library",
                    "RuntimeError: Found no NVIDIA driver on your system",
                    "machine only has: []",  # Lightning
                ),
                r"^(?!.*failed call to cuInit)",  # TensorFlow, which continues
            )
        },
    ),
    "DDJ116": JobCause(
        name="gpu-exclusive-mode",
        title="{who} cannot use its GPU: another process holds it exclusively, or it is faulty",
        domain="host",
        finds="CUDA error 46: the GPU is busy or unavailable.",
        why="In compute mode EXCLUSIVE_PROCESS, a GPU accepts one process. Another job may hold it, or several"
        " ranks of this job chose GPU 0 because they did not call torch.cuda.set_device.",
        remedies=(
            SET_DEVICE,
            on_node("Allow several processes per GPU", "nvidia-smi -c 0", cost="two jobs may share one GPU"),
        ),
        next_check="nvidia-smi --query-gpu=index,compute_mode --format=csv; nvidia-smi lists the processes",
        references=(CUDA_ERRORS,),
        found_by=("DD306", "DD304"),
        signs={
            "gpu-busy": Sign(
                (
                    "devices are busy or unavailable",
                    "is/are busy or unavailable",
                    "exclusive-thread device already in use",
                )
            )
        },
    ),
    "DDJ117": host_cause(
        name="mig-unsupported",
        title="Ranks use MIG slices of one GPU, which NCCL does not support",
        finds="NCCL refuses two ranks on one GPU, in a job whose devices are MIG slices.",
        why="Before NCCL 2.30, two slices of one GPU count as the same GPU. MIG does not support P2P in any version.",
        remedies=(
            remedy("Use a whole GPU per rank: turn off MIG, or request full GPUs from the scheduler"),
            remedy("Train on one slice without DDP, or with the gloo backend", cost="far slower with gloo"),
        ),
        next_check="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES in each rank",
        references=("NCCL 2.5 to 2.30, src/init.cc and src/graph/topo.cc", "NVIDIA MIG user guide"),
        instead_of=("duplicate-gpu",),
        signs={
            "slices-of-one-gpu": Sign(("Duplicate GPU detected : rank", *_SAME_GPU), beside=("mig-device",)),
            "slice-refused": nccl.sign(*_REFUSED, beside=("mig-device",)),
        },
    ),
    "DDJ118": code_cause(
        name="duplicate-gpu",
        title="{ranks} of one node use the same GPU[, {bus}]",
        finds="NCCL finds two ranks of one node on the same GPU.",
        why="Each process uses GPU 0 unless it chooses another. Two ranks share a GPU if they do not call"
        " torch.cuda.set_device, or if the node has more ranks than GPUs.",
        remedies=(SET_DEVICE, _ONE_RANK_A_GPU),
        next_check="print(os.environ['LOCAL_RANK'], torch.cuda.current_device()) in each"
        " rank before init_process_group",
        references=("NCCL 2.5 to 2.30, src/init.cc and src/graph/topo.cc",),
        found_by=("DD605", "DDL104", "DDL106", "DDL107"),
        signs={
            "same-device-of-host": proof(
                "Duplicated GPU device",
                r"Rank \[(?P<rank>\d+)\] and rank \[(?P<peer_rank>\d+)\] both attached to GPU device (?P<gpu>\d+)",
            ),
            "duplicate-gpu-of-ranks": proof(
                "Duplicate GPU detected : rank",
                r"rank (?P<rank>\d+) and rank (?P<peer_rank>\d+) both on CUDA device (?P<bus>[0-9a-f]+)",
            ),
            "multiple-ranks-on-gpu": proof(_SAME_GPU, r"Multiple [Rr]anks (?:are|detected) using the same GPU"),
            "usage-refused": nccl.hint(*_REFUSED),
        },
    ),
    "DDJ119": sick_host(
        name="acs-p2p-fault",
        title="PCIe ACS or IOMMU of {who} breaks transfers between GPUs and NICs[ ({device})]",
        finds="Faults of the IOMMU in the kernel log of a job with GPUs, local protection errors of RDMA"
        " transfers, or NCCL's own hint that ACS is on.",
        why="ACS on PCIe bridges sends traffic between two devices up to the root complex, where it is slow. If"
        " the IOMMU translates addresses, the traffic is rejected or lost.",
        remedies=(
            on_node(
                "Turn off ACS on the PCIe bridges, after each boot or permanently in the BIOS",
                "lspci -vvv | grep -i acsctl",
                "setpci -s BRIDGE ECAP_ACS+6.w=0000",
                cost="no isolation between devices, which virtual machines need",
            ),
            _WITHOUT_TRANSLATION,
            WITHOUT_GPUDIRECT,
        ),
        next_check="lspci -vvv | grep ACSCtl (SrcValid+ is ACS on); dmesg | grep -iE 'DMAR|AMD-Vi|IO_PAGE_FAULT'",
        references=(_NCCL_GUIDE, "NCCL 2.30, src/transport/net_ib (hints)", "Linux drivers/iommu"),
        signs={
            "iommu-fault": kernel.sign(
                ("IO_PAGE_FAULT", "DMAR: [DMA", "DMAR: DRHD: handling fault"),
                r"IO_PAGE_FAULT(?: device=(?P<device>[0-9a-f:.]+))?|DMAR: \[DMA [^\n]{1,60}(?:Request device"
                r"|for device)?|handling fault status",
            ),
            "acs-redirects": nccl.hint(  # lspci -vvv: requests between devices go up to the root complex
                "ACSCtl:", r"ACSCtl:.{0,80}ReqRedir\+"
            ),
            "acs-hint": nccl.sign(
                "ACS is enabled", r"HINT: In many cases this error (?:occurs when|indicates that) ACS is enabled"
            ),
            "rdma-protection-error": nccl.hint("Got completion", completion("4|8|10|11")),
        },
    ),
    "DDJ120": sick_host(
        name="iommu-p2p-hang",
        title="IOMMU of {who} may drop transfers between its GPUs[: collective {first} hung]",
        finds="A hang at one of the first collectives on a node whose log says that its IOMMU translates addresses.",
        why="Writes from one GPU to another go through the IOMMU. With some boards, they never arrive.",
        remedies=(_WITHOUT_TRANSLATION, _WITHOUT_P2P),
        next_check="ddp-doctor run --only topology,p2p; NCCL_P2P_DISABLE=1 with the same job;"
        " cat /proc/cmdline; dmesg | grep -iE 'DMAR|AMD-Vi|iommu'",
        references=(_NCCL_GUIDE, "RCCL, src/init.cc (the warning on iommu=pt)"),
        signs={"hang-with-iommu": watchdog.hint(*_HANGS, beside=("iommu-translates",), is_final=True)},
    ),
    "DDJ230": host_cause(
        name="p2p-not-supported",
        title="NCCL on {who} uses P2P between GPUs that do not support it",
        finds="NCCL's P2P transport fails in a CUDA call with error 217, peer access is not supported.",
        why="The driver offers P2P between two GPUs, but cannot open the memory of the other process. Consumer GPUs,"
        " containers that see one GPU per process, ACS and an IOMMU that translates are typical reasons.",
        remedies=(
            remedy(
                "Disable P2P for the job, with Ray in the environment of its workers",
                "ray.init(runtime_env={'env_vars': {'NCCL_P2P_DISABLE': '1'}})",
                settings=(setting("NCCL_P2P_DISABLE", "1", "GPUs exchange data through host memory"),),
                cost="host memory traffic between GPUs of one node, often several times slower",
                undo="unset NCCL_P2P_DISABLE",
            ),
            _WITHOUT_TRANSLATION,
        ),
        next_check="nvidia-smi topo -p2p r; ddp-doctor run --only topology,p2p on the same GPUs",
        references=(CUDA_ERRORS, "NCCL 2.7 to 2.30, src/transport/p2p.cc"),
        signs={
            "p2p-cuda-217": nccl.sign(
                "peer access is not supported",
                r"^(?!.*transport/shm\.cc).*(?:\b217\b|Cuda failure)\W{1,3}peer access is not supported",
                beside=("nccl-error-returned", "nccl-error", "nccl-error-by-name"),
            )
        },
    ),
    "DDJ121": JobCause(
        name="p2p-broken-hang",
        title="P2P between GPUs of {who} may move no data[: collective {first} hung]",
        domain="host",
        finds="Ranks on GPUs of the GeForce or RTX PRO families hang in one of the first collectives.",
        why="On such boards, some drivers offer P2P that does not move data, so NCCL's kernels wait forever.",
        remedies=(_WITHOUT_P2P, on_node("Update the driver; newer drivers refuse P2P if the GPU does not support it")),
        next_check="ddp-doctor run --only topology,p2p; NCCL_P2P_DISABLE=1 with the same job; nvidia-smi topo -p2p r",
        references=(_NCCL_GUIDE,),
        signs={"hang-of-geforce": watchdog.hint(*_HANGS, beside=("geforce",), is_final=True)},
    ),
    "DDJ122": sick_gpu(
        name="nvls-hang",
        title="{who} hangs during the set-up of NVLink SHARP (NVLS)",
        finds="The last line that NCCL prints about a communicator is the setup of NVLS, and the communicator is"
        " never completed.",
        why="If the fabric manager or the NVSwitches are in a wrong state, the setup of multicast waits forever,"
        " although plain P2P works.",
        remedies=(
            remedy(
                "Set NCCL_NVLS_ENABLE=0 to see whether NVLS is the cause, then check the fabric manager",
                "systemctl status nvidia-fabricmanager",
                "nvidia-smi -q | grep -A2 Fabric",
                settings=(setting("NCCL_NVLS_ENABLE", "0", "the switches do not reduce any more"),),
                cost="slower all-reduces within nodes with NVSwitches",
            ),
        ),
        next_check="NCCL_NVLS_ENABLE=0 with the same job; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NVLS",
        references=("NCCL 2.17 to 2.30, src/transport/nvls.cc",),
        signs={
            "hang-at-nvls": watchdog.hint((*_HANGS[0], "watchdog got stuck for"), beside=("nvls-last",), is_final=True)
        },
    ),
    "DDJ162": code_cause(
        name="invalid-device-ordinal",
        title="{who} used a GPU number that is not visible to it",
        finds="A rank selects a GPU that does not exist: more ranks were started than GPUs are visible, or the"
        " number is not the local rank.",
        why="CUDA numbers the GPUs in CUDA_VISIBLE_DEVICES from 0. Global ranks may exceed these numbers, and so"
        " do local ranks beyond the last GPU.",
        remedies=(_ONE_RANK_A_GPU, in_code("Select the GPU by LOCAL_RANK, never by RANK")),
        next_check="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES, within the job",
        references=("CUDA runtime, cudaErrorInvalidDevice",),
        found_by=("DD311", "DD103", "DDL105"),
        signs={
            "device-ordinal": proof(
                (
                    "invalid device ordinal",
                    "AssertionError: Invalid device id",
                    "device < num_gpus",
                    "machine only has: [",  # Lightning
                    "self.parallel_devices[self.local_rank]",  # Lightning; an IndexError follows
                ),
                # NCCL prints it when it imports another container's memory.
                r"^(?!.*(?:transport/p2p|only has: \[\]))",
            )
        },
    ),
}
