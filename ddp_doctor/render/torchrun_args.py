"""The settings that a report hands over, as what takes the place of the word ``torchrun`` in a command.

    env -u NCCL_SOCKT_IFNAME NCCL_SOCKET_IFNAME=eth1 torchrun

torchrun hands its own environment to the ranks, but for what it gives them itself: MASTER_ADDR and MASTER_PORT
become its options.
"""

from ddp_doctor.render import shell
from ddp_doctor.render.handover import HandOver
from ddp_doctor.render.notes import notes, nothing_set

#: Variables that torchrun overwrites for its ranks, and the option that says the same to itself.
_OPTIONS = {"MASTER_ADDR": "--master-addr", "MASTER_PORT": "--master-port"}


def render(given: HandOver) -> str:
    """Comments, then one line of shell words; the bare word where there is nothing to set."""
    lines = [shell.remark(f"In place of the word torchrun, recommended by {given.source}")]
    unset, settings, options = [], [], []
    for variable in given.variables:
        lines += notes(variable, _word)
        branch = variable.everywhere
        if branch is None or variable.not_applied:
            continue
        word = _word(variable.name, branch.value)
        if branch.value is None:
            unset.append(word)
        elif variable.name in _OPTIONS:
            options.append(word)
        else:
            settings.append(word)
    if options:
        lines.append(shell.comment("where the command has --rdzv-endpoint, name the host there instead"))
    if not (unset or settings or options):
        lines.append(nothing_set(given))
    prefix = ["env", *unset, *settings] if unset or settings else []
    return "\n".join([*lines, " ".join([*prefix, "torchrun", *options])]) + "\n"


def _word(name: str, value: str | None) -> str:
    if value is None:
        return f"-u {name}"
    if name in _OPTIONS:
        return f"{_OPTIONS[name]}={shell.quoted(value)}"
    return f"{name}={shell.quoted(value)}"
