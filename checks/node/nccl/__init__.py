"""Settings and libraries that NCCL would load here but the environment does not show: nccl.conf and plug-ins.

/etc/nccl.conf can set NCCL_IB_DISABLE=1 for every job of the node, and `env` does not print it. NCCL silently skips a
network plug-in that is missing or lacks a library, and uses plain sockets while EFA devices are idle. This check loads
nothing: it reads the linker's cache, LD_LIBRARY_PATH and ldd. Raw input::

    NCCL_IB_HCA=mlx5                                                                     /etc/nccl.conf, line 3
            libnccl-net.so (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl-net.so    ldconfig -p
            libfabric.so.1 => not found                                                  ldd libnccl-net.so
    rdmap16s27/device/driver -> …/drivers/efa                                            /sys/class/infiniband
"""

import posixpath
from collections.abc import Iterator, Mapping

from ddp_doctor.checks.node.nccl import complaints, conf, plugins
from ddp_doctor.facts.node.nccl import NcclFact, Plugin
from ddp_doctor.knowledge.network import nccl_plugins
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse import software
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.probing import nccl_interface, rdma
from ddp_doctor.probing.kernel_files import names_in
from ddp_doctor.settings.nccl_conf import read_by, set_by_files

_NAMES_OF_LIBRARIES = ("NCCL_NET", *(variable for variable, _ in nccl_plugins.SETTINGS.values()))
_LDCONFIG = "/sbin/ldconfig"  # a user's PATH seldom has /sbin


def probe(ctx: Context) -> NcclFact:
    """Read the files and search where the linker would. Never fails; it may find nothing."""
    files = nccl_interface.conf_files(ctx)
    in_files, added = set_by_files(files), set_by_files(read_by(files))
    own = {name: ctx.env[name] for name in (*in_files, *_NAMES_OF_LIBRARIES) if name in ctx.env}
    values, _ = open_and_withheld({**{name: value for name, (value, _) in added.items()}, **own})
    env = {name: values[name] for name in _NAMES_OF_LIBRARIES if name in values}
    return NcclFact(
        conf=files,
        overruled={name: values[name] for name in in_files if name in own and name in values},
        plugins=tuple(_plugins(ctx, env)),
        network=env.get("NCCL_NET") or None,
        efa_devices=rdma.efa_names(ctx),
    )


def _plugins(ctx: Context, env: Mapping[str, str]) -> Iterator[Plugin]:
    """Yield every named plug-in, and the default plug-in of each kind if it exists."""
    answer = ctx.run((_LDCONFIG, "-p"))
    cache = software.cached(answer.stdout) if answer.ok else {}
    for kind, (variable, _) in nccl_plugins.SETTINGS.items():
        setting = variable if env.get(variable) else None
        for plugin in nccl_plugins.wanted(kind, env.get(variable)):
            found = _found(ctx, plugin, cache, look_further=setting is not None)
            others = nccl_plugins.USUAL_FOLDERS if found is None and kind == "net" else ()
            elsewhere = tuple(folder for folder in others if set(plugin.names) & set(names_in(ctx, folder)))
            if found or setting or elsewhere:
                yield Plugin(
                    kind=kind,
                    asked=plugin.asked,
                    setting=setting,
                    path=found,
                    brought_by=software.brought_by(ctx.env, found) if found else None,
                    missing=_missing_libraries(ctx, found) if found else (),
                    elsewhere=elsewhere,
                    unclear=found is None and "/" in plugin.asked and not plugin.asked.startswith("/"),
                )


def _found(ctx: Context, wanted: nccl_plugins.Wanted, cache: Mapping[str, str], *, look_further: bool) -> str | None:
    """Return the file that dlopen loads, in its search order; a conda environment's RPATHs come first."""
    conda = ctx.env.get("CONDA_PREFIX")
    first = (f"{conda}/lib",) if conda else ()
    folders = (*first, *software.entries(ctx.env, "LD_LIBRARY_PATH"))
    for name in wanted.names:
        if "/" in name:
            return name if posixpath.basename(name) in names_in(ctx, posixpath.dirname(name)) else None
        for folder in folders:
            if name in names_in(ctx, folder):
                return f"{folder.rstrip('/')}/{name}"
        if name in cache:
            return cache[name]
        for folder in (*nccl_plugins.DEFAULT_FOLDERS, *(_torch_library_folders(ctx) if look_further else ())):
            if name in names_in(ctx, folder):
                return f"{folder}/{name}"
    return None


def _torch_library_folders(ctx: Context) -> Iterator[str]:
    """Yield the directories of torch's own RPATH, which also applies to libraries that torch loads."""
    torch = software.torch_folder(ctx.child("software").stdout)
    if torch is not None:
        yield f"{torch}/lib"
        yield f"{posixpath.dirname(torch)}/nvidia/nccl/lib"


def _missing_libraries(ctx: Context, path: str) -> tuple[str, ...]:
    """Return the needed libraries that neither the linker nor torch provides. ldd does not run a shared library."""
    answer = ctx.run(("ldd", path))
    ctx.keep(answer.stdout)
    lost = software.missing_libraries(answer.stdout) if answer.ok else ()
    return tuple(name for name in lost if name.partition(".so")[0] not in nccl_plugins.LOADED_BY_TORCH)


CHECK = Check(
    id="nccl",
    title="Settings and plug-ins that NCCL takes from files",
    where=Where.NODE,
    probe=probe,
    facts=(NcclFact,),
    rules=rules_in(conf, complaints, plugins),
    cost_s=0.1,
)
