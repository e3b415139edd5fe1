"""All ranks of one host of the real NCCL in one process, which makes many hosts cheap.

Run as ``ranks_of_host.py LIBNCCL HOST HOSTS EACH ID_FILE [BYTES …]``.

NCCL prints its tuning table while communicators are created, before any link is set up; then its choice for an
all-reduce of each size.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import rank  # type: ignore[import-not-found]  # the program beside this one


def main(library: str, host: int, hosts: int, each: int, id_file: Path, calls: list[str]) -> None:
    """Make the communicators of this host, do the calls on each, and end without waiting for data."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, rank.BY_LINE, 0)
    cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    if cuda.planted_attach(library.encode()) <= 0:
        sys.exit(f"{library} was not redirected")
    nccl = ctypes.CDLL(library)
    unique = rank.UniqueId()
    if host == 0:
        failed = nccl.ncclGetUniqueId(ctypes.byref(unique))
        rank.hand_over(id_file, b"" if failed else bytes(unique))
    content = rank.received(id_file)
    if not content:
        os._exit(rank.NO_ID)
    unique = rank.UniqueId.from_buffer_copy(content)
    communicators = [ctypes.c_void_p() for _ in range(each)]

    def on_each(call: Callable[[int, ctypes.c_void_p], int]) -> None:
        nccl.ncclGroupStart()
        for device, communicator in enumerate(communicators):
            cuda.planted_set_device(device)
            if code := call(device, communicator):
                os._exit(10 + code)
        if code := nccl.ncclGroupEnd():
            os._exit(10 + code)

    world, first = each * hosts, each * host
    on_each(lambda device, made: nccl.ncclCommInitRank(ctypes.byref(made), world, unique, first + device))
    for size in calls:
        data, count = ctypes.c_void_p(), ctypes.c_size_t(int(size) // 4)
        cuda.planted_malloc(ctypes.byref(data), ctypes.c_size_t(int(size)))
        on_each(lambda _, of: nccl.ncclAllReduce(data, data, count, rank.FLOAT32, rank.SUM, of, None))  # noqa: B023  # called here
    os._exit(0)


if __name__ == "__main__":
    _, path, own, of_hosts, of_ranks, file, *asked = sys.argv
    main(path, int(own), int(of_hosts), int(of_ranks), Path(file), asked)
