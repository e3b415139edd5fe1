"""Helper script: print the address that NCCL chooses on this host, from the library that torch would load.

Run by path in a separate process, because a library may hang or crash. ``ncclGetUniqueId`` needs no GPU: it chooses an
interface, opens the bootstrap root's socket and writes its address into the id. Prints one JSON object, ``{"address":
"10.0.0.1", "version_code": 22907}``, or the reason as ``"absent"`` or ``"error"``.

The script does not import ddp_doctor, and finds torch without importing it, which takes a second.
"""

import ctypes
import importlib.util
import json
import os
import socket
import sys
from pathlib import Path

NCCL_FILE = "libnccl.so.2"
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES, nccl.h
#: bootstrap.h: struct ncclBootstrapHandle is a 64-bit magic number followed by the sockaddr.
ADDRESS_AT = 8


def main() -> None:
    """Find the library, query it and print; ``os._exit`` because the root's thread still listens."""
    print(json.dumps(ask(find())), flush=True)  # noqa: T201  the answer to the agent
    os._exit(0)


def find() -> str:
    """Return the copy in LD_LIBRARY_PATH, in the wheels' directory or in torch itself, or the name for the loader."""
    folders = [Path(name) for name in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if name]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        torch = Path(spec.origin).parent
        folders += [torch.parent / "nvidia" / "nccl" / "lib", torch / "lib"]
    copies = (folder / NCCL_FILE for folder in folders)
    return next((str(copy) for copy in copies if copy.exists()), NCCL_FILE)


def ask(library: str) -> dict[str, object]:
    """Return NCCL's version and the address in a new unique id, or NCCL's error message."""
    code, unique_id = ctypes.c_int(0), ctypes.create_string_buffer(ID_BYTES)
    try:
        nccl = ctypes.CDLL(library)
        nccl.ncclGetVersion(ctypes.byref(code))
        status = nccl.ncclGetUniqueId(unique_id)
    except (OSError, AttributeError) as error:
        return {"absent": str(error)}
    answer: dict[str, object] = {"version_code": code.value}
    if status != 0:
        return {**answer, "status": status, "error": last_error(nccl)}
    return {**answer, **address(unique_id.raw[ADDRESS_AT:])}


def last_error(nccl: ctypes.CDLL) -> str:
    """Return NCCL's error message, or "" before version 2.13."""
    try:
        nccl.ncclGetLastError.restype = ctypes.c_char_p
        nccl.ncclGetLastError.argtypes = (ctypes.c_void_p,)
        words = nccl.ncclGetLastError(None) or b""
    except AttributeError:
        words = b""
    return str(words.decode("utf-8", "replace")).strip()


def address(raw: bytes) -> dict[str, object]:
    """Return the address in a sockaddr_in or sockaddr_in6: family, port, then the address (IPv6: flow before)."""
    family = int.from_bytes(raw[:2], sys.byteorder)
    if family == socket.AF_INET:
        return {"address": socket.inet_ntop(family, raw[4:8])}
    if family == socket.AF_INET6:
        scope = int.from_bytes(raw[24:28], sys.byteorder)
        text = socket.inet_ntop(family, raw[8:24])
        return {"address": f"{text}%{socket.if_indextoname(scope)}" if scope else text}
    return {"absent": f"the unique id holds no address that is understood (family {family})"}


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    main()
