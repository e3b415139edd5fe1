"""Read some of a job's data, as its loaders would; a program of its own, so that reads that hang can be ended.

    python -I child_data.py PATH SECONDS SEED BYTES FILES WORKERS
    {"problem": "", "file_system": "nfs4", "cache": "O_DIRECT",
     "read_bytes_per_s": {"large files": 1.2e9, "small pieces": 3e7, "four workers": 9e7}}

Nothing is written. With 0 seconds it only looks whether there is something to read. The page cache is avoided by
O_DIRECT for large files where the file system has it, else the kernel is asked to drop a file's pages before.
"""

# isort: skip_file
import os
import sys

if __name__ == "__main__":  # before anything is imported that a file on PYTHONPATH may hide
    LIBRARY = os.__file__.rpartition("/")[0]
    sys.path.sort(key=lambda entry: entry not in (LIBRARY, f"{LIBRARY}/lib-dynload"))

import json
import mmap
import random
import stat
import time
from collections.abc import Iterator
from functools import partial

BLOCK_BYTES, PIECE_BYTES = 1 << 20, 1 << 16
#: Entries of folders that are looked at, and for how long.
MOST_ENTRIES, LOOK_S = 5000, 0.3
#: Files of the kernel, which are no data, and of which some have no end.
NO_DATA = ("/proc/", "/sys/")


def main(path: str, seconds: float, seed: int, most_bytes: int, most_files: int, workers: int) -> dict[str, object]:
    """What was read, or why nothing could be. Raises OSError."""
    random.seed(seed)
    if f"{os.path.realpath(path)}/".startswith(NO_DATA):
        return {"problem": f"{path} is of the kernel and no data"}
    found = sorted(files(path))
    if not found:
        return {"problem": f"{path} holds no file with bytes in it"}
    size, largest = found[-1]
    os.close(os.open(largest, os.O_RDONLY))  # permissions are told before anything is timed
    rates, cache = dict[str, float](), "dropped"
    if seconds:
        pieces = partial(in_pieces, [file for file in found if file[0] <= BLOCK_BYTES] or found, most_files, seconds)
        if size > BLOCK_BYTES:
            rates["large files"], cache = sequential(largest, size, most_bytes, seconds)
        rates |= {"small pieces": pieces(seed), "four workers": sum(in_processes(pieces, workers))}
    return {"problem": "", "file_system": file_system(path), "cache": cache, "read_bytes_per_s": rates}


def files(path: str) -> Iterator[tuple[int, str]]:
    """Sizes and paths of the regular files there, as far as they are looked at. Raises OSError."""
    about = os.stat(path)
    if stat.S_ISREG(about.st_mode) and about.st_size:
        yield about.st_size, path
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError(0, "it is a FIFO, a device or a socket, and no file or folder", path)
    left, until, folders = MOST_ENTRIES, time.monotonic() + LOOK_S, [path] * stat.S_ISDIR(about.st_mode)
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                left -= 1
                if left < 0 or time.monotonic() > until:
                    return
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file() and (size := entry.stat().st_size):
                    yield size, entry.path


def file_system(path: str) -> str:
    """Its type by /proc/self/mountinfo: the device is the third field, the type the first behind the dash."""
    device = os.stat(path).st_dev
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        rows = [line.split() for line in lines]
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((row[row.index("-") + 1] for row in rows if row[2] == number), "")


def sequential(name: str, size: int, most_bytes: int, seconds: float) -> tuple[float, str]:
    """Bytes a second from a block of chance on, and how the page cache was avoided."""
    buffer = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as O_DIRECT wants it
    start = random.randrange(max((size - most_bytes) // BLOCK_BYTES, 1)) * BLOCK_BYTES
    for flag, cache in ((os.O_DIRECT, "O_DIRECT"), (0, "dropped")):
        try:
            descriptor = os.open(name, os.O_RDONLY | flag)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            began, done = time.monotonic(), 0
            while done < most_bytes and time.monotonic() - began < seconds:
                got = os.preadv(descriptor, [buffer], start + done)
                if not got:
                    break
                done += got
            return done / (time.monotonic() - began), cache
        except OSError:
            if not flag:
                raise
    return 0.0, ""


def in_pieces(found: list[tuple[int, str]], most: int, seconds: float, seed: int) -> float:
    """Bytes a second of files or pieces of them, from places of chance."""
    chance, began, done = random.Random(seed), time.monotonic(), 0
    for _ in range(most):
        size, name = chance.choice(found)
        with open(name, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            done += len(os.pread(file.fileno(), PIECE_BYTES, chance.randrange(max(size - PIECE_BYTES, 1))))
        if time.monotonic() - began > seconds:
            break
    return done / (time.monotonic() - began)


def in_processes(pieces: "partial[float]", workers: int) -> Iterator[float]:
    """The rate of each of several processes that read at once."""
    pipes = []
    for number in range(workers):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            try:
                os.write(theirs, str(pieces(random.randrange(1 << 30) + number)).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    for ours in pipes:
        with os.fdopen(ours) as file:
            yield float(file.read() or 0)


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
    except OSError as error:
        answer = {"problem": f"{error.filename or sys.argv[1]}: {error.strerror}"}
    print(json.dumps(answer))  # noqa: T201  the answer to the rank
