"""Who made the CPU, from /proc/cpuinfo (``vendor_id : GenuineIntel``); NCCL's limits depend on it."""

from ddp_doctor.model.context import Context


def cpu_vendor(ctx: Context) -> str | None:
    """The vendor as printed, "ARM" for 64-bit Arm, None where it cannot be told."""
    try:
        lines = ctx.read("/proc/cpuinfo").splitlines()
    except OSError:
        return None
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # Arm prints its implementer in place of a vendor.
    return fields.get("vendor_id") or ("ARM" if "CPU implementer" in fields else None)
