"""Where the dynamic linker finds libraries: its cache, LD_LIBRARY_PATH and LD_PRELOAD, and what ldd misses.

``ldconfig -p`` and ldd::

    1214 libs found in cache `/etc/ld.so.cache'
            libnccl-net.so (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl-net.so

            libfabric.so.1 => not found
"""

import posixpath
import re
from collections.abc import Mapping

_CACHED = re.compile(r"^[ \t]+(\S+) \([^()\n]*64[^()\n]*\) => (/[^\n]+)$", re.MULTILINE | re.ASCII)
_MISSING = re.compile(r"^[ \t]+(\S+) => not found[ \t]*$", re.MULTILINE | re.ASCII)


def cached(ldconfig_output: str) -> Mapping[str, str]:
    """The file of each 64-bit library in the linker's cache; of several the first."""
    found: dict[str, str] = {}
    for match in _CACHED.finditer(ldconfig_output):
        found.setdefault(match[1], match[2].rstrip())
    return found


def missing_libraries(ldd_output: str) -> tuple[str, ...]:
    """The libraries that ldd did not find."""
    return tuple(dict.fromkeys(match[1] for match in _MISSING.finditer(ldd_output)))


def entries(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The entries of LD_LIBRARY_PATH or LD_PRELOAD: a colon parts them, in LD_PRELOAD white space too."""
    signs = r"[:\s]" if name == "LD_PRELOAD" else r"[:;]"
    return tuple(entry for entry in re.split(signs, env.get(name, "")) if entry)


def brought_by(env: Mapping[str, str], library: str) -> str | None:
    """The setting and its entry that bring this file into a process: "LD_PRELOAD=/opt/x.so"; None for none."""
    file = posixpath.normpath(library)
    for entry in entries(env, "LD_PRELOAD"):
        if posixpath.normpath(entry) == file or entry == posixpath.basename(file):
            return f"LD_PRELOAD={entry}"
    for entry in entries(env, "LD_LIBRARY_PATH"):
        if posixpath.normpath(entry) == posixpath.dirname(file):
            return f"LD_LIBRARY_PATH={entry}"
    return None
