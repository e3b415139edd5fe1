"""Helper script: print the version of one libnccl file, as the library itself reports it.

Loading a driver library may hang or crash, so it happens in a separate process. Run by path with the library's file;
prints one JSON object: ``{"version_code": 22907}`` or ``{"error": "..."}``.
"""

import ctypes
import json
import os
import sys


def main(path: str) -> None:
    """Load the library, query it and print; ``os._exit`` because the library's own exit hooks do not matter."""
    print(json.dumps(ask(path)), flush=True)  # noqa: T201  the answer to the agent
    os._exit(0)


def ask(path: str) -> dict[str, object]:
    """Return NCCL's version code (nccl.h: major * 10000 + minor * 100 + patch since 2.9), or the error."""
    code = ctypes.c_int(0)
    try:
        status = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError) as error:
        return {"error": str(error)}
    if status != 0:
        return {"error": f"ncclGetVersion returned {status}"}
    return {"version_code": code.value}


if __name__ == "__main__":
    main(sys.argv[1])
