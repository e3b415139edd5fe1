"""NCCL's plug-ins: names that NCCL searches for, usual directories, and the effect of a missing plug-in.

    NCCL_NET_PLUGIN=ofi                 libraries "ofi", then "libnccl-net-ofi.so"
    NCCL_NET_PLUGIN unset               library "libnccl-net.so"; it may be missing
    NCCL_NET="AWS Libfabric"            "Failed to initialize any NET plugin", if no plug-in has that name

Sources: NCCL 2.21 src/net.cc and src/misc/tuner.cc, 2.30 src/plugin/plugin_open.cc, net.cc, tuner.cc and profiler.cc.
In every release, NCCL skips a plug-in that is missing, does not load or finds no device, with a line of level INFO, and
uses its own InfiniBand or sockets. A network named by NCCL_NET that no plug-in has ends the job.
"""

from dataclasses import dataclass
from typing import Literal

PluginKind = Literal["net", "tuner", "profiler"]

#: The variable that names it, and the library's name without its ending.
SETTINGS: dict[PluginKind, tuple[str, str]] = {
    "net": ("NCCL_NET_PLUGIN", "libnccl-net"),
    "tuner": ("NCCL_TUNER_PLUGIN", "libnccl-tuner"),
    "profiler": ("NCCL_PROFILER_PLUGIN", "libnccl-profiler"),
}

#: The names that NCCL_NET may have without a plug-in, compared without case (src/include/net.h).
OWN_NETWORKS = ("ib", "socket")

#: First release that reads NCCL_CONF_FILE (src/misc/param.cc).
CONF_FILE_SINCE = (2, 23, 4)
#: ~ is $HOME since this release, and the passwd entry's directory before (tested: 2.20.5 to 2.29.7, 2.30.4 to 2.32.3).
HOME_SINCE = (2, 30)

#: Directories of network plug-ins in images and installers, which LD_LIBRARY_PATH must then name: the EFA installer's
#: releases, HPC-X in NVIDIA's images, Google's TCPX, TCPXO and gIB installers.
USUAL_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/usr/local/tcpx/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/gib/lib64",
)

#: The directories that ld.so searches after its cache (ld.so(8)); which of them exist depends on the distribution.
DEFAULT_FOLDERS = (
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib",
    "/usr/lib",
)

#: Libraries that a CUDA build of torch has loaded before NCCL searches for plug-ins. A plug-in that needs one of them
#: loads even if ldd does not find it (dlopen uses a library that is loaded under the same name).
LOADED_BY_TORCH = ("libcuda", "libcudart", "libnccl", "libnvidia-ml", "libnvToolsExt", "libcupti", "libstdc++")


@dataclass(frozen=True)
class Wanted:
    """A plug-in that NCCL tries: the names it passes to dlopen, in order."""

    asked: str
    names: tuple[str, ...]


def wanted(kind: PluginKind, value: str | None) -> tuple[Wanted, ...]:
    """Return the plug-ins that NCCL tries for a value of the kind's variable; () if plug-ins are disabled.

    A comma separates several (since 2.27, networks only). An empty value means the default before 2.27 and no plug-in
    after. It is treated as the default, which may be missing.
    """
    prefix = SETTINGS[kind][1]
    if not value:
        return (Wanted(f"{prefix}.so", (f"{prefix}.so",)),)
    if value.lower() == "none":
        return ()
    found = []
    for name in value.split(",") if kind == "net" else [value]:
        if name and not "STATIC_PLUGIN".startswith(name.upper()):
            is_whole = "/" in name or (name.startswith("lib") and name.endswith(".so"))
            found.append(Wanted(name, (name,) if is_whole else (name, f"{prefix}-{name}.so")))
    return tuple(found)
