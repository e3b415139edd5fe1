"""Signals and exit codes of processes, in the forms that shells, torchrun, SLURM and Docker print.

exitcode: -9        torchrun: a signal, as Python's subprocess counts them
exit code 137       a shell, Docker, Kubernetes, srun: 128 and the signal
ExitCode=0:9        SLURM: exit code and signal
"""

import re
import signal
from typing import NamedTuple


class Ending(NamedTuple):
    """The meaning of a signal or an exit code, and the rules and causes it may belong to."""

    means: str
    codes: tuple[str, ...] = ()


_CRASHED = "an address that is not the process's own: a fault in a C++ or CUDA extension, libraries that do not fit"
#: Sources: signal(7); torch 2.15 distributed/elastic/multiprocessing; slurm.schedmd.com/job_exit_code.html.
SIGNALS: dict[str, Ending] = {
    "SIGKILL": Ending(
        "The kernel (the host or the job's control group is out of memory), the scheduler or a person ended the"
        " process. It could print nothing: look at `dmesg` of that host, and at what the scheduler says of the job.",
        ("DDJ106", "DD612", "DD225"),
    ),
    "SIGTERM": Ending(
        "Something asked the process to end: the scheduler (time limit, preemption, scancel), or torchrun, which ends"
        " the other ranks after one failed. That rank is to be looked for; the one that was asked is a victim.",
        ("DDJ188", "DDJ189", "DDJ190", "DD612"),
    ),
    "SIGSEGV": Ending(f"The process used {_CRASHED}.", ("DDJ193", "DD612", "DD207")),
    "SIGBUS": Ending(
        "The process used memory that could not be provided: mostly /dev/shm is full, or a mapped file was cut.",
        ("DDJ102", "DDJ101", "DD237", "DD221", "DDJ193"),
    ),
    "SIGABRT": Ending(
        "The process ended itself: torch's watchdog after a time-out, a failed assertion, or memory that was damaged."
        " The lines before it say which.",
        ("DDJ193", "DD612"),
    ),
    "SIGFPE": Ending("An integer was divided by zero in C++: often a setting out of its range.", ("DDJ193", "DD612")),
    "SIGILL": Ending("The program was built for another CPU, or is damaged.", ("DDJ193", "DD612")),
    "SIGINT": Ending("Ctrl-C, or the scheduler's way to cancel.", ("DDJ190",)),
    "SIGHUP": Ending("The terminal or the ssh session was closed: use sbatch or tmux.", ("DDJ180",)),
    "SIGQUIT": Ending("Ctrl-\\, or somebody who wanted a core dump.", ("DDJ190",)),
    "SIGPIPE": Ending("What read its output was gone: a `| head`, or a collector of logs that ended."),
    "SIGUSR1": Ending("The scheduler's warning before the time limit (--signal), where the script does not handle it."),
    "SIGUSR2": Ending("The scheduler's warning before the time limit (--signal), where the script does not handle it."),
    "SIGXCPU": Ending("The limit of processor time (ulimit -t) is used up."),
    "SIGXFSZ": Ending("A file became larger than ulimit -f allows."),
    "SIGSYS": Ending("A filter of system calls (seccomp, of a container) forbids one."),
    "SIGSTOP": Ending("The process is stopped and not ended: the ranks of its job wait for it.", ("DD611", "DDJ301")),
    "SIGTSTP": Ending("Ctrl-Z: the process is stopped and not ended.", ("DD611", "DDJ301")),
}
#: Exit codes of programs and shells that are not from signals.
EXIT_CODES: dict[int, Ending] = {
    0: Ending("The process ended by itself and reports no error."),
    1: Ending(
        "The process ended by itself: in Python an exception that nobody caught, or sys.exit(1). The traceback is above"
        " in its output: `ddp-doctor logs FILE` finds it.",
        ("DD617",),
    ),
    2: Ending("Mostly wrong arguments: argparse, click and shells end so.", ("DDJ192",)),
    124: Ending("`timeout` ended the command after its time."),
    126: Ending("The shell found the command and may not run it: no permission to execute, or a folder."),
    127: Ending("The shell did not find the command: PATH, a module that is not loaded, a container without it."),
    255: Ending("ssh could not connect, or a program returned -1."),
}
#: The names that shells and the C library print for signals.
_WORDS = {
    "killed": "SIGKILL",
    "terminated": "SIGTERM",
    "segmentation fault": "SIGSEGV",
    "segfault": "SIGSEGV",
    "core dumped": "SIGSEGV",
    "bus error": "SIGBUS",
    "aborted": "SIGABRT",
    "illegal instruction": "SIGILL",
    "floating point exception": "SIGFPE",
    "hangup": "SIGHUP",
}
_SIGNAL = re.compile(r"(?:signals?\.?\s*|\b)(SIG[A-Z]+\d?)\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?:failed\s*)?\(?(?P<what>(?:process\s+)?(?:exit(?:ed)?(?:\s+with)?[\s_]*(?:codes?|status|value)?|"
    r"return[\s_]*(?:code|status)|status|code|rc|signals?|sig|error)?)"
    r"[\s:=#]*(?P<number>-?\d{1,3})(?::(?P<signal>\d{1,2}))?\)?",
    re.IGNORECASE,
)


def endings(text: str) -> list[tuple[str, Ending]]:
    """Return the meanings of a text that is only an exit code or a signal, each with its name in words."""
    text = text.strip().strip("'\"`.").strip()
    named = _SIGNAL.fullmatch(text) or _SIGNAL.search(text)
    words = text.lower().removesuffix(" (core dumped)")
    name = named[1].upper() if named and len(text) < 40 else _WORDS.get(words, "")
    if name in signal.Signals.__members__:
        return [_of_signal(name)]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return []
    code, what = int(number["number"]), number["what"].lower()
    if number["signal"]:
        return [_of_signal(int(number["signal"]))] if number["signal"] != "0" else _of_exit(code)
    if code < 0 or what.startswith("sig"):
        return [_of_signal(abs(code))] if 0 < abs(code) <= signal.SIGRTMAX else []
    if not what and code not in (124, 126, 127) and code < 128:
        of_code = _of_exit(code) if code in EXIT_CODES else []
        return [*([_of_signal(code)] if 0 < code < 65 else []), *of_code]
    return _of_exit(code)


def _of_signal(which: int | str) -> tuple[str, Ending]:
    try:
        known = signal.Signals[which] if isinstance(which, str) else signal.Signals(which)
    except ValueError:
        return f"signal {which}", Ending("A real-time signal, to which programs give a meaning of their own.")
    forms = f"{known.name} (signal {known.value}; torchrun: exitcode: -{known.value}; a shell: {128 + known.value})"
    return forms, SIGNALS.get(known.name, Ending("The process was ended by this signal: man 7 signal."))


def _of_exit(code: int) -> list[tuple[str, Ending]]:
    if code in EXIT_CODES:
        return [(f"exit code {code}", EXIT_CODES[code])]
    if 128 < code < 193:
        name, ending = _of_signal(code - 128)
        return [(f"exit code {code} is 128 + {code - 128}: {name}", ending)]
    own = "The program's own: what it means is said where it is documented. Its output ends with the reason."
    return [(f"exit code {code}", Ending(own))] if code < 256 else []


def signal_name(number: int) -> str | None:
    """Return the name of a signal, such as SIGKILL for 9, or None if it has no name."""
    return signal.Signals(number).name if number in {*signal.Signals} else None
