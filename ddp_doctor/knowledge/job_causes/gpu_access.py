"""Causes between processes and GPUs: who may use which GPU, and how the GPUs of a node reach each other.

Some of these show as nothing but a hang at the first collective. Their signs are hints, which count beside a time-out
and where nothing better is known.
"""

from ddp_doctor.knowledge.job_causes.kinds import JobCause, Sign, Tier
from ddp_doctor.knowledge.job_causes.rdma import completion
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Remedy, Setting

_CUDA_ERRORS = "CUDA runtime, texts of cudaGetErrorString"
_NCCL_GUIDE = "NCCL user guide, troubleshooting, GPU-to-GPU communication"
#: A time-out of one of the first collectives, by torch's number of it.
_FIRST: tuple[tuple[str], str, Tier] = (
    ("Watchdog caught collective operation timeout",),
    r"WorkNCCL\(SeqNum=[1-3],",
    "watchdog",
)
_WITHOUT_P2P = Remedy(
    summary="Test with NCCL_P2P_DISABLE=1: where the job runs then, P2P is the fault. This is a diagnosis, no cure",
    settings=(Setting(name="NCCL_P2P_DISABLE", value="1", why="GPUs exchange data through host memory"),),
    cost="GPUs of one node exchange data through host memory, often several times slower",
)
_WITHOUT_TRANSLATION = Remedy(
    summary="Have the kernel pass devices' own addresses through: iommu=pt on its command line, or the IOMMU off"
    " in the BIOS, and restart the node",
    commands=("grubby --update-kernel=ALL --args=iommu=pt",),
    scope="node",
    cost="a restart; with the IOMMU off, no devices for virtual machines",
    undo="grubby --update-kernel=ALL --remove-args=iommu=pt",
)

#: Signs of no cause of their own.
SIGNS = (
    Sign(
        "mig-device",
        ("MIG-GPU-", "=MIG-", ":MIG-", " MIG 1g.", " MIG 2g.", " MIG 3g.", " MIG 4g.", " MIG 7g."),
        role="context",
    ),
    Sign(
        "iommu-translates",
        ("DMAR: IOMMU enabled", "Default domain type: Translated", 'Missing "iommu=pt"'),
        role="context",
    ),
    Sign(
        "geforce",
        ("NVIDIA GeForce", "GeForce RTX", "NVIDIA RTX PRO"),
        role="context",
    ),
    Sign(
        "nvls-last",
        ("NCCL INFO NVLS comm 0x",),
        role="context",
        unless=("Init COMPLETE", "Connected NVLS tree"),
    ),
)

CAUSES = (
    JobCause(
        code="DDJ116",
        name="gpu-exclusive-mode",
        title="{who} finds its GPU taken by another process: the GPU serves one process alone, or is out of order",
        domain="host",
        restart="unknown",
        finds="CUDA error 46: the GPU is busy or unavailable.",
        why="In compute mode EXCLUSIVE_PROCESS a GPU takes one process. Another job may hold it; or several ranks"
        " of this one chose GPU 0, because they did not call torch.cuda.set_device.",
        remedies=(
            Remedy(
                summary="Give each rank a GPU of its own before anything else uses CUDA:"
                " torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
                scope="code",
            ),
            Remedy(
                summary="Let several processes share a GPU",
                commands=("nvidia-smi -c 0",),
                scope="node",
                cost="nothing keeps two jobs off one GPU any more",
            ),
        ),
        next_check="nvidia-smi --query-gpu=index,compute_mode --format=csv; nvidia-smi: which processes it lists",
        references=(_CUDA_ERRORS,),
        signs=(
            Sign(
                "gpu-busy",
                (
                    "devices are busy or unavailable",
                    "is/are busy or unavailable",
                    "exclusive-thread device already in use",
                ),
            ),
        ),
    ),
    JobCause(
        code="DDJ117",
        name="mig-unsupported",
        title="Ranks of this job use MIG slices of one GPU, which NCCL does not join",
        domain="host",
        restart="no",
        finds="NCCL refuses two ranks on one GPU, in a job whose devices are MIG slices.",
        why="Before NCCL 2.30 two slices of one GPU count as the same GPU, and MIG has no P2P in any version.",
        remedies=(
            Remedy(summary="Give each rank a whole GPU: switch MIG off, or ask the scheduler for full GPUs"),
            Remedy(
                summary="Train on one slice without DDP, or with the gloo backend", cost="gloo is far slower"
            ),
        ),
        next_check="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES in each rank",
        references=("NCCL 2.5 to 2.30, src/init.cc and src/graph/topo.cc", "NVIDIA MIG user guide"),
        instead_of=("duplicate-gpu",),
        signs=(
            Sign(
                "slices-of-one-gpu",
                (
                    "Duplicate GPU detected : rank",
                    "anks are using the same GPU",
                    "anks detected using the same GPU",
                ),
                beside=("mig-device",),
            ),
        ),
    ),
    JobCause(
        code="DDJ118",
        name="duplicate-gpu",
        title="Two ranks of one node[, {rank} and {peer_rank},] use the same GPU[, {bus}], which NCCL refuses",
        domain="code",
        restart="no",
        finds="NCCL finds two ranks of one node on the same GPU.",
        why="Each process starts on GPU 0 unless it chooses another. Ranks that skip torch.cuda.set_device, or a"
        " node with more ranks than GPUs, meet on one.",
        remedies=(
            Remedy(
                summary="Choose the rank's GPU before anything else uses CUDA:"
                " torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
                scope="code",
            ),
            Remedy(
                summary="Start no more ranks on a node than it has GPUs",
                commands=("torchrun --nproc-per-node=gpu …",),
            ),
        ),
        next_check="print(os.environ['LOCAL_RANK'], torch.cuda.current_device()) in each rank, before"
        " init_process_group",
        references=("NCCL 2.5 to 2.30, src/init.cc and src/graph/topo.cc",),
        signs=(
            Sign(
                "same-device-of-host",
                ("Duplicated GPU device",),
                r"Rank \[(?P<rank>\d+)\] and rank \[(?P<peer_rank>\d+)\] both attached to GPU device (?P<gpu>\d+)",
                confidence=Confidence.PROVED,
            ),
            Sign(
                "duplicate-gpu-of-ranks",
                ("Duplicate GPU detected : rank",),
                r"rank (?P<rank>\d+) and rank (?P<peer_rank>\d+) both on CUDA device (?P<bus>[0-9a-f]+)",
                confidence=Confidence.PROVED,
            ),
            Sign(
                "multiple-ranks-on-gpu",
                ("anks are using the same GPU", "anks detected using the same GPU"),
                r"Multiple [Rr]anks (?:are|detected) using the same GPU",
                confidence=Confidence.PROVED,
            ),
        ),
    ),
    JobCause(
        code="DDJ119",
        name="acs-p2p-fault",
        title="PCIe ACS or the IOMMU of {who} breaks transfers between GPUs and NICs[ ({device})]",
        domain="host",
        restart="on other nodes",
        finds="Faults of the IOMMU in the kernel log of a job with GPUs, local protection errors of RDMA"
        " transfers, or NCCL's own hint that ACS is on.",
        why="ACS on PCIe bridges sends traffic between two devices up to the root complex. There it is slow, and"
        " with an IOMMU that translates, it is refused or lost.",
        remedies=(
            Remedy(
                summary="Switch ACS off on the PCIe bridges, after each start, or for good in the BIOS",
                commands=("lspci -vvv | grep -i acsctl", "setpci -s BRIDGE ECAP_ACS+6.w=0000"),
                scope="node",
                cost="no isolation of devices from each other, which virtual machines need",
            ),
            _WITHOUT_TRANSLATION,
            Remedy(
                summary="Go on without GPUDirect RDMA until then, which tells as well whether this is the fault",
                settings=(
                    Setting(name="NCCL_NET_GDR_LEVEL", value="LOC", why="NICs do not read GPU memory"),
                ),
                cost="transfers between nodes go through host memory",
            ),
        ),
        next_check="lspci -vvv | grep ACSCtl (SrcValid+ is ACS on); dmesg | grep -iE 'DMAR|AMD-Vi|IO_PAGE_FAULT'",
        references=(_NCCL_GUIDE, "NCCL 2.30, src/transport/net_ib (hints)", "Linux drivers/iommu"),
        signs=(
            Sign(
                "iommu-fault",
                ("IO_PAGE_FAULT", "DMAR: [DMA", "DMAR: DRHD: handling fault"),
                r"IO_PAGE_FAULT(?: device=(?P<device>[0-9a-f:.]+))?|DMAR: \[DMA [^\n]{1,60}(?:Request device"
                r"|for device)?"
                r"|handling fault status",
                tier="kernel",
            ),
            Sign(  # of lspci -vvv: requests between devices go up to the root complex
                "acs-redirects",
                ("ACSCtl:",),
                r"ACSCtl:.{0,80}ReqRedir\+",
                tier="nccl",
                confidence=Confidence.POSSIBLE,
            ),
            Sign(
                "acs-hint",
                ("ACS is enabled",),
                r"HINT: In many cases this error (?:occurs when|indicates that) ACS is enabled",
                tier="nccl",
            ),
            Sign(
                "rdma-protection-error",
                ("Got completion",),
                completion("4|8|10"),
                tier="nccl",
                confidence=Confidence.POSSIBLE,
            ),
        ),
    ),
    JobCause(
        code="DDJ120",
        name="iommu-p2p-hang",
        title="The IOMMU of {who} may swallow what its GPUs send each other: the first collective hung",
        domain="host",
        restart="on other nodes",
        finds="A hang at the first collective on a node whose log says that its IOMMU translates addresses.",
        why="Writes of one GPU to another go through the IOMMU, and with some boards they never arrive.",
        remedies=(_WITHOUT_TRANSLATION, _WITHOUT_P2P),
        next_check="NCCL_P2P_DISABLE=1 with the same job; cat /proc/cmdline; dmesg | grep -iE 'DMAR|AMD-Vi|iommu'",
        references=(_NCCL_GUIDE, "RCCL, src/init.cc (the warning on iommu=pt)"),
        signs=(
            Sign("hang-with-iommu", *_FIRST, confidence=Confidence.POSSIBLE, beside=("iommu-translates",)),
        ),
    ),
    JobCause(
        code="DDJ121",
        name="p2p-broken-hang",
        title="P2P between the GPUs of {who} may move no data: the first collective hung",
        domain="host",
        restart="unknown",
        finds="A hang at the first collective of ranks on GPUs of the GeForce or RTX PRO kind.",
        why="On such boards some drivers offer P2P that moves no data, so NCCL's kernels wait for ever.",
        remedies=(
            _WITHOUT_P2P,
            Remedy(summary="Update the driver: newer ones refuse P2P where the GPU has none", scope="node"),
        ),
        next_check="NCCL_P2P_DISABLE=1 with the same job; nvidia-smi topo -p2p r",
        references=(_NCCL_GUIDE,),
        signs=(Sign("hang-of-geforce", *_FIRST, confidence=Confidence.POSSIBLE, beside=("geforce",)),),
    ),
    JobCause(
        code="DDJ122",
        name="nvls-hang",
        title="{who} hangs while NVLink SHARP (NVLS) is set up",
        domain="gpu",
        restart="on other nodes",
        finds="The set-up of NVLS is the last that NCCL says of a communicator that does not come to be.",
        why="A fabric manager or NVSwitches in a wrong state let the set-up of multicast wait for ever, while"
        " plain P2P works.",
        remedies=(
            Remedy(
                summary="Set NCCL_NVLS_ENABLE=0: where the job runs then, it was NVLS. Then look at the fabric"
                " manager",
                settings=(
                    Setting(name="NCCL_NVLS_ENABLE", value="0", why="the switches do not reduce any more"),
                ),
                commands=("systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A2 Fabric"),
                cost="all-reduces within the node are slower on GPUs with NVSwitches",
            ),
        ),
        next_check="NCCL_NVLS_ENABLE=0 with the same job; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NVLS",
        references=("NCCL 2.17 to 2.30, src/transport/nvls.cc",),
        signs=(
            Sign(
                "hang-at-nvls",
                ("Watchdog caught collective operation timeout", "watchdog got stuck for"),
                tier="watchdog",
                confidence=Confidence.POSSIBLE,
                beside=("nvls-last",),
            ),
        ),
    ),
)
