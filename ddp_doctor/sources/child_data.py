"""Read some of a job's data, as its loaders would; a program of its own, so that reads that hang can be ended.

    python -I child_data.py '{"path": "/data", "seed": 3, "bytes": 67108864, "files": 64, "seconds": 0.1, "workers": 4}'
    {"problem": "", "file_system": "nfs4", "cache": "O_DIRECT",
     "sequential_bytes_per_s": 1.2e9, "small_bytes_per_s": 3e7, "workers_bytes_per_s": 9e7}

Nothing is written. With 0 seconds it only looks whether there is something to read. The page cache is avoided by
O_DIRECT where the file system has it, else the kernel is asked to drop the file's pages before (posix_fadvise); small
files are always read so.
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

BLOCK_BYTES, SMALL_BYTES = 1 << 20, 1 << 16
#: Entries of a folder that are looked at, and for how long.
MOST_ENTRIES, LOOK_S = 5000, 0.3
#: Files of the kernel, which are no data, and of which some have no end.
NO_DATA = ("/proc", "/sys", "/dev")


def main(path: str, seed: int, most_bytes: int, most_files: int, seconds: float, workers: int) -> dict[str, object]:
    """What was read, or why nothing could be."""
    random.seed(seed)
    real = os.path.realpath(path)
    if any(real == root or real.startswith(f"{root}/") for root in NO_DATA):
        return {"problem": f"{path} is of the kernel and no data"}
    try:
        found = sorted(files(real))
        if not found:
            return {"problem": f"{path} holds no file with bytes in it"}
        with open(found[-1][1], "rb"):  # permissions are told before anything is timed
            answer: dict[str, object] = {"problem": "", "file_system": file_system(real)}
        if seconds:
            small = [name for size, name in found if size < BLOCK_BYTES]
            size, largest = found[-1]
            if size >= BLOCK_BYTES:
                answer["sequential_bytes_per_s"], answer["cache"] = sequential(largest, size, most_bytes, seconds)
            answer["small_bytes_per_s"] = in_pieces(small, found, most_files, seconds)
            answer["workers_bytes_per_s"] = sum(by_workers(small, found, most_files, seconds, workers))
    except OSError as error:
        return {"problem": f"{error.filename or path}: {error.strerror}"}
    return answer


def files(path: str) -> Iterator[tuple[int, str]]:
    """Sizes and paths of the regular files there, as far as they are looked at. Raises OSError."""
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        size = os.stat(path).st_size
        yield from [(size, path)] if size else []
        return
    if not stat.S_ISDIR(mode):
        kind = "FIFO" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        raise OSError(0, f"it is a {kind}, and no file or folder", path)
    left, until, folders = MOST_ENTRIES, time.monotonic() + LOOK_S, [path]
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
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        rows = [line.split() for line in lines]
    return next((row[row.index("-") + 1] for row in rows if row[2] == number), "")


def sequential(name: str, size: int, most_bytes: int, seconds: float) -> tuple[float, str]:
    """Bytes a second from a block of chance on, and how the page cache was avoided."""
    buffer = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as O_DIRECT wants it
    start = random.randrange(max(size // BLOCK_BYTES - most_bytes // BLOCK_BYTES, 1)) * BLOCK_BYTES
    for flag, cache in ((getattr(os, "O_DIRECT", 0), "O_DIRECT"), (0, "dropped")):
        try:
            descriptor = os.open(name, os.O_RDONLY | flag)
        except OSError:
            if not flag:
                raise
            continue
        with os.fdopen(descriptor, "rb", buffering=0):
            drop(descriptor)
            began, done = time.monotonic(), 0
            try:
                while done < most_bytes and (got := os.preadv(descriptor, [buffer], start + done)):
                    done += got
                    if time.monotonic() - began > seconds or got < BLOCK_BYTES:
                        break
            except OSError:
                if not flag or done:
                    raise
                continue
            return done / (time.monotonic() - began), cache
    return 0.0, ""


def drop(descriptor: int) -> None:
    """Ask the kernel to forget the pages of a file that nobody has mapped or changed."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def in_pieces(small: list[str], found: list[tuple[int, str]], most_files: int, seconds: float) -> float:
    """Bytes a second of whole small files; where there are none, of pieces from places of chance in the others."""
    began, done = time.monotonic(), 0
    for _ in range(most_files):
        size, name = random.choice(found)
        name = random.choice(small) if small else name
        with open(name, "rb", buffering=0) as file:
            drop(file.fileno())
            if small:
                done += len(file.read(BLOCK_BYTES))
            else:
                done += len(os.pread(file.fileno(), SMALL_BYTES, random.randrange(max(size - SMALL_BYTES, 1))))
        if time.monotonic() - began > seconds:
            break
    return done / (time.monotonic() - began)


def by_workers(
    small: list[str], found: list[tuple[int, str]], most_files: int, seconds: float, workers: int
) -> Iterator[float]:
    """The rate of each of several processes that read at once."""
    pipes = []
    for number in range(workers):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            random.seed(random.random() + number)
            rate = 0.0
            try:
                rate = in_pieces(small, found, most_files, seconds)
            finally:
                os.write(theirs, str(rate).encode())
                os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    for ours in pipes:
        with os.fdopen(ours, "rb") as file:
            yield float(file.read() or 0)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    names = ("path", "seed", "bytes", "files", "seconds", "workers")
    print(json.dumps(main(*(asked[name] for name in names))))  # noqa: T201  the answer to the rank
