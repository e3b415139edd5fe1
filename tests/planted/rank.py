"""One rank of the real NCCL on simulated GPUs: ``rank.py LIBNCCL RANK WORLD DEVICE ID_FILE COLLECTIVES BYTES``.

Prints the result of each call between NCCL's own lines. The unique id goes from rank 0 to the others through a file.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.waiting import wait_until

FLOAT32, SUM = 7, 0
BY_LINE = 1
#: Exit code of a rank that could not begin, since rank 0 failed before.
NO_ID = 9


class UniqueId(ctypes.Structure):
    """128 bytes with the address where rank 0 listens."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


def main(library: str, rank: int, world: int, device: int, id_file: str, collectives: int, size: int) -> None:
    """Make a communicator, call so many all-reduces, abort it. Exits at the first call that fails."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, BY_LINE, 0)  # a rank that hangs is killed
    cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    if cuda.planted_attach(library.encode()) <= 0:
        sys.exit(f"{library} was not redirected")
    nccl = ctypes.CDLL(library)
    nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p

    def check(call: str, code: int) -> None:
        words = nccl.ncclGetErrorString(code).decode()
        print(f"{call} -> {code} {words}", flush=True)
        if code:
            print(f"last error: {(nccl.ncclGetLastError(None) or b'').decode()}", flush=True)
            if rank == 0 and not Path(id_file).exists():
                hand_over(Path(id_file), b"")
            os._exit(10 + code)

    cuda.planted_set_device(device)
    unique = UniqueId()
    if rank == 0:
        check("ncclGetUniqueId", nccl.ncclGetUniqueId(ctypes.byref(unique)))
        hand_over(Path(id_file), bytes(unique))
    else:
        content = received(Path(id_file))
        if not content:
            os._exit(NO_ID)
        unique = UniqueId.from_buffer_copy(content)
    communicator = ctypes.c_void_p()
    check("ncclCommInitRank", nccl.ncclCommInitRank(ctypes.byref(communicator), world, unique, rank))
    for _ in range(collectives):
        data = ctypes.c_void_p()
        cuda.planted_malloc(ctypes.byref(data), ctypes.c_size_t(size))
        count = ctypes.c_size_t(size // 4)
        check("ncclAllReduce", nccl.ncclAllReduce(data, data, count, FLOAT32, SUM, communicator, None))
    exchange(cuda, nccl, check, communicator, rank, world)
    check("ncclCommAbort", nccl.ncclCommAbort(communicator))  # destroying it waits for data, which do not move
    os._exit(0)


def exchange(
    cuda: ctypes.CDLL,
    nccl: ctypes.CDLL,
    check: Callable[[str, int], None],
    communicator: ctypes.c_void_p,
    rank: int,
    world: int,
) -> None:
    """Exchange data with every other rank, so that NCCL reports the path between each pair."""
    data = ctypes.c_void_p()
    cuda.planted_malloc(ctypes.byref(data), ctypes.c_size_t(1 << 20))
    check("ncclGroupStart", nccl.ncclGroupStart())
    for peer in range(world):
        if peer != rank:
            for call in (nccl.ncclSend, nccl.ncclRecv):
                code = call(data, ctypes.c_size_t(1), FLOAT32, peer, communicator, None)
                if code:
                    check(call.__name__, code)
    check("ncclGroupEnd", nccl.ncclGroupEnd())


def hand_over(file: Path, content: bytes) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(content)
    part.rename(file)


def received(file: Path) -> bytes:
    """Return the unique id of rank 0 when it has been written."""
    wait_until(file.exists, "rank 0 writes the unique id")
    return file.read_bytes()


if __name__ == "__main__":
    _, path, own, of, gpu, id_path, calls, bytes_each = sys.argv
    main(path, int(own), int(of), int(gpu), id_path, int(calls), int(bytes_each))
