"""Who made a machine, by its firmware, and what drives its network interfaces.

    /sys/class/dmi/id/sys_vendor                 Amazon EC2
    /sys/class/dmi/id/product_name               p5.48xlarge
    /sys/class/dmi/id/chassis_asset_tag          Amazon EC2
    /sys/class/net/ens32/device/driver           -> ../../../../bus/pci/drivers/ena

Serial numbers and UUIDs stand beside them, which only root may read; they are not asked for.
"""

from ddp_doctor.knowledge.topology.cluster_kinds import Maker
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in
from ddp_doctor.probing.pci_devices import NET

_DMI = "/sys/class/dmi/id"
_LONGEST = 80


def read_maker(ctx: Context) -> Maker:
    """What this host reports; raises nothing."""
    drivers = {end_of(ctx, f"{NET}/{name}/device/driver") for name in names_in(ctx, NET)}
    return Maker(
        vendor=_dmi_text(ctx, "sys_vendor"),
        product=_dmi_text(ctx, "product_name"),
        asset_tag=_dmi_text(ctx, "chassis_asset_tag"),
        network_drivers=tuple(sorted(name[:_LONGEST] for name in drivers if name)),
    )


def _dmi_text(ctx: Context, name: str) -> str | None:
    text = first_line(ctx, f"{_DMI}/{name}") or ""
    return "".join(sign for sign in text if sign.isprintable())[:_LONGEST].strip() or None
