"""Files, folders and links of /proc, /sys and /dev, where what cannot be read does not exist.

    /sys/bus/pci/devices/0000:1b:00.0/vendor   0x10de
    /sys/bus/pci/devices/0000:1b:00.0/driver   -> ../../../../bus/pci/drivers/nvidia

Read through the probe's context; nothing is raised, also where an environment names a path with a NUL in it.
"""

from ddp_doctor.model.context import Context


def text_of(ctx: Context, path: str) -> str | None:
    """The text of a file, or None."""
    try:
        return ctx.read(path)
    except (OSError, ValueError):
        return None


def first_line(ctx: Context, path: str) -> str | None:
    """The first line of a file, or None."""
    text = text_of(ctx, path)
    return None if text is None else text.partition("\n")[0].strip()


def names_in(ctx: Context, folder: str) -> list[str]:
    """The names in a folder; none where there is no such folder."""
    try:
        return ctx.listdir(folder)
    except (OSError, ValueError):
        return []


def target_of(ctx: Context, link: str) -> str | None:
    """Where a link leads, or None."""
    try:
        return ctx.readlink(link)
    except (OSError, ValueError):
        return None


def end_of(ctx: Context, link: str) -> str | None:
    """The last part of where a link leads, or None."""
    target = target_of(ctx, link)
    return None if target is None else target.rstrip("/").rpartition("/")[2]


def port_range(ctx: Context) -> tuple[int, int] | None:
    """The first and the last of the ports that the kernel gives out, or None."""
    words = (text_of(ctx, "/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdecimal, words)) else None
