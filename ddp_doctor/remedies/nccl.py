"""Fixes that are settings of NCCL: features to do without, and what containers or IMEX domains need for them.

Sources: NCCL 2.30.7 and 2.32.3 on simulated GPUs (they reduce with NVLS although NCCL_P2P_DISABLE=1); NCCL user guide,
Troubleshooting (Sharing Data, Docker, cuMem host allocations) and environment variables NCCL_SHM_DISABLE,
NCCL_CUMEM_HOST_ENABLE, NCCL_NVLS_ENABLE, NCCL_MNNVL_ENABLE and NCCL_CUMEM_ENABLE; NCCL src/transport/shm.cc,
src/misc/cudawrap.cc (ncclCuMemHostEnable), src/transport/nvls.cc and src/mnnvl.cc; NVIDIA IMEX service guide.
"""

from collections.abc import Iterator

from ddp_doctor.model.finding import Proof, Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import NO_TRIAL, by_administrator, remedy

GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
ENV = GUIDE + "env.html"
TROUBLE = GUIDE + "troubleshooting.html"


def entry(name: str) -> str:
    """Return the address of a variable in NCCL's user guide."""
    return f"{ENV}#{name.lower().replace('_', '-')}"


def by_setting(
    summary: str, *settings: Setting, cost: str = "", undo: str = "", conflicts: tuple[str, ...] = ()
) -> Remedy:
    """Return a fix made of settings. A trial can prove it, and unsetting the variables undoes it.

    ``conflicts`` are settings that the tables of pairs do not contain.
    """
    names = list(dict.fromkeys(setting.name for setting in settings))
    return Remedy(
        summary=summary,
        settings=settings,
        cost=cost,
        undo=undo or f"unset {' '.join(names)}",
        proof=NO_TRIAL,
        references=tuple(entry(name) for name in names),
        conflicts=conflicts,
    )


ALLOW_NUMA = remedy(
    "Start the container with --cap-add SYS_NICE, so that NCCL can place host memory near each GPU",
    "docker run --cap-add SYS_NICE IMAGE",
    "# Kubernetes: securityContext.capabilities.add: [SYS_NICE]",
    cost="container processes may raise their own priority",
    undo="start without the option",
    untried="ddp-doctor does not start containers",
    references=(TROUBLE,),
    container=("--cap-add=SYS_NICE",),
)


WITHOUT_NVLS = by_setting(
    "Disable NVLink SHARP",
    Setting(name="NCCL_NVLS_ENABLE", value="0", why="NCCL then needs no NVSwitch multicast"),
    cost="slower large all-reduces within the node; NVLink stays in use",
)


REPAIR_PATH = remedy(
    "Repair the path: turn off ACS on the PCIe bridges, or the IOMMU, then measure again",
    "sudo lspci -vvv | grep ACSCtl   # SrcValid+ means that ACS is on",
    "cat /proc/cmdline",
    cost="administrator access to the BIOS or the kernel command line, and a reboot",
    undo="re-enable ACS or the IOMMU; virtual machines need both",
    untried="requires an administrator and a reboot",
    references=(TROUBLE,),
)


DISABLE_P2P = by_setting(
    "Disable P2P to route traffic through host memory until the path is repaired (workaround)",
    Setting(name="NCCL_P2P_DISABLE", value="1", why="NCCL then copies through shared memory"),
    cost=("slower; disables P2P and NVLink for all GPUs of the node (NVLink SHARP stays on until NCCL_NVLS_ENABLE=0)"),
    conflicts=("NCCL_P2P_LEVEL",),
)


NVLINK_ONLY = by_setting(
    "Limit P2P to NVLink (workaround)",
    Setting(name="NCCL_P2P_LEVEL", value="NVL", why="GPUs without NVLink then copy through shared memory"),
    cost="slower between GPUs without NVLink; the others keep it",
)


#: NCCL user guide, NCCL_PROTO: LL128 corrupts data if it is enabled on unsuitable platforms.
SIMPLE_PROTOCOL = by_setting(
    "Repeat the check with only NCCL's Simple protocol",
    Setting(name="NCCL_PROTO", value="Simple", why="rules out LL and LL128"),
    cost="slower small messages",
)


def keep_near_p2p(limit: str) -> Remedy:
    """Return a fix that disables P2P only for far GPUs."""
    return by_setting(
        f"Limit P2P to near GPUs, up to {limit}, as NCCL does by itself since 2.23",
        Setting(name="NCCL_P2P_LEVEL", value=limit, why="no stalled pair is that near"),
        cost="host memory traffic between farther GPUs; nearer GPUs keep P2P and NVLink",
    )


#: Ring adds in an order that the ranks' positions fix.
ONE_ALGORITHM = by_setting(
    "Set NCCL_ALGO to one fixed algorithm if results must repeat bit for bit",
    Setting(name="NCCL_ALGO", value="Ring", why="a ring adds in one fixed order"),
    cost="slower when trees or NVLink SHARP would be faster",
).model_copy(
    update={"proof": Proof(reason="a trial compares each sum with the true sum, not two sums with each other")}
)


def against_wrong_sums(recording: Recording) -> Iterator[Remedy]:
    """Yield fixes that rule out causes: P2P and protocols if NCCL sums between GPUs of one node, then memory."""
    world = recording.world
    if world is not None and world.backend == "nccl":
        if world.nproc_per_node > 1:
            yield DISABLE_P2P.model_copy(
                update={"summary": "Disable P2P to route traffic through host memory (workaround)"}
            )
        yield SIMPLE_PROTOCOL
    yield by_administrator(
        "Check for memory errors, then try another release of the library, NCCL or torch",
        "nvidia-smi -q -d ECC",
        "sudo dmesg | grep -i -e xid -e edac -e mce",
    )
