"""The settings that a report hands over, as a file to ``source`` in bash, dash or zsh, with a comment on each.

A candidate that was not tried is a comment: sourced into a healthy job it could do harm.
"""

from collections.abc import Iterator

from ddp_doctor.remedies.settings_to_apply import SettingsToApply, Variable
from ddp_doctor.remedies.values_by_host import Branch, short_name
from ddp_doctor.render import shell

_EACH_ITS_OWN = (
    "The values below differ by host: source this file on each, in the task itself (srun, mpirun and ssh hand"
    " on the environment of the host that they are called on)."
)


def render(given: SettingsToApply) -> str:
    """``export`` and ``unset`` lines with finding, proof and undo."""
    lines = [shell.remark(f"Settings recommended by {given.source}")]
    if any(variable.per_host and not variable.not_applied for variable in given.variables):
        lines.append(shell.comment(_EACH_ITS_OWN))
    for variable in given.variables:
        lines += explained(variable)
    return "\n".join([*lines, *nothing_set(given)]) + "\n"


def explained(variable: Variable) -> Iterator[str]:
    """The comment on a variable and the command that sets it; commented out if it is not applied."""
    yield shell.remark(variable.because)
    if not variable.branches:
        yield shell.remark(f"{variable.name}: not applied")
    elif not variable.not_applied:
        yield statement(variable)
    elif variable.per_host:
        yield shell.remark(f"{variable.not_applied}:")
        yield shell.commented(statement(variable))
    else:
        yield shell.comment(statement(variable), variable.not_applied)


def statement(variable: Variable) -> str:
    """The command that sets or unsets it, by host if hosts differ."""
    if not variable.per_host:
        return "\n".join(shell.assignment(variable.name, branch.value) for branch in variable.branches)
    return shell.case(
        (patterns(branch, variable.namesakes), shell.assignment(variable.name, branch.value))
        for branch in variable.branches
    )


def nothing_set(given: SettingsToApply) -> Iterator[str]:
    """The last line where nothing is applied."""
    if not given.variables:
        yield shell.comment("nothing to set")
    elif all(variable.not_applied or not variable.branches for variable in given.variables):
        yield shell.comment("nothing is set; take the # off to try a candidate")


def patterns(branch: Branch, namesakes: frozenset[str]) -> list[str]:
    """What a host of the branch may call itself, for a shell's ``case``: with its domain or without it.

    ``namesakes`` are short names that several hosts share; there only the whole name counts.
    """
    if not branch.hosts:
        return ["*"]
    found = []
    for host in branch.hosts:
        short = short_name(host)
        pattern = short if short != host else f"{host}.*"
        found += [host] if short in namesakes else [host, pattern]
    return found
