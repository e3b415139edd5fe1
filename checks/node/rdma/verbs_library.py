"""The libibverbs that the loader would find, and the devices that it has drivers for.

NCCL opens libibverbs.so.1 when it starts, and uses TCP if it is missing (src/misc/ibvsymbols.cc). The library reads the
names of its drivers from one file each::

    /usr/lib/x86_64-linux-gnu/libibverbs.so.1
    /etc/libibverbs.d/mlx5.driver                driver mlx5

An image with the package libibverbs1 but without ibverbs-providers opens the library and finds no device.
"""

import errno
import re
from collections.abc import Iterator

from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import names_in, text_of

LIBRARY = "libibverbs.so.1"
PROVIDERS = "/etc/libibverbs.d"
_SYSTEM = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"),
    *("/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"),
)
_CONFIGURATION = "/etc/ld.so.conf.d"
#: The kernel driver of a device, and the name of its user-space driver.
PROVIDER_OF = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "hns3": "hns",
    "efa": "efa",
    "qedr": "qedr",
    "ionic": "ionic",
    "mana": "mana",
}


def verbs_library(ctx: Context) -> str | None:
    """Return the path of the library, or None."""
    return next((path for path in (f"{folder}/{LIBRARY}" for folder in _folders(ctx)) if _exists(ctx, path)), None)


def verbs_providers(ctx: Context, library: str | None) -> tuple[str, ...] | None:
    """Return the drivers of a library installed by system packages; None for any other library."""
    if library is None or not library.startswith(_SYSTEM) or library.startswith("/usr/local"):
        return None
    files = [name for name in names_in(ctx, PROVIDERS) if name.endswith(".driver")]
    return tuple(name.removesuffix(".driver") for name in files)


def _folders(ctx: Context) -> Iterator[str]:
    yield from (name for name in ctx.env.get("LD_LIBRARY_PATH", "").split(":") if name.startswith("/"))
    yield from _SYSTEM
    for file in names_in(ctx, _CONFIGURATION):
        lines = (text_of(ctx, f"{_CONFIGURATION}/{file}") or "").splitlines()
        yield from (line.strip() for line in lines if re.match(r"\s*/\S", line))


def _exists(ctx: Context, path: str) -> bool:
    """Return True if the file exists; packages install a link or the file itself (EINVAL)."""
    try:
        ctx.readlink(path)
    except OSError as error:
        return error.errno == errno.EINVAL
    return True
