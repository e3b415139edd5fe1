"""DD410, DD411: GPUs between which the driver allows no P2P.

Sources: NVIDIA/nccl src/graph/paths.cc (ncclTopoCheckP2p, NCCL_IGNORE_DISABLED_P2P), src/transport/shm.cc;
NVIDIA fabric manager user guide (a GPU whose NVLinks the fabric manager has not set up reports no P2P).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.node.topology.culprits import culprit, hosts_of
from ddp_doctor.checks.node.topology.p2p_answers import Host, Pair, hosts
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.link_codes import p2p_status
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.views.p2p_stalls import nodes_nccl_ran_on
from ddp_doctor.views.reproducers import meeting
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import name_list

#: More pairs than this are counted in the title, and left out of the evidence.
_MOST_TOLD = 6


@dataclass(frozen=True)
class _Refused:
    """A pair without P2P, the driver's word for it, and how the matrix says that it is joined."""

    pair: Pair
    word: str
    code: str | None


def _refused(host: Host) -> tuple[_Refused, ...]:
    return tuple(_Refused(pair, word, host.codes.get(pair)) for pair, word in host.refused().items())


def _by_nvlink(one: _Refused) -> bool:
    return link_codes.nvlinks(one.code or "") > 0


# --- DD410 ----------------------------------------------------------------------------------------


@rule("DD410", "nvlink-without-p2p", Severity.ERROR)
def nvlink_without_p2p(recording: Recording) -> Iterator[Draft]:
    """GPUs that NVLink joins, between which the driver allows no P2P.

    What it finds
        A pair that the matrix gives NVLinks, and for which the driver does not say OK when it is asked
        for reads or writes between them. Silent where NCCL ran over these GPUs and ended, and where
        NCCL_P2P_DISABLE=1 or NCCL_IGNORE_DISABLED_P2P is set.

    Why it matters
        NCCL takes this for broken hardware and fails in its first call, on every rank ("P2P is disabled
        between NVLINK connected GPUs"). The matrix, nvidia-smi and the NVLinks' states may all look well.

    Remedy
        See whether the fabric manager runs and has finished, whether a link is down, and whether MIG is
        on; reset the GPUs. Until then NCCL_IGNORE_DISABLED_P2P=1 lets NCCL start, without that path.

    References
        NVIDIA/nccl src/graph/paths.cc, ncclTopoCheckP2p; nvidia-smi topo -p2p r and w
        NVIDIA fabric manager user guide
    """
    settled = nodes_nccl_ran_on(recording.trials)
    groups: dict[tuple[_Refused, ...], list[Host]] = {}
    for host in hosts(recording):
        broken = tuple(one for one in _refused(host) if _by_nvlink(one))
        off = {"NCCL_IGNORE_DISABLED_P2P", "NCCL_P2P_DISABLE"} & set(host.settings)
        if broken and host.asked and not off and host.seen.node not in settled:
            groups.setdefault(broken, []).append(host)
    for broken, group in groups.items():
        yield likely(
            _culprits(recording, group, broken),
            f"NCCL will fail on {_names(recording, group)}: the driver allows no P2P between GPUs"
            f" that NVLink joins: {_listed(broken)}",
            _evidence(broken),
            REPAIR_FABRIC,
            _GO_WITHOUT_P2P,
            detail="NCCL takes this for broken hardware and ends the job in its first call. Often the fabric"
            " manager has not set these GPUs up.",
            severity=asked_for(recording, Severity.ERROR),
            reproduced_by=meeting(recording, [host.seen.node for host in group]),
        )


# --- DD411 ----------------------------------------------------------------------------------------


@rule("DD411", "p2p-not-available", Severity.WARNING)
def p2p_not_available(recording: Recording) -> Iterator[Draft]:
    """GPUs without NVLink between which the driver allows no P2P.

    What it finds
        Pairs for which the driver does not say OK: CNS (not on this chipset), GNS (not with these GPUs),
        TNS (not over this path), DR (turned off by a setting), NS, U. A warning only where GPUs of one
        model behind PCIe switches are not all alike, or where a setting turns P2P off that NCCL would
        use; else an info: GeForce cards are sold without it, and many boards do not carry it. Silent
        where only those pairs lack it over which NCCL would not use it anyway.

    Why it matters
        NCCL copies through host memory between such GPUs, at about half the rate of PCIe, and nothing
        hangs or fails. Where some pairs have P2P and others of the same kind do not, all wait for those.

    Remedy
        None where it is the same for all: no setting gives P2P to GPUs that have none. Where pairs
        differ, compare their slots, the BIOS and the IOMMU.

    References
        NVIDIA/nccl src/graph/paths.cc, ncclTopoCheckP2p; NVIDIA/nccl issue 1127 (GeForce)
        nvidia-smi topo -p2p r and w; nvml.h, nvmlGpuP2PStatus_t
    """
    groups: dict[_Lack, list[Host]] = {}
    for host in hosts(recording):
        lack = _lack(recording, host)
        if lack is not None:
            groups.setdefault(lack, []).append(host)
    for lack, group in groups.items():
        words = dict.fromkeys(one.word for one in lack.shown)
        meanings = name_list([f"{word}: {p2p_status(word).meaning}" for word in words])
        yield finding(
            _culprits(recording, group, lack.shown) if lack.matters else (),
            f"The driver allows no P2P between GPUs of {_names(recording, group)} ({meanings}):"
            f" {_listed(lack.shown)}",
            _evidence(lack.shown),
            *_remedies(lack),
            confidence=Confidence.PROVED if lack.asked else Confidence.POSSIBLE,
            detail=_detail(lack),
            severity=asked_for(recording, Severity.WARNING) if lack.matters else Severity.INFO,
        )


@dataclass(frozen=True)
class _Lack:
    """Pairs without P2P and NVLink; ``by_setting`` and ``uneven`` say why they are worth a warning."""

    shown: tuple[_Refused, ...]
    asked: bool
    by_setting: bool = False
    uneven: bool = False

    @property
    def matters(self) -> bool:
        """Whether NCCL would use P2P here, and something keeps it from that."""
        return self.by_setting or self.uneven


def _lack(recording: Recording, host: Host) -> _Lack | None:
    refused = tuple(one for one in _refused(host) if not _by_nvlink(one))
    near = [pair for pair, code in host.codes.items() if _within_reach(code)]
    near_refused = tuple(one for one in refused if one.code and _within_reach(one.code))
    if not refused or (near and not near_refused):
        return None
    by_setting = host.asked and any(one.word == "DR" for one in near_refused)
    uneven = host.asked and 0 < len(near_refused) < len(near) and not _models_differ(recording, host)
    shown = near_refused if by_setting or uneven else refused
    return _Lack(shown, host.asked, by_setting, uneven)


def _within_reach(code: str) -> bool:
    """Whether NCCL would use P2P here by itself: PCIe bridges and no more."""
    return not link_codes.nvlinks(code) and link_codes.allowed(code, link_codes.DEFAULT_P2P_LIMIT)


def _models_differ(recording: Recording, host: Host) -> bool:
    """Whether the GPUs are known to be of several models, which seldom share P2P."""
    facts = recording.at(GpusFact, host.seen.node)
    return len({gpu.name for fact in facts for gpu in fact.gpus}) > 1


def _detail(lack: _Lack) -> str:
    if not lack.asked:
        return (
            "The text does not say what was asked. Of reads or writes (-p2p r, -p2p w) this means that NCCL"
            " copies through host memory; of NVLink (-p2p n) it means only that no NVLink is there."
        )
    if lack.by_setting:
        return "NCCL would copy directly here; it goes through host memory because a setting says so."
    if lack.uneven:
        return (
            "Other GPUs behind PCIe switches here have P2P, so these are the slow part of every all-reduce."
        )
    return "NCCL copies through host memory here. That is usual for these GPUs or boards, and nothing fails."


def _remedies(lack: _Lack) -> Iterator[Remedy]:
    if lack.by_setting:
        yield _LOOK_AT_MODULE_SETTINGS
    if lack.uneven:
        yield _LOOK_AT_BOARD


# --- words of both --------------------------------------------------------------------------------


def _names(recording: Recording, group: Sequence[Host]) -> str:
    return hosts_of(recording, [host.seen for host in group])


def _culprits(
    recording: Recording, group: Sequence[Host], refused: Sequence[_Refused]
) -> tuple[Culprit, ...]:
    return tuple(culprit(recording, host.seen.node, one.pair) for host in group for one in refused)


def _listed(refused: Sequence[_Refused]) -> str:
    names = ["-".join(one.pair) for one in refused]
    return ", ".join(names) if len(names) <= _MOST_TOLD else f"{len(names)} pairs, {names[0]} first"


def _evidence(refused: Sequence[_Refused]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            text=f"P2P between {'-'.join(one.pair)} is {one.word} to the driver"
            + (f", joined by {one.code}" if one.code else "")
        )
        for one in refused[:_MOST_TOLD]
    )


UNSET_LEVEL = nccl_settings.remedy(
    "Give NCCL its own limit back, if nobody needs the wider one",
    Setting(name="NCCL_P2P_LEVEL", action="unset", why="it lets P2P reach farther than by default"),
    cost="GPUs beyond the limit talk through host memory, as NCCL intends",
    undo="set NCCL_P2P_LEVEL to its old value",
    conflicts=("NCCL_P2P_DISABLE",),
)
_ASK_FOR_INDEX = (
    "Whether NCCL_IB_GID_INDEX must be set as well needs show_gids or sysfs; NCCL 2.21 and newer find the"
    " RoCE v2 entry themselves"
)


REPAIR_FABRIC = by_administrator(
    "Find out why NVLink carries no P2P: fabric manager, a link that is down, MIG, or a GPU to reset",
    "systemctl status nvidia-fabricmanager",
    "nvidia-smi nvlink -s",
    "nvidia-smi -q -d MIG",
    "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
    cost="restarting the fabric manager or resetting GPUs needs the node drained",
    references=("https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",),
)

_GO_WITHOUT_P2P = nccl_settings.remedy(
    "Let NCCL start without P2P between these GPUs until that is repaired",
    Setting(
        name="NCCL_IGNORE_DISABLED_P2P",
        value="1",
        why="NCCL then takes another path for these GPUs instead of failing",
    ),
    cost="these GPUs talk through host memory, several times slower than NVLink, and all wait for them",
)

_LOOK_AT_MODULE_SETTINGS = by_administrator(
    "If nobody meant to turn P2P off, take the setting of the kernel module away",
    "cat /proc/driver/nvidia/params",
    "grep -r nvidia /etc/modprobe.d/",
    cost="an administrator's work, and loading the module again",
    undo="put the setting back",
    references=(nccl_settings.TROUBLE,),
)

_LOOK_AT_BOARD = by_administrator(
    "Compare the slots, the BIOS and the IOMMU of these GPUs with those between which P2P works",
    "lspci -tv",
    "cat /proc/cmdline",
    "nvidia-smi topo -p2p r",
    "nvidia-smi topo -p2p w",
    cost="an administrator's work in the BIOS or at the slots",
    references=(nccl_settings.TROUBLE,),
)


def use_hca(
    devices: tuple[str, ...], others: tuple[str, ...], why: str, gid_index: str | None = None
) -> Remedy:
    """Point NCCL at these RDMA devices; the GID index is only named, never guessed.

    ``gid_index`` says in words what is known of it; where nothing is, the commands that tell are given.
    Names in NCCL_IB_HCA are prefixes unless = stands before them, so it does where ``others`` would match.
    """
    exact = any(other.startswith(name) for name in devices for other in others)
    value = ("=" if exact else "") + ",".join(devices)
    return Remedy(
        summary=(
            f"Only for jobs of several nodes: {', '.join(devices)} is the candidate for NCCL_IB_HCA."
            f" {gid_index or _ASK_FOR_INDEX}"
        ),
        settings=(Setting(name="NCCL_IB_HCA", value=value, why=why),),
        commands=()
        if gid_index
        else (
            "show_gids",
            *(f"grep . /sys/class/infiniband/{name}/ports/1/gid_attrs/types/*" for name in devices),
        ),
        cost="other NICs stay idle; nothing changes within one node",
        undo="unset NCCL_IB_HCA",
        proof=Proof(reason="it takes several nodes to try"),
        references=(nccl_settings.entry("NCCL_IB_HCA"), nccl_settings.entry("NCCL_IB_GID_INDEX")),
    )


def name_hca(candidate: Remedy) -> Remedy:
    """The same as a line to paste, where it mends another thing than the finding's own fault: not to be tried."""
    lines = [f"export {setting.name}={setting.value}" for setting in candidate.settings]
    return candidate.model_copy(update={"settings": (), "commands": (*lines, *candidate.commands)})


def look_at_nvlinks(gpus: tuple[str, ...]) -> Remedy:
    """Find out which link is down, and why."""
    numbers = [gpu.removeprefix("GPU") for gpu in gpus]
    return by_administrator(
        f"Look at the links of {' and '.join(gpus)}; reset or reseat what is down",
        *(f"nvidia-smi nvlink -s -i {number}" for number in numbers),
        *(f"nvidia-smi nvlink -e -i {number}" for number in numbers),
        "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
        cost="a reset needs the node drained; a bridge or board needs hands",
        references=("https://docs.nvidia.com/deploy/xid-errors/",),
    )
