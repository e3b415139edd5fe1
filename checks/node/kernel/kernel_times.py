"""When the machine was booted, and how long ago: what the stamps of the kernel log are held against.

/proc/uptime   81234.56 1234567.89
/proc/stat     btime 1714560000
"""

import re

from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import first_line

_BTIME = re.compile(r"^btime (\d{1,12})$", re.MULTILINE | re.ASCII)


def uptime_s(ctx: Context) -> float | None:
    """Seconds since the boot. A container may be shown its own, which is less than the machine's."""
    found = re.match(r"\d{1,12}\.\d+", first_line(ctx, "/proc/uptime") or "", re.ASCII)
    return max(float(found[0]), ctx.clock()) if found else None


def booted_at(ctx: Context) -> float | None:
    """The time of the boot, in seconds since the epoch."""
    try:
        found = _BTIME.search(ctx.read("/proc/stat"))
    except OSError:
        return None
    return float(found[1]) if found else None
