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
        "The kernel (the host or the job's control group is out of memory), the scheduler or a user killed the process."
        " The process could not print a message: read `dmesg` of that host and the scheduler's record of the job.",
        ("DDJ106", "DD612", "DD225"),
    ),
    "SIGTERM": Ending(
        "The process was asked to exit by the scheduler (time limit, preemption, scancel), or by torchrun, which stops"
        " the other ranks after one failed. In that case, look for the failed rank.",
        ("DDJ188", "DDJ189", "DDJ190", "DD612"),
    ),
    "SIGSEGV": Ending(f"The process used {_CRASHED}.", ("DDJ193", "DD612", "DD207")),
    "SIGBUS": Ending(
        "The process used memory that is not available: usually /dev/shm is full, or a mapped file was truncated.",
        ("DDJ102", "DDJ101", "DD237", "DD221", "DDJ193"),
    ),
    "SIGABRT": Ending(
        "The process aborted: torch's watchdog after a timeout, a failed assertion, or damaged memory."
        " The lines before it show which.",
        ("DDJ193", "DD612"),
    ),
    "SIGFPE": Ending("An integer was divided by zero in C++: often a setting out of its range.", ("DDJ193", "DD612")),
    "SIGILL": Ending("The program was built for another CPU, or is damaged.", ("DDJ193", "DD612")),
    "SIGINT": Ending("Ctrl-C, or the scheduler's way to cancel.", ("DDJ190",)),
    "SIGHUP": Ending("The terminal or the ssh session was closed: use sbatch or tmux.", ("DDJ180",)),
    "SIGQUIT": Ending("Ctrl-\\, or a request for a core dump.", ("DDJ190",)),
    "SIGPIPE": Ending("The reader of its output has exited: a `| head`, or a log collector."),
    "SIGUSR1": Ending("The scheduler's warning before the time limit (--signal), which the script does not handle."),
    "SIGUSR2": Ending("The scheduler's warning before the time limit (--signal), which the script does not handle."),
    "SIGXCPU": Ending("The limit of processor time (ulimit -t) is used up."),
    "SIGXFSZ": Ending("A file became larger than ulimit -f allows."),
    "SIGSYS": Ending("The container's seccomp filter does not allow a system call."),
    "SIGSTOP": Ending("The process is stopped, not killed: the ranks of its job wait for it.", ("DD611", "DDJ301")),
    "SIGTSTP": Ending("Ctrl-Z: the process is stopped, not killed.", ("DD611", "DDJ301")),
}
#: Exit codes of programs and shells that are not from signals.
EXIT_CODES: dict[int, Ending] = {
    0: Ending("The process exited without an error."),
    1: Ending(
        "The process exited with an error: in Python an uncaught exception, or sys.exit(1). The traceback is above in"
        " its output: `ddp-doctor logs FILE` finds it.",
        ("DD617",),
    ),
    2: Ending("Usually wrong arguments: argparse, click and shells exit with it.", ("DDJ192",)),
    124: Ending("`timeout` ended the command after its time."),
    126: Ending("The shell found the command but cannot run it: it is not executable, or it is a directory."),
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
        return f"signal {which}", Ending("A real-time signal. Its meaning depends on the program.")
    forms = f"{known.name} (signal {known.value}; torchrun: exitcode: -{known.value}; a shell: {128 + known.value})"
    return forms, SIGNALS.get(known.name, Ending("The process was ended by this signal: man 7 signal."))


def _of_exit(code: int) -> list[tuple[str, Ending]]:
    if code in EXIT_CODES:
        return [(f"exit code {code}", EXIT_CODES[code])]
    if 128 < code < 193:
        name, ending = _of_signal(code - 128)
        return [(f"exit code {code} is 128 + {code - 128}: {name}", ending)]
    own = "The program defines this code: see its documentation. Its output ends with the reason."
    return [(f"exit code {code}", Ending(own))] if code < 256 else []


def signal_name(number: int) -> str | None:
    """Return the name of a signal, such as SIGKILL for 9, or None if it has no name."""
    return signal.Signals(number).name if number in {*signal.Signals} else None
