"""Xids, the fault numbers of the NVIDIA driver in the kernel log: their meaning and the action they require.

Meaning and action follow NVIDIA's Xid catalog (its "immediate action"), in our words. ``stays`` is an additional
judgment: the GPU is unusable until it is reset, the driver is reloaded, or the machine is rebooted. Xids that an
application causes are normal on a shared node and do not indicate a bad GPU.
"""

from dataclasses import dataclass
from typing import Literal

CATALOG = "NVIDIA Xid catalog, https://docs.nvidia.com/deploy/xid-errors/"

#: A GPU or NVSwitch in the kernel log, and the text before the number in every form of its lines: "NVRM: Xid
#: (PCI:0000:2b:00): 79, pid=…" and "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, …".
BUS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
XID_LINE = rf"NVRM: Xid \((?:PCI:)?(?P<bus>{BUS})[^)]{{0,24}}\): "
SXID_LINE = rf"SXid \(PCI:(?P<bus>{BUS})\): "
#: A line about a GPU that does not answer.
OFF_BUS_LINE = (
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<bus>{BUS}):? (?:\([^()]{{1,40}}\) )?"
    r"(?:installed in this system )?(?:GPU )?has fallen off the bus"
)

#: application: caused by a program, or by its end. watch: worth knowing, no action needed now. reset and reboot:
#: required to use the GPU again.
Class = Literal["application", "watch", "reset", "reboot"]


@dataclass(frozen=True)
class Xid:
    """The meaning of an Xid, and the action it requires."""

    meaning: str
    kind: Class
    stays: bool = False
    cause: str = "gpu-fault"  # of failed jobs; "" if it does not end a job itself


#: Accompanies other Xids. Its text contains the action that the driver asks for: "GPU recovery action changed from 0x0
#: (None) to 0x1 (GPU Reset Required)".
RECOVERY_ACTION = 154
#: The words of that text that require no action.
NO_RECOVERY = ("None",)
#: The words that require a reboot; all others require a reset.
REBOOT_WORDS = ("Reboot",)

XIDS: dict[int, Xid] = {
    13: Xid("illegal instruction or address in a kernel", "application", cause="illegal-memory-access"),
    31: Xid("illegal memory access (MMU fault)", "application", cause="illegal-memory-access"),
    32: Xid("invalid commands from the driver's library", "application"),
    43: Xid("stopped after a fault of an application", "application", cause=""),
    44: Xid("fault during a context switch", "application"),
    45: Xid("cleaned up after a process that ended or was killed", "application", cause=""),
    46: Xid("stopped processing (timeout)", "reset"),
    48: Xid("double-bit memory error", "reset", stays=True, cause="gpu-ecc-error"),
    61: Xid("fault of an internal micro-controller", "watch"),
    62: Xid("halt of an internal micro-controller", "reset", stays=True),
    63: Xid("a bad memory row will be remapped at the next reset", "watch", cause=""),
    64: Xid("a bad memory row could not be remapped", "reset", stays=True, cause="gpu-ecc-error"),
    68: Xid("video decoder exception", "application"),
    69: Xid("graphics class error", "application"),
    74: Xid("NVLink error", "reset", cause="nvlink-error"),
    79: Xid("fallen off the bus", "reboot", stays=True, cause="gpu-off-bus"),
    92: Xid("many corrected memory errors", "watch", cause=""),
    93: Xid("wear of the InfoROM", "watch"),
    94: Xid("memory error, contained: only the program that used the page is lost", "watch", cause="gpu-ecc-error"),
    95: Xid("memory error, not contained", "reset", stays=True, cause="gpu-ecc-error"),
    109: Xid("a context switch took too long", "reset"),
    110: Xid("security fault", "reset", stays=True),
    119: Xid("the GPU's system processor (GSP) does not answer", "reset", stays=True, cause="gsp-timeout"),
    120: Xid("the GPU's system processor (GSP) failed", "reset", stays=True, cause="gsp-timeout"),
    121: Xid("error on the link to the CPU (C2C)", "watch"),
    136: Xid("an NVLink could not be trained", "reset", cause="nvlink-error"),
    137: Xid("NVLink access to an illegal address of a peer", "application", cause="illegal-memory-access"),
    140: Xid("memory error that was not recovered", "reset", stays=True, cause="gpu-ecc-error"),
    143: Xid("the GPU could not be initialized", "reset", stays=True),
    144: Xid("NVLink error (SAW)", "watch", cause="nvlink-error"),
    145: Xid("NVLink error (RLW)", "watch", cause="nvlink-error"),
    146: Xid("NVLink error (TLW)", "watch", cause="nvlink-error"),
    147: Xid("NVLink error (TREX)", "watch", cause="nvlink-error"),
    148: Xid("NVLink error (NVLPW)", "watch", cause="nvlink-error"),
    149: Xid("NVLink error (NETIR)", "watch", cause="nvlink-error"),
    150: Xid("NVLink error (MSE)", "watch", cause="nvlink-error"),
    155: Xid("NVLink error reported by software", "reset", cause="nvlink-error"),
    156: Xid("a faulty part of the GPU will be retired", "reset"),
    157: Xid("a faulty part of the GPU could not be retired", "watch"),
    158: Xid("fatal timeout", "reset", stays=True),
    171: Xid("detail of a double-bit memory error (DRAM)", "watch", cause="gpu-ecc-error"),
    172: Xid("detail of a double-bit memory error (SRAM)", "watch", cause="gpu-ecc-error"),
}
#: A GPU that the driver found off the bus without an Xid is treated like this Xid.
OFF_BUS = 79
UNKNOWN = Xid("unknown to ddp-doctor", "watch")


def xids_of(cause: str, *kinds: Class) -> str:
    """Return the Xids of a cause of failed jobs, of these kinds, as the alternatives of a pattern."""
    of_cause = {code: known for code, known in XIDS.items() if known.cause == cause}
    return "|".join(str(code) for code, known in of_cause.items() if not kinds or known.kind in kinds)


#: NVLink 5: the text shows whether such an error is fatal; a fatal error requires a reset.
NVLINK5 = range(144, 151)

#: Maximum age of a recent fault: jobs of the same day may still suffer from its cause.
RECENT_S = 24 * 3600.0
#: Maximum age of an application's crash that is worth a line, because its cause may still be sought.
JUST_NOW_S = 3600.0


def xid(code: int, detail: str = "") -> Xid:
    """Return the meaning of an Xid. ``detail`` is "Fatal" if its text contains that word."""
    known = XIDS.get(code, UNKNOWN)
    if code in NVLINK5 and detail == "Fatal":
        return Xid(f"fatal {known.meaning}", "reset", stays=True)
    return known
