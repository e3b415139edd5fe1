"""Who made the CPU, and which it is, from /proc/cpuinfo; NCCL's limits and rates depend on it.

vendor_id       : GenuineIntel
cpu family      : 6
model           : 143
"""

from ddp_doctor.model.context import Context


def cpu_vendor(ctx: Context) -> str | None:
    """The vendor as printed, "ARM" for 64-bit Arm, None where it cannot be told."""
    fields = _fields(ctx)
    # Arm prints its implementer in place of a vendor.
    return fields.get("vendor_id") or ("ARM" if "CPU implementer" in fields else None)


def cpu_model(ctx: Context) -> int | None:
    """The number of the model within family 6, which is that of Intel's; None for other families."""
    fields = _fields(ctx)
    model = fields.get("model", "")
    return int(model) if fields.get("cpu family") == "6" and model.isdecimal() and len(model) < 4 else None


def _fields(ctx: Context) -> dict[str, str]:
    """All processors in one: they are of one kind."""
    try:
        lines = ctx.read("/proc/cpuinfo").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
