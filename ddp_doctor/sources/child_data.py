"""Read some of a job's data as its loaders would, in a separate program whose hanging reads can be killed.

    python -I child_data.py PATH SECONDS SEED BYTES FILES WORKERS
    {"problem": "", "read_bytes_per_s": {"large files": 1.2e9, "small pieces": 3e7, "four workers": 9e7}}

The program does not write. It skips files and directories that may not be read or have disappeared, because a rank
meets them by chance. With 0 seconds it only checks that there is something to read. For large files it bypasses the
page cache with O_DIRECT if the file system has it. Otherwise it asks the kernel to drop a file's pages before the read.
"""

# isort: skip_file
import os
import sys

if __name__ == "__main__":  # before importing modules that a file on PYTHONPATH may hide
    LIBRARY = os.__file__.rpartition("/")[0]
    sys.path.sort(key=lambda entry: entry not in (LIBRARY, f"{LIBRARY}/lib-dynload"))

import json
import mmap
import random
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

BLOCK_BYTES, PIECE_BYTES = 1 << 20, 1 << 16
#: Maximum number of directory entries to check, and the time for it.
MOST_ENTRIES, LOOK_S = 5000, 0.3
#: Files of the kernel, which are not data. Some of them have no end.
NO_DATA = ("/proc/", "/sys/")


def main(path: str, seconds: float, seed: int, most_bytes: int, most_files: int, workers: int) -> dict[str, object]:
    """Return the read rates, or the problem if nothing could be read. Raises OSError."""
    chance, real = random.Random(seed), os.path.realpath(path)
    kind = os.stat(path).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or f"{real}/".startswith(NO_DATA):
        return {"problem": "it is a FIFO, a device, a socket or of the kernel, and no data"}
    os.close(os.open(path, os.O_RDONLY))  # raises the error that keeps it from being read
    names = in_folder(real) if stat.S_ISDIR(kind) else iter([real])
    found = sorted((size, name) for name in names if (size := bytes_in(name)))
    if not found:
        return {"problem": "there is no file with bytes in it that may be read"}
    if not seconds:
        return {}
    (size, largest), rates = found[-1], dict[str, float]()
    if size > BLOCK_BYTES:
        start = chance.randrange(max((size - most_bytes) // BLOCK_BYTES, 1)) * BLOCK_BYTES
        rates["large files"] = sequential(largest, start, most_bytes, seconds)
    pieces = partial(in_pieces, [file for file in found if file[0] <= BLOCK_BYTES] or found, most_files, seconds)
    rates["small pieces"] = pieces(chance.random())
    with ThreadPoolExecutor(workers) as threads:  # reads run in parallel, and end with this process
        rates["four workers"] = sum(threads.map(pieces, [chance.random() for _ in range(workers)]))
    read = {name: rate for name, rate in rates.items() if rate}
    return {"problem": "" if read else "nothing could be read of its files", "read_bytes_per_s": read}


def in_folder(path: str) -> Iterator[str]:
    """Yield the paths of the files in a directory, within the limits."""
    left, until, folders = MOST_ENTRIES, time.monotonic() + LOOK_S, [path]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                left -= 1
                if left < 0 or time.monotonic() > until:
                    return
                real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if f"{real}/".startswith(NO_DATA):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(real)
                else:
                    yield real


def bytes_in(path: str) -> int:
    """Return the size of a regular file that may be read, or 0."""
    with suppress(OSError):
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode) and os.access(path, os.R_OK):
            return about.st_size
    return 0


def sequential(name: str, start: int, most_bytes: int, seconds: float) -> float:
    """Return the bytes per second read from ``start``, or 0 if they cannot be read."""
    buffer = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as O_DIRECT wants it
    for flag in (os.O_DIRECT, 0):
        with suppress(OSError), open(os.open(name, os.O_RDONLY | flag), "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began, done = time.monotonic(), 0
            while done < most_bytes and time.monotonic() - began < seconds:
                got = os.preadv(file.fileno(), [buffer], start + done)
                if not got:
                    break
                done += got
            return done / (time.monotonic() - began)
    return 0.0


def in_pieces(found: list[tuple[int, str]], most: int, seconds: float, seed: float) -> float:
    """Return the bytes per second of files or pieces of them, at random positions."""
    chance, began, done = random.Random(seed), time.monotonic(), 0
    for _ in range(most):
        size, name = chance.choice(found)
        with suppress(OSError), open(name, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            done += len(os.pread(file.fileno(), PIECE_BYTES, chance.randrange(max(size - PIECE_BYTES, 1))))
        if time.monotonic() - began > seconds:
            break
    return done / (time.monotonic() - began)


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
    except OSError as error:
        answer = {"problem": error.strerror}
    print(json.dumps(answer))  # noqa: T201  the answer to the rank
