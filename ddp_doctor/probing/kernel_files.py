"""Files, directories and links of /proc, /sys and /dev. What cannot be read counts as missing.

    /sys/bus/pci/devices/0000:1b:00.0/vendor   0x10de
    /sys/bus/pci/devices/0000:1b:00.0/driver   -> ../../../../bus/pci/drivers/nvidia

Everything is read through the probe's context. Nothing is raised, even if an environment variable holds a path with a
NUL.
"""

from ddp_doctor.model.context import Context


def text_of(ctx: Context, path: str) -> str | None:
    """Return the text of a file, or None."""
    try:
        return ctx.read(path)
    except (OSError, ValueError):
        return None


def first_line(ctx: Context, path: str) -> str | None:
    """Return the first line of a file, or None."""
    text = text_of(ctx, path)
    return None if text is None else text.partition("\n")[0].strip()


def names_in(ctx: Context, folder: str) -> list[str]:
    """Return the names in a directory; empty if it does not exist."""
    try:
        return ctx.listdir(folder)
    except (OSError, ValueError):
        return []


def target_of(ctx: Context, link: str) -> str | None:
    """Return the target of a link, or None."""
    try:
        return ctx.readlink(link)
    except (OSError, ValueError):
        return None


def end_of(ctx: Context, link: str) -> str | None:
    """Return the last component of a link's target, or None."""
    target = target_of(ctx, link)
    return None if target is None else target.rstrip("/").rpartition("/")[2]


def port_range(ctx: Context) -> tuple[int, int] | None:
    """Return the first and the last ephemeral port of the kernel, or None."""
    words = (text_of(ctx, "/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdecimal, words)) else None
