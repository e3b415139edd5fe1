"""System calls in which processes wait, by number (linux asm/unistd_64.h, asm-generic/unistd.h)."""

from typing import Literal, NamedTuple


class Call(NamedTuple):
    """A system call. ``takes``: how its arguments show what it waits for. Text: ``word`` and that, or ``alone``."""

    name: str
    takes: Literal["descriptor", "path", "pollfds", "epoll", ""] = "descriptor"
    word: str = "of"
    at: int = 0  # index of the path argument
    alone: str = ""


_READS = {"read": (0, 63), "recvfrom": (45, 207), "recvmsg": (47, 212), "pread64": (17, 67), "readv": (19, 65)}
_WRITES = {"write": (1, 64), "sendto": (44, 206), "sendmsg": (46, 211), "pwrite64": (18, 68), "writev": (20, 66)}
_OTHERS = {"flock": (73, 32), "fcntl": (72, 25), "fsync": (74, 82), "fdatasync": (75, 83), "ioctl": (16, 29)}
_MEETS = {"accept": (43, 202), "accept4": (288, 242), "connect": (42, 203)}
_CHILDREN = {"wait4": (61, 260), "waitid": (247, 95)}
_SLEEPS = {"nanosleep": (35, 101), "clock_nanosleep": (230, 115), "pause": (34, None), "rt_sigsuspend": (130, 133)}

_NUMBERS: tuple[tuple[Call, tuple[int | None, int | None]], ...] = (
    *((Call(name, word="from"), numbers) for name, numbers in _READS.items()),
    *((Call(name, word="to"), numbers) for name, numbers in _WRITES.items()),
    *((Call(name), numbers) for name, numbers in _OTHERS.items()),
    *((Call(name, word="on"), numbers) for name, numbers in _MEETS.items()),
    *((Call(name, "", alone=", for a process that it started"), numbers) for name, numbers in _CHILDREN.items()),
    *((Call(name, "", alone=", a sleep"), numbers) for name, numbers in _SLEEPS.items()),
    (Call("open", "path"), (2, None)),
    (Call("openat", "path", at=1), (257, 56)),
    (Call("futex", "", alone=", a lock or a signal of another thread"), (202, 98)),
    (Call("poll", "pollfds", "on"), (7, None)),
    (Call("ppoll", "pollfds", "on"), (271, 73)),
    (Call("epoll_wait", "epoll", "on"), (232, None)),
    (Call("epoll_pwait", "epoll", "on"), (281, 22)),
    (Call("select", ""), (23, None)),
    (Call("pselect6", ""), (270, 72)),
)
#: By machine name as in uname(2).
CALLS = {
    machine: {number: call for call, numbers in _NUMBERS if (number := numbers[column]) is not None}
    for column, machine in enumerate(("x86_64", "aarch64"))
}
