"""Where this node's kernel log can be read, tried from the surest on."""

from dataclasses import dataclass

from ddp_doctor.model.context import CommandResult, Context

#: Each source is given this long, and the last lines of it are enough.
LIMIT_S = 4.0
JOURNAL_LINES = 20000
FILE_BYTES = 4_000_000

#: dmesg is refused to users where kernel.dmesg_restrict is 1; then the journal and the files of syslog,
#: which members of groups like adm and systemd-journal may read.
_COMMANDS = (
    ("dmesg",),
    ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", str(JOURNAL_LINES)),
    ("tail", "-c", str(FILE_BYTES), "/var/log/kern.log"),
    ("tail", "-c", str(FILE_BYTES), "/var/log/messages"),
)


@dataclass(frozen=True)
class LogText:
    """The text and where it comes from, or why there is none."""

    text: str = ""
    source: str | None = None
    problem: str | None = None


def read_log(ctx: Context) -> LogText:
    """The kernel log of this boot, from the first source that gives one."""
    reasons = []
    for command in _COMMANDS:
        name = command[-1] if command[0] == "tail" else command[0]
        result = ctx.run(command, LIMIT_S)
        if result.ok and _is_log(result.stdout, is_file=command[0] == "tail"):
            return LogText(result.stdout, name)
        reasons.append(f"{name}: {_reason(result)}")
    return LogText(problem="; ".join(reasons)[:400])


def _is_log(text: str, *, is_file: bool) -> bool:
    """Whether there is a line of a log, and not just words about having none."""
    lines = text.splitlines()
    return bool(lines) and (is_file or any(line[:1] in "[<0123456789" for line in lines[:20] if line))


def _reason(result: CommandResult) -> str:
    if result.status != "ended":
        return "not installed" if result.status == "missing" else f"no answer within {LIMIT_S:g} s"
    errors = result.stderr.strip().splitlines()
    return errors[0].removeprefix("dmesg: ")[:120] if errors else "nothing to read"
